#!/usr/bin/python

# Copyright: (c) 2026, kproxy.dataplane contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: ebpf
short_description: Program Kubernetes Services into a node's eBPF maps
version_added: 1.1.0
description:
  - Reads Services, EndpointSlices, the Node and ServiceCIDRs once, works out what every client may reach, and makes the
    pinned maps say so. Then the socket programs are put on the node's cgroup and the packet programs on its devices.
    What is right already stays; programs are swapped without losing a packet.
  - Nothing is compiled or installed on the node; the programs come with the collection.
  - SCTP is carried by the tables of M(kproxy.dataplane.nftables), which are made only while a Service uses it.
  - An object that cannot be used costs only itself. It is returned in RV(refused) and warned about.
  - To keep the maps in step with the API server from then on, and to remove the records of connections that have ended,
    run the sidecar (M(kproxy.dataplane.sidecar)).
  - While the kproxyd of another version keeps programs of another layout in place, nothing is written. What would be is
    returned, and programmed by the kproxyd of this version when M(kproxy.dataplane.sidecar) starts it.
  - On a node whose kproxyd is in step nothing is written, since kproxyd would put back what it knows. What would be is
    returned, and programmed by kproxyd once M(kproxy.dataplane.sidecar) has given it the same source and settings.
extends_documentation_fragment:
  - kproxy.dataplane._attributes
  - kproxy.dataplane._attributes.actiongroup_kproxy
  - kproxy.dataplane._kproxy.node
  - kproxy.dataplane._kproxy.source
author:
  - kproxy.dataplane contributors (@kproxy)
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
    details:
      - Names the addresses and endpoints that come, go or move, by namespace, Service and port, up to a fixed number
        of lines.
      - With O(state=absent) Services are told by their numbers, since the maps hold no names.
  idempotent:
    support: full
options:
  state:
    description:
      - V(present) makes the maps say what the source says, and attaches the programs. A source is needed.
      - V(absent) detaches the programs and removes the maps. Connections that were translated on the wire end.
    type: str
    choices: [present, absent]
    default: present
  directory:
    description:
      - Where programs and maps are pinned, a folder on a BPF file system.
    type: path
    default: /sys/fs/bpf/kproxy
  cgroup:
    description:
      - The cgroup2 directory that covers the node's processes, pods included. By default the root of the hierarchy.
    type: path
  host_namespace_only:
    description:
      - Leave the sockets of pods alone and translate their packets instead, as service meshes and virtual machines
        need.
    type: bool
    default: false
  protect_node_ports:
    description:
      - Refuse a process of the node that binds a port which the node answers as a NodePort.
    type: bool
    default: true
  algorithm:
    description:
      - How an endpoint is chosen for a new connection to a NodePort, an external IP or the IP of a load balancer.
      - V(random) gives every endpoint the same chance.
      - V(maglev) goes by a hash of the connection's addresses, ports and protocol, or of the client's address alone
        where a Service asks for ClientIP affinity. Every node with the same table size sends a connection to the same
        endpoint, and few connections move when an endpoint comes or goes.
      - Connections to a cluster IP are chosen for at random, since no other node ever gets their packets.
    type: str
    choices: [random, maglev]
    default: random
  maglev_table_size:
    description:
      - Entries of each Service's table, for O(algorithm=maglev), the same on every node. A hundred for each endpoint of
        the largest Service give even shares; a Service with more endpoints than entries is chosen for at random.
      - A table takes two bytes of kernel memory for each entry, 33 kB at the default.
    type: int
    choices: [251, 509, 1021, 2039, 4093, 8191, 16381, 32749, 65521, 131071]
    default: 16381
  maglev_memory:
    description:
      - MiB of kernel memory that all tables may take. More is refused as a whole, and the message says how much it is.
    type: int
    default: 512
  xdp:
    description:
      - Whether packets that come in by one device and leave by one are forwarded by XDP, before the network stack. It
        carries clients from outside to endpoints of other nodes, and their answers; everything else goes on by tc.
      - V(native) runs in the device's driver, V(generic) on every device but later, V(auto) is native where the driver
        takes it and generic elsewhere.
      - A device that does not take the program, or whose hook somebody else's program holds, is served by tc. This is
        warned about and returned in RV(problems).
      - What XDP forwards is not seen by the node's firewall.
    type: str
    choices: [disabled, generic, native, auto]
    default: disabled
  xdp_devices:
    description:
      - Names or patterns of the devices that get the XDP program. Without one, every Ethernet device that is hardware
        and no port of another device.
    type: list
    elements: str
    default: []
  excluded_devices:
    description:
      - Names or patterns of the devices that get none of the packet programs, XDP included, also if they come later.
        Meant for a storage network, say, or a mesh between nodes that never carries traffic of Services.
      - Packets on these devices are not translated, dropped or refused. Exclude only a device by which neither clients
        of Services nor endpoints are reached. A client behind it gets no answer from the node's Services, and a client
        that reached an endpoint behind it would not be masqueraded.
      - Sockets of the node and of its pods are translated all the same, whatever device their packets leave by.
    type: list
    elements: str
    default: []
  forwarding:
    description:
      - How clients from outside reach endpoints of other nodes through NodePorts, external IPs and the IPs of load
        balancers, where the policy is Cluster. The same on every node.
      - V(snat) lets the connection look like the node's, and the answers come back through it.
      - V(dsr-option) and V(dsr-ipip) keep the client's address, and the endpoint's node answers the client directly.
        The frontend's address travels as an IP option, for nodes that are neighbours, or by another IP header in front,
        for routed fabrics. What they cannot carry is masqueraded, and counted.
    type: str
    choices: [snat, dsr-option, dsr-ipip]
    default: snat
