# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""A folder of manifests: what counts, what stays, what is said twice."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar import inotify
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.manifest_folder import (
    ManifestFolder,
    is_manifest,
)


def service(name: str, ip: str = "10.96.0.10", namespace: str = "shop", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"clusterIP": ip, "ports": [{"port": 80}], **spec},
    }


def text(*manifests: dict[str, Any]) -> bytes:
    return "\n---\n".join(json.dumps(manifest) for manifest in manifests).encode()


def bad(name: str) -> dict[str, Any]:
    return service(name, ports=[{"port": 70000}])


ENDPOINTS = {"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": "web", "namespace": "shop"}}
SLICE = {
    "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
    "metadata": {"name": "web-1", "namespace": "shop", "labels": {"kubernetes.io/service-name": "web"}},
}  # fmt: skip
NAMES = [
    ("a.yaml", True), ("a.yml", True), ("a.json", True), ("a", False), (".a.yaml", False), (".a.yaml.swp", False),
    ("a.yaml~", False), ("#a.yaml#", False), ("#a.yaml", False), ("4913", False), ("a.yaml.bak", False),
    ("..data", False),
]  # fmt: skip


@pytest.mark.parametrize(("name", "counts"), NAMES)
def test_names(name: str, counts: bool) -> None:
    assert is_manifest(name) is counts


Step = tuple[str, Any]
# Each story is told in steps: put(file, content) or drop(file), then what is reported: upserted, deleted, refused.
STORIES: list[tuple[str, list[tuple[Step, set[str], set[str], dict[str, str]]]]] = [
    (
        "an object comes, changes and goes",
        [
            (("a.yaml", text(service("web"))), {"web"}, set(), {}),
            (("a.yaml", text(service("web"))), set(), set(), {}),
            (("a.yaml", text(service("web", "10.96.0.11"))), {"web"}, set(), {}),
            (("a.yaml", b""), set(), {"web"}, {}),
        ],
    ),
    (
        "only the changed object of a file is told",
        [
            (("a.yaml", text(service("web"), service("db"))), {"web", "db"}, set(), {}),
            (("a.yaml", text(service("web"), service("db", "10.96.0.12"))), {"db"}, set(), {}),
            (("a.yaml", text(service("web"))), set(), {"db"}, {}),
        ],
    ),
    (
        "a file that is not YAML keeps what it last said",
        [
            (("a.yaml", text(service("web"))), {"web"}, set(), {}),
            (("a.yaml", b"a: [1\nb: 2\n"), set(), set(), {}),
            (("b.yaml", text(service("db"))), {"db"}, set(), {}),
            (("a.yaml", text(service("web", "10.96.0.12"))), {"web"}, set(), {}),
            (("a.yaml", None), set(), {"web"}, {}),
        ],
    ),
    (
        "a bad object costs only itself and keeps its last good version",
        [
            (("a.yaml", text(service("web"), service("db"))), {"web", "db"}, set(), {}),
            (("a.yaml", text(bad("web"), service("db", "10.96.0.12"))), {"db"}, set(), {"web": "70000"}),
            (("a.yaml", text(bad("web"), service("db", "10.96.0.12"))), set(), set(), {}),
            (("a.yaml", text(service("web"), service("db", "10.96.0.12"))), {"web"}, set(), {}),
            (("a.yaml", text(bad("new"))), set(), {"web", "db"}, {"new": "a.yaml"}),
            (("a.yaml", b"[]"), set(), {"new"}, {"1 of a.yaml": "not an object"}),
            (("a.yaml", b""), set(), {"1 of a.yaml"}, {}),
        ],
    ),
    (
        "an object in two files is taken from the first by name, until that one is gone",
        [
            (("b.yaml", text(service("web", "10.96.0.2"))), {"web"}, set(), {}),
            (("a.yaml", text(service("web", "10.96.0.1"))), {"web"}, set(), {"web": "is in a.yaml and in b.yaml"}),
            (("a.yaml", None), {"web"}, set(), {}),
        ],
    ),
    (
        "the second of two files goes: the refusal is taken back",
        [
            (("a.yaml", text(service("web"))), {"web"}, set(), {}),
            (("b.yaml", text(service("web"))), set(), set(), {"web": "is in a.yaml and in b.yaml"}),
            (("b.yaml", None), {"web"}, set(), {}),
        ],
    ),
    (
        "what has no name is told apart, and taken back",
        [
            (("a.yaml", text(bad(""), bad(""))), set(), set(), {"1 of a.yaml": "missing", "2 of a.yaml": "missing"}),
            (("a.yaml", text(bad(""))), set(), {"2 of a.yaml"}, {}),
        ],
    ),
    (
        "a mistaken kind is taken back",
        [
            (("a.yaml", text({**service("web"), "kind": "service"})), set(), set(), {"web": "kind: Service"}),
            (("a.yaml", text(service("web"))), {"web"}, {"web"}, {}),
        ],
    ),
    (
        "Endpoints are refused until a slice says the same",
        [
            (("a.yaml", text(service("web"), ENDPOINTS)), {"web"}, set(), {"web": "write an EndpointSlice"}),
            (("b.yaml", text(SLICE)), {"web-1"}, {"web"}, {}),
            (("b.yaml", None), set(), {"web-1"}, {"web": "write an EndpointSlice"}),
        ],
    ),
    (
        "an object twice in one file",
        [(("a.yaml", text(service("web"), service("web", "10.96.0.9"))), {"web"}, set(), {"web": "twice in a.yaml"})],
    ),
    (
        "lists, foreign kinds and empty documents",
        [
            (
                ("a.json", json.dumps({"kind": "List", "apiVersion": "v1", "items": [service("web"), {"kind": "Pod",
                 "apiVersion": "v1", "metadata": {"name": "p"}}]}).encode()),
                {"web"}, set(), {},
            ),
            (("b.yaml", b"---\n---\n# nothing\n"), set(), set(), {}),
            (
                ("c.yaml", json.dumps({"kind": "ServiceList", "apiVersion": "v1",
                 "items": [{"metadata": {"name": "x"}, "spec": {"clusterIP": "10.96.1.1"}}]}).encode()),
                {"x"}, set(), {},
            ),
        ],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "story"), STORIES, ids=[row[0] for row in STORIES])
