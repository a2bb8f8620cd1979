# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Where a DaemonSet's kube-proxy has its configuration."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._takeover import cluster, kube_proxy_config

CA: dict[str, Any] = {"name": "ca", "configMap": {"name": "company-ca"}}
CONFIG: dict[str, Any] = {"name": "config", "configMap": {"name": "kube-proxy-config"}}
MOUNTS = [{"name": "ca", "mountPath": "/etc/ssl"}, {"name": "config", "mountPath": "/var/lib/kube-proxy/"}]


def pod(path: str, volumes: list[dict[str, Any]], mounts: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    proxy = {"name": "p", "command": ["kube-proxy", f"--config={path}"], "volumeMounts": mounts or []}
    return {"containers": [{"name": "helper", "command": ["sleep"]}, proxy], "volumes": volumes}


SOURCES = [
    ("by the mount", pod("/var/lib/kube-proxy/config", [CA, CONFIG], MOUNTS), ("kube-proxy-config", "config")),
    (
        "renamed in the mount",
        pod(
            "/var/lib/kube-proxy/proxy.yaml",
            [CA, {**CONFIG, "configMap": {"name": "k", "items": [{"key": "settings", "path": "proxy.yaml"}]}}],
            MOUNTS,
        ),
        ("k", "settings"),
    ),
    (
        "one file mounted",
        pod("/etc/proxy.yaml", [CONFIG], [{"name": "config", "mountPath": "/etc/proxy.yaml", "subPath": "file"}]),
        ("kube-proxy-config", "file"),
    ),
    ("without mounts", pod("/x/config.conf", [{"name": "kube-proxy", "configMap": {"name": "k"}}]), ("k", "")),
    (
        "a file of the host",
        pod("/etc/kube/proxy", [CA, {"name": "h", "hostPath": {}}], [{"name": "h", "mountPath": "/etc/kube"}]),
        ("", ""),
    ),
    ("no configuration file", {"containers": [{"name": "kube-proxy", "args": ["--proxy-mode=ipvs"]}]}, ("", "")),
    ("nothing at all", {}, ("", "")),
]


@pytest.mark.parametrize(("spec", "expected"), [row[1:] for row in SOURCES], ids=[row[0] for row in SOURCES])
def test_which_config_map(spec: dict[str, Any], expected: tuple[str, str]) -> None:
    source = cluster.config_source({"metadata": {"namespace": "n"}, "spec": {"template": {"spec": spec}}})
    assert (source.namespace, source.config_map, source.key) == ("n", *expected)


def test_the_key_that_the_mount_tells_comes_first() -> None:
    data = {"data": {"config.conf": "old", "settings": "new"}}
    assert cluster.config_text(data, "settings") == "new"
    assert cluster.config_text(data, "gone") == "old"
    assert cluster.config_text({"data": None}, "settings") == ""


UNREAD = [
    ("read", pod("/c", []), True, []),
    ("not read", pod("/c", []), False, ["--config"]),
    ("flags", {"containers": [{"command": ["kube-proxy", "--v=2", "--logtostderr", "--warp=9"]}]}, False, ["--warp"]),
]


@pytest.mark.parametrize(("spec", "read", "fields"), [row[1:] for row in UNREAD], ids=[row[0] for row in UNREAD])
def test_what_could_not_be_read_is_to_be_given_up_by_name(spec: dict[str, Any], read: bool, fields: list[str]) -> None:
    flags = cluster.config_source({"spec": {"template": {"spec": spec}}}).flags
    findings = kube_proxy_config.unread(flags, read)
    assert [(item.field, item.outcome) for item in findings] == [(field, "unknown") for field in fields]


def test_a_flag_that_is_no_number_is_named() -> None:
    spec = {"containers": [{"command": ["kube-proxy", "--conntrack-min=many"]}]}
    with pytest.raises(ValueError, match="--conntrack-min of kube-proxy is 'many'"):
        cluster.config_source({"spec": {"template": {"spec": spec}}})
