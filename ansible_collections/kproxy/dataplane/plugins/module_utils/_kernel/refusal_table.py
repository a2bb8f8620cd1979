# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The one static nft table of the eBPF backend: packets that the programs have marked are rejected by the kernel.

It names no Service and never changes, so it needs no upkeep; without nft on the node refused packets are dropped.
"""

from __future__ import annotations

import contextlib

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.errors import KernelError
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.nft_command import NftCommand

TABLE = "inet kproxy-refuse"


def text(mark: int) -> str:
    """Return the table; loading it again replaces it at once."""
    rule = "meta mark & %#010x == %#010x reject" % (mark, mark)
    chain = "  chain filter-%s {\n    type filter hook %s priority filter; policy accept;\n    %s\n  }\n"
    chains = "".join(chain % (hook, hook, rule) for hook in ("input", "forward"))
    return "table %s {}\ndelete table %s\ntable %s {\n%s}\n" % (TABLE, TABLE, TABLE, chains)


def load(mark: int) -> str:
    """Load the table; return why it could not be, or nothing."""
    try:
        NftCommand().load(text(mark))
    except KernelError as error:
        return str(error)
    return ""


def remove() -> None:
    """Remove the table, if it is there."""
    with contextlib.suppress(KernelError):
        NftCommand().load("table %s {}\ndelete table %s\n" % (TABLE, TABLE))
