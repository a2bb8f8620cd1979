# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.config import ProxyConfig
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.settings import (
    BindAddress,
    SettingsError,
    from_mapping,
    load,
    parse_duration,
)

MINIMAL: dict[str, Any] = {"clientConnection": {"kubeconfig": "/etc/kproxy/kubeconfig"}}
MANIFESTS: dict[str, Any] = {"kproxy": {"source": "manifests:/srv/manifests"}}


@pytest.mark.parametrize(
    ("value", "seconds"), [("30s", 30.0), ("1h5m", 3900.0), ("250ms", 0.25), ("0s", 0.0), (15, 15.0), ("1.5s", 1.5)]
)
def test_durations(value: object, seconds: float) -> None:
    assert parse_duration(value) == seconds


@pytest.mark.parametrize("value", ["30", "s", "-1s", "1x", True, -3, [], "1s 2s"])
def test_bad_durations_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match="must be a duration"):
        parse_duration(value)


def test_defaults() -> None:
    settings = from_mapping(MINIMAL, {})
    assert settings.source == "api"
    assert settings.healthz == BindAddress(4, "0.0.0.0", 10256)
    assert settings.metrics == BindAddress(4, "127.0.0.1", 10249)
    assert (settings.sync_period, settings.min_sync_period) == (30.0, 0.0)
    assert settings.left_aside == ()


@pytest.mark.parametrize(
    ("given", "healthz", "metrics"),
    [
        ({"bindAddress": "::"}, "[::]:10256", "[::1]:10249"),
        ({"bindAddress": "192.0.2.11"}, "0.0.0.0:10256", "127.0.0.1:10249"),
        ({"healthzBindAddress": "fd00::5", "metricsBindAddress": "0.0.0.0"}, "[fd00::5]:10256", "0.0.0.0:10249"),
        ({"bindAddress": "::", "kproxy": {"canary": {"namespaces": ["shop"]}}}, "[::]:10356", "[::1]:10349"),
    ],
)
def test_what_an_address_leaves_open_is_filled_in_as_kube_proxy_does(
    given: dict[str, Any], healthz: str, metrics: str
) -> None:
    settings = from_mapping({**MINIMAL, **given}, {})
    assert (str(settings.healthz), str(settings.metrics)) == (healthz, metrics)


KUBEADM: dict[str, Any] = {
    # What kubeadm writes into the ConfigMap kube-proxy when nobody sets anything.
    "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
    "kind": "KubeProxyConfiguration",
    "bindAddress": "0.0.0.0",
    "bindAddressHardFail": False,
    "clientConnection": {
        "acceptContentTypes": "",
        "burst": 0,
        "contentType": "",
        "kubeconfig": "/var/lib/kube-proxy/kubeconfig.conf",
        "qps": 0,
    },
    "clusterCIDR": "10.244.0.0/16",
    "configSyncPeriod": "0s",
    "conntrack": {"maxPerCore": None, "min": None, "tcpCloseWaitTimeout": None, "tcpEstablishedTimeout": None},
    "detectLocal": {"bridgeInterface": "", "interfaceNamePrefix": ""},
    "detectLocalMode": "",
    "enableProfiling": False,
    "healthzBindAddress": "",
    "hostnameOverride": "",
    "iptables": {"localhostNodePorts": None, "masqueradeAll": False, "masqueradeBit": None, "syncPeriod": "0s"},
    "ipvs": {"excludeCIDRs": None, "scheduler": "", "strictARP": False},
    "logging": {"flushFrequency": 0, "verbosity": 0},
    "metricsBindAddress": "",
    "mode": "",
    "nftables": {"masqueradeAll": False, "masqueradeBit": None, "minSyncPeriod": "0s", "syncPeriod": "0s"},
    "nodePortAddresses": None,
    "oomScoreAdj": None,
    "portRange": "",
    "showHiddenMetricsForVersion": "",
    "winkernel": {"enableDSR": False, "networkName": ""},
}


