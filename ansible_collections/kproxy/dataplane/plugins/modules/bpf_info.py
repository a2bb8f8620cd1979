#!/usr/bin/python

# Copyright: (c) 2026, kproxy.dataplane contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: bpf_info
short_description: Show what the eBPF dataplane has in a node's kernel, and what the kernel can do
version_added: 1.1.0
description:
  - Tries what the eBPF backend needs of the kernel, and reads the pinned programs and maps back. Nothing is changed.
extends_documentation_fragment:
  - kproxy.dataplane._attributes
  - kproxy.dataplane._attributes.info_module
  - kproxy.dataplane._attributes.actiongroup_kproxy
author:
  - kproxy.dataplane contributors (@kproxy)
options:
  directory:
    description: Where programs and maps are pinned.
    type: path
    default: /sys/fs/bpf/kproxy
seealso:
  - module: kproxy.dataplane.ebpf
"""

EXAMPLES = r"""
- name: Ask a node
  kproxy.dataplane.bpf_info:
  register: bpf

- name: Every hook must be held
  ansible.builtin.assert:
    that: bpf.hooks | dict2items | rejectattr("value.attached") | list | length == 0
"""

RETURN = r"""
capabilities:
  description: What the kernel can do for the eBPF backend, found by trying.
  returned: success
  type: dict
  sample: {socket_hooks: true, set_retval: true, tcx: true, check_mtu: true, missing: []}
hooks:
  description: The pinned links by hook, with the program and whether the hook still exists.
  returned: success
  type: dict
  sample: {cgroup_connect4: {program: kp_connect4, attached: true}}
maps:
  description: Entries and room of every map.
  returned: success
  type: dict
  sample: {frontends4: {entries: 12, room: 16384}}
devices:
  description:
    - Whether each device of the node has the packet programs. A device that has not is excluded, or has come while no
      kproxyd ran.
  returned: success
  type: dict
  sample: {eth0: true, lo: true, stor0: false}
xdp:
  description: The mode of the XDP program by device, and how many packets of Services it sent on or left to tc.
  returned: success
  type: dict
  sample: {devices: {eth0: native}, packets: {by-xdp: 48211, by-tc: 17}}
forwarding:
  description: How clients from outside reach endpoints of other nodes, empty before the first load.
  returned: success
  type: str
  sample: snat
maglev_table_size:
  description: Entries of the Maglev tables, 0 where endpoints are chosen at random.
  returned: success
  type: int
  sample: 16381
reasons:
  description: How often calls and packets were refused or dropped, by reason, since the maps were made.
  returned: success
  type: dict
  sample: {no-endpoint: 3, source-range: 0}
frontends:
  description: The frontends as the maps have them, in the order of their addresses.
  returned: success
  type: list
  elements: dict
  sample: [{address: "10.96.0.1:80/TCP", number: 4, verdict: dnat, maglev: false, endpoints: ["10.244.1.5:8080"],
            local_endpoints: []}]
"""

from collections.abc import Mapping
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf import layout
from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.states import read_rows
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.ebpf_options import forwarding_of
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_dataplane import (
    DEFAULT_ROOT,
    Dataplane,
    NoBpffs,
    Unsupported,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.errors import KernelError
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.network_devices import devices
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.address import format_socket_address

#: Arrays of settings, counters and bits: there is nothing to count.
UNCOUNTED = ("settings", "reasons", "refusals", "xdp_packets", "flow_filter", "served_blocks")
#: Arrays whose elements are taken and given back.
PLACES = ("connected4", "connected6")


def _entries(name: str, live: Mapping[bytes, bytes]) -> int:
    return layout.places_taken(live.values()) if name in PLACES else len(live)


def read(plane: Dataplane) -> dict[str, Any]:
    """Return everything there is to know."""
    result: dict[str, Any] = {
        "capabilities": plane.capabilities._asdict(),
        "hooks": {},
        "maps": {},
        "devices": {},
        "xdp": {"devices": {}, "packets": {}},
        "forwarding": "",
        "maglev_table_size": 0,
        "reasons": {},
        "frontends": [],
    }
    if not plane.exists():
        return result
    plane.adopt()
    result["hooks"] = {
        hook: {"program": program, "attached": target != 0} for hook, (program, target) in plane.attached().items()
    }
    names = tuple(name for name in sorted(plane.maps.maps) if name not in UNCOUNTED)
    live = plane.read(names)
    room = plane.room()
    result["maps"] = {name: {"entries": _entries(name, live[name]), "room": room[name]} for name in names}
    found = devices()
    holding = plane.packets.holding(found)
    result["devices"] = {name: name in holding for name in sorted(found)}
    result["xdp"] = {"devices": plane.xdp.modes(found), "packets": plane.xdp_packets()}
    settings = plane.settings()
    result["forwarding"] = forwarding_of(settings.flags) if settings is not None else ""
    if "tables4" in plane.maps.maps:
        result["maglev_table_size"] = layout.table_entries(plane.maps["tables4"].info.value_size)
    result["reasons"] = plane.reasons()
    result["frontends"] = [
        {
            "address": str(key),
            "number": row.number,
            "verdict": row.verdict,
            "maglev": row.maglev,
            "endpoints": [format_socket_address(*endpoint) for endpoint in row.endpoints],
            "local_endpoints": [format_socket_address(*endpoint) for endpoint in row.local_endpoints],
        }
        for key, row in sorted(read_rows(live).items())
    ]
    return result


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={"directory": {"type": "path", "default": DEFAULT_ROOT}}, supports_check_mode=True
    )
    try:
        result = read(Dataplane(module.params["directory"]))
    except (NoBpffs, Unsupported, KernelError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
