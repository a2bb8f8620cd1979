# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Which pods need to see the address that they dial, and what is said about them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.pods_on_node import (
    containers_by_pod,
    guest_runtimes,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._preflight.node_facts import NodeFacts, Options
from ansible_collections.kproxy.dataplane.plugins.module_utils._preflight.own_translation import (
    interceptor,
    socket_translation,
)


@pytest.mark.parametrize(
    ("pod", "containers", "words"),
    [
        ("shop/cart-0", ["app", "istio-proxy"], "Istio"),
        ("shop/cart-0", ["app", "linkerd-proxy"], "Linkerd"),
        ("shop/cart-0", ["consul-dataplane", "app"], "Consul"),
        ("shop/cart-0", ["app", "kuma-sidecar"], "Kuma"),
        ("istio-system/ztunnel-x7k2p", ["istio-proxy"], "ambient"),
        ("vms/virt-launcher-db-0-abcde", ["compute", "guest-console-log"], "KubeVirt"),
        ("shop/compute-0", ["compute"], ""),
        ("shop/ztunnel-tester", ["app"], ""),
        ("shop/cart-0", ["app", "envoy"], ""),
        ("shop/cart-0", [], ""),
    ],
)
def test_interceptor(pod: str, containers: list[str], words: str) -> None:
    found = interceptor(pod, containers)
    assert words in found
    assert bool(found) is bool(words)


MESH = {"shop/cart-0": ["app", "istio-proxy"], "shop/plain": ["app"]}
MANY = {f"shop/cart-{number}": ["istio-proxy"] for number in range(9)}


@pytest.mark.parametrize(
    ("facts", "options", "result", "words"),
    [
        ({"containers": MESH}, {}, "skip", "only the eBPF backend"),
        ({"containers": MESH}, {"backend": "ebpf"}, "warn",
         "pod shop/cart-0 has sidecar istio-proxy of Istio: .*kproxy_ebpf_host_namespace_only"),
        ({"containers": MESH}, {"backend": "ebpf", "host_namespace_only": True}, "ok", "left alone"),
        ({"containers": {"shop/plain": ["app"]}}, {"backend": "ebpf"}, "ok", "no pod here"),
        ({"containers": MANY}, {"backend": "ebpf"}, "warn", "cart-0 .*cart-1 .*cart-2 .*6 more pods"),
        ({"guest_runtimes": ["kata"]}, {"backend": "ebpf"}, "warn", "guests of Kata Containers"),
        ({}, {"backend": "ebpf"}, "ok", ""),
    ],
)  # fmt: skip
def test_finding(facts: dict[str, Any], options: dict[str, Any], result: str, words: str) -> None:
    finding = socket_translation(NodeFacts.from_mapping({"kernel": "6.1", **facts}), Options.from_mapping(options))
    assert finding.result == result
    assert re.search(words, finding.message)


def test_pods_are_read_from_the_kubelets_folders(tmp_path: Path) -> None:
    for path in ("shop_cart-0_0f3b/istio-proxy", "shop_cart-0_0f3b/app", "shop_web-1_77aa/app", "not-a-pod/app"):
        (tmp_path / path).mkdir(parents=True)
    (tmp_path / "shop_file_1").write_text("")
    assert containers_by_pod(str(tmp_path)) == {"shop/cart-0": ["app", "istio-proxy"], "shop/web-1": ["app"]}
    assert containers_by_pod(str(tmp_path / "missing")) == {}


def test_guest_runtimes_are_told_by_their_shims(tmp_path: Path) -> None:
    for pid, line in (("1", b"/sbin/init\0"), ("20", b"/usr/bin/containerd-shim-kata-v2\0-id\0x\0"),
                      ("21", b"/usr/bin/containerd-shim-runc-v2\0-id\0y\0"), ("22", b"")):  # fmt: skip
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "cmdline").write_bytes(line)
    (tmp_path / "23").mkdir()  # ended between the two looks
    (tmp_path / "self").mkdir()
    assert guest_runtimes(str(tmp_path)) == ["kata"]
