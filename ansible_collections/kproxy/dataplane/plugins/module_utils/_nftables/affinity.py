# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""What one service port with session affinity owns: the only structure a Service can bring, a constant few objects."""

from __future__ import annotations

from typing import NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables import names
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.declaration import (
    WORDS,
    Declaration,
    chain,
    typeof,
)

_PINS_SIZE = 1048576
#: The timeout of a pin comes from the rule that learns it, so that a new timeoutSeconds does not need a new map.
_PINS_LIFETIME_SECONDS = 86400


class AffinityObjects(NamedTuple):
    """What one service port with session affinity owns: sets of its clients' pins and of its endpoints, and chains."""

    sets: list[Declaration]
    chains: list[Declaration]

    @property
    def everything(self) -> list[Declaration]:
        """Sets and chains together."""
        return self.sets + self.chains


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
        declared.append(typeof(members, endpoint, kind="set"))
        unpinned = names.UNPINNED_LOCAL if is_local else names.UNPINNED
        found = " : ".join("%s saddr map @%s" % (header, name) for name, _value in values)
        chains.append(
            chain(
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
    chains.append(chain("learn-%s" % suffix, *learn))
    return AffinityObjects(declared, chains)
