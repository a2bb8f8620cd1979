"""The service table as a system: no kernel, no packets; what it says about a packet stands for the packet."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.config import ProxyConfig
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.flows import UdpFlow, is_stale
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.frontend import ServicePortName
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.simulate import Outcome, Packet, simulate
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.table import ServiceTable
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.address import format_address, parse_address
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.parse import Delete
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.dataplane import Facts
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.facts import FactsTracker
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.health_checks import (
    ANY_ADDRESS,
    Listener,
    answer,
    wanted_listeners,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.proxy_health import NodeEligibility
from devtools.conformance import own_health
from devtools.conformance.corpus import Case, Client, ConntrackEntry, Scope, SocketAddress, family
from devtools.conformance.facts import HttpResponse
from devtools.conformance.manifests import ApiState, changes, settings
from devtools.conformance.observation import ANSWERED, REJECTED, SILENT, Observation
from devtools.conformance.product import node_port_address
from devtools.conformance.traffic import Shot
from devtools.conformance.world import is_loopback

PROTOCOL_NUMBERS = {"TCP": 6, "UDP": 17, "SCTP": 132, "ICMP": 1}
_ICMPV6 = 58
# A change is in force once apply() returns.
_NOTHING_WAITS = ("sync_proxy_rules_endpoint_changes_pending", "sync_proxy_rules_service_changes_pending")


class _Pin(NamedTuple):
    endpoint: SocketAddress
    until: float


class ModelSystem:
    """Play a case against the product's service table and its pure decisions."""

    patience_seconds = 0.0

    def __init__(self, case: Case) -> None:
        self._case = case
        self._api = ApiState(case)
        self._table = ServiceTable(ProxyConfig.from_mapping(settings(case)))
        self._local = {parse_address(ip) for ip in (*case.node.addresses, "127.0.0.1", "::1")}
        self._now = 0.0
        self._conntrack: dict[str, ConntrackEntry] = {}
        self._flows_deleted: Counter[str] = Counter()
        self._rejected_on_loopback: Counter[tuple[str, str]] = Counter()
        self._pins: dict[tuple[ServicePortName, int, str], _Pin] = {}
        # Seeded: a model must not have good and bad days.
        self._choices = random.Random(case.name)

    def start(self, scope: Scope) -> None:
        self._api.apply(scope)
        self._table.apply(changes(list(self._api.objects.values())))

    def apply(self, scope: Scope) -> None:
        changed, deleted = self._api.apply(scope)
        delta = self._table.apply(changes(changed) + [Delete(*key) for key in deleted])
        self._forget_pins()
        self._clean_conntrack(delta.udp_families)

    def _forget_pins(self) -> None:
        """A pin goes as soon as no frontend with affinity leads to its endpoint."""
        reachable = {
            (row.service_port, row.key.family, SocketAddress(format_address(endpoint.ip), endpoint.port))
            for row in self._table.frontends.values()
            if row.affinity_seconds
            for endpoint in (*row.cluster_endpoints, *row.local_endpoints)
        }
        self._pins = {key: pin for key, pin in self._pins.items() if (*key[:2], pin.endpoint) in reachable}

    def advance(self, seconds: float) -> None:
        self._now += seconds

    def shoot(self, shots: Sequence[Shot]) -> list[Observation]:
        return [self._shoot(shot) for shot in shots]

    def _shoot(self, shot: Shot) -> Observation:
        client, to = shot.client, shot.to
        protocol = _ICMPV6 if to.protocol == "ICMP" and ":" in to.ip else PROTOCOL_NUMBERS[to.protocol]
        interface = "" if client.on_node else client.interface or "eth0"
        packet = Packet(parse_address(client.ip), parse_address(to.ip), protocol, to.port, interface)
        outcome = simulate(self._table, packet, self._local)
        if outcome.verdict == "reject":
            if is_loopback(to.ip):
                self._rejected_on_loopback[family_name(to.ip), to.protocol] += 1
            return Observation(REJECTED, shot.number)
        if outcome.verdict == "drop":
            return Observation(SILENT, shot.number)
        if outcome.verdict == "pass":
            server = SocketAddress(to.ip, to.port) if to.port else None
            return Observation(ANSWERED, shot.number, server, client.ip)
        return self._translated(outcome, client, shot)

    def _translated(self, outcome: Outcome, client: Client, shot: Shot) -> Observation:
        frontend = outcome.frontend
        assert frontend is not None, "a translated packet has a frontend"
        choices = {SocketAddress(format_address(ep.ip), ep.port): ep for ep in outcome.endpoints}
        pin_key = (frontend.service_port, frontend.key.family, client.ip)
        pin = self._pins.get(pin_key)
        server = self._choices.choice(list(choices))
        if frontend.affinity_seconds and pin and pin.until > self._now and pin.endpoint in choices:
            server = pin.endpoint
        seconds = None
        if frontend.affinity_seconds and outcome.verdict == "dnat":
            seconds = frontend.affinity_seconds
            self._pins[pin_key] = _Pin(server, self._now + seconds)
        masqueraded = choices[server] in outcome.masqueraded
        own = next((ip for ip in self._case.node.addresses if family(ip) == family(client.ip)), client.ip)
        source = own if masqueraded else client.ip
        return Observation(ANSWERED, shot.number, server, source, not masqueraded, affinity_seconds=seconds)

    def insert_conntrack(self, entries: Sequence[ConntrackEntry]) -> None:
        self._conntrack = {entry.id: entry for entry in entries}

    def conntrack_left(self) -> set[str]:
        return set(self._conntrack)

    def _clean_conntrack(self, families: Collection[int]) -> None:
        for entry in list(self._conntrack.values()):
            dialled, answering = entry.orig_dst, entry.reply_src
            flow = UdpFlow(
                parse_address(dialled.ip), dialled.port, parse_address(answering.ip), answering.port, replied=True
            )
            ours = entry.protocol == "UDP" and family(dialled.ip) in families
            if ours and is_stale(self._table, flow, self._local):
                del self._conntrack[entry.id]
                self._flows_deleted[family_name(dialled.ip)] += 1

    def health_check(self, check: Mapping[str, Any]) -> HttpResponse | None:
        number = 4 if check["family"] == "IPv4" else 6
        facts = self._facts()
        address = check.get("at") or node_port_address(self._case, number)
        listeners = wanted_listeners(facts.health_checks, facts.node_port_addresses)
        for place in (address, ANY_ADDRESS):
            found = listeners.get(Listener(number, place, check["port"]))
            if found is not None:
                return own_health.response(answer(found, self._proxy_healthy()))
        return None

    def _proxy_healthy(self) -> bool:
        state = self._case.proxy_state
        return state is None or own_health.proxy_state(state, NodeEligibility(known=True)).healthy

    def proxy_health(self, check: Mapping[str, Any]) -> HttpResponse:
        return own_health.proxy_health(check, self._case.node)

    def metric(self, name: str, labels: Mapping[str, str]) -> float | None:
        short = name.removeprefix("kubeproxy_")
        if short in _NOTHING_WAITS:
            return 0
        facts = self._facts()
        ip_family = labels["ip_family"]
        number = {"IPv4": 4, "IPv6": 6}[ip_family]
        if short == "sync_proxy_rules_no_local_endpoints_total":
            return facts.no_local_endpoints[labels["traffic_policy"], number]
        if short == "nftables_localhost_nodeport_listeners":
            return sum(key.family == number and bool(relay.endpoints) for key, relay in facts.relays.items())
        if short == "nftables_localhost_nodeport_rejected_packets_total":
            return self._rejected_on_loopback[ip_family, labels["protocol"]]
        if short == "conntrack_reconciler_deleted_entries_total":
            return self._flows_deleted[ip_family]
        raise ValueError(f"the model does not know metric {name}")

    def _facts(self) -> Facts:
        tracker = FactsTracker(self._table)
        tracker.update(list(self._table.built))
        return tracker.facts(self._local)


def family_name(ip: str) -> str:
    """Return the family as metrics label it."""
    return f"IPv{family(ip)}"
