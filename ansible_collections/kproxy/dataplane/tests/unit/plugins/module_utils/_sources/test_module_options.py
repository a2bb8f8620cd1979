# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Which Node a machine is: the same for modules as for kproxyd, and as kubelet registers it."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._sources.module_options import node_name_of

NAMES: list[tuple[dict[str, Any], str]] = [
    ({"node_name": "GPU-A.Example.org", "config": {"hostnameOverride": "b"}}, "gpu-a.example.org"),
    ({"node_name": "", "config": {"hostnameOverride": " GPU-B ", "nodeName": "c"}}, "gpu-b"),
    ({"node_name": None, "config": {"nodeName": "GPU-C"}}, "gpu-c"),
    ({"config": {}}, "machine.example.org"),
]


@pytest.mark.parametrize(("options", "name"), NAMES, ids=[name for _options, name in NAMES])
def test_names_of_nodes_are_small(options: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "Machine.Example.org")
    assert node_name_of(options) == name
