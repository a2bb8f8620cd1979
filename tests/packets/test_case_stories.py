"""Reported faults whose point is a story, not a set of flows; each test is named after its folder in tests/cases."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import yaml

from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.config import ProxyConfig
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.table import ServiceTable
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.conntrack import Conntrack
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.conntrack_protocol import Flow
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.mirror import ABSENT
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.planner import Planner
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.address import parse_address
from devtools.conformance.corpus import Case, Client, Destination
from devtools.conformance.kproxyd import Kproxyd
from devtools.conformance.manifests import changes
from devtools.conformance.observation import ANSWERED
from devtools.conformance.packet_system import PacketSystem
from devtools.conformance.traffic import Shot
from tests.packets.reported_cases import case, expectations, folder, manifests, probe, step

WAIT_SECONDS = 60.0


@contextmanager
def serving(one: Case, doubles: dict[str, list[str]] | None = None) -> Iterator[tuple[PacketSystem, Kproxyd]]:
    """A world with kproxyd in step with the case's first objects."""
    product = Kproxyd("nft")
    system = PacketSystem(one, doubles or {}, product)
    try:
        system.start(one.start)
        yield system, product
    finally:
        system.close()


def answers(system: PacketSystem, client: Client, to: str, connections: int = 1, number: int = 0) -> set[str]:
    """Where connections end up; what is no answer is told by its outcome."""
    ip, _, rest = to.rpartition(":")
    port, _, protocol = rest.partition("/")
    destination = Destination(ip.strip("[]"), protocol.upper(), int(port))
    seen = system.shoot([Shot(client, number, destination)] * connections)
    return {str(one.server) if one.outcome == ANSWERED else one.outcome for one in seen}


def until(system: PacketSystem, client: Client, to: str, wanted: set[str]) -> set[str]:
    deadline = time.monotonic() + WAIT_SECONDS
    while (found := answers(system, client, to)) != wanted and time.monotonic() < deadline:
        pass
    return found


POD = Client("10.244.1.9", "pod-local")
OUTSIDER = Client("203.0.113.7", "external")


# -- 01-udp-conntrack-cleanup ------------------------------------------------------------------------------------------


def _tracked(line: str) -> Flow:
    """The flow of one line of conntrack -L."""
    numbers = {"udp": 17, "tcp": 6, "sctp": 132}
    values = [re.findall(rf"\b{key}=(\S+)", line) for key in ("src", "dst", "sport", "dport")]
    sources, destinations, source_ports, ports = values
    return Flow(
        4,
        numbers[line.split()[0]],
        parse_address(sources[0]),
        parse_address(destinations[0]),
        int(source_ports[0]),
        int(ports[0]),
        parse_address(sources[1]),
        int(source_ports[1]),
        replied="[UNREPLIED]" not in line,
    )


def test_01_udp_conntrack_cleanup() -> None:
    lines = (folder("01") / "conntrack.txt").read_text().splitlines()
    expect = expectations("01")
    before, after = (manifests(folder("01") / f"objects-{when}.yaml") for when in ("before", "after"))
    one = case("01", "n1", before, after=[step("endpoints go", before, after)])
    with serving(one) as (system, _):
        inserted = {}
        with system.node.entered(), Conntrack() as conntrack:
            for number, line in enumerate(lines, 1):
                flow = _tracked(line)
                # The kernel makes SCTP entries from packets only; that they are never deleted is shown by the corpus.
                if flow.protocol == 132:
                    continue
                conntrack.insert(flow)
                inserted[number] = flow
        for _ in range(2):
            system.apply(one.steps[0])
            time.sleep(0.3)
            with system.node.entered(), Conntrack() as conntrack:
                found = [*conntrack.flows(4, None, 17), *conntrack.flows(4, None, 6)]
            left = {(flow.source, flow.source_port) for flow in found}
            gone = [number for number, flow in inserted.items() if (flow.source, flow.source_port) not in left]
            assert gone == expect["delete_lines"]


# -- 02, 03, 10: what people are told ----------------------------------------------------------------------------------


