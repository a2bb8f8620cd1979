# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The tables, chains, rules and set declarations that elements live in, as nft text.

Nothing here grows with the number of Services: chains exist per distinct count of endpoints, and only service ports
with session affinity own a constant few objects. The picture of the path of a packet is in docs/design/nftables.md.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.table import NodeRules
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables import names
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.address import Prefix
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.protocol import NAMES

_PINS_SIZE = 1048576
#: The timeout of a pin comes from the rule that learns it, so that a new timeoutSeconds does not need a new map.
_PINS_LIFETIME_SECONDS = 86400


_PICK_CHAIN = re.compile(
    "(?:(?P<mark>%s)-)?(?P<pick>(?:%s)?%s(?:-local)?-(?P<count>[1-9][0-9]*))"
    % (f"{names.CLUSTER_IP}|{names.EXTERNAL}|{names.SHORT_CIRCUITED}", names.NODE_PORT, names.PICK)
)


class FamilyWords(NamedTuple):
    """How nft spells things in one address family."""

    table: str
    header: str
    address_type: str
    loopback: str


WORDS = {
    4: FamilyWords("ip", "ip", "ipv4_addr", "127.0.0.0/8"),
    6: FamilyWords("ip6", "ip6", "ipv6_addr", "::1"),
}
_PROTOCOLS = [name.lower() for name in NAMES.values()]

# Hook priorities. NAT sits where kube-proxy's does; source ranges are checked before it, on the address dialled; pins
# are learned just before the source address may change.
DSTNAT = -100
SRCNAT = 100


class Declaration(NamedTuple):
    """A chain or set: how it is made, and the rules of a chain."""

    name: str
    make: str
    rules: tuple[str, ...] = ()


def sets(family: int) -> list[Declaration]:
    """Return the sets and maps that every table has."""
    words = WORDS[family]
    frontend = "%s . inet_proto . inet_service" % words.address_type
    node_port = "inet_proto . inet_service"
    found = []
    about = {
        names.SERVICES: "address a client dials: how an endpoint is picked",
        names.SHORT_CIRCUIT: "the same for pods and the node, where they skip the Local policy",
        names.NO_ENDPOINTS: "no usable endpoint: refused, or dropped if there are some elsewhere",
        names.AFFINITY: "session affinity: where the pins of an address are",
        names.UNPINNED: "session affinity: how an endpoint is picked for a client without a pin",
        names.UNPINNED_LOCAL: "the same among this node's endpoints",
        names.LEARN_AFFINITY: "session affinity: where new pins of an address go",
    }
    for name, comment in about.items():
        found.append(_map(name, frontend + " : verdict", comment))
        found.append(_map(names.NODE_PORT + name, node_port + " : verdict", "%s, by NodePort" % name))
    for protocol in _PROTOCOLS:
        value = "%s daddr . %s dport" % (words.header, protocol)
        slot = "numgen random mod 65536"
        found.append(_typeof(names.ENDPOINTS + protocol, "%s . %s : %s" % (value, slot, value)))
        found.append(
            _typeof(names.NODE_PORT + names.ENDPOINTS + protocol, "%s dport . %s : %s" % (protocol, slot, value))
        )
    hairpin = "%s . %s . inet_proto . inet_service" % (words.address_type, words.address_type)
    found += [
        _set(names.CLUSTER_IPS, words.address_type, "cluster IPs in use"),
        _set(names.HAIRPIN, hairpin, "endpoints of this node, dialling themselves"),
        _set(names.SOURCE_RESTRICTED, frontend, "addresses with loadBalancerSourceRanges"),
        _set(names.ALLOWED_SOURCES, "%s . %s" % (frontend, words.address_type), "who may dial them", interval=True),
        _set(names.LOOPBACK_NODE_PORTS, node_port, "NodePorts that the loopback address refuses"),
        _set(names.POD_ADDRESSES, words.address_type, "what counts as a pod", interval=True),
        _set(names.NODE_PORT_ADDRESSES, words.address_type, "where NodePorts are accepted", interval=True),
        _set(names.SERVICE_CIDRS, words.address_type, "service ranges: unused addresses are dropped", interval=True),
        _set(names.ABOUT, "mark", "what these tables were made from"),
    ]
    return found