requirements:
  - Linux 5.10 or later, cgroup2 and a mounted BPF file system
  - nft 1.0.1 or later, for SCTP and for refusals of the node's own pings to cluster IPs
seealso:
  - module: kproxy.dataplane.bpf_info
  - module: kproxy.dataplane.nftables
  - module: kproxy.dataplane.sidecar
"""

EXAMPLES = r"""
- name: Program what the API server says
  kproxy.dataplane.ebpf:
    api_servers:
      - https://192.0.2.11:6443
      - https://192.0.2.12:6443
    ca_cert: /etc/kproxy/pki/ca.crt
    client_cert: /etc/kproxy/pki/node.crt
    client_key: /etc/kproxy/pki/node.key
    config:
      clusterCIDR: 10.244.0.0/16

- name: Program the manifests of a folder on the controller
  kproxy.dataplane.ebpf:
    manifests: manifests/
    node_name: gpu-a

- name: Leave the sockets of pods to their service mesh
  kproxy.dataplane.ebpf:
    manifests: manifests/
    host_namespace_only: true

- name: Choose endpoints alike on every node that takes in traffic
  kproxy.dataplane.ebpf:
    manifests: manifests/
    algorithm: maglev
    maglev_table_size: 4093

- name: Keep the addresses of clients from outside, and forward them at the driver
  kproxy.dataplane.ebpf:
    manifests: manifests/
    forwarding: dsr-option
    xdp: auto
    xdp_devices: ["ens*"]

- name: Keep the programs off the storage network
  kproxy.dataplane.ebpf:
    manifests: manifests/
    excluded_devices: ["stor*"]

- name: Remove everything
  kproxy.dataplane.ebpf:
    state: absent
"""

RETURN = r"""
endpoints:
  description: Endpoints that come, go or move, or would in check mode. Each list is bounded, the counts are not.
  returned: success
  type: dict
  contains:
    added:
      description: Endpoints that come.
      type: list
      elements: str
    removed:
      description: Endpoints that go.
      type: list
      elements: str
    moved:
      description: Endpoints that take the place of another in the same service port.
      type: list
      elements: str
    counts:
      description: How many there are of each.
      type: dict
  sample:
    added: ["shop/web:http 10.244.1.8:8080"]
    removed: []
    moved: ["shop/web:http 10.244.1.5:8080 -> 10.244.1.7:8080"]
    counts: {added: 1, removed: 0, moved: 1}
left_to_kproxyd:
  description: Whether the changes were left to the kproxyd that keeps this node in step. Always V(false) in check mode.
  returned: success
  type: bool
  sample: false
elements:
  description: Number of map entries that were written or removed, or would be in check mode.
  returned: success
  type: int
  sample: 4
frontends:
  description: Number of addresses that clients can dial on this node afterwards.
  returned: success
  type: int
  sample: 12
refused:
  description: Objects that cannot be used, each with the reason.
  returned: success
  type: list
  elements: str
  sample: ["Service shop/old: spec.clusterIP: '10.96.0.300' is no IP address"]
