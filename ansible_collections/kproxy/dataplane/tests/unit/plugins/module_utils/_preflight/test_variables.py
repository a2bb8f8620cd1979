# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""A misspelt variable is refused before it does nothing; what may be somebody's own is only mentioned."""

from __future__ import annotations

import re

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._preflight.node_facts import NodeFacts, Options
from ansible_collections.kproxy.dataplane.plugins.module_utils._preflight.variables import KNOWN, variables


@pytest.mark.parametrize(
    ("names", "result", "said"),
    [
        pytest.param([], "ok", "is known", id="none"),
        pytest.param(sorted(KNOWN), "ok", "is known", id="all of ours"),
        pytest.param(["lab_instance", "kproxyd_port"], "ok", "is known", id="others"),
        pytest.param(["kproxy_bakend"], "block", "kproxy_bakend is no .*; did you mean kproxy_backend", id="a letter"),
        pytest.param(["kproxy_api_server"], "block", "did you mean kproxy_api_servers", id="singular"),
        pytest.param(["kproxy_inventory", "kproxy_vip"], "warn", "kproxy_vip is no variable", id="own ones"),
        pytest.param(["kproxy_vip", "kproxy_nodename"], "block", "did you mean kproxy_node_name", id="one of two"),
    ],
)
def test_variables(names: list[str], result: str, said: str) -> None:
    finding = variables(NodeFacts.from_mapping({"kernel": "6.1.0"}), Options.from_mapping({"variables": names}))
    assert finding.result == result
    assert re.search(said, finding.message)