def base_chains(family: int, rules: NodeRules) -> list[Declaration]:
    """Return the chains that every table has; they depend on the node's settings, never on Services."""
    words = WORDS[family]
    address = "%s daddr . meta l4proto . th dport" % words.header
    node_port = "meta l4proto . th dport"
    to_node_port = _to_node_port(words, rules)
    pod = _pod_match(words, rules, negated=False)
    mark = rules.masquerade_mark
    node = "fib saddr type local"
    # nft wants to know the protocol before it takes a port from the connection's original tuple.
    translated = "ct state new ct status dnat meta l4proto %s %smeta l4proto . ct original proto-dst vmap @%s"
    dialled = "ct original %s daddr . " % words.header
    learn = [translated % (protocol, dialled, names.LEARN_AFFINITY) for protocol in _PROTOCOLS]
    learn += [translated % (protocol, "", names.NODE_PORT + names.LEARN_AFFINITY) for protocol in _PROTOCOLS]
    return [
        _hook("source-check-prerouting", "filter", "prerouting", DSTNAT - 10, ["ct state new jump source-check"]),
        _hook("source-check-output", "filter", "output", DSTNAT - 10, ["ct state new jump source-check"]),
        _hook("nat-prerouting", "nat", "prerouting", DSTNAT, ["jump dispatch"]),
        _hook("nat-output", "nat", "output", DSTNAT, ["jump dispatch"]),
        _hook(
            "filter-input",
            "filter",
            "input",
            0,
            ["ct state new jump refused-services", "ct state new jump refused-node-ports"],
        ),
        _hook(
            "filter-forward",
            "filter",
            "forward",
            0,
            ["ct state new jump refused-services", "ct state new jump undefined-addresses"],
        ),
        _hook(
            "filter-output",
            "filter",
            "output",
            0,
            ["ct state new jump refused-services", "ct state new jump undefined-addresses"],
        ),
        _hook("learn-postrouting", "filter", "postrouting", SRCNAT - 1, learn),
        _hook(
            "nat-postrouting",
            "nat",
            "postrouting",
            SRCNAT,
            [
                "meta mark & 0x%08x == 0x%08x meta mark set meta mark ^ 0x%08x masquerade fully-random"
                % (mark, mark, mark),
                "%s saddr . %s daddr . meta l4proto . th dport @%s ct status dnat masquerade fully-random"
                % (words.header, words.header, names.HAIRPIN),
            ],
        ),
        _chain(
            "source-check",
            "%s @%s %s . %s saddr != @%s drop"
            % (address, names.SOURCE_RESTRICTED, address, words.header, names.ALLOWED_SOURCES),
        ),
        _chain(
            "dispatch",
            *(["%s %s vmap @%s" % (pod, address, names.SHORT_CIRCUIT)] if pod else []),
            "%s %s vmap @%s" % (node, address, names.SHORT_CIRCUIT),
            "%s vmap @%s" % (address, names.SERVICES),
            "%s goto dispatch-node-port" % to_node_port,
        ),
        _chain(
            "dispatch-node-port",
            *(["%s %s vmap @%s%s" % (pod, node_port, names.NODE_PORT, names.SHORT_CIRCUIT)] if pod else []),
            "%s %s vmap @%s%s" % (node, node_port, names.NODE_PORT, names.SHORT_CIRCUIT),
            "%s vmap @%s%s" % (node_port, names.NODE_PORT, names.SERVICES),
        ),
        _chain("mark-for-masquerade", "meta mark set meta mark | 0x%08x" % mark),
        _chain("mark-%s" % names.CLUSTER_IP, *_mark_cluster_ip(words, rules)),
        _chain("mark-%s" % names.EXTERNAL, "jump mark-for-masquerade"),
        _chain("mark-%s" % names.SHORT_CIRCUITED, *(["%s return" % pod] if pod else []), "jump mark-for-masquerade"),
        *(
            _chain(
                "%s%s-affinity" % (prefix, kind),
                "jump mark-%s" % kind,
                "%s vmap @%s%s" % (match, prefix, names.AFFINITY),
            )
            for prefix, match in (("", address), (names.NODE_PORT, node_port))
            for kind in (names.CLUSTER_IP, names.EXTERNAL, names.SHORT_CIRCUITED)
            if not (prefix and kind == names.CLUSTER_IP)
        ),
        _chain("refused-services", "%s vmap @%s" % (address, names.NO_ENDPOINTS)),
        _chain(
            "refused-node-ports",
            "%s %s vmap @%s%s" % (to_node_port, node_port, names.NODE_PORT, names.NO_ENDPOINTS),
            "%s daddr %s %s @%s goto refuse" % (words.header, words.loopback, node_port, names.LOOPBACK_NODE_PORTS),
        ),
        _chain(
            "undefined-addresses",
            "%s daddr @%s goto refuse" % (words.header, names.CLUSTER_IPS),
            "%s daddr @%s drop" % (words.header, names.SERVICE_CIDRS),
        ),
        _chain("refuse", "meta l4proto tcp reject with tcp reset", "reject"),
    ]


