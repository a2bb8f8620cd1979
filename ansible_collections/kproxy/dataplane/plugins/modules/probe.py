#!/usr/bin/python

# Copyright: (c) 2026, kproxy.dataplane contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: probe
short_description: Prove with real connections that a node serves what the service table says
version_added: 1.0.0
description:
  - Dials every kind of address that the service table has, from the node and from pods on it, and compares what each
    connection meets with what the table says for that client - the endpoint it is led to, the address that the
    endpoint sees, refusal or silence.
  - With O(spread), it also compares how connections spread over the endpoints. Under session affinity they must all
    reach one.
  - Where a connection was led, and whom the endpoint sees, is read from connection tracking, from the kernel's
    sockets and from the eBPF backend's flow tables, so that no endpoint has to cooperate. An endpoint that does not
    answer is no failure of the dataplane; RV(results[].silent) names it.
  - A pod that is led to itself must get an answer.
  - The table is the one that the running sidecar has in force, or that of a source.
  - Opens connections and sends a short datagram to UDP Services; changes nothing.
extends_documentation_fragment:
  - kproxy.dataplane._attributes
  - kproxy.dataplane._attributes.info_module
  - kproxy.dataplane._attributes.actiongroup_kproxy
  - kproxy.dataplane._kproxy.node
  - kproxy.dataplane._kproxy.source
author:
  - kproxy.dataplane contributors (@kproxy)
options:
  socket:
    description: Where the sidecar is asked when no source is given.
    type: path
    default: /run/kproxy/kproxyd.sock
  ebpf_directory:
    description: Where the eBPF backend has pinned its maps, if it is there.
    type: path
    default: /sys/fs/bpf/kproxy
    version_added: 1.1.0
  namespaces:
    description:
      - Network namespaces of pods on this node, by name or path. The node itself is always a client.
      - Without it, the first O(max_namespaces) of C(/run/netns) that have an address are taken.
    type: list
    elements: str
  max_namespaces:
    description: How many namespaces are taken when O(namespaces) is not given.
    type: int
    default: 2
  per_kind:
    description: How many addresses of each kind, IP version, protocol and verdict are dialled. V(0) for all.
    type: int
    default: 5
  connections:
    description: How often each address is dialled, all at once.
    type: int
    default: 2
  spread:
    description:
      - How often an address is dialled whose endpoints have equal chance, so that their shares can be judged. V(0)
        judges none.
      - Three endpoints need about 60, ten about 250, so that one which gets nothing is noticed; RV(results) says
        whether they were enough.
    type: int
    default: 0
    version_added: 1.1.0
  spread_false_alarm:
    description:
      - Highest chance that a run calls any spread uneven that is even. It is divided among all that are judged, and
        holds exactly - each share is judged by the binomial distribution, not by an approximation.
    type: float
    default: 0.000001
    version_added: 1.1.0
  timeout:
    description: Seconds to wait for an answer. Addresses that should drop take this long.
    type: float
    default: 1.0
  protocols:
    description: Which protocols are dialled.
    type: list
    elements: str
    choices: [TCP, UDP, SCTP]
    default: [TCP, UDP, SCTP]
seealso:
  - module: kproxy.dataplane.service_info
"""

EXAMPLES = r"""
- name: Prove what this node serves, and that every endpoint gets its share
  kproxy.dataplane.probe:
    spread: 60
  register: probe

- name: Insist on it
  ansible.builtin.assert:
    that: probe.failures | length == 0
    fail_msg: "{{ probe.failures | join('; ') }}"
"""

RETURN = r"""
failures:
  description: One sentence for everything that was not what the table says.
  returned: success
  type: list
  elements: str
  sample: ["cluster-ip 10.96.0.20:80/TCP of shop/web from node: was led nowhere (silence), expected one of ..."]
dialled:
  description: Number of connections by kind of address.
  returned: success
  type: dict
  sample: {cluster-ip: 12, node-port: 4}
clients:
  description: Where connections were made from.
  returned: success
  type: list
  elements: str
  sample: [node, pod-a]
conntrack:
  description: How full the connection table is, before anything was dialled. C(maximum) is V(0) where it has no limit.
  returned: success
  type: dict
  sample: {entries: 120, maximum: 131072}
  version_added: 1.1.0
not_dialled:
  description: What could not be tried here, and why.
  returned: success
  type: list
  elements: str
  sample: ["SCTP: this kernel does not speak SCTP"]
  version_added: 1.1.0
