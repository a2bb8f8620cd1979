# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

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


def test_a_kube_proxy_config_map_is_taken_as_it_is() -> None:
    carried = {
        **MINIMAL,
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "ipvs",
        "clusterCIDR": "10.244.0.0/16",
        "ipvs": {"scheduler": "rr"},
        "iptables": {"localhostNodePorts": None},
        "conntrack": {"maxPerCore": None},
        "nftables": {"syncPeriod": "1m", "masqueradeAll": True, "minSyncPeriod": "1s", "masqueradeBit": None},
        "healthzBindAddress": "[::]:10256",
        "metricsBindAddress": "",
        "hostnameOverride": "node-7",
    }
    settings = from_mapping(carried, {})
    assert settings.mode == "nftables"
    assert settings.proxy["clusterCIDR"] == "10.244.0.0/16"
    assert settings.proxy["masqueradeAll"] is True
    assert settings.healthz == BindAddress(6, "::", 10256)
    assert settings.metrics is None
    assert settings.node_name == "node-7"
    assert settings.left_aside == ("conntrack", "iptables", "ipvs")


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
    [(b"a: [", "neither JSON nor YAML"), (b"- 1\n", "must be a mapping, not list"), (b"\xff\xfe", "cannot be read")],
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
