"""The conformance runner must be able to fail: right and wrong rulesets, written by hand, under real packets."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import yaml

from devtools.conformance import population, timescale
from devtools.conformance.corpus import Case, ObjectKey, parse_case
from devtools.conformance.facts import HttpResponse
from devtools.conformance.judge import Circumstances
from devtools.conformance.netns import NetworkNamespace
from devtools.conformance.packet_system import PacketSystem
from devtools.conformance.play import Story, play
from devtools.conformance.product import Manifests

CASE = parse_case(
    yaml.safe_load("""
name: runner/all-verdicts
node: {name: n1, zone: null, ips: {primary: [192.0.2.11], extra: []}, pod_cidr: [10.244.1.0/24]}
config: {clusterCIDR: [10.244.0.0/16]}
objects:
  - apiVersion: v1
    kind: Service
    metadata: {name: web, namespace: shop}
    spec: {type: ClusterIP, clusterIP: 10.96.0.5, ports: [{name: http, protocol: TCP, port: 80}]}
  - apiVersion: discovery.k8s.io/v1
    kind: EndpointSlice
    metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
    addressType: IPv4
    ports: [{name: http, protocol: TCP, port: 8080}]
    endpoints: [{addresses: [10.244.1.7]}, {addresses: [10.244.2.7]}, {addresses: [10.244.2.8]}]
probes:
  - from: {ip: 10.244.1.9, kind: pod-local}
    to: {ip: 10.96.0.5, port: 80, protocol: TCP}
    expect: {verdict: dnat, endpoints: ['10.244.1.7:8080', '10.244.2.7:8080'], masquerade: false}
  - from: {ip: 192.0.2.11, kind: node}
    to: {ip: 10.96.0.5, port: 80, protocol: TCP}
    expect: {verdict: dnat, endpoints: ['10.244.1.7:8080', '10.244.2.7:8080'], masquerade: true}
  - from: {ip: 10.244.1.7, kind: pod-local}
    to: {ip: 10.96.0.5, port: 80, protocol: TCP}
    expect: {verdict: dnat, endpoints: ['10.244.1.7:8080', '10.244.2.7:8080'],
             masquerade: {'10.244.1.7:8080': true, '10.244.2.7:8080': false}}
  - {from: {ip: 10.244.1.9, kind: pod-local}, to: {ip: 10.96.0.6, port: 80, protocol: TCP}, expect: {verdict: reject}}
  - {from: {ip: 192.0.2.11, kind: node}, to: {ip: 10.96.0.6, port: 80, protocol: UDP}, expect: {verdict: reject}}
  - {from: {ip: 10.244.1.9, kind: pod-local}, to: {ip: 10.96.0.6, port: 80, protocol: SCTP}, expect: {verdict: reject}}
  - {from: {ip: 10.244.1.9, kind: pod-local}, to: {ip: 10.96.0.7, port: 80, protocol: TCP}, expect: {verdict: drop}}
  - {from: {ip: 192.0.2.11, kind: node}, to: {ip: 10.96.0.7, port: 80, protocol: UDP}, expect: {verdict: drop}}
  - {from: {ip: 203.0.113.9, kind: external}, to: {ip: 192.0.2.11, port: 30080, protocol: TCP}, expect: {verdict: pass}}
  - {from: {ip: 10.244.1.9, kind: pod-local}, to: {ip: 198.51.100.1, port: 53, protocol: SCTP}, expect: {verdict: pass}}
  - {from: {ip: 10.244.1.9, kind: pod-local}, to: {ip: 198.51.100.1, protocol: ICMP}, expect: {verdict: pass}}
