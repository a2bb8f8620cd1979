"""Given connection table entries: insert them by hand, see which are left. Uses conntrack(8)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from devtools.conformance.corpus import ConntrackEntry, SocketAddress, family
from devtools.conformance.netns import NetworkNamespace

LIFETIME_SECONDS = 600
_FIRST_SOURCE_PORT = 20001
_CLIENTS = {4: "203.0.113.254", 6: "2001:db8:ffff::fe"}
_STATE = {
    "TCP": ["--state", "ESTABLISHED"],
    "SCTP": ["--state", "ESTABLISHED", "--orig-vtag", "1", "--reply-vtag", "2"],
    "UDP": [],
}


class Flow(NamedTuple):
    """How an entry is found again: a source port that nothing else in the namespace uses."""

    family: int
    protocol: str
    source_port: int


def insert(namespace: NetworkNamespace, entries: Sequence[ConntrackEntry]) -> dict[str, Flow]:
    flows = {}
    for number, entry in enumerate(entries):
        flow = Flow(family(entry.orig_dst.ip), entry.protocol, _FIRST_SOURCE_PORT + number)
        namespace.run(insertion(entry, SocketAddress(_CLIENTS[flow.family], flow.source_port)))
        flows[entry.id] = flow
    return flows


def insertion(entry: ConntrackEntry, client: SocketAddress) -> list[str]:
    """The command that makes one entry."""
    return [
        "conntrack", "-I", "-p", entry.protocol.lower(), "-t", str(LIFETIME_SECONDS),
        "-s", client.ip, "-d", entry.orig_dst.ip, "--sport", str(client.port), "--dport", str(entry.orig_dst.port),
        "-r", entry.reply_src.ip, "-q", client.ip,
        "--reply-port-src", str(entry.reply_src.port), "--reply-port-dst", str(client.port),
        # A flow in use: the other side has answered.
        "-u", "SEEN_REPLY,ASSURED", *_STATE[entry.protocol],
    ]  # fmt: skip


def present(namespace: NetworkNamespace, flows: Mapping[str, Flow]) -> set[str]:
    """The ids of the entries that are still in the table."""
    listed: dict[tuple[int, str], set[int]] = {}
    for flow in flows.values():
        key = (flow.family, flow.protocol)
        if key not in listed:
            kind = "ipv6" if flow.family == 6 else "ipv4"
            table = namespace.run(["conntrack", "-L", "-f", kind, "-p", flow.protocol.lower()])
            # The first pair of ports in a line is that of the original direction.
            listed[key] = {int(port) for line in table.splitlines() for port in re.findall(r"sport=(\d+)", line)[:1]}
    return {name for name, flow in flows.items() if flow.source_port in listed[flow.family, flow.protocol]}
