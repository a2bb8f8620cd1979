"""One node for the packet programs: settings, a Service with an endpoint, and packets that are run through hooks."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf import layout
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import bpf_syscall as bpf
from tests.packets.ebpf import frames
from tests.packets.ebpf.frames import packed
from tests.packets.ebpf.loaded_programs import Programs

UNSPEC, SHOT, REDIRECT = 0xFFFFFFFF, 2, 7
IN, OUT = "tcx/ingress", "tcx/egress"
SERVICE = 1
PRESENT = b"\1\0\0\0"
#: Offsets in struct __sk_buff (include/uapi/linux/bpf.h).
_INGRESS_IFINDEX, _CONTEXT = 36, 192
LOOPBACK_IFINDEX = 1
#: Link addresses: of the loopback device, by which packets come in here, and of somebody else.
HERE, SENDER = bytes(6), bytes.fromhex("020000000009")
#: Makes a packet of (source, port, destination, port).
Build = Callable[..., bytes]


class Place(NamedTuple):
    """Who is who in one family."""

    family: int
    client: str
    vip: str
    pod: str
    node: str
    other_pod: str
    pods: tuple[int, str]
    services: tuple[int, str]
    unused: str


PLACES = {
    4: Place(4, "198.51.100.9", "10.96.0.1", "10.244.1.5", "192.0.2.11", "10.244.1.6", (16, "10.244.0.0"),
             (16, "10.96.0.0"), "10.96.7.7"),
    6: Place(6, "2001:db8:f::9", "fd00:10:96::1", "fd00:10:244::5", "2001:db8:1::11", "fd00:10:244::6",
             (48, "fd00:10:244::"), (48, "fd00:10:96::"), "fd00:10:96::77"),
}  # fmt: skip


class Step(NamedTuple):
    """One packet at one hook. after: None for the same bytes."""

    hook: str
    before: bytes
    after: bytes | None = None
    verdict: int = UNSPEC


class Node:
    """A node with one Service, an endpoint behind it, and settings to be changed."""

    def __init__(self, place: Place, loaded: Programs) -> None:
        self.place = place
        self.programs, self.maps = loaded, loaded.maps
        loaded.empty()
        self.settings()
        self.endpoint()
        self.put("cluster_ips", packed(place.vip), PRESENT)
        self.put("node_addrs", packed(place.node), PRESENT)
        self.put("service_cidrs", layout.prefix_key(place.services[0], packed(place.services[1])), PRESENT)
        self.put("pod_cidrs", layout.prefix_key(place.pods[0], packed(place.pods[1])), PRESENT)

    def put(self, name: str, key: bytes, value: bytes) -> None:
        self.programs.put(f"{name}{self.place.family}", key, value)

    def settings(self, flags: int = 0, masquerade: bool = True) -> None:
        node = packed(self.place.node) if masquerade else bytes(16)
        node4, node6 = (node[:4], bytes(16)) if self.place.family == 4 else (bytes(4), node)
        self.maps["settings"].put(bytes(4), layout.Settings(1, flags, 2, node4, node6).pack())

    def endpoint(self, flags: int = 0) -> None:
        held = layout.endpoint(packed(self.place.pod), 8080, flags)
        self.put("slots", layout.slot_key(layout.set_number(SERVICE, False), 0), held)

    def frontend(
        self, answer: int | tuple[int, int, int] = 0, flags: int = 0, ip: str | None = None, port: int = 80,
        protocol: int = frames.TCP,
    ) -> None:  # fmt: skip
        """Enter a frontend of the Service; an empty `ip` is a NodePort."""
        answers = answer if isinstance(answer, tuple) else (answer, answer, answer)
        address = packed(self.place.vip) if ip is None else packed(ip) if ip else b""
        value = layout.FrontendValue(SERVICE, 1, 0, 60 if flags & layout.FRONTEND_AFFINITY else 0, answers, flags)
        self.put(
            "frontends", layout.frontend_key(self.place.family, address, protocol, port), value.pack(self.place.family)
        )

    def run(
        self, hook: str, packet: bytes, forwarded: bool = True, ends: tuple[bytes, bytes] = (HERE, SENDER)
    ) -> tuple[int, bytes]:
        """Return verdict and packet. forwarded: it came in by a device, at egress. ends: its link addresses."""
        context = bytearray(_CONTEXT)
        struct.pack_into("=I", context, _INGRESS_IFINDEX, LOOPBACK_IFINDEX if forwarded else 0)
        verdict, left, _after = bpf.run_in_context(
            self.programs.loaded[hook], frames.frame(packet, ends), bytes(context)
        )
        turned = ends if verdict != REDIRECT else (ends[1], ends[0])
        assert left[:14] == frames.frame(packet, turned)[:14]
        return verdict, left[14:]

    def reason(self, name: str) -> int:
        return self.programs.reason(name)


def play(node: Node, steps: list[Step]) -> None:
    for number, step in enumerate(steps):
        verdict, after = node.run(step.hook, step.before)
        assert verdict == step.verdict, f"step {number}"
        assert after == (step.before if step.after is None else step.after), f"step {number}"
