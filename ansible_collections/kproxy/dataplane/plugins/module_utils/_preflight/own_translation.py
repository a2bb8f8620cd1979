# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Check for pods that must see the address which was dialled: service meshes, and guests with a kernel of their own.

Translation at the socket is done before a packet exists, so a mesh's proxy in the pod would see an endpoint where it
looks for a Service: no route of it matches, and its rules are passed by (cilium/cilium#16583, istio/istio#35531,
linkerd/linkerd2#6238).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ansible_collections.kproxy.dataplane.plugins.module_utils._preflight.findings import OK, SKIP, WARN, Finding
from ansible_collections.kproxy.dataplane.plugins.module_utils._preflight.node_facts import NodeFacts, Options

CHECK = "socket_translation"

#: Containers that intercept what the other containers of their pod send.
_SIDECARS = {
    "istio-proxy": "Istio",
    "linkerd-proxy": "Linkerd",
    "consul-dataplane": "Consul",
    "kuma-sidecar": "Kuma",
}
_GUESTS = {"kata": "Kata Containers", "gvisor": "gVisor"}
#: Pods that a message names; the rest is a number.
_NAMED = 3


def interceptor(pod: str, containers: Sequence[str]) -> str:
    """Return what in a pod needs the address that was dialled, for people; empty if nothing does.

    pod: ``NAMESPACE/NAME``.
    """
    name = pod.rpartition("/")[2]
    if name.startswith("ztunnel-") and "istio-proxy" in containers:
        return "ztunnel of Istio's ambient mode, which all pods of the node may use"
    if name.startswith("virt-launcher-") and "compute" in containers:
        return "a virtual machine of KubeVirt"
    for container in containers:
        if container in _SIDECARS:
            return "sidecar %s of %s" % (container, _SIDECARS[container])
    return ""


def socket_translation(facts: NodeFacts, options: Options) -> Finding:
    """The sockets of such pods should be left alone; only the operator can say so, for all pods of a node."""
    if options.backend != "ebpf":
        return Finding(CHECK, SKIP, "only the eBPF backend translates at the socket")
    if options.host_namespace_only:
        return Finding(CHECK, OK, "the sockets of pods are left alone; their packets are translated")
    found = _described(facts.containers)
    found += ["guests of %s" % _GUESTS.get(name, name) for name in facts.guest_runtimes]
    if not found:
        return Finding(CHECK, OK, "no pod here needs to see the address that it dials")
    return Finding(
        CHECK,
        WARN,
        f"{'; '.join(found)}: connections are translated at the socket, before these see which Service was dialled; "
        "set kproxy_ebpf_host_namespace_only to true to translate the packets of pods instead",
    )


def _described(containers: Mapping[str, Sequence[str]]) -> list[str]:
    needing = [(pod, what) for pod, held in sorted(containers.items()) if (what := interceptor(pod, held))]
    found = ["pod %s has %s" % item for item in needing[:_NAMED]]
    if len(needing) > _NAMED:
        found.append("%d more pods like these" % (len(needing) - _NAMED))
    return found
