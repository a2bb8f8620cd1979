# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Parse the short dumps: of ipset, IPVS, `ip -brief address` and `nft list tables`."""

from __future__ import annotations

import ipaddress
from typing import NamedTuple

_IPVS_PROTOCOLS = {"-t": "tcp", "-u": "udp", "--sctp-service": "sctp"}


class DumpError(ValueError):
    """A dump that cannot be read; the message names the line."""


class IpSet(NamedTuple):
    name: str
    family: str  # 'inet', 'inet6', or '' for sets of ports or of other sets


class VirtualServer(NamedTuple):
    """An IPVS virtual server; one made of a firewall mark has an empty address and the mark as port."""

    protocol: str  # 'tcp', 'udp', 'sctp' or 'fwmark'
    address: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{host}:{self.port}/{self.protocol}"


class Interface(NamedTuple):
    name: str
    addresses: tuple[str, ...]  # without prefix lengths


class NftTable(NamedTuple):
    family: str
    name: str


def parse_ipset_save(text: str) -> tuple[IpSet, ...]:
    """Return the sets of `ipset save` (members are not of interest)."""
    sets: list[IpSet] = []
    for line in text.splitlines():
        words = line.split()
        if words[:1] != ["create"]:
            continue
        if len(words) < 3:
            raise DumpError(f"not a line of ipset save: {line}")
        family = words[words.index("family") + 1] if "family" in words[:-1] else ""
        sets.append(IpSet(words[1], family))
    return tuple(sets)


def _virtual_server(line: str) -> VirtualServer:
    words = line.split()
    if len(words) < 3:
        raise DumpError(f"not a line of ipvsadm -S: {line}")
    kind, value = words[1], words[2]
    try:
        if kind == "-f":
            return VirtualServer("fwmark", "", int(value))
        address, _colon, port = value.rpartition(":")
        return VirtualServer(_IPVS_PROTOCOLS[kind], str(ipaddress.ip_address(address.strip("[]"))), int(port))
    except (KeyError, ValueError):
        raise DumpError(f"not a virtual server of ipvsadm -S -n: {line}") from None


def parse_ipvs_save(text: str) -> tuple[VirtualServer, ...]:
    """Return the virtual servers of `ipvsadm -S -n`."""
    return tuple(_virtual_server(line) for line in text.splitlines() if line.startswith("-A "))


def count_ipvs_connections(text: str) -> int:
    """Return how many open connections `/proc/net/ip_vs_conn` lists.

    Entries of ended TCP connections, which only wait for their timeout, and templates of persistence (client port 0)
    carry nothing.
    """
    count = 0
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) < 8 or fields[2] == "0000":
            continue
        count += fields[0] != "TCP" or fields[7] == "ESTABLISHED"
    return count


def parse_brief_addresses(text: str) -> tuple[Interface, ...]:
    """Return interfaces and their addresses from `ip -brief address`."""
    interfaces: list[Interface] = []
    for line in text.splitlines():
        words = line.split()
        if not words:
            continue
        addresses = []
        for word in words[2:]:
            try:
                addresses.append(str(ipaddress.ip_interface(word).ip))
            except ValueError:
                continue  # 'peer', 'metric' and their values
        interfaces.append(Interface(words[0].partition("@")[0], tuple(addresses)))
    return tuple(interfaces)


def parse_nft_tables(text: str) -> tuple[NftTable, ...]:
    """Return the tables of `nft list tables`."""
    tables: list[NftTable] = []
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["table"] and len(words) >= 3:
            tables.append(NftTable(words[1], words[2]))
    return tuple(tables)