results:
  description: >-
    Every address that was to be dialled from every client, with what was expected and what was met. Where a client has
    no way to dial it, both are empty and RV(results[].faults) says why.
  returned: success
  type: list
  elements: dict
  contains:
    client:
      description: V(node), or the namespace of a pod.
      type: str
    kind:
      description: Kind of address.
      type: str
    service:
      description: Namespace, Service and port.
      type: str
    protocol:
      description: V(TCP), V(UDP) or V(SCTP).
      type: str
    address:
      description: What was dialled.
      type: str
    source:
      description: The client's own address. Empty where it has no way to what was dialled.
      type: str
    expected:
      description: The table's verdict for this client.
      type: str
    endpoints:
      description: Where the table would lead.
      type: list
      elements: str
    met:
      description: Where each connection was led, or how it went where that was nowhere.
      type: list
      elements: str
    seen:
      description: Addresses that the endpoints see as the client. Empty where the kernel does not know.
      type: list
      elements: str
    silent:
      description: >-
        Endpoints that answered none of the connections that were led to them, not even by a refusal. Never those of
        UDP, where silence says nothing.
      type: list
      elements: str
      version_added: 1.1.0
    judged:
      description: >-
        What was judged, of V(verdict), V(source), V(hairpin), V(affinity) and V(spread).
      type: list
      elements: str
    spread_suffices:
      description: Whether so many connections would show that an endpoint gets nothing.
      type: bool
      returned: when the spread was judged
    faults:
      description: What is wrong, by what it is about.
      type: list
      elements: dict
    wrong:
      description: What is wrong, as sentences.
      type: list
      elements: str
"""

from collections.abc import Callable, Mapping
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.kproxy.dataplane.plugins.module_utils._cli.client import DaemonDown, Refused, ask
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.frontend import NODE_PORT, PASS, REJECT
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.table import ServiceTable
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.addresses import LocalAddress, local_addresses
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_dataplane import DEFAULT_ROOT
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_loader import LayoutMismatch
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.conntrack import Conntrack
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.errors import KernelError, NetlinkError
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.routes import route_to
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.address import format_address
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.parse import Upsert
from ansible_collections.kproxy.dataplane.plugins.module_utils._probe import outcome
from ansible_collections.kproxy.dataplane.plugins.module_utils._probe.choice import Goal, choose
from ansible_collections.kproxy.dataplane.plugins.module_utils._probe.clients import connected_namespaces
from ansible_collections.kproxy.dataplane.plugins.module_utils._probe.dial import (
    DialError,
    ProtocolMissing,
    source_for,
    within,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._probe.judge import VERDICT, addresses
from ansible_collections.kproxy.dataplane.plugins.module_utils._probe.meeting import meet, meet_refusals
from ansible_collections.kproxy.dataplane.plugins.module_utils._probe.packet_path import PacketPath
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar import views
from ansible_collections.kproxy.dataplane.plugins.module_utils._sources.errors import SourceError
from ansible_collections.kproxy.dataplane.plugins.module_utils._sources.module_options import (
    NODE_OPTIONS,
    SOURCE_OPTIONS,
    SOURCES_EXCLUDE,
    has_source,
    node_name_of,
    proxy_config,
    read_source,
)

# Answers for one packet, as a trace: verdict, reason, endpoints.
Trace = Callable[[Mapping[str, Any]], dict[str, Any]]


def table_of(options: dict[str, Any], addresses: set[bytes]) -> tuple[list[dict[str, Any]], Trace]:
    """Return the service table's rows and a way to ask it about packets."""
    if not has_source(options):
        path = options["socket"]
        return ask(path, "services"), lambda packet: dict(ask(path, "trace", **packet))
    table = ServiceTable(proxy_config(options))
    table.apply([Upsert(obj) for obj in read_source(options, node_name_of(options)).objects])
    return views.services(table)(), lambda packet: dict(views.trace(table, packet, addresses)())


def node_port_addresses(addresses: list[LocalAddress], rows: list[dict[str, Any]], trace: Trace) -> list[str]:
    """Return the node's addresses that accept NodePorts, as the table has it."""
    node_ports = {row["family"]: row for row in rows if row["kind"] == NODE_PORT}
    found = []
    for address in addresses:
        row = node_ports.get(f"IPv{address.family}")
        if row is not None and address.scope == "global" and address.usable:
            text = format_address(address.address)
            packet = {"from": text, "to": text, "protocol": row["protocol"], "port": row["portNumber"]}
            if trace(packet)["verdict"] != PASS:
                found.append(text)
    return found


def interface_of(source: str) -> str:
    """Return the interface at which a pod's packets come in: the one its address is reached by."""
    try:
        return route_to(source).interface
    except NetlinkError:
        return ""