notes:
  description: Parts of objects that are not served, such as an address of another IP version, each with the reason.
  returned: success
  type: list
  elements: str
  sample: ["Service shop/web: externalIPs: 2001:db8::61 is of a family that the Service does not have; it is left out"]
problems:
  description: What the backend cannot do on this node, each with what follows.
  returned: success
  type: list
  elements: str
  sample:
    - >-
      the XDP hook of eth0 is held by another program, their_filter (id 41): packets that come in by eth0 are served
      by tc until it is detached
conflicts:
  description: Addresses that two Services claim, and which of them has it.
  returned: success
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf import maglev
from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.capacity import DEFAULT_TABLE_MEMORY
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine import ebpf_options
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.backend import CommitError
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.ebpf_backend import EbpfBackend
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.ebpf_options import Options
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.config import ProxyConfig
from ansible_collections.kproxy.dataplane.plugins.module_utils._install.service import Service
from ansible_collections.kproxy.dataplane.plugins.module_utils._install.succession import (
    kept_by_kproxyd,
    left_to_kproxyd,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import bpf_xdp
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_dataplane import DEFAULT_ROOT
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_xdp import XdpOptions
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.errors import KernelError
from ansible_collections.kproxy.dataplane.plugins.module_utils._report import programming
from ansible_collections.kproxy.dataplane.plugins.module_utils._sources.errors import SourceError
from ansible_collections.kproxy.dataplane.plugins.module_utils._sources.module_options import (
    NODE_OPTIONS,
    SOURCE_OPTIONS,
    SOURCES,
    SOURCES_EXCLUDE,
)

HIDDEN = "maps: %d entries that no endpoint shows (programs, masquerading, source ranges, affinity)"


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            **NODE_OPTIONS,
            **SOURCE_OPTIONS,
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "directory": {"type": "path", "default": DEFAULT_ROOT},
            "cgroup": {"type": "path"},
            "host_namespace_only": {"type": "bool", "default": False},
            "protect_node_ports": {"type": "bool", "default": True},
            "algorithm": {"type": "str", "choices": list(maglev.ALGORITHMS), "default": maglev.RANDOM},
            "maglev_table_size": {"type": "int", "choices": list(maglev.SIZES), "default": maglev.DEFAULT_SIZE},
            "maglev_memory": {"type": "int", "default": DEFAULT_TABLE_MEMORY},
            "xdp": {"type": "str", "choices": list(bpf_xdp.CHOICES), "default": bpf_xdp.DISABLED},
            "xdp_devices": {"type": "list", "elements": "str", "default": []},
            "excluded_devices": {"type": "list", "elements": "str", "default": []},
            "forwarding": {"type": "str", "choices": list(ebpf_options.FORWARDINGS), "default": ebpf_options.SNAT},
        },
        mutually_exclusive=SOURCES_EXCLUDE,
        required_if=[("state", "present", SOURCES, True)],
        supports_check_mode=True,
    )
    try:
        params = module.params
        options = Options(
            root=params["directory"],
            cgroup=params["cgroup"] or "",
            host_only=params["host_namespace_only"],
            protect_node_ports=params["protect_node_ports"],
            table_size=params["maglev_table_size"] if params["algorithm"] == maglev.MAGLEV else 0,
            table_memory=params["maglev_memory"],
            xdp=XdpOptions(params["xdp"], tuple(params["xdp_devices"])),
            forwarding=params["forwarding"],
            excluded=tuple(params["excluded_devices"]),
        )
        # A backend is bound to the families it serves, which only the configuration tells.
        made: list[EbpfBackend] = []

        def make(config: ProxyConfig) -> EbpfBackend:
            made.append(EbpfBackend(config.families, options))
            return made[0]

        if params["state"] == "present":
            left = (
                left_to_kproxyd(options.root, Service(module.run_command)) if module.get_bin_path("systemctl") else ""
            )
            result = programming.present(
                params,
                module.check_mode or bool(left),
                make,
                HIDDEN,
                # kproxyd's programs are pinned at their usual place only.
                lambda: options.root == DEFAULT_ROOT and kept_by_kproxyd(canary=False),
            )
            result["problems"] = [*([left] if left else []), *made[0].problems]
        else:
            result = programming.absent(params, module.check_mode, EbpfBackend(options=options))
            result["problems"] = []
    except (SourceError, CommitError, KernelError, ValueError) as error:
        module.fail_json(msg=str(error))
    for warning in programming.warnings(result["refused"] + result["notes"] + result["problems"]):
        module.warn(warning)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