def test_stories(name: str, story: list[tuple[Step, set[str], set[str], dict[str, str]]]) -> None:
    folder = ManifestFolder()
    for (file, content), upserted, deleted, refused in story:
        if content is None:
            folder.drop(file)
        else:
            folder.put(file, content)
        difference = folder.difference()
        assert {obj.name for obj in difference.upserted} == upserted
        assert {key[2] for key in difference.deleted} == deleted
        assert {refusal.name for refusal in difference.refused} == set(refused)
        for refusal in difference.refused:
            assert refused[refusal.name] in str(refusal)


PROBLEMS = [
    ("a.yaml", b"a: 1\nb: [1\nc: 2\n", "manifest a.yaml is not YAML: line 3"),
    ("a.json", b'{"a": 1,\n "b": }', "manifest a.json is not JSON: .*line 2"),
    ("a.yaml", b"\xff\xfe\x00", "manifest a.yaml is not UTF-8 .line 1, byte 0xff"),
    ("a.yaml", b"kind: Service\nmetadata: {name: caf\xe9}\n", "manifest a.yaml is not UTF-8 .line 2, byte 0xe9"),
    ("a.yaml", b"a: 1\nb: {c: 1, c: 2}", "line 2, column 11: the key 'c' is there twice"),
    ("a.json", b'{"kind": "Service", "spec": {}, "spec": {}}', "the key 'spec' is there twice in one object"),
    ("a.yaml", b"\tkind: x", "line 1"),
    ("a.yaml", b"[" * 100_000, "manifest a.yaml is not YAML"),
]


@pytest.mark.parametrize(("name", "content", "message"), PROBLEMS)
def test_problems_name_file_and_line(name: str, content: bytes, message: str) -> None:
    folder = ManifestFolder()
    folder.put(name, content)
    with pytest.raises(AssertionError, match=message):
        assert not folder.problems, folder.problems[name]
    folder.put(name, b"{}" if name.endswith("json") else b"")
    assert not folder.problems


def test_everything_tells_each_kind_once_and_what_has_no_kind_with_the_services() -> None:
    folder = ManifestFolder()
    folder.put(
        "a.yaml", text(service("web"), bad("off"), {"metadata": {"name": "x"}}, {"kind": "Node", "apiVersion": "v1"})
    )
    told = {kind: (objects, refusals) for kind, objects, refusals in folder.everything()}
    assert list(told) == ["Service", "EndpointSlice", "Node", "ServiceCIDR"]
    assert [obj.name for obj in told["Service"][0]] == ["web"]
    assert [refusal.name for refusal in told["Service"][1]] == ["off", "x"]
    assert [refusal.kind for refusal in told["Node"][1]] == ["Node"]
    assert folder.difference() == ((), (), ())


def test_times_may_stand_without_quotes() -> None:
    folder = ManifestFolder()
    folder.put(
        "a.yaml",
        b"apiVersion: v1\nkind: Service\nmetadata: {name: web, creationTimestamp: 2026-01-02T03:04:05Z}\n"
        b"spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}\n",
    )
    assert [obj.name for obj in folder.difference().upserted] == ["web"]


def test_inotify_records() -> None:
    # Layout of struct inotify_event (inotify(7)): wd, mask, cookie, len, then the name padded with zeros.
    records = struct.pack("iIII16s", 1, inotify.CLOSE_WRITE, 0, 16, b"a.yaml") + struct.pack(
        "iIII", 1, inotify.DELETE_SELF, 0, 0
    )
    assert inotify.decode(records) == [(1, inotify.CLOSE_WRITE, "a.yaml"), (1, inotify.DELETE_SELF, "")]


def test_what_lacks_its_other_half_is_told_up_to_a_number() -> None:
    folder = ManifestFolder()
    folder.put("a.yaml", text(*[service(f"web{number:02}", f"10.96.0.{number + 1}") for number in range(25)]))
    assert folder.unconnected() == (), "nothing was reported yet"
    folder.difference()
    told = folder.unconnected()
    assert told[0].startswith("no EndpointSlice names Service shop/web00")
    assert told[20:] == ("5 more Services or EndpointSlices lack one another",)
    assert folder.unconnected() is told
    folder.put("a.yaml", text(service("web"), SLICE))
    folder.difference()
    assert folder.unconnected() == ()