def test_kubeadms_config_map_is_taken_as_it_is() -> None:
    settings = from_mapping(KUBEADM, {"nodeName": "n1"})
    assert (settings.mode, settings.sync_period, settings.min_sync_period) == ("nftables", 30.0, 0.0)
    assert settings.healthz == BindAddress(4, "0.0.0.0", 10256)
    assert settings.metrics == BindAddress(4, "127.0.0.1", 10249)
    assert "iptables" in settings.left_aside
    config = ProxyConfig.from_mapping({**settings.proxy, "nodeName": settings.node_name})
    assert (config.node_name, config.masquerade_bit, config.node_port_addresses) == ("n1", 14, ("primary",))


def test_a_host_name_with_capitals_means_the_node_without() -> None:
    assert from_mapping({**MINIMAL, "hostnameOverride": " N1.Example "}, {}).node_name == "n1.example"


@pytest.mark.parametrize(
    ("mode", "masquerade_bit", "left_aside"),
    [
        ("iptables", 15, ("ipvs", "nftables")),
        ("ipvs", 15, ("ipvs", "nftables")),
        ("nftables", 13, ("iptables", "ipvs")),
    ],
)
def test_the_section_of_the_carried_over_mode_counts(
    mode: str, masquerade_bit: int, left_aside: tuple[str, ...]
) -> None:
    carried = {
        **MINIMAL,
        "mode": mode,
        "iptables": {"masqueradeBit": 15, "localhostNodePorts": True},
        "ipvs": {"scheduler": "lc"},
        "nftables": {"masqueradeBit": 13},
    }
    settings = from_mapping(carried, {})
    assert settings.mode == "nftables"
    assert settings.proxy["masqueradeBit"] == masquerade_bit
    assert settings.left_aside == left_aside


def test_endpoints_can_be_moved_or_switched_off() -> None:
    settings = from_mapping({**MINIMAL, "healthzBindAddress": "[::]:10256", "metricsBindAddress": "off"}, {})
    assert (settings.healthz, settings.metrics) == (BindAddress(6, "::", 10256), None)


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({**MINIMAL, "clusterCIDRs": []}, "clusterCIDRs is not known; did you mean clusterCIDR?"),
        ({**MINIMAL, "kproxy": {"auditPeriods": "1s"}}, "kproxy.auditPeriods is not known; did you mean auditPeriod?"),
        ({**MINIMAL, "mode": "userspace"}, "mode is 'userspace', but must be one of nftables, ebpf"),
        ({}, "clientConnection.kubeconfig is missing"),
        ({**MINIMAL, "kproxy": {"source": "manifests:"}}, "must be 'api' or 'manifests:DIR'"),
        ({**MINIMAL, "healthzBindAddress": "10256"}, "must be ADDRESS:PORT"),
        ({**MINIMAL, "healthzBindAddress": "0.0.0.0:0"}, "must be ADDRESS:PORT"),
        ({**MINIMAL, "nftables": {"syncPeriod": "soon"}}, "nftables.syncPeriod is 'soon', but must be a duration"),
        ({**MINIMAL, "nftables": []}, "nftables must be a mapping, not list"),
        ({**MINIMAL, "bindAddressHardFail": "yes"}, "must be true or false"),
        ({**MINIMAL, "apiVersion": "kubeproxy.config.k8s.io/v2"}, "only kubeproxy.config.k8s.io/v1alpha1 is known"),
    ],
)
def test_mistakes_are_named(document: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingsError) as caught:
        from_mapping(document, {})
    assert problem in str(caught.value)


def test_every_mistake_is_reported_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        from_mapping({"mode": "x", "nftables": {"syncPeriod": -1}, "nonsense": 1}, {})
    assert len(caught.value.problems) == 4


