# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The tables, chains, rules and set declarations that elements live in, as nft text.

Nothing here grows with the number of Services: chains exist per distinct count of endpoints, and only service ports
with session affinity own a constant few objects. The picture of the path of a packet is in docs/design/nftables.md.
"""

from __future__ import annotations

import re

from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.table import NodeRules
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables import names
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.declaration import (
    PROTOCOLS,
    WORDS,
    Declaration,
    FamilyWords,
    base_chain,
    chain,
    plain_set,
    typeof,
    verdict_map,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.placement import Placement
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.address import Prefix

_PICK_CHAIN = re.compile(
    "(?:(?P<mark>%s)-)?(?P<pick>(?:%s)?%s(?:-local)?-(?P<count>[1-9][0-9]*))"
    % (f"{names.CLUSTER_IP}|{names.EXTERNAL}|{names.SHORT_CIRCUITED}", names.NODE_PORT, names.PICK)
)


# Hook priorities beside those of a placement: source ranges are checked before any NAT, on the address dialled; pins
# are learned just before the source address may change.
SOURCE_CHECK = -110
LEARN = 99


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
        found.append(verdict_map(name, frontend + " : verdict", comment))
        found.append(verdict_map(names.NODE_PORT + name, node_port + " : verdict", "%s, by NodePort" % name))
    for protocol in PROTOCOLS:
        value = "%s daddr . %s dport" % (words.header, protocol)
        slot = "numgen random mod 65536"
        found.append(typeof(names.ENDPOINTS + protocol, "%s . %s : %s" % (value, slot, value)))
        found.append(
            typeof(names.NODE_PORT + names.ENDPOINTS + protocol, "%s dport . %s : %s" % (protocol, slot, value))
        )
    hairpin = "%s . %s . inet_proto . inet_service" % (words.address_type, words.address_type)
    found += [
        plain_set(names.CLUSTER_IPS, words.address_type, "cluster IPs in use"),
        plain_set(names.HAIRPIN, hairpin, "endpoints of this node, dialling themselves"),
        plain_set(names.SOURCE_RESTRICTED, frontend, "addresses with loadBalancerSourceRanges"),
        plain_set(
            names.ALLOWED_SOURCES, "%s . %s" % (frontend, words.address_type), "who may dial them", interval=True
        ),
        plain_set(names.LOOPBACK_NODE_PORTS, node_port, "NodePorts that the loopback address refuses"),
        plain_set(names.POD_ADDRESSES, words.address_type, "what counts as a pod", interval=True),
        plain_set(names.NODE_PORT_ADDRESSES, words.address_type, "where NodePorts are accepted", interval=True),
        plain_set(
            names.SERVICE_CIDRS, words.address_type, "service ranges: unused addresses are dropped", interval=True
        ),
        plain_set(names.ABOUT, "mark", "what these tables were made from"),
    ]
    return found


def base_chains(family: int, rules: NodeRules, place: Placement) -> list[Declaration]:
    """Return the chains that every table has; they depend on the node's settings, never on Services."""
    words = WORDS[family]
    address = "%s daddr . meta l4proto . th dport" % words.header
    node_port = "meta l4proto . th dport"
    to_node_port = _to_node_port(words, rules)
    pod = _pod_match(words, rules, negated=False)
    mark = rules.masquerade_mark
    node = "fib saddr type local"
    # nft wants to know the protocol before it takes a port from the connection's original tuple.
    dialled_port = "meta l4proto %s %smeta l4proto . ct original proto-dst vmap @%s"
    dialled = "ct original %s daddr . " % words.header
    remember = [dialled_port % (protocol, dialled, names.LEARN_AFFINITY) for protocol in PROTOCOLS]
    remember += [dialled_port % (protocol, "", names.NODE_PORT + names.LEARN_AFFINITY) for protocol in PROTOCOLS]
    learn = ["ct state new ct status dnat jump remember"]
    # A connection that NAT leaves alone may be translated by somebody else's.
    refusals = ["jump refused-node-ports", "jump refused-services"] if place.refuses_first else []
    translate = ["jump dispatch", *refusals]
    return [
        base_chain("source-check-prerouting", "filter", "prerouting", SOURCE_CHECK, ["ct state new jump source-check"]),
        base_chain("source-check-output", "filter", "output", SOURCE_CHECK, ["ct state new jump source-check"]),
        base_chain("nat-prerouting", "nat", "prerouting", place.dstnat, translate),
        base_chain("nat-output", "nat", "output", place.dstnat, translate),
        base_chain(
            "filter-input",
            "filter",
            "input",
            0,
            ["ct state new jump refused-node-ports", "ct state new jump refused-services"],
        ),
        base_chain(
            "filter-forward",
            "filter",
            "forward",
            0,
            ["ct state new jump refused-services", "ct state new jump undefined-addresses"],
        ),
        base_chain(
            "filter-output",
            "filter",
            "output",
            0,
            ["ct state new jump refused-services", "ct state new jump undefined-addresses"],
        ),
        base_chain("learn-postrouting", "filter", "postrouting", LEARN, learn),
        # What is led to an address of the node itself, as to host-network pods, never comes to postrouting.
        base_chain("learn-input", "filter", "input", LEARN, learn),
        base_chain(
            "nat-postrouting",
            "nat",
            "postrouting",
            place.srcnat,
            [
                "meta mark & 0x%08x == 0x%08x meta mark set meta mark ^ 0x%08x masquerade fully-random"
                % (mark, mark, mark),
                "%s saddr . %s daddr . meta l4proto . th dport @%s ct status dnat masquerade fully-random"
                % (words.header, words.header, names.HAIRPIN),
            ],
        ),
        chain(
            "source-check",
            "%s @%s %s . %s saddr != @%s drop"
            % (address, names.SOURCE_RESTRICTED, address, words.header, names.ALLOWED_SOURCES),
        ),
        chain(
            "dispatch",
            *(["%s %s vmap @%s" % (pod, address, names.SHORT_CIRCUIT)] if pod else []),
            "%s %s vmap @%s" % (node, address, names.SHORT_CIRCUIT),
            "%s vmap @%s" % (address, names.SERVICES),
            "%s goto dispatch-node-port" % to_node_port,
        ),
        chain(
            "dispatch-node-port",
            *(["%s %s vmap @%s%s" % (pod, node_port, names.NODE_PORT, names.SHORT_CIRCUIT)] if pod else []),
            "%s %s vmap @%s%s" % (node, node_port, names.NODE_PORT, names.SHORT_CIRCUIT),
            "%s vmap @%s%s" % (node_port, names.NODE_PORT, names.SERVICES),
        ),
        chain("remember", *remember),
        chain("mark-for-masquerade", "meta mark set meta mark | 0x%08x" % mark),
        chain("mark-%s" % names.CLUSTER_IP, *_mark_cluster_ip(words, rules)),
        chain("mark-%s" % names.EXTERNAL, "jump mark-for-masquerade"),
        chain("mark-%s" % names.SHORT_CIRCUITED, *(["%s return" % pod] if pod else []), "jump mark-for-masquerade"),
        *(
            chain(
                "%s%s-affinity" % (prefix, kind),
                "jump mark-%s" % kind,
                "%s vmap @%s%s" % (match, prefix, names.AFFINITY),
            )
            for prefix, match in (("", address), (names.NODE_PORT, node_port))
            for kind in (names.CLUSTER_IP, names.EXTERNAL, names.SHORT_CIRCUITED)
            if not (prefix and kind == names.CLUSTER_IP)
        ),
        chain("refused-services", "%s vmap @%s" % (address, names.NO_ENDPOINTS)),
        chain(
            "refused-node-ports",
            "%s %s vmap @%s%s" % (to_node_port, node_port, names.NODE_PORT, names.NO_ENDPOINTS),
            "%s daddr %s %s @%s goto %s"
            % (words.header, words.loopback, node_port, names.LOOPBACK_NODE_PORTS, names.REFUSE_LOOPBACK),
        ),
        chain(
            "undefined-addresses",
            *(["%s daddr @%s goto refuse" % (words.header, names.CLUSTER_IPS)] if rules.guarded else []),
            "%s daddr @%s drop" % (words.header, names.SERVICE_CIDRS),
        ),
        chain(names.REFUSE_LOOPBACK, *("meta l4proto %s counter" % protocol for protocol in PROTOCOLS), "goto refuse"),
        chain("refuse", "meta l4proto tcp reject with tcp reset", "reject"),
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
        found.append(chain(name, "jump mark-%s" % mark, "goto %s" % pick))
    words = WORDS[family]
    count = int(counted)
    offset = " offset %d" % names.LOCAL_SLOTS if "-local-" in pick else ""
    node_port = pick.startswith(names.NODE_PORT)
    rules = []
    for protocol in PROTOCOLS:
        key = "%s dport" % protocol if node_port else "%s daddr . %s dport" % (words.header, protocol)
        map_name = (names.NODE_PORT if node_port else "") + names.ENDPOINTS + protocol
        rules.append("dnat %s to %s . numgen random mod %d%s map @%s" % (words.header, key, count, offset, map_name))
    found.append(chain(pick, *rules))
    return found


def is_pick_chain(name: str) -> bool:
    """Whether a chain is one of those that exist per count of endpoints."""
    return _PICK_CHAIN.fullmatch(name) is not None


def interval_elements(rules: NodeRules) -> dict[str, tuple[Prefix, ...]]:
    """Return the contents of the sets that come from the node's settings."""
    return {
        names.POD_ADDRESSES: rules.pods.source_ranges,
        names.NODE_PORT_ADDRESSES: rules.node_port_ranges or (),
        names.SERVICE_CIDRS: rules.service_cidrs,
    }


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
