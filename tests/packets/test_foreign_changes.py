"""What others do to our tables is undone at the next look, whatever it is; what is right already is not written."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.backend import CommitError
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.engine import Engine
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.nftables_backend import NftablesBackend
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.config import ProxyConfig
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.parse import Upsert, parse
from devtools.conformance.netns import NetworkNamespace

OTHER_TABLE = "delete table ip kproxy\nadd table ip kproxy\n"
RANGES = ["10.0.0.0/8", "192.0.2.1/32", "255.255.255.255/32"]


@pytest.fixture(autouse=True)
def namespace() -> Iterator[NetworkNamespace]:
    """A namespace of the test's own."""
    made = NetworkNamespace()
    with made.entered():
        yield made
    made.close()


def nft(text: str) -> None:
    subprocess.run(["nft", "-f", "-"], input=text, text=True, check=True)


def listing() -> list[str]:
    """Return our IPv4 table as JSON lines without handles and without the record of its making."""
    done = subprocess.run(["nft", "-j", "list", "table", "ip", "kproxy"], capture_output=True, text=True, check=True)
    found = []
    for item in json.loads(done.stdout)["nftables"]:
        for body in item.values():
            body.pop("handle", None)
            if body.get("name") == "about":
                body.pop("elem")
            if isinstance(body.get("elem"), list):
                body["elem"].sort(key=repr)
        found.append(json.dumps(item, sort_keys=True))
    return sorted(found)


def service(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": "shop", "name": "web"},
        "spec": {
            "clusterIP": "10.96.0.5",
            "type": "LoadBalancer",
            "sessionAffinity": "ClientIP",
            "loadBalancerSourceRanges": RANGES,
            "ports": [{"name": "http", "port": 80, "nodePort": 30080}],
            **spec,
        },
        "status": {"loadBalancer": {"ingress": [{"ip": "198.51.100.7"}]}},
    }


def endpointslice(addresses: list[str]) -> dict[str, Any]:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"namespace": "shop", "name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080}],
        "endpoints": [{"addresses": [address], "nodeName": "n1"} for address in addresses],
    }


def engine(*manifests: dict[str, Any]) -> Engine:
    """Return a new engine that was told the objects."""
    config = ProxyConfig.from_mapping({"nodeName": "n1", "clusterCIDR": "10.244.0.0/16"})
    made = Engine(config, NftablesBackend(config.families))
    for manifest in manifests:
        obj = parse(manifest)
        assert obj is not None
        made.apply([Upsert(obj)])
    return made


FOREIGN = {
    "chain on a hook": "add chain ip kproxy zz { type filter hook input priority 0; policy drop; }",
    "rule": "insert rule ip kproxy nat-prerouting return",
    "set in use": "add set ip kproxy zz { type ipv4_addr; }\nadd rule ip kproxy dispatch ip saddr @zz drop",
    "map that leads to a chain": "add chain ip kproxy q\nadd map ip kproxy m { type ipv4_addr : verdict; }\n"
    "add element ip kproxy m { 192.0.2.9 : goto q }\nadd rule ip kproxy nat-prerouting ip saddr vmap @m",
    "element that leads to a chain": "add chain ip kproxy q\n"
    "add element ip kproxy services { 192.0.2.9 . tcp . 5 : goto q }",
    "element gone": "delete element ip kproxy cluster-ips { 10.96.0.5 }",
    "map emptied": "flush map ip kproxy endpoints-tcp",
    "chain emptied": "flush chain ip kproxy dispatch",
    "table emptied": "flush table ip kproxy",
    "table asleep": "add table ip kproxy { flags dormant; }",
    "one family gone": "delete table ip kproxy",
    "everything gone": "flush ruleset",
    "policy": "add chain ip kproxy filter-input { type filter hook input priority 0; policy drop; }",
    "chain of another hook": "delete chain ip kproxy nat-prerouting\n"
    "add chain ip kproxy nat-prerouting { type filter hook prerouting priority 5; }",
    "chain without a hook": "delete chain ip kproxy nat-prerouting\nadd chain ip kproxy nat-prerouting",
    "chain renamed": "rename chain ip kproxy dispatch dispatch2",
    "set of another type": "flush chain ip kproxy undefined-addresses\ndelete set ip kproxy cluster-ips\n"
    "add set ip kproxy cluster-ips { type ipv6_addr; }",
    "table of other content": OTHER_TABLE + "add chain ip kproxy services { type filter hook input priority 0; }",
    "table that claims to be ours": OTHER_TABLE + "add set ip kproxy about { type ipv4_addr; }\n"
    'add element ip kproxy about { 192.0.2.9 comment "layout 1, x" }\n'
    "add map ip kproxy services { type ipv4_addr : verdict; }\nadd element ip kproxy services { 192.0.2.9 : accept }",
}


@pytest.mark.parametrize("text", FOREIGN.values(), ids=FOREIGN.keys())
def test_what_others_did_to_our_table_is_undone(text: str) -> None:
    ours = engine(service(), endpointslice(["10.244.1.5", "10.244.1.6"]))
    ours.sync()
    right = listing()
    nft(text + "\n")
    assert ours.audit().wrote
    assert listing() == right
    assert not ours.audit().wrote


@pytest.mark.parametrize(
    "text",
    [
        "flush map ip kproxy services",
        "add element ip kproxy services { 10.96.0.6 . tcp . 80 : drop }",
        "delete table ip kproxy",
        "add rule ip kproxy dispatch drop",
        "add element ip kproxy service-cidrs { 192.0.2.0/24 }",
        "flush map ip kproxy services\nflush map ip kproxy endpoints-tcp",
    ],
)
def test_a_change_that_comes_before_the_repair_costs_nobody_anything(text: str) -> None:
    plain, crowd = service(sessionAffinity="None"), endpointslice(["10.244.1.5", "10.244.1.6", "10.244.1.7"])
    other = service(clusterIP="10.96.0.6", ports=[{"name": "http", "port": 80, "nodePort": 30081}])
    other["metadata"]["name"] = "other"
    engine(plain, crowd, other).sync()
    right = listing()
    nft("delete table ip kproxy\ndelete table ip6 kproxy\n")
    ours = engine(plain, endpointslice(["10.244.1.5"]))
    ours.sync()
    nft(text + "\n")
    for manifest in (crowd, other):
        obj = parse(manifest)
        assert obj is not None
        ours.apply([Upsert(obj)])
    with contextlib.suppress(CommitError):
        ours.sync()
    ours.audit()
    assert not ours.left_out
    assert set(right) <= set(listing())
    assert [line for line in listing() if '"dispatch"' in line] == [line for line in right if '"dispatch"' in line]
    assert not ours.audit().wrote


def test_a_restart_rewrites_no_source_range_of_one_address() -> None:
    manifests = service(), endpointslice(["10.244.1.5"])
    engine(*manifests).sync()
    assert not engine(*manifests).sync().wrote


def test_more_endpoints_than_slots_cost_no_other_service() -> None:
    crowd = [f"10.{200 + number // 62500}.{number // 250 % 250}.{number % 250 + 1}" for number in range(33000)]
    ours = engine(service(externalTrafficPolicy="Local", sessionAffinity="None"), endpointslice(crowd))
    ours.sync()
    assert not ours.audit().wrote
    few = parse(endpointslice(crowd[:1]))
    assert few is not None
    ours.apply([Upsert(few)])
    assert not ours.sync().left_out
    assert not ours.audit().wrote
