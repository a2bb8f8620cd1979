# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The short dumps: what IPVS carries."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import ipvs_state
from ansible_collections.kproxy.dataplane.plugins.module_utils._residue.dumps import count_ipvs_connections

# Columns of net/netfilter/ipvs/ip_vs_conn.c ip_vs_conn_seq_show().
HEADER = "Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData"
ROW = "{protocol} CB007107 {port} 0A60000A 0050 0AF40115 1F90 {state:<11}     899"

CASES = [
    ("none", [], 0),
    ("established", [("TCP", "D431", "ESTABLISHED")], 1),
    ("ended, and waiting for its timeout", [("TCP", "D431", "TIME_WAIT"), ("TCP", "D432", "FIN_WAIT")], 0),
    ("a template of persistence", [("TCP", "0000", "NONE"), ("UDP", "0000", "UDP")], 0),
    ("datagrams", [("UDP", "D431", "UDP"), ("SCTP", "D431", "ESTABLISHED")], 2),
]


@pytest.mark.parametrize(("rows", "count"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_open_connections_of_ipvs(rows: list[tuple[str, str, str]], count: int) -> None:
    lines = [ROW.format(protocol=protocol, port=port, state=state) for protocol, port, state in rows]
    assert count_ipvs_connections("\n".join([HEADER, *lines, ""])) == count


def test_a_kernel_without_ipvs_carries_none(tmp_path: Path) -> None:
    assert ipvs_state.connections(tmp_path / "ip_vs_conn") == 0