def test_command_line_wins_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("kproxy:\n  source: manifests:/a\n  logLevel: debug\n")
    settings = load(str(file), {"source": "manifests:/b", "logLevel": None})
    assert (settings.source, settings.log_level) == ("manifests:/b", "debug")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"a: [", "neither JSON nor YAML"),
        (b'a: !!int ""\n', "neither JSON nor YAML"),
        (b"[" * 100000, "neither JSON nor YAML"),
        (b"- 1\n", "must be a mapping, not list"),
        (b"\xff\xfe", "cannot be read"),
    ],
)
def test_files_that_are_no_configuration(tmp_path: Path, content: bytes, problem: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_bytes(content)
    with pytest.raises(SettingsError) as caught:
        load(str(file), {})
    assert problem in str(caught.value)
    assert str(file) in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"gone\.yaml: cannot be read"):
        load(str(tmp_path / "gone.yaml"), {})


def test_ebpf_defaults() -> None:
    chosen = from_mapping(MANIFESTS, {}).ebpf
    assert (chosen.host_namespace_only, chosen.protect_node_ports) == (False, True)
    assert (chosen.algorithm, chosen.maglev_table_size, chosen.maglev_memory) == ("random", 16381, 512)
    assert chosen.excluded_devices == ()


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("algorithm", "ring", "kproxy.algorithm is 'ring', but must be one of random, maglev"),
        ("maglevTableSize", 1000, "kproxy.maglevTableSize is 1000, but must be one of 251, 509, 1021"),
        ("maglevTableSize", "16381", "kproxy.maglevTableSize is '16381', but must be one of"),
        ("maglevTableSize", True, "kproxy.maglevTableSize is True, but must be one of"),
        ("maglevTableSize", [251], r"kproxy.maglevTableSize is \[251\], but must be one of"),
        ("maglevMemory", 0, "kproxy.maglevMemory is 0, but must be a number from 1"),
        ("xdp", "on", "kproxy.xdp is 'on', but must be one of disabled, generic, native, auto"),
        ("xdp", False, "kproxy.xdp is False, but must be text"),
        ("xdpDevices", "eth0", "kproxy.xdpDevices is 'eth0', but must be a list of texts"),
        ("xdpDevices", ["eth0", 1], r"kproxy.xdpDevices is \['eth0', 1\], but must be a list of texts"),
        ("excludedDevices", "stor0", "kproxy.excludedDevices is 'stor0', but must be a list of texts"),
        ("forwarding", "dsr", "kproxy.forwarding is 'dsr', but must be one of snat, dsr-option, dsr-ipip"),
        ("hostNamespaceOnly", "yes", "kproxy.hostNamespaceOnly is 'yes', but must be true or false"),
        ("maglevTablesize", 251, "kproxy.maglevTablesize is not known; did you mean maglevTableSize"),
    ],
)
def test_bad_ebpf_options_are_named(key: str, value: object, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        from_mapping({"kproxy": {**MANIFESTS["kproxy"], key: value}}, {})


def test_beside_kube_proxy_we_listen_elsewhere() -> None:
    settings = from_mapping({"kproxy": {**MANIFESTS["kproxy"], "canary": {"selector": "app=web"}}}, {})
    assert settings.healthz == BindAddress(4, "0.0.0.0", 10356)
    assert settings.metrics == BindAddress(4, "127.0.0.1", 10349)
    assert str(ProxyConfig.from_mapping({**settings.proxy, "nodeName": "n1"}).canary) == "selector app=web"


@pytest.mark.parametrize(
    ("canary", "mode", "problem"),
    [
        ({}, "nftables", "kproxy.canary chooses no Service: give it selector or namespaces or services"),
        ({"selector": "app in"}, "nftables", "kproxy.canary.selector: 'app in' is no label selector; examples: "),
        ({"services": ["web"]}, "nftables", "kproxy.canary.services: 'web' is not NAMESPACE/NAME of a Service"),
        ({"services": ["shop/web"]}, "ebpf", "kproxy.canary needs mode nftables; with ebpf all Services"),
    ],
)  # fmt: skip
def test_a_canary_that_cannot_be_is_refused(canary: Any, mode: str, problem: str) -> None:
    with pytest.raises(SettingsError) as caught:
        from_mapping({"mode": mode, "kproxy": {**MANIFESTS["kproxy"], "canary": canary}}, {})
    assert caught.value.problems[0].startswith(problem)
