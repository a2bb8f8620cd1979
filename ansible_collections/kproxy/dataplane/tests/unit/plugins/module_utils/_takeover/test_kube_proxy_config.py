# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""What one field of a KubeProxyConfiguration becomes."""

from __future__ import annotations

import re
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
    (
        "no external IPs",
        {"featureGates": {"AllowServiceExternalIPs": False, "SomeOldGate": True}},
        "featureGates",
        {"AllowServiceExternalIPs": False},
    ),
    ("bind address", {"bindAddress": "192.0.2.11"}, "bindAddress", "192.0.2.11"),
    (
        "loopback alone opens nothing",
        {"mode": "nftables", "nodePortAddresses": ["127.0.0.0/8"]},
        "nodePortAddresses",
        ["127.0.0.0/8"],
    ),
    (
        "loopback as the only entry of its family",
        {"mode": "nftables", "nodePortAddresses": ["127.0.0.0/8", "fd00::/8"]},
        "nodePortAddresses",
        ["127.0.0.0/8", "fd00::/8"],
    ),
    ("metrics for everybody", {"metricsBindAddress": "0.0.0.0:10249"}, "metricsBindAddress", "0.0.0.0:10249"),
    ("metrics without a port", {"metricsBindAddress": "192.0.2.11"}, "metricsBindAddress", "192.0.2.11:10249"),
    ("health on another port", {"healthzBindAddress": "0.0.0.0:10257"}, "healthzBindAddress", "0.0.0.0:10257"),
    ("health of an IPv6 node", {"bindAddress": "::"}, "healthzBindAddress", "[::]:10256"),
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
    ("external IPs off", {"featureGates": {"AllowServiceExternalIPs": False}}, []),
    ("new field that nobody set", {"speed": "", "conntrack": {"turbo": None}, "gear": {"high": False}}, []),
    ("fields of old releases", {"portRange": "", "udpIdleTimeout": "250ms", "conntrack": {"max": 5}}, []),
    ("empty section", {"conntrack": None, "featureGates": ""}, []),
    ("empty file of kubeadm", {"apiVersion": "x", "kind": "y", "logging": {"format": "text"}, "winkernel": {}}, []),
]


@pytest.mark.parametrize(("config", "fields"), [row[1:] for row in LOST], ids=[row[0] for row in LOST])
def test_lost(config: dict[str, Any], fields: list[str]) -> None:
    assert [item.field for item in kube_proxy_config.translate(config, 2).lost] == fields


def test_conntrack_scaling_off_leaves_the_kernels_value() -> None:
    sysctls = kube_proxy_config.translate({"conntrack": {"maxPerCore": 0}}, 2).sysctls
    assert "net.netfilter.nf_conntrack_max" not in sysctls
    assert sysctls["net.netfilter.nf_conntrack_tcp_timeout_established"] == 86400


def default_loopback(config: dict[str, Any]) -> bool:
    findings = kube_proxy_config.translate(config, 2).findings
    return [(item.field, item.outcome) for item in findings][:1] == [("iptables.localhostNodePorts", "differs")]


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({}, True),
        ({"iptables": {"localhostNodePorts": None}}, True),
        ({"nodePortAddresses": ["0.0.0.0/0"]}, True),
        ({"nodePortAddresses": ["192.0.2.0/24"]}, False),
        ({"iptables": {"localhostNodePorts": False}}, False),
        ({"mode": "ipvs"}, False),
    ],
)
def test_node_ports_that_loopback_had_by_default_are_told(config: dict[str, Any], told: bool) -> None:
    assert default_loopback(config) == told
    assert kube_proxy_config.translate(config, 2).lost == ()


NOT_OF_KUBE_PROXY = [
    ({"nodePortAddresses": "192.0.2.0/24"}, "nodePortAddresses is '192.0.2.0/24'"),
    ({"nodePortAddresses": ["192.0.2.7"]}, "nodePortAddresses has '192.0.2.7'"),
    ({"conntrack": {"min": "131072"}}, "conntrack.min is '131072'"),
    ({"conntrack": {"tcpEstablishedTimeout": 86400}}, "conntrack.tcpEstablishedTimeout is 86400"),
    ({"conntrack": {"udpTimeout": "1d"}}, "conntrack.udpTimeout is '1d'"),
    ({"conntrack": [1]}, "conntrack is "),
    ({"featureGates": "A=true"}, "featureGates is 'A=true'"),
    ({"iptables": {"masqueradeBit": "14"}}, "iptables.masqueradeBit is '14'"),
    ({"metricsBindAddress": ":10249"}, "metricsBindAddress is ':10249'"),
    ({"healthzBindAddress": "fd00::5:10256:x"}, "healthzBindAddress is "),
]


@pytest.mark.parametrize(("config", "message"), NOT_OF_KUBE_PROXY, ids=[row[1] for row in NOT_OF_KUBE_PROXY])
def test_what_kube_proxy_would_not_start_with_is_refused_by_name(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        kube_proxy_config.translate(config, 2)


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
    (
        "a list in pieces",
        ["--nodeport-addresses=10.0.0.0/8", "--nodeport-addresses", "192.0.2.0/24"],
        {"nodePortAddresses": ["10.0.0.0/8", "192.0.2.0/24"]},
    ),
    (
        "gates in pieces",
        ["--feature-gates", "A=true", "--feature-gates=A=false,B=true"],
        {"featureGates": {"A": False, "B": True}},
    ),
    ("the last counts", ["--proxy-mode=ipvs", "--proxy-mode=nftables"], {"mode": "nftables"}),
    ("a switch takes no word", ["--masquerade-all", "false"], {"iptables": {"masqueradeAll": True}}),
    ("a switch off", ["--masquerade-all=false"], {"iptables": {"masqueradeAll": False}}),
    (
        "underscores",
        ["--proxy_mode=ipvs", "--cluster_cidr", "10.0.0.0/8"],
        {"mode": "ipvs", "clusterCIDR": "10.0.0.0/8"},
    ),
    (
        "by a shell",
        ["/bin/sh", "-c", "exec /usr/local/bin/kube-proxy --proxy-mode=ipvs --v 2 >>/var/log/kube-proxy.log 2>&1"],
        {"mode": "ipvs"},
    ),
    ("by a shell that complains", ["sh", "-c", "kube-proxy --proxy-mode=ipvs 'x"], {"mode": "ipvs"}),
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