def pick_chains(family: int, name: str) -> list[Declaration]:
    """Return the chain of this name, as elements ask for it, and those it needs.

    Names are [MARK-][node-port-]pick[-local]-COUNT.
    """
    match = _PICK_CHAIN.fullmatch(name)
    if match is None:
        raise ValueError("%r is not a chain that picks an endpoint" % name)
    mark, pick, counted = match.group("mark"), match.group("pick"), match.group("count")
    found = []
    if mark:
        found.append(_chain(name, "jump mark-%s" % mark, "goto %s" % pick))
    words = WORDS[family]
    count = int(counted)
    offset = " offset %d" % names.LOCAL_SLOTS if "-local-" in pick else ""
    node_port = pick.startswith(names.NODE_PORT)
    rules = []
    for protocol in _PROTOCOLS:
        key = "%s dport" % protocol if node_port else "%s daddr . %s dport" % (words.header, protocol)
        map_name = (names.NODE_PORT if node_port else "") + names.ENDPOINTS + protocol
        rules.append("dnat %s to %s . numgen random mod %d%s map @%s" % (words.header, key, count, offset, map_name))
    found.append(_chain(pick, *rules))
    return found


def is_pick_chain(name: str) -> bool:
    """Whether a chain is one of those that exist per count of endpoints."""
    return _PICK_CHAIN.fullmatch(name) is not None


class AffinityObjects(NamedTuple):
    """What one service port with session affinity owns: sets of its clients' pins and of its endpoints, and chains."""

    sets: list[Declaration]
    chains: list[Declaration]


def pins_map(suffix: str, local: bool) -> str:
    """Return the map client -> endpoint of a service port."""
    return "pins%s-%s" % ("-local" if local else "", suffix)


def pin_ports_map(suffix: str, local: bool) -> str:
    """Return the map client -> port that IPv6 needs beside pins_map(), which then holds addresses alone.

    nft 1.0.6 aborts on an update of a map whose value is an IPv6 address and a port.
    """
    return "pin-ports%s-%s" % ("-local" if local else "", suffix)


def members_set(suffix: str, local: bool) -> str:
    """Return the set of endpoints that a pin of a service port may name."""
    return "members%s-%s" % ("-local" if local else "", suffix)


def affinity_objects(
    family: int, suffix: str, protocol: int, seconds: int, cluster: bool, local: bool
) -> AffinityObjects:
    """Return the objects of one service port; cluster and local: which endpoint sets its frontends use.

    A pin is learned for every endpoint set that the endpoint is a member of, so that all frontends of the service
    port share it; it counts on a path only while its endpoint is in the set of that path.
    """
    header = WORDS[family].header
    transport = names.protocol_suffix(protocol)
    endpoint = "%s daddr . %s dport" % (header, transport)
    declared: list[Declaration] = []
    chains: list[Declaration] = []
    learn: list[str] = []
    for is_local, used in ((False, cluster), (True, local)):
        if not used:
            continue
        pins, members = pins_map(suffix, is_local), members_set(suffix, is_local)
        if family == 4:
            values = [(pins, endpoint)]
        else:
            values = [(pins, "ip6 daddr"), (pin_ports_map(suffix, is_local), "%s dport" % transport)]
        declared += [
            Declaration(
                name,
                "add map {table} %s { typeof %s saddr : %s ; flags dynamic,timeout ; timeout %ds ; size %d ; }"
                % (name, header, value, _PINS_LIFETIME_SECONDS, _PINS_SIZE),
            )
            for name, value in values
        ]
        declared.append(_typeof(members, endpoint, kind="set"))
        unpinned = names.UNPINNED_LOCAL if is_local else names.UNPINNED
        found = " : ".join("%s saddr map @%s" % (header, name) for name, _value in values)
        chains.append(
            _chain(
                "pinned%s-%s" % ("-local" if is_local else "", suffix),
                "meta l4proto %s dnat %s to %s" % (transport, header, found),
                "%s daddr . meta l4proto . th dport vmap @%s" % (header, unpinned),
                "meta l4proto . th dport vmap @%s%s" % (names.NODE_PORT, unpinned),
            )
        )
        updates = " ".join(
            "update @%s { %s saddr timeout %ds : %s }" % (name, header, seconds, value) for name, value in values
        )
        learn.append("%s @%s %s" % (endpoint, members, updates))
    chains.append(_chain("learn-%s" % suffix, *learn))
    return AffinityObjects(declared, chains)