def test_02_comments_fit() -> None:
    one = case("02", "n1", manifests(folder("02") / "objects.yaml"), expectations("02")["flows"])
    with serving(one) as (system, _):
        listing = system.node.run(["nft", "list", "table", "ip", "kproxy"])
        comments = re.findall(r'comment "([^"]*)"', listing)
        assert comments
        assert max(len(comment.encode()) for comment in comments) <= expectations("02")["comments_max_bytes"]
        # A dump that cannot be loaded again is no use in a support case.
        system.node.run(["nft", "-c", "-f", "-"], stdin=listing)


def test_03_addresses_of_another_family_are_reported_once_per_object() -> None:
    table = ServiceTable(ProxyConfig.from_mapping({"nodeName": "n1"}))
    table.apply(changes(manifests(folder("03") / "objects.yaml")))
    reported = [f"{service.namespace}/{service.name}" for service in table.store.services.values() if service.notes]
    assert set(reported) >= set(expectations("03")["reported_once_per_object"])
    assert "default/plain" not in reported


def test_10_the_losing_duplicate_is_reported() -> None:
    table = ServiceTable(ProxyConfig.from_mapping({"nodeName": "n1"}))
    table.apply(changes(manifests(folder("10") / "objects-1.yaml")))
    assert ["/".join(conflict.loser) for conflict in table.conflicts] == expectations("10")["reported"]


# -- 07-affinity-leaves-dead-endpoint ----------------------------------------------------------------------------------


def test_07_affinity_leaves_dead_endpoint() -> None:
    sets = [manifests(folder("07") / f"objects-{number}.yaml") for number in (1, 2, 3)]
    flows = [{"node": "n1", "from": "external 203.0.113.50", "to": "192.0.2.11:31100/tcp",
              "backends": ["10.244.1.60:8080", "10.244.2.60:8080"]}]  # fmt: skip
    steps = [step(f"objects-{number}", sets[number - 2], sets[number - 1]) for number in (2, 3)]
    one = case("07", "n1", sets[0], flows, after=steps)
    clients = [f"203.0.113.{number}" for number in range(50, 80)]
    to = "192.0.2.11:31100/tcp"
    with serving(one, {clients[0]: clients[1:]}) as (system, product):
        pinned = next(
            client
            for client in (Client(ip, "external") for ip in clients)
            if answers(system, client, to) == {"10.244.1.60:8080"}
        )
        assert answers(system, pinned, to, connections=20) == {"10.244.1.60:8080"}
        system.apply(one.steps[0])
        assert answers(system, pinned, to, connections=20) == {"10.244.2.60:8080"}
        system.apply(one.steps[1])
        assert answers(system, pinned, to, connections=20) == {"10.244.2.60:8080"}
        product.kill(signal.SIGKILL)
        product.run()
        assert answers(system, pinned, to, connections=20) == {"10.244.2.60:8080"}


# -- 11-nodeport-on-late-vip -------------------------------------------------------------------------------------------

# The report speaks of kube-proxy's iptables mode, where an unset list means every address; ours is then `primary`, as
# in nftables mode, and `all` says what the report means.
LATE_VIPS = [("all", "nodePortAddresses unset"), ("192.0.2.0/24", None), ("primary", None)]


@pytest.mark.parametrize(("setting", "key"), LATE_VIPS)
def test_11_nodeport_on_late_vip(setting: str, key: str | None) -> None:
    expect = expectations("11")
    moments = yaml.safe_load((folder("11") / "addresses.yaml").read_text())
    vips = {"192.0.2.200", "198.51.100.140"}
    flows: list[dict[str, Any]] = [
        {"node": "n1", "from": "external 203.0.113.7", "to": f"{ip}:31140/tcp", "verdict": "untouched"}
        for ip in sorted({"192.0.2.11", *vips})
    ]
    objects = manifests(folder("11") / "objects.yaml")
    one = case("11", "n1", objects, flows, config={"nodePortAddresses": [setting]})
    (backend,) = expect["backends"]
    with serving(one) as (system, _):
        present: set[str] = set()
        for moment, wanted in expect[key or f"nodePortAddresses [{setting}]"].items():
            now = {text.split("/")[0] for addresses in moments[moment].values() for text in addresses} & vips
            lines = [f"addr add {ip}/32 dev lo" for ip in sorted(now - present)]
            system.node.ip(lines + [f"addr del {ip}/32 dev lo" for ip in sorted(present - now)])
            present = now
            # YAML reads the keys yes and no as true and false.
            for ip in wanted[True]:
                assert until(system, OUTSIDER, f"{ip}:31140/tcp", {backend}) == {backend}, (moment, ip)
            for ip in set(wanted[False]) & {"192.0.2.11", *vips}:
                assert backend not in answers(system, OUTSIDER, f"{ip}:31140/tcp"), (moment, ip)


