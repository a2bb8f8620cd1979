# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Where our tables stand: their name, and where their chains come on the hooks that kube-proxy uses, too."""

from __future__ import annotations

from typing import NamedTuple


class Placement(NamedTuple):
    """The name of our tables, and the hook priorities of their NAT chains.

    refuses_first: connections to our Services that are to be refused or dropped are so before another NAT chain can
    lead them somewhere.
    """

    table: str
    dstnat: int
    srcnat: int
    refuses_first: bool


#: All Services are ours: NAT sits where kube-proxy's does.
WHOLE = Placement("kproxy", -100, 100, False)

#: Some are, and kube-proxy serves the rest. The first NAT chain on a hook that translates a connection decides. So ours
#: comes before kube-proxy's where the endpoint is chosen, and what it does not hold goes on to kube-proxy's. Where the
#: source is masqueraded ours comes after kube-proxy's: no connection of kube-proxy's is left for it to decide.
CANARY = Placement("kproxy-canary", -101, 101, True)


def placement(canary: bool) -> Placement:
    """Return where the tables of a node with or without a canary stand."""
    return CANARY if canary else WHOLE
