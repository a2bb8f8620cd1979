# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""What a kubeconfig may say, and what is refused in which words."""

from __future__ import annotations

import base64
import copy
import json
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._sources.kubeconfig import (
    Kubeconfig,
    KubeconfigError,
    Material,
    from_mapping,
    read,
)

PEM = b"-----BEGIN CERTIFICATE-----"
CONFIG: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Config",
    "clusters": [
        {"name": "other", "cluster": {"server": "https://198.51.100.1"}},
        {"name": "home", "cluster": {"server": "https://192.0.2.200:6443/", "certificate-authority": "pki/ca.crt"}},
    ],
    "users": [{"name": "proxy", "user": {"tokenFile": "token"}}],
    "contexts": [{"name": "here", "context": {"cluster": "home", "user": "proxy"}}],
    "current-context": "here",
}


def config(**changes: Any) -> dict[str, Any]:
    """Return CONFIG with parts of the cluster, the user or the top level changed; None removes."""
    changed = copy.deepcopy(CONFIG)
    for place, values in changes.items():
        section = {"cluster": changed["clusters"][1]["cluster"], "user": changed["users"][0]["user"]}.get(
            place, changed
        )
        for key, value in values.items():
            if value is None:
                section.pop(key, None)
            else:
                section[key] = value
    return changed


def extension(*servers: Any) -> list[dict[str, Any]]:
    return [
        {"name": "someone-else", "extension": 1},
        {"name": "kproxy.dataplane", "extension": {"servers": list(servers)}},
    ]


BASE = Kubeconfig(("https://192.0.2.200:6443",), Material("/etc/k/pki/ca.crt"), token_file="/etc/k/token")
ACCEPTED = [
    ("paths are relative to the file", {}, BASE),
    (
        "several servers in our extension, first the usual one",
        {
            "cluster": {
                "extensions": extension("https://192.0.2.11:6443", "https://192.0.2.200:6443", "https://cp2.example")
            }
        },
        BASE._replace(servers=("https://192.0.2.200:6443", "https://192.0.2.11:6443", "https://cp2.example")),
    ),
    (
        "embedded data wins over paths",
        {"cluster": {"certificate-authority-data": base64.b64encode(PEM).decode()}},
        BASE._replace(ca=Material(data=PEM)),
    ),
    (
        "a client certificate by absolute path",
        {"user": {"tokenFile": None, "client-certificate": "/x/a.crt", "client-key": "/x/a.key"}},
        BASE._replace(token_file="", client_certificate=Material("/x/a.crt"), client_key=Material("/x/a.key")),
    ),
    ("a token", {"user": {"token": "abc"}}, BASE._replace(token="abc")),
    (
        "another server name",
        {"cluster": {"tls-server-name": "api.example"}},
        BASE._replace(tls_server_name="api.example"),
    ),
    (
        "no verification, if somebody insists",
        {"cluster": {"insecure-skip-tls-verify": True}},
        BASE._replace(insecure=True),
    ),
    ("a string is no yes", {"cluster": {"insecure-skip-tls-verify": "false"}}, BASE),
    (
        "an address of IPv6",
        {"cluster": {"server": "https://[2001:db8::1]:6443"}},
        BASE._replace(servers=("https://[2001:db8::1]:6443",)),
    ),
]
REFUSED = [
    ("no current context", {"top": {"current-context": None}}, "no current-context; set it"),
    ("a context that is not there", {"top": {"current-context": "x"}}, "no context called 'x'"),
    ("no users", {"top": {"users": None}}, "no user called 'proxy'"),
    ("clusters of a wrong type", {"top": {"clusters": "home"}}, "no cluster called 'home'"),
    ("no server", {"cluster": {"server": None}}, "names no server"),
    ("a server of a wrong type", {"cluster": {"server": 6443}}, "server must be a string, not int"),
    ("a server without scheme", {"cluster": {"server": "192.0.2.1:6443"}}, "not an https URL"),
    ("a broken address", {"cluster": {"server": "https://[2001:db8::1:6443"}}, "2001:db8::1:6443' is not an https URL"),
    ("a port out of range", {"cluster": {"server": "https://192.0.2.1:99999"}}, "not an https URL"),
    ("a port of letters", {"cluster": {"server": "https://192.0.2.1:https"}}, "not an https URL"),
    ("a line end in the server", {"cluster": {"server": "https://192.0.2.1\n"}}, "not an https URL"),
    ("a NUL in a path", {"cluster": {"certificate-authority": "ca\0.crt"}}, "certificate-authority holds a NUL"),
    ("a token of two lines", {"user": {"token": "a\nHost: x"}}, "token of user 'proxy' is no bearer token"),
    ("a token with an accent", {"user": {"token": "clé"}}, "is no bearer token"),
    ("a Service address", {"cluster": {"server": "https://10.96.0.1"}}, "inside the service CIDR"),
    ("a Service address of IPv6", {"cluster": {"server": "https://[fd00:96::1]"}}, "inside the service CIDR"),
    (
        "a name of cluster DNS",
        {"cluster": {"server": "https://kubernetes.default.svc"}},
        "resolves only inside the cluster",
    ),
    (
        "a Service address among several",
        {"cluster": {"extensions": extension("https://10.96.0.1")}},
        "inside the service CIDR",
    ),
    ("an extension that is no list", {"cluster": {"extensions": extension(1)}}, "must hold servers"),
    ("an exec plugin", {"user": {"exec": {"command": "aws"}}}, "authenticates by exec"),
    ("a password", {"user": {"username": "admin"}}, "authenticates by username"),
    ("a certificate without key", {"user": {"client-certificate": "a.crt"}}, "only one of"),
    ("data that is not base64", {"cluster": {"certificate-authority-data": "%%%"}}, "not base64"),
]