# -- 13, 14: other people's tables -------------------------------------------------------------------------------------


def test_13_foreign_tables_are_left_alone() -> None:
    one = case("13", "n1", manifests(folder("13") / "objects.yaml"), expectations("13")["flows"])
    product = Kproxyd("nft")
    system = PacketSystem(one, {}, product)
    try:
        system.node.run(["nft", "-f", "-"], stdin=(folder("13") / "foreign.nft").read_text())
        tables = expectations("13")["foreign_tables_unchanged"]
        before = [system.node.run(["nft", "list", "table", *table.split()]) for table in tables]
        system.start(one.start)
        assert answers(system, POD, "10.96.160.1:80/tcp") == {"10.244.1.110:8080"}
        assert [system.node.run(["nft", "list", "table", *table.split()]) for table in tables] == before
    finally:
        system.close()


def test_14_host_flush_ruleset() -> None:
    flows = [{"node": "n1", "from": "pod 10.244.1.9", "to": "10.96.0.1:443/tcp", "backends": ["192.0.2.11:6443"]}]
    one = case("14", "n1", manifests(folder("14") / "objects.yaml"), flows)
    reaches = {"192.0.2.11:6443"}
    with serving(one) as (system, product):
        assert answers(system, POD, "10.96.0.1:443/tcp") == reaches
        system.node.run(["nft", "-f", "-"], stdin=(folder("14") / "host-firewall.nft").read_text())
        theirs = system.node.run(["nft", "list", "table", "inet", "host_fw"])
        assert until(system, POD, "10.96.0.1:443/tcp", reaches) == reaches
        assert system.node.run(["nft", "list", "table", "inet", "host_fw"]) == theirs
        assert product.ask("status")["foreignRepairs"] >= 1
        # One element, by hand.
        system.node.run(["nft", "delete", "element", "ip", "kproxy", "services", "{ 10.96.0.1 . tcp . 443 }"])
        assert until(system, POD, "10.96.0.1:443/tcp", reaches) == reaches


# -- 29-scale-44k-services ---------------------------------------------------------------------------------------------


def _many_services(count: int) -> list[dict[str, Any]]:
    objects: list[dict[str, Any]] = []
    for number in range(count):
        namespace, name = f"ns-{number % 200}", f"s-{number}"
        cluster_ip = f"10.{96 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"
        endpoint = f"10.{128 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"
        objects += [
            {
                "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": namespace, "name": name},
                "spec": {"type": "ClusterIP", "clusterIP": cluster_ip, "ports": [{"port": 80, "protocol": "TCP"}]},
            },
            {
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": {"namespace": namespace, "name": name, "labels": {"kubernetes.io/service-name": name}},
                "addressType": "IPv4", "ports": [{"port": 8080, "protocol": "TCP", "name": ""}],
                "endpoints": [{"addresses": [endpoint]}],
            },
        ]  # fmt: skip
    return objects


def _structure_lines(count: int) -> list[str]:
    """The nft text that makes the tables of so many Services: chains, sets, maps and rules, without elements."""
    table = ServiceTable(ProxyConfig.from_mapping({"nodeName": "n1"}))
    delta = table.apply(changes(_many_services(count)))
    assert len(delta.before) == count
    planner = Planner((4, 6))
    plan = planner.plan_all(table, {4: ABSENT, 6: ABSENT})
    assert plan.transaction.size >= 2 * count
    return plan.transaction.structure.splitlines()


def test_29_structure_does_not_grow_with_services() -> None:
    services = yaml.safe_load((folder("29") / "scale.yaml").read_text())["profiles"]["many-services"]["services"]
    few, many = _structure_lines(10), _structure_lines(services // 8)
    assert len(many) == len(few)


def test_probe_table_covers_every_flow() -> None:
    """No flow of a case is left out: the converter knows every word of every expectation."""
    for number in ("02", "03", "04", "05", "06", "08", "09", "12", "13"):
        for flow in expectations(number)["flows"]:
            assert probe(flow, ["192.0.2.11", "2001:db8:1::11"])["expect"]["verdict"]