def who_and_what(namespace: str, goal: Goal) -> dict[str, Any]:
    """Return what every result begins with."""
    return {
        "client": namespace or "node",
        "kind": goal.kind,
        "service": goal.service,
        "protocol": goal.protocol,
        "address": str(goal),
    }


def probe(
    options: Mapping[str, Any], packet_path: PacketPath, goal: Goal, namespace: str, trace: Trace, own: set[str]
) -> dict[str, Any]:
    """Dial one address from one client and compare, all but the spread. Raises DialError."""
    source = within(namespace, lambda: source_for(goal.address))
    packet = {"from": source, "to": goal.address, "protocol": goal.protocol, "port": goal.port}
    if namespace:
        packet["interface"] = interface_of(source)
    expected = trace(packet)
    for_spread = bool(options["spread"]) and outcome.spreads(goal, expected)
    count = max(options["connections"], options["spread"] if for_spread else 0)
    dial = meet_refusals if goal.protocol == "UDP" and expected["verdict"] == REJECT else meet
    met = dial(packet_path, goal, namespace, count, options["timeout"])
    return {
        **who_and_what(namespace, goal),
        "source": source,
        "expected": expected["verdict"],
        "endpoints": addresses(expected),
        "met": [one.endpoint or one.result for one in met],
        "seen": sorted({one.seen for one in met if one.seen}),
        "silent": outcome.silent(goal, met),
        **outcome.judged(goal, expected, met, source, own),
        "for_spread": for_spread,
    }


def not_tried(goal: Goal, namespace: str, why: str) -> dict[str, Any]:
    """Return the result for an address that a client cannot even dial: nothing is served to it there."""
    return {
        **who_and_what(namespace, goal),
        "source": "",
        "expected": "",
        "endpoints": [],
        "met": [],
        "seen": [],
        "silent": [],
        "judged": [VERDICT],
        "faults": [{"about": VERDICT, "message": why}],
        "for_spread": False,
    }


def run(module: AnsibleModule) -> dict[str, Any]:
    """Dial and compare everything."""
    options = module.params
    local = local_addresses()
    own = {format_address(address.address) for address in local}
    rows, trace = table_of(options, {address.address for address in local})
    open_addresses = node_port_addresses(local, rows, trace)
    goals = choose(rows, open_addresses, options["per_kind"], options["protocols"])
    pods = options["namespaces"]
    # The empty name is the node itself.
    clients = ["", *(connected_namespaces(options["max_namespaces"]) if pods is None else pods)]
    with Conntrack() as table:
        size = table.size()
    packet_path = PacketPath(options["ebpf_directory"])
    results: list[dict[str, Any]] = []
    not_dialled: dict[str, None] = {}
    for goal in goals:
        for namespace in clients:
            try:
                results.append(probe(options, packet_path, goal, namespace, trace, own))
            except ProtocolMissing as error:
                not_dialled[f"{goal.protocol}: {error}"] = None
            except DialError as error:
                results.append(not_tried(goal, namespace, str(error)))
    outcome.judge_spreads(results, options["spread_false_alarm"])
    dialled: dict[str, int] = {}
    failures: list[str] = []
    for result in results:
        dialled[result["kind"]] = dialled.get(result["kind"], 0) + len(result["met"])
        result["wrong"] = [fault["message"] for fault in result["faults"]]
        label = "{kind} {address} of {service} from {client}".format_map(result)
        failures += [f"{label}: {wrong}" for wrong in result["wrong"]]
    return {
        "failures": failures,
        "dialled": dialled,
        "clients": [namespace or "node" for namespace in clients],
        "conntrack": size._asdict(),
        "not_dialled": list(not_dialled),
        "results": results,
    }


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            **NODE_OPTIONS,
            **SOURCE_OPTIONS,
            "socket": {"type": "path", "default": "/run/kproxy/kproxyd.sock"},
            "ebpf_directory": {"type": "path", "default": DEFAULT_ROOT},
            "namespaces": {"type": "list", "elements": "str"},
            "max_namespaces": {"type": "int", "default": 2},
            "per_kind": {"type": "int", "default": 5},
            "connections": {"type": "int", "default": 2},
            "spread": {"type": "int", "default": 0},
            "spread_false_alarm": {"type": "float", "default": 0.000001},
            "timeout": {"type": "float", "default": 1.0},
            "protocols": {
                "type": "list",
                "elements": "str",
                "choices": ["TCP", "UDP", "SCTP"],
                "default": ["TCP", "UDP", "SCTP"],
            },
        },
        mutually_exclusive=SOURCES_EXCLUDE,
        supports_check_mode=True,
    )
    try:
        result = run(module)
    except (SourceError, DaemonDown, Refused, KernelError, LayoutMismatch, OSError, ValueError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
