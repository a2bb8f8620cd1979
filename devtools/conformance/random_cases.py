"""Random cases: Services whose addresses, ports and policies meet, objects that change, and packets at all of them.

The service table is the judge, so these try the backends: that the table itself decides as kube-proxy does is what the
corpus and the random tests beside the table are for. A seed always gives the same case.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.config import ProxyConfig
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.frontend import FrontendKey
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.simulate import Outcome, Packet, simulate
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.table import ServiceTable
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.address import format_address, parse_address
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.parse import Delete
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.protocol import NAMES, NUMBERS
from ansible_collections.kproxy.dataplane.tests.unit.plugins.module_utils._frontends import random_objects as objects
from devtools.conformance.corpus import Case, SocketAddress, parse_case
from devtools.conformance.manifests import ApiState, changes, settings

SERVICES, STEPS, PROBES = 5, 3, 14
#: How many of the Services want addresses and NodePorts that others have.
CROWDED = 0.3
NAMESPACE = "shop"
_ICMP = {"IPv4": 1, "IPv6": 58}
_FAMILY = {4: "IPv4", 6: "IPv6"}
#: Pods that may be endpoints and one that is none, pods of another node, outsiders in and out of ranges, the node.
_CLIENTS = {
    "IPv4": (
        *((objects.pod("IPv4", 1, number), "pod-local") for number in (2, 3, 9)),
        *((objects.pod("IPv4", 2, number), "pod-remote") for number in (2, 9)),
        *((ip, "external") for ip in ("203.0.113.7", "203.0.113.200")),
        *((ip, "node") for ip in objects.NODE_ADDRESSES["IPv4"]),
    ),
    "IPv6": (
        *((objects.pod("IPv6", 1, number), "pod-local") for number in (2, 9)),
        (objects.pod("IPv6", 2, 3), "pod-remote"),
        ("2001:db8:9::7", "external"),
        *((ip, "node") for ip in objects.NODE_ADDRESSES["IPv6"]),
    ),
}


def random_case(seed: int) -> dict[str, Any]:
    """Return a case in the corpus' format, expectations included."""
    choose = random.Random(seed)
    raw = _story(seed, choose)
    case = parse_case(raw)
    api, table = ApiState(case), ServiceTable(ProxyConfig.from_mapping(settings(case)))
    table.apply(changes(api.objects.values()))
    for scope, written in zip(case.scopes, [raw, *raw["after"]], strict=True):
        changed, deleted = api.apply(scope)
        table.apply(changes(changed) + [Delete(*key) for key in deleted])
        written["probes"] = list(_probes(case, table, choose, seed))
    return raw


def _story(seed: int, choose: random.Random) -> dict[str, Any]:
    """Return a case without probes: a node, its settings, objects, and batches of changes."""
    story = objects.RandomChanges(seed, SERVICES)
    first = objects.RandomCluster(seed, SERVICES).manifests()
    story.objects = {(manifest["kind"], manifest["metadata"]["name"]): manifest for manifest in first}
    primary = list(objects.PRIMARY.values())
    return {
        "name": f"random/{seed}",
        "why": "What the service table says becomes of the packets",
        "node": {
            "name": objects.NODE,
            "zone": choose.choice([None, "a", "b"]),
            "labels": {},
            "ips": {
                "primary": primary,
                "extra": [ip for ips in objects.NODE_ADDRESSES.values() for ip in ips if ip not in primary],
            },
            "pod_cidr": [ranges[1] for ranges in objects.POD_RANGES.values()],
        },
        "config": {
            "detectLocalMode": choose.choice(["ClusterCIDR", "NodeCIDR"]),
            "clusterCIDR": [ranges[0] for ranges in objects.POD_RANGES.values()],
            "nodePortAddresses": choose.choice(
                [["primary"], ["192.0.2.0/24", "2001:db8::/64"], ["0.0.0.0/0", "::/0"], ["192.0.2.111/32"]]
            ),
            "masqueradeAll": choose.random() < 0.2,
        },
        "objects": [_changed(manifest, choose) for manifest in story.objects.values()],
        "after": [_step(number, *story.batch(), choose) for number in range(STEPS)],
    }