def interval_elements(rules: NodeRules) -> dict[str, tuple[Prefix, ...]]:
    """Return the contents of the sets that come from the node's settings."""
    return {
        names.POD_ADDRESSES: rules.pods.source_ranges,
        names.NODE_PORT_ADDRESSES: rules.node_port_ranges or (),
        names.SERVICE_CIDRS: rules.service_cidrs,
    }


def ensure_text(
    family: int, declared: list[Declaration], chains: list[Declaration], contents: dict[str, tuple[Prefix, ...]]
) -> str:
    """Return nft text that makes sets and chains be as declared, whatever their rules were before."""
    table = "%s %s" % (WORDS[family].table, names.TABLE)
    lines = ["add table %s" % table]
    lines += [item.make.replace("{table}", table) for item in declared]
    lines += [item.make.replace("{table}", table) for item in chains]
    lines += ["flush chain %s %s" % (table, item.name) for item in chains]
    lines += ["add rule %s %s %s" % (table, item.name, rule) for item in chains for rule in item.rules]
    for name, prefixes in contents.items():
        lines.append("flush set %s %s" % (table, name))
        if prefixes:
            lines.append("add element %s %s { %s }" % (table, name, ", ".join(map(str, _disjoint(prefixes)))))
    return "\n".join(lines) + "\n"


def delete_text(family: int, chains: list[str], declared: list[str]) -> str:
    """Return nft text that removes chains and sets which nothing else names any more."""
    table = "%s %s" % (WORDS[family].table, names.TABLE)
    lines = ["flush chain %s %s" % (table, name) for name in chains]
    lines += ["delete chain %s %s" % (table, name) for name in chains]
    lines += ["delete set %s %s" % (table, name) for name in declared]
    return "".join(line + "\n" for line in lines)


def delete_table_text(family: int) -> str:
    """Return nft text that removes our table of a family, which must exist."""
    return "delete table %s %s\n" % (WORDS[family].table, names.TABLE)


def _disjoint(prefixes: tuple[Prefix, ...]) -> list[Prefix]:
    """Leave out prefixes that lie within another: an interval set refuses overlaps."""
    kept: list[Prefix] = []
    for prefix in sorted(prefixes, key=lambda item: item.length):
        if not any(other.contains(prefix.network) for other in kept):
            kept.append(prefix)
    return sorted(kept)


def _to_node_port(words: FamilyWords, rules: NodeRules) -> str:
    restricted = rules.node_port_ranges is not None
    return "%s daddr != %s %sfib daddr type local" % (
        words.header,
        words.loopback,
        "%s daddr @%s " % (words.header, names.NODE_PORT_ADDRESSES) if restricted else "",
    )


def _pod_match(words: FamilyWords, rules: NodeRules, negated: bool) -> str:
    """Return the match for pods (or for all others), empty where pods cannot be told apart."""
    sign = "!= " if negated else ""
    pods = rules.pods
    if pods.source_ranges:
        return "%s saddr %s@%s" % (words.header, sign, names.POD_ADDRESSES)
    # Matched by name: the interface need not exist yet, and may come back under another index.
    if pods.interface:
        return 'iifname %s"%s"' % (sign, pods.interface)
    if pods.interface_prefix:
        return 'iifname %s"%s*"' % (sign, pods.interface_prefix)
    return ""


def _mark_cluster_ip(words: FamilyWords, rules: NodeRules) -> list[str]:
    if rules.masquerade_all:
        return ["jump mark-for-masquerade"]
    others = _pod_match(words, rules, negated=True)
    return ["%s jump mark-for-masquerade" % others] if others else []


def _map(name: str, types: str, comment: str) -> Declaration:
    return Declaration(name, 'add map {table} %s { type %s ; comment "%s" ; }' % (name, types, comment))


def _typeof(name: str, types: str, kind: str = "map") -> Declaration:
    return Declaration(name, "add %s {table} %s { typeof %s ; }" % (kind, name, types))


def _set(name: str, types: str, comment: str, interval: bool = False) -> Declaration:
    flags = "flags interval ; " if interval else ""
    return Declaration(name, 'add set {table} %s { type %s ; %scomment "%s" ; }' % (name, types, flags, comment))


def _hook(name: str, kind: str, hook: str, priority: int, rules: list[str]) -> Declaration:
    make = "add chain {table} %s { type %s hook %s priority %d ; policy accept ; }" % (name, kind, hook, priority)
    return Declaration(name, make, tuple(rules))


def _chain(name: str, *rules: str) -> Declaration:
    return Declaration(name, "add chain {table} %s" % name, rules)