@pytest.mark.parametrize(("name", "changes", "expected"), ACCEPTED, ids=[row[0] for row in ACCEPTED])
def test_accepted(name: str, changes: dict[str, Any], expected: Kubeconfig) -> None:
    assert tuple(from_mapping(config(**changes), "/etc/k", ["10.96.0.0/12", "fd00:96::/112"])) == tuple(expected)


@pytest.mark.parametrize(("name", "changes", "message"), REFUSED, ids=[row[0] for row in REFUSED])
def test_refused(name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(KubeconfigError, match=message):
        from_mapping(config(**changes), "/etc/k", ["10.96.0.0/12", "fd00:96::/112"])


@pytest.mark.parametrize("content", [b"", b"- a\n- b\n", b"a: [", b"\xff\xfe", b"{"])
def test_a_file_that_is_no_kubeconfig_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "kubeconfig"
    path.write_bytes(content)
    with pytest.raises(KubeconfigError, match=str(path)):
        read(str(path))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(KubeconfigError, match=f"{tmp_path}/kubeconfig cannot be read"):
        read(str(tmp_path / "kubeconfig"))


def test_credentials_do_not_show_in_messages() -> None:
    shown = repr(from_mapping(config(user={"token": "s3cret"}), "/etc/k"))
    assert "s3cret" not in shown
    assert json.dumps(shown)


@pytest.mark.parametrize(
    ("changes", "secret"),
    [
        ({"cluster": {"server": "https://me:hush@192.0.2.1:6443"}}, "hush"),
        ({"user": {"token": "hu sh"}}, "hu sh"),
    ],
)
def test_a_refusal_shows_no_secret(changes: dict[str, Any], secret: str) -> None:
    with pytest.raises(KubeconfigError) as caught:
        from_mapping(config(**changes), "/etc/k")
    assert secret not in str(caught.value)


def test_line_ends_in_base64_do_not_count() -> None:
    data = base64.encodebytes(PEM * 5).decode()
    made = from_mapping(config(cluster={"certificate-authority-data": data}), "/etc/k")
    assert made.ca == Material(data=PEM * 5)
