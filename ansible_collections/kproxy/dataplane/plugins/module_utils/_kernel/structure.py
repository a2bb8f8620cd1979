# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Read the structure of our own table (chains, rules, set declarations) as digests, equal while nothing was altered.

What the kernel numbers or counts by itself is left out: handles, positions, counters, the names of anonymous sets
(their contents take the name's place). So a digest survives a reload of the same text.
"""

from __future__ import annotations

import hashlib
import struct
import time
from typing import Callable, NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import nft_protocol as nft
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.errors import DumpInterrupted
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.netlink import (
    DUMP_PATIENCE_SECONDS,
    attribute,
    attribute_map,
    attributes,
    text,
    text_attribute,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.nfnetlink import Nfnetlink
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.transaction import SetName

_CHAIN_PARTS = (
    nft.CHAIN_NAME,
    nft.CHAIN_HOOK,
    nft.CHAIN_POLICY,
    nft.CHAIN_TYPE,
    nft.CHAIN_FLAGS,
    nft.CHAIN_USERDATA,
)
_SET_PARTS = (
    nft.SET_FLAGS,
    nft.SET_KEY_TYPE,
    nft.SET_KEY_LEN,
    nft.SET_DATA_TYPE,
    nft.SET_DATA_LEN,
    nft.SET_POLICY,
    nft.SET_DESC,
    nft.SET_TIMEOUT,
    nft.SET_GC_INTERVAL,
    nft.SET_USERDATA,
    nft.SET_EXPRESSION,
    nft.SET_EXPRESSIONS,
)
#: Expressions whose data is nothing but state.
_STATE_ONLY = frozenset(("counter", "last"))


class Chain(NamedTuple):
    """A chain; hook, priority and policy are None for one that is only jumped to."""

    name: str
    hook: int | None
    priority: int | None
    policy: int | None
    type: str
    digest: str


class Set(NamedTuple):
    """A declared set or map: kernel flags, type numbers and lengths in bytes. `data_length` is 0 for a set."""

    name: str
    flags: int
    key_type: int
    key_length: int
    data_type: int
    data_length: int
    timeout_ms: int
    digest: str


def structure_digests(kernel: Nfnetlink, family: int) -> dict[str, str]:
    """Return a digest of every chain (its rules included) and set of our table: "chain NAME" or "set NAME" -> sha256.

    A table with flags has them under "table": a dormant one is there and does nothing. Empty if the table does not
    exist. All of it belongs to one generation of the ruleset.

    Raises:
        DumpInterrupted: the ruleset never stood still.
    """
    deadline = time.monotonic() + DUMP_PATIENCE_SECONDS
    while True:
        generation = kernel.generation()
        chains, rules, sets = list_chains(kernel, family), dump_rules(kernel, family), list_sets(kernel, family)
        flags = kernel.table_flags(family)
        if kernel.generation() == generation:
            break
        if time.monotonic() > deadline:
            raise DumpInterrupted(f"read the structure of table {kernel.table}: it changed meanwhile, every time")
    found = {
        f"chain {chain.name}": _sha256([chain.digest.encode(), rules.get(chain.name, "").encode()])
        for chain in chains.values()
    }
    found.update((f"set {declared.name}", declared.digest) for declared in sets.values())
    if flags:
        found["table"] = f"flags {flags}"
    return found


def list_chains(kernel: Nfnetlink, family: int) -> dict[str, Chain]:
    """Return the chains of our table by name; `digest` covers the declaration, not the rules."""
    found = {}
    for payload in kernel.dump_ours("list our chains", nft.GETCHAIN, family, b""):
        parts = attribute_map(payload, 4)
        hook = attribute_map(parts[nft.CHAIN_HOOK]) if nft.CHAIN_HOOK in parts else {}
        name = text(parts[nft.CHAIN_NAME])
        found[name] = Chain(
            name,
            _signed(hook.get(nft.HOOK_NUMBER)),
            _signed(hook.get(nft.HOOK_PRIORITY)),
            _signed(parts.get(nft.CHAIN_POLICY)),
            text(parts[nft.CHAIN_TYPE]) if nft.CHAIN_TYPE in parts else "",
            _sha256([_whole(kind, parts) for kind in _CHAIN_PARTS]),
        )
    return found


def list_sets(kernel: Nfnetlink, family: int) -> dict[str, Set]:
    """Return the named sets and maps of our table by name."""
    found = {}
    for name, parts in _set_parts(kernel, family).items():
        if _unsigned(parts.get(nft.SET_FLAGS)) & nft.SET_FLAG_ANONYMOUS:
            continue
        timeout = parts.get(nft.SET_TIMEOUT)
        found[name] = Set(
            name,
            _unsigned(parts.get(nft.SET_FLAGS)),
            _unsigned(parts.get(nft.SET_KEY_TYPE)),
            _unsigned(parts.get(nft.SET_KEY_LEN)),
            _unsigned(parts.get(nft.SET_DATA_TYPE)),
            _unsigned(parts.get(nft.SET_DATA_LEN)),
            struct.unpack(">Q", timeout)[0] if timeout is not None else 0,
            _set_digest(name, parts),
        )
    return found


def dump_rules(kernel: Nfnetlink, family: int, chain: str | None = None) -> dict[str, str]:
    """Return a digest of the rules of each chain that has any, or of one chain alone: chain name -> sha256."""
    anonymous = _anonymous_sets(kernel, family)
    filters = text_attribute(nft.RULE_CHAIN, chain) if chain is not None else b""
    rules: dict[str, list[bytes]] = {}
    for payload in kernel.dump_ours("read our rules", nft.GETRULE, family, filters):
        parts = attribute_map(payload, 4)
        name = text(parts[nft.RULE_CHAIN])
        if chain is None or name == chain:
            canonical = canonical_rule(parts, lambda set_name: anonymous.get(set_name, set_name))
            rules.setdefault(name, []).append(canonical)
    return {name: _sha256(lines) for name, lines in rules.items()}


def canonical_rule(parts: dict[int, memoryview], rename_set: Callable[[str], str]) -> bytes:
    """Return a rule's expressions and comment without state; `rename_set` gives the name to use for a set."""
    written = [_whole(nft.RULE_USERDATA, parts)]
    for _kind, expression in attributes(parts.get(nft.RULE_EXPRESSIONS, memoryview(b""))):
        held = attribute_map(expression)
        name = text(held[nft.EXPR_NAME])
        written.append(text_attribute(nft.EXPR_NAME, name))
        if name in _STATE_ONLY or nft.EXPR_DATA not in held:
            continue
        for kind, value in attributes(held[nft.EXPR_DATA]):
            if name == "quota" and kind == nft.QUOTA_CONSUMED:
                continue
            if (name, kind) in (("lookup", nft.LOOKUP_SET), ("dynset", nft.DYNSET_SET_NAME)):
                written.append(text_attribute(kind, rename_set(text(value))))
            else:
                written.append(attribute(kind, bytes(value)))
    return b"".join(written)


def _set_parts(kernel: Nfnetlink, family: int) -> dict[str, dict[int, memoryview]]:
    found = {}
    for payload in kernel.dump_ours("list our sets", nft.GETSET, family, b""):
        parts = attribute_map(payload, 4)
        found[text(parts[nft.SET_NAME])] = parts
    return found


def _anonymous_sets(kernel: Nfnetlink, family: int) -> dict[str, str]:
    """Return the digest of declaration and contents of each anonymous set by the name the kernel gave it."""
    found = {}
    for name, parts in _set_parts(kernel, family).items():
        if _unsigned(parts.get(nft.SET_FLAGS)) & nft.SET_FLAG_ANONYMOUS:
            contents = sorted(repr(element) for element in kernel.dump_elements(SetName(family, name)))
            found[name] = _sha256([_set_digest("", parts).encode(), *(line.encode() for line in contents)])
    return found


def _set_digest(name: str, parts: dict[int, memoryview]) -> str:
    return _sha256([name.encode(), *(_whole(kind, parts) for kind in _SET_PARTS)])


def _whole(kind: int, parts: dict[int, memoryview]) -> bytes:
    return attribute(kind, bytes(parts[kind])) if kind in parts else b""


def _sha256(pieces: list[bytes]) -> str:
    """Hash the pieces with their lengths, so that no two lists of pieces run together to the same input."""
    state = hashlib.sha256()
    for piece in pieces:
        state.update(struct.pack(">I", len(piece)) + piece)
    return state.hexdigest()


def _signed(value: memoryview | None) -> int | None:
    return None if value is None else int(struct.unpack(">i", value)[0])


def _unsigned(value: memoryview | None) -> int:
    return 0 if value is None else int(struct.unpack(">I", value)[0])
