# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""What one field of a KubeProxyConfiguration becomes."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._takeover import (
    duration,
    kube_proxy_config,
    kube_proxy_flags,
)

CARRIED = [
    ("iptables is the default", {}, "nodePortAddresses", ["all"]),
    ("ipvs opens all too", {"mode": "ipvs"}, "nodePortAddresses", ["all"]),
    ("nftables opens the primary one", {"mode": "nftables"}, "nodePortAddresses", ["primary"]),
    (
        "nftables section",
        {"mode": "nftables", "nftables": {"masqueradeAll": True}},
        "nftables",
        {"masqueradeAll": True, "masqueradeBit": 14},
    ),
    (
        "other section",
        {"mode": "nftables", "iptables": {"masqueradeAll": True}},
        "nftables",
        {"masqueradeAll": False, "masqueradeBit": 14},
    ),
    ("bit 0 is a bit", {"iptables": {"masqueradeBit": 0}}, "nftables", {"masqueradeAll": False, "masqueradeBit": 0}),
    (
        "null is the default",
        {"iptables": {"masqueradeBit": None}},
        "nftables",
        {"masqueradeAll": False, "masqueradeBit": 14},
    ),
    (
        "loopback with the gate",
        {
            "mode": "nftables",
            "nodePortAddresses": ["127.0.0.0/8"],
            "featureGates": {"KubeProxyNFTablesLocalhostNodePorts": True},
        },
        "nodePortAddresses",
        ["127.0.0.0/8"],
    ),
    ("bind address", {"bindAddress": "192.0.2.11"}, "bindAddress", "192.0.2.11"),
]


@pytest.mark.parametrize(("config", "field", "value"), [row[1:] for row in CARRIED], ids=[row[0] for row in CARRIED])
def test_carried(config: dict[str, Any], field: str, value: Any) -> None:
    assert kube_proxy_config.translate(config, 2).config[field] == value


def test_any_bind_address_says_nothing() -> None:
    assert "bindAddress" not in kube_proxy_config.translate({"bindAddress": "::"}, 2).config


LOST = [
    ("scheduler outside ipvs", {"ipvs": {"scheduler": "lc"}}, []),
    ("scheduler", {"mode": "ipvs", "ipvs": {"scheduler": "lc"}}, ["ipvs.scheduler"]),
    ("timeout at 0", {"mode": "ipvs", "ipvs": {"tcpTimeout": "0s"}}, []),
    ("timeout", {"mode": "ipvs", "ipvs": {"udpTimeout": "5m"}}, ["ipvs.udpTimeout"]),
    ("loopback NodePorts of iptables", {"iptables": {"localhostNodePorts": True}}, ["iptables.localhostNodePorts"]),
    ("unknown field", {"speed": "high"}, ["speed"]),
    ("unknown nested field", {"conntrack": {"turbo": 1}}, ["conntrack.turbo"]),
    ("profiling off", {"enableProfiling": False}, []),
    ("empty file of kubeadm", {"apiVersion": "x", "kind": "y", "logging": {"format": "text"}, "winkernel": {}}, []),
]


@pytest.mark.parametrize(("config", "fields"), [row[1:] for row in LOST], ids=[row[0] for row in LOST])
def test_lost(config: dict[str, Any], fields: list[str]) -> None:
    assert [item.field for item in kube_proxy_config.translate(config, 2).lost] == fields


def test_conntrack_scaling_off_leaves_the_kernels_value() -> None:
    sysctls = kube_proxy_config.translate({"conntrack": {"maxPerCore": 0}}, 2).sysctls
    assert "net.netfilter.nf_conntrack_max" not in sysctls
    assert sysctls["net.netfilter.nf_conntrack_tcp_timeout_established"] == 86400


def test_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="userspace"):
        kube_proxy_config.translate({"mode": "userspace"}, 2)


DURATIONS = [("12h0m0s", 43200.0), ("15m", 900.0), ("1.5s", 1.5), ("250ms", 0.25), ("0", 0.0), ("0s", 0.0)]


@pytest.mark.parametrize(("text", "expected"), DURATIONS)
def test_duration(text: str, expected: float) -> None:
    assert duration.seconds(text) == expected


@pytest.mark.parametrize("text", ["", "12", "h", "1h 2m", "-1s", "1d"])
def test_bad_duration(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        duration.seconds(text)


FLAGS = [
    ("equals", ["kube-proxy", "--proxy-mode=ipvs"], {"mode": "ipvs"}),
    ("blank", ["kube-proxy", "--cluster-cidr", "10.244.0.0/16"], {"clusterCIDR": "10.244.0.0/16"}),
    ("switch", ["kube-proxy", "--masquerade-all", "--v=2"], {"iptables": {"masqueradeAll": True}}),
    ("number", ["kube-proxy", "--conntrack-min=5"], {"conntrack": {"min": 5}}),
    (
        "list",
        ["kube-proxy", "--nodeport-addresses=10.0.0.0/8,::1/128"],
        {"nodePortAddresses": ["10.0.0.0/8", "::1/128"]},
    ),
    ("gates", ["kube-proxy", "--feature-gates=A=true,B=false"], {"featureGates": {"A": True, "B": False}}),
]


@pytest.mark.parametrize(("command", "config"), [row[1:] for row in FLAGS], ids=[row[0] for row in FLAGS])
def test_flags(command: list[str], config: dict[str, Any]) -> None:
    assert kube_proxy_flags.parse(command).config == config


def test_a_config_file_outranks_all_flags_but_the_host_name() -> None:
    command = ["kube-proxy", "--config=/etc/config.conf", "--proxy-mode=ipvs", "--hostname-override=n1"]
    flags = kube_proxy_flags.parse(command)
    assert kube_proxy_flags.with_file(flags, {"mode": "nftables"}) == {"mode": "nftables", "hostnameOverride": "n1"}
    assert flags.ignored == ("--proxy-mode",)


def test_unknown_flags_are_named() -> None:
    assert kube_proxy_flags.parse(["kube-proxy", "--warp=9"]).unknown == ("--warp",)
