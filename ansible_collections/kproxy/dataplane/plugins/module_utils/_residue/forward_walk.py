# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Follow a new, translated packet of a Service through filter/FORWARD, before and after a removal.

KUBE-FORWARD accepts Service traffic in a chain whose policy somebody else set to DROP (Docker, ufw). Removing it then
loses traffic that worked, and an accept in an nftables table of ours cannot bring it back: every base chain on the
hook must let the packet pass.
"""

from __future__ import annotations

import ipaddress
from typing import NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._residue.iptables_save import Rule, Table, words

ACCEPT = "accept"
DROP = "drop"
_RETURN = "return"
_VERDICTS = {"ACCEPT": ACCEPT, "DROP": DROP, "REJECT": DROP, "RETURN": _RETURN}

# kube-proxy marks what it will masquerade with this bit unless masqueradeBit says otherwise.
MASQUERADE_MARK = 0x4000


class Packet(NamedTuple):
    """The first packet of a connection, after translation. None is not known, and leaves both answers open."""

    source: str | None = None
    destination: str | None = None
    protocol: str | None = None
    port: int | None = None
    mark: int | None = MASQUERADE_MARK


def _address(wanted: str, actual: str | None) -> bool | None:
    network = ipaddress.ip_network(wanted, strict=False)
    if network.prefixlen == 0:
        return True
    return None if actual is None else ipaddress.ip_address(actual) in network


def _port(wanted: str, actual: int | None) -> bool | None:
    if actual is None:
        return None
    for part in wanted.split(","):
        first, _colon, last = part.partition(":")
        if int(first or 0) <= actual <= int(last or first):
            return True
    return False


def _mark(wanted: str, actual: int | None) -> bool | None:
    if actual is None:
        return None
    value, _slash, mask = wanted.partition("/")
    return actual & int(mask or "0xffffffff", 0) == int(value, 0)


def _match(option: str, value: str, packet: Packet) -> bool | None:
    """Say whether one option of a rule matches; None where that cannot be known."""
    if option in ("-s", "-d"):
        return _address(value, packet.source if option == "-s" else packet.destination)
    if option == "-p":
        return None if packet.protocol is None else value in (packet.protocol, "all")
    if option in ("--dport", "--dports"):
        return _port(value, packet.port)
    if option == "--mark":
        return _mark(value, packet.mark)
    if option in ("--ctstate", "--state"):
        return bool({"NEW", "DNAT"} & set(value.split(",")))
    if option == "--comment":
        return True
    return None


def _matches(rule: Rule, packet: Packet) -> bool | None:
    parts = words(rule.text)[2:]
    verdict: bool | None = True
    negated = False
    position = 0
    while position < len(parts):
        part = parts[position]
        if part == "!":
            negated, position = True, position + 1
            continue
        if part in ("-j", "-g"):
            break
        values: list[str] = []
        position += 1
        while position < len(parts) and (part == "--comment" and not values or not parts[position].startswith("-")):
            if parts[position] == "!" and part != "--comment":
                break
            values.append(parts[position])
            position += 1
        if part == "-m":
            continue
        result = _match(part, values[0] if values else "", packet)
        if result is not None and negated:
            result = not result
        negated = False
        if result is False:
            return False
        if result is None:
            verdict = None
    return verdict


def _walk(table: Table, chain: str, packet: Packet, seen: tuple[str, ...]) -> frozenset[str]:
    """Return every way the packet may leave the chain; leaving at its end counts as `return`."""
    outcomes: set[str] = set()
    for rule in table.rules:
        if rule.chain != chain or rule.target is None or rule.target in seen:
            continue
        matched = _matches(rule, packet)
        if matched is False:
            continue
        if rule.target in _VERDICTS:
            outcome = frozenset((_VERDICTS[rule.target],))
        elif any(item.name == rule.target for item in table.chains):
            outcome = _walk(table, rule.target, packet, (*seen, chain))
            if " -g " not in rule.text and _RETURN in outcome:
                outcomes |= outcome - {_RETURN}
                continue
        else:
            continue  # LOG, MARK and the like decide nothing
        outcomes |= outcome
        if matched:
            return frozenset(outcomes)
    return frozenset(outcomes | {_RETURN})


def outcomes(tables: tuple[Table, ...], packet: Packet, hook: str = "FORWARD") -> frozenset[str]:
    """Return what may happen to the packet in the filter table: accept, drop or both. No filter table accepts."""
    for table in tables:
        if table.name == "filter":
            policy = next((chain.policy for chain in table.chains if chain.name == hook), "ACCEPT")
            found = _walk(table, hook, packet, ())
            if _RETURN in found:
                found = found - {_RETURN} | {_VERDICTS[policy]}
            return found
    return frozenset((ACCEPT,))
