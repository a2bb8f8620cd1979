# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The static nft tables of the eBPF backend: packets that the programs have marked are rejected by the kernel.

They name no Service and never change; without nft on the node refused packets are dropped.
"""

from __future__ import annotations

import contextlib

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.errors import KernelError
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.nfnetlink import Nfnetlink
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.nft_command import NftCommand

TABLE = "kproxy-refuse"
_WORDS = {4: "ip", 6: "ip6"}
_CHAIN = """  chain filter-{hook} {{
    type filter hook {hook} priority filter; policy accept;
    meta mark & {mark:#010x} == {mark:#010x} reject
  }}
"""


def text(mark: int) -> str:
    """Return both tables; loading them again replaces them at once."""
    chains = "".join(_CHAIN.format(hook=hook, mark=mark) for hook in ("input", "forward"))
    return "".join(
        f"table {word} {TABLE} {{}}\ndelete table {word} {TABLE}\ntable {word} {TABLE} {{\n{chains}}}\n"
        for word in _WORDS.values()
    )


def exists() -> bool:
    """Tell whether both tables are there."""
    with Nfnetlink(TABLE) as kernel:
        return all(kernel.table_exists(family) for family in _WORDS)


def load(mark: int) -> str:
    """Load the tables; return why they could not be, or nothing."""
    try:
        NftCommand().load(text(mark))
    except KernelError as error:
        return str(error)
    return ""


def remove() -> None:
    """Remove the tables, if they are there."""
    lines = [f"table {word} {TABLE} {{}}\ndelete table {word} {TABLE}\n" for word in _WORDS.values()]
    with contextlib.suppress(KernelError):
        NftCommand().load("".join(lines))
