# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The network namespaces of this node that can be clients of Services."""

from __future__ import annotations

import itertools
import os

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.addresses import local_addresses
from ansible_collections.kproxy.dataplane.plugins.module_utils._probe.dial import DialError, within

_NAMESPACES = "/run/netns"


def connected_namespaces(most: int) -> list[str]:
    """Return the names of the first namespaces that are connected, in order; `most` at most."""
    names = sorted(os.listdir(_NAMESPACES)) if os.path.isdir(_NAMESPACES) else []
    return list(itertools.islice(filter(_is_connected, names), most))


def _is_connected(namespace: str) -> bool:
    """Tell whether a namespace has an address that others can reach, as a pod's has once it is set up."""
    try:
        return any(address.scope == "global" for address in within(namespace, local_addresses))
    except DialError:  # a name that is left of a namespace which has gone
        return False