def _step(
    number: int, changed: list[dict[str, Any]], gone: list[tuple[str, str]], choose: random.Random
) -> dict[str, Any]:
    deleted = [
        {"kind": kind, "namespace": "" if kind == "ServiceCIDR" else NAMESPACE, "name": name} for kind, name in gone
    ]
    return {
        "step": f"batch {number}",
        "modify": [_changed(manifest, choose) for manifest in changed],
        "delete": deleted,
    }


def _changed(manifest: dict[str, Any], choose: random.Random) -> dict[str, Any]:
    """Return a Service without affinity, so that one client sees all endpoints, and some at others' addresses."""
    if manifest["kind"] != "Service":
        return manifest
    spec = {key: value for key, value in manifest["spec"].items() if not key.startswith("sessionAffinity")}
    made: dict[str, Any] = {**manifest, "spec": spec}
    if choose.random() < CROWDED:
        places = [objects.address("external", family, choose.choice([1, 2])) for family in objects.FAMILIES]
        made["metadata"] = {**manifest["metadata"], "creationTimestamp": f"2026-01-{choose.randint(1, 9):02}T00:00:00Z"}
        if "status" in manifest:
            made["status"] = {"loadBalancer": {"ingress": [{"ip": ip} for ip in places]}}
        if "externalIPs" in spec:
            spec["externalIPs"] = [*places, objects.address("cluster", "IPv4", choose.randint(1, SERVICES))]
        spec["ports"] = [
            {**port, "nodePort": choose.choice([30000, 30001])} if "nodePort" in port else port
            for port in spec["ports"]
        ]
    return made


def _probes(case: Case, table: ServiceTable, choose: random.Random, seed: int) -> Iterator[dict[str, Any]]:
    """Yield packets at frontends and beside them, each with what the table makes of it."""
    own = {parse_address(ip) for ip in (*case.node.addresses, "127.0.0.1", "::1")}
    places = sorted(set(_places(table, choose, seed)))
    for family, ip, protocol, port in choose.sample(places, min(PROBES, len(places))):
        client, kind = choose.choice(_CLIENTS[family])
        interface = "" if kind == "node" else "eth0"
        number = NUMBERS.get(protocol, _ICMP[family])
        outcome = simulate(table, Packet(parse_address(client), parse_address(ip), number, port, interface), own)
        if outcome.verdict == "pass" and kind == "node" and ip in case.node.addresses:
            continue  # from itself to itself: no packet that anybody could see
        if any(
            FrontendKey(4 if len(one.ip) == 4 else 6, one.ip, number, one.port) in table.frontends
            for one in outcome.endpoints
        ):
            continue  # nftables looks at a translated packet's new destination, too, as kube-proxy does
        to = {"ip": ip, "protocol": protocol} | ({"port": port} if port else {})
        yield {"from": {"ip": client, "kind": kind}, "to": to, "expect": _expectation(outcome, case)}


def _places(table: ServiceTable, choose: random.Random, seed: int) -> Iterator[tuple[str, str, str, int]]:
    for key in table.frontends:
        family = _FAMILY[key.family]
        for ip in [format_address(key.ip)] if key.ip else objects.NODE_ADDRESSES[family]:
            yield family, ip, NAMES[key.protocol], key.port
    for family in objects.FAMILIES:
        beside = list(objects.RandomCluster(seed, SERVICES).destinations(choose, family))
        for ip, protocol, port in choose.sample(beside, 6):
            yield family, ip, protocol, port
            if ip not in objects.NODE_ADDRESSES[family]:
                yield family, ip, "ICMP", 0


def _expectation(outcome: Outcome, case: Case) -> Mapping[str, Any]:
    if outcome.verdict != "dnat":
        return {"verdict": outcome.verdict}
    masquerade = {
        str(SocketAddress(format_address(one.ip), one.port)): one in outcome.masqueraded for one in outcome.endpoints
    }
    expected: dict[str, Any] = {"verdict": "dnat", "endpoints": sorted(masquerade)}
    # What is delivered to the node itself passes no masquerading, whatever the table asks for.
    if not any(format_address(one.ip) in case.node.addresses for one in outcome.endpoints):
        expected["masquerade"] = masquerade
    return expected
