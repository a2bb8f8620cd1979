# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Who refuses ports of cluster IPs that no Service has: these tables, unless they hold a share of the Services only."""

from __future__ import annotations

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.nftables_share import NftablesShare
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.config import ProxyConfig
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.table import ServiceTable
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.placement import WHOLE
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.structure import base_chains


@pytest.mark.parametrize("family", [4, 6])
def test_a_share_of_the_services_leaves_undefined_ports_alone(family: int) -> None:
    whole = ServiceTable(ProxyConfig.from_mapping({"nodeName": "n1"}))
    refused = [
        "@cluster-ips goto refuse" in str(base_chains(family, table.rules[family], WHOLE))
        for table in (whole, NftablesShare(whole))
    ]
    assert refused == [True, False]
