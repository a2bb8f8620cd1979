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
  - Dials every kind of address that the service table has, from the node and from pods on it, and compares where each
    connection
    is led with what the table says for that client.
  - Which endpoint a connection was led to is read from connection tracking, so that no endpoint has to cooperate. An
    endpoint that
    does not answer is no failure of the dataplane.
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
  namespaces:
    description:
      - Network namespaces of pods on this node, by name or path. The node itself is always a client.
      - Without it, the first O(max_namespaces) of C(/run/netns) are taken.
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
    description: How often each address is dialled.
    type: int
    default: 2
  timeout:
    description: Seconds to wait for an answer. Addresses that should drop take this long.
    type: float
    default: 1.0
  protocols:
    description: Which protocols are dialled.
    type: list
    elements: str
    choices: [TCP, UDP]
    default: [TCP, UDP]
seealso:
  - module: kproxy.dataplane.service_info
"""

EXAMPLES = r"""
- name: Prove what this node serves
  kproxy.dataplane.probe:
  register: probe

- name: Insist on it
  ansible.builtin.assert:
    that: probe.failures | length == 0
    fail_msg: "{{ probe.failures | join('; ') }}"
"""

RETURN = r"""
failures:
  description: One sentence for every connection that did not meet what the table says.
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
results:
  description: Every address that was dialled, with what was expected and what was met.
  returned: success
  type: list
  elements: dict
"""

import os
from collections.abc import Callable, Mapping
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.kproxy.dataplane.plugins.module_utils._cli.client import DaemonDown, Refused, ask
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.frontend import NODE_PORT, PASS
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.table import ServiceTable
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.addresses import LocalAddress, local_addresses
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.errors import KernelError
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.address import format_address
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.parse import Upsert
from ansible_collections.kproxy.dataplane.plugins.module_utils._probe.choice import Goal, choose
from ansible_collections.kproxy.dataplane.plugins.module_utils._probe.dial import DialError, dial, source_for, within
from ansible_collections.kproxy.dataplane.plugins.module_utils._probe.judge import judge
from ansible_collections.kproxy.dataplane.plugins.module_utils._probe.translation import Connection, endpoint_of
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

NAMESPACES = "/run/netns"

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


def clients_of(options: dict[str, Any]) -> list[str]:
    """Return the namespaces to dial from; the empty name is the node itself."""
    if options["namespaces"] is not None:
        return ["", *options["namespaces"]]
    found = sorted(os.listdir(NAMESPACES)) if os.path.isdir(NAMESPACES) else []
    return ["", *found[: options["max_namespaces"]]]


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


def interface_of(module: AnsibleModule, source: str) -> str:
    """Return the interface at which a pod's packets come in: the one its address is reached by."""
    code, out, _err = module.run_command(["ip", "-o", "route", "get", source])
    words = out.split()
    return words[words.index("dev") + 1] if not code and "dev" in words else ""


def probe(module: AnsibleModule, goal: Goal, namespace: str, trace: Trace) -> dict[str, Any]:
    """Dial one address from one client and compare."""
    result: dict[str, Any] = {
        "client": namespace or "node",
        "kind": goal.kind,
        "service": goal.service,
        "address": str(goal),
        "met": [],
        "wrong": [],
    }
    source = within(namespace, lambda: source_for(goal.address, goal.port))
    options = module.params
    packet = {"from": source, "to": goal.address, "protocol": goal.protocol, "port": goal.port}
    if namespace:
        packet["interface"] = interface_of(module, source)
    expected = trace(packet)
    result["expected"] = expected["verdict"]
    for _number in range(options["connections"]):
        met = within(namespace, lambda: dial(goal.address, goal.port, goal.protocol, options["timeout"]))
        endpoint = endpoint_of(Connection(goal.protocol, met.source, met.source_port, goal.address, goal.port))
        result["met"].append(endpoint or met.result)
        wrong = judge(expected, met.result, endpoint)
        if wrong:
            result["wrong"].append(wrong)
    return result


def run(module: AnsibleModule) -> dict[str, Any]:
    """Dial and compare everything."""
    options = module.params
    addresses = local_addresses()
    rows, trace = table_of(options, {address.address for address in addresses})
    open_addresses = node_port_addresses(addresses, rows, trace)
    goals = choose(rows, open_addresses, options["per_kind"], options["protocols"])
    clients = clients_of(options)
    results: list[dict[str, Any]] = []
    dialled: dict[str, int] = {}
    failures: list[str] = []
    for goal in goals:
        for namespace in clients:
            label = f"{goal.kind} {goal} of {goal.service} from {namespace or 'node'}"
            try:
                one = probe(module, goal, namespace, trace)
            except DialError as error:
                failures.append(f"{label}: {error}")
                continue
            results.append(one)
            dialled[goal.kind] = dialled.get(goal.kind, 0) + len(one["met"])
            failures += [f"{label}: {wrong}" for wrong in one["wrong"]]
    return {
        "failures": failures,
        "dialled": dialled,
        "clients": [namespace or "node" for namespace in clients],
        "results": results,
    }


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            **NODE_OPTIONS,
            **SOURCE_OPTIONS,
            "socket": {"type": "path", "default": "/run/kproxy/kproxyd.sock"},
            "namespaces": {"type": "list", "elements": "str"},
            "max_namespaces": {"type": "int", "default": 2},
            "per_kind": {"type": "int", "default": 5},
            "connections": {"type": "int", "default": 2},
            "timeout": {"type": "float", "default": 1.0},
            "protocols": {"type": "list", "elements": "str", "choices": ["TCP", "UDP"], "default": ["TCP", "UDP"]},
        },
        mutually_exclusive=SOURCES_EXCLUDE,
        supports_check_mode=True,
    )
    try:
        result = run(module)
    except (SourceError, DaemonDown, Refused, KernelError, ValueError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
