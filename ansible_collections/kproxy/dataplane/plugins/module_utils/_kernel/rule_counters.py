# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Read the packet counters of rules that each count one transport protocol."""

from __future__ import annotations

import struct
from collections import Counter

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import nft_protocol as nft
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.netlink import (
    attribute_map,
    attributes,
    text,
    text_attribute,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.nfnetlink import Nfnetlink


def packets_by_protocol(kernel: Nfnetlink, family: int, chain: str) -> Counter[int]:
    """Return how many packets the rules `meta l4proto P counter` of a chain of our table have counted, by P.

    A chain that is not there has counted nothing. Counters start anew when the chain's rules are loaded again.

    Raises:
        KernelError: the kernel does not answer.
    """
    found: Counter[int] = Counter()
    filters = text_attribute(nft.RULE_CHAIN, chain)
    for payload in kernel.dump_ours(f"read the counters of chain {chain}", nft.GETRULE, family, filters):
        parts = attribute_map(payload, 4)
        if text(parts[nft.RULE_CHAIN]) != chain:  # an older kernel lists every chain of the table
            continue
        protocol = None
        for _kind, expression in attributes(parts.get(nft.RULE_EXPRESSIONS, memoryview(b""))):
            held = attribute_map(expression)
            name = text(held[nft.EXPR_NAME])
            if name == "cmp":
                protocol = bytes(attribute_map(attribute_map(held[nft.EXPR_DATA])[nft.CMP_DATA])[nft.DATA_VALUE])[0]
            elif name == "counter" and protocol is not None:
                found[protocol] += struct.unpack(">Q", attribute_map(held[nft.EXPR_DATA])[nft.COUNTER_PACKETS])[0]
    return found