""")
)

RULESET = """
table ip kp-runner-test {
  chain services {
    ip daddr 10.96.0.5 tcp dport 80 dnat ip to numgen random mod 2 map { 0 : 10.244.1.7 . 8080, 1 : 10.244.2.7 . 8080 }
  }
  chain guard {
    ct state new ip daddr 10.96.0.6 reject with icmp type port-unreachable
    ct state new ip daddr 10.96.0.7 drop
  }
  chain nat-prerouting { type nat hook prerouting priority dstnat; jump services; }
  chain nat-output { type nat hook output priority -100; jump services; }
  chain nat-postrouting {
    type nat hook postrouting priority srcnat;
    ct status dnat ip saddr != 10.244.0.0/16 masquerade fully-random
    ct status dnat ip saddr 10.244.1.7 ip daddr 10.244.1.7 masquerade fully-random
  }
  chain filter-forward { type filter hook forward priority filter; jump guard; }
  chain filter-output { type filter hook output priority filter; jump guard; }
}
"""

WRONG = [
    pytest.param(
        "1 : 10.244.2.7 . 8080", "1 : 10.244.2.8 . 8080", "got answer of 10.244.2.8:8080", id="an endpoint too many"
    ),
    pytest.param("1 : 10.244.2.7 .", "1 : 10.244.1.7 .", "wanted also 10.244.2.7:8080", id="an endpoint missing"),
    pytest.param("mod 2 map { 0", "mod 20 map { 2-19 : 10.244.1.7 . 8080, 0", "uneven shares", id="unequal chances"),
    pytest.param("1 : 10.244.2.7 . 8080", "1 : 10.244.2.7 . 8081", "got reject", id="a wrong port"),
    pytest.param("ip saddr != 10.244.0.0/16 masq", "ip saddr != 10.0.0.0/8 ip saddr != 192.0.2.0/24 masq",
                 "saw the client's own 192.0.2.11, wanted masquerade", id="the node is not masqueraded"),
    pytest.param("ip saddr != 10.244.0.0/16", "", "wanted the client's own 10.244.1.9", id="pods are masqueraded"),
    pytest.param("ip saddr 10.244.1.7 ip daddr 10.244.1.7 masq", "ip saddr 10.244.1.99 masq",
                 "10.244.1.7:8080 saw the client's own 10.244.1.7, wanted masquerade", id="no hairpin"),
    pytest.param("10.96.0.6 reject with icmp type port-unreachable", "10.96.0.6 drop",
                 "got silence (2x), wanted reject", id="drop instead of reject"),
    pytest.param("10.96.0.7 drop", "10.96.0.7 reject", "got reject (2x), wanted drop", id="reject instead of drop"),
    pytest.param("10.96.0.7 drop", "10.96.0.99 drop", "got answer of 10.96.0.7:80 (2x), wanted drop", id="no drop"),
    pytest.param("jump services; }", "jump services; tcp dport 30080 dnat to 10.244.1.7:8080; }",
                 "got answer of 10.244.1.7:8080 masqueraded as 192.0.2.11 (2x), wanted pass", id="too much is served"),
    pytest.param("chain guard {", "chain guard { ip daddr 198.51.100.1 drop;", "got silence (2x), wanted pass",
                 id="a filter too many"),
]  # fmt: skip


class HandWritten:
    """A ruleset in place of a proxy; it takes no changes."""

    def __init__(self, ruleset: str) -> None:
        self._ruleset = ruleset

    def start(self, case: Case, node: NetworkNamespace, objects: Manifests) -> None:
        node.run(["nft", "-f", "-"], stdin=textwrap.dedent(self._ruleset))

    def apply(self, changed: Manifests, deleted: Sequence[ObjectKey], objects: Manifests) -> None:
        pass

    def proxy_health(self, check: Mapping[str, Any]) -> HttpResponse:
        raise NotImplementedError

    def stop(self) -> None:
        pass


def problems(case: Case, ruleset: str) -> list[str]:
    doubles = population.doubles(case)
    system = PacketSystem(case, doubles, HandWritten(ruleset))
    try:
        return list(play(Story(case, doubles, Circumstances(case.node.addresses)), system))
    finally:
        system.close()


def test_right_ruleset_passes() -> None:
    assert problems(CASE, RULESET) == []


@pytest.mark.parametrize(("right", "wrong", "complaint"), WRONG)
def test_wrong_ruleset_is_found(right: str, wrong: str, complaint: str) -> None:
    assert right in RULESET
    found = problems(CASE, RULESET.replace(right, wrong))
    assert any(complaint in problem for problem in found), found


AFFINITY_CASE = parse_case(
    yaml.safe_load("""
name: runner/pins
node: {name: n1, zone: null, ips: {primary: [192.0.2.11], extra: []}, pod_cidr: [10.244.1.0/24]}
config: {clusterCIDR: [10.244.0.0/16]}
objects:
  - apiVersion: v1
    kind: Service
    metadata: {name: web, namespace: shop}
    spec:
      type: ClusterIP
      clusterIP: 10.96.0.5
      sessionAffinity: ClientIP
      sessionAffinityConfig: {clientIP: {timeoutSeconds: 60}}
      ports: [{name: http, protocol: TCP, port: 80}]
  - apiVersion: discovery.k8s.io/v1
    kind: EndpointSlice
    metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
    addressType: IPv4
    ports: [{name: http, protocol: TCP, port: 8080}]
    endpoints: [{addresses: [10.244.1.7]}, {addresses: [10.244.2.7]}]
probes:
  - id: first
    from: {ip: 10.244.1.9, kind: pod-local}
    to: {ip: 10.96.0.5, port: 80, protocol: TCP}
    expect: {verdict: dnat, endpoints: ['10.244.1.7:8080', '10.244.2.7:8080'], masquerade: false}
  - from: {ip: 10.244.1.9, kind: pod-local}
    to: {ip: 10.96.0.5, port: 80, protocol: TCP}
    expect: {verdict: dnat, endpoints: ['10.244.1.7:8080', '10.244.2.7:8080'], masquerade: false, same_as: first}
after:
  - step: quiet
    advance_seconds: 90
    probes:
      - from: {ip: 10.244.1.9, kind: pod-local}
        to: {ip: 10.96.0.5, port: 80, protocol: TCP}
        expect: {verdict: dnat, endpoints: ['10.244.1.7:8080', '10.244.2.7:8080'], masquerade: false,
                 independent_of: first}
""")
)


@pytest.mark.parametrize(
    ("choice", "complaint"),
    [
        pytest.param("numgen random mod 2", "wanted the same endpoint as first", id="pins that do not hold"),
        pytest.param("jhash ip saddr mod 2 seed 0x1", "for all clients, wanted a free choice", id="pins for ever"),
    ],
)
def test_wrong_pins_are_found(choice: str, complaint: str) -> None:
    found = problems(timescale.shorten(AFFINITY_CASE), RULESET.replace("numgen random mod 2", choice))
    assert any(complaint in problem for problem in found), found
