# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Files and folders of manifests: what is read, in which order, and what is refused as a whole."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._sources import manifests, module_options
from ansible_collections.kproxy.dataplane.plugins.module_utils._sources.errors import SourceError
from ansible_collections.kproxy.dataplane.plugins.module_utils._sources.reading import read_documents

SERVICE = (
    "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\nspec: {clusterIP: 10.96.0.1, ports: []}\n"
)
STEPS = list(zip("abcdefgh", "bcdefghi"))
BOMB = "a: &a [x, x]\n" + "".join(f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n" for old, new in STEPS)
MERGE_BOMB = "a: &a {k: v}\n" + "".join(
    f"{new}: &{new} {{<<: [{', '.join([f'*{old}'] * 10)}]}}\n" for old, new in STEPS
)


def test_a_folder_is_read_in_the_order_of_names(tmp_path: Path) -> None:
    for name, text in {"b.yml": "n: 2\n---\nn: 3\n", "a.yaml": "n: 1\n", "c.json": '{"n": 4}'}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "notes.txt").write_text("not a manifest", encoding="utf-8")
    (tmp_path / ".hidden.yaml").write_text("n: 9", encoding="utf-8")
    assert [document["n"] for document in manifests.read_manifests(str(tmp_path))] == [1, 2, 3, 4]


def test_empty_documents_are_no_documents(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("---\n---\nn: 1\n---\n# only a comment\n", encoding="utf-8")
    assert manifests.read_manifests(str(path)) == [{"n": 1}]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("bad.yaml", "a: [1\nb: 2\n", r"manifest .*bad.yaml is not YAML: line 2"),
        ("bad.yaml", "a: b: c\n", "line 1, column 5"),
        ("bad.json", "{", "bad.json is not JSON"),
        ("tag.yaml", "a: !!python/object:os.system {}\n", "is not YAML"),
        ("type.yaml", 'a: !!int ""\n', "line 1, column 1: a value is not of its type"),
        ("type.yaml", "a: !!bool x\n", "a value is not of its type"),
        ("type.yaml", "a: !!timestamp x\n", "a value is not of its type"),
        ("cycle.yaml", "&a {kind: List, apiVersion: v1, items: [*a]}\n", "an alias refers to what it is part of"),
        ("bomb.yaml", BOMB + "kind: *i\n", "aliases make the document far larger"),
        ("merge.yaml", MERGE_BOMB, "aliases make the document far larger"),
        ("deep.json", "[" * 100000, "is not JSON"),
        ("deep.yaml", "[" * 100000, "is not YAML"),
    ],
)
def test_a_file_that_cannot_be_parsed_fails_the_reading(tmp_path: Path, name: str, text: str, words: str) -> None:
    (tmp_path / "good.yaml").write_text(SERVICE, encoding="utf-8")
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(SourceError, match=words):
        manifests.read_manifests(str(tmp_path))


@pytest.mark.parametrize("name", ["a.yaml", "a.json"])
def test_a_byte_order_mark_and_aliases_are_no_mistake(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text('\ufeff{"n": 1}', encoding="utf-8")
    (tmp_path / "b.yaml").write_text("a: &a {n: 2}\nb: [*a, *a]\n", encoding="utf-8")
    assert manifests.read_manifests(str(tmp_path)) == [{"n": 1}, {"a": {"n": 2}, "b": [{"n": 2}] * 2}]


def test_a_pipe_in_the_folder_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.yaml")
    with pytest.raises(SourceError, match=r"a\.yaml is no regular file"):
        manifests.read_manifests(str(tmp_path))


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(SourceError, match="is not UTF-8"):
        manifests.read_manifests(str(tmp_path))


def test_an_empty_folder_is_not_an_empty_cluster(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="state=absent"):
        manifests.read_manifests(str(tmp_path))
    with pytest.raises(SourceError, match="does not exist"):
        manifests.read_manifests(str(tmp_path / "absent"))


def test_a_node_without_yaml_reads_json_and_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "HAS_YAML", False)
    (tmp_path / "a.yaml").write_text('{"n": 1}', encoding="utf-8")
    assert manifests.read_manifests(str(tmp_path)) == [{"n": 1}]
    (tmp_path / "b.yaml").write_text("n: 2\n", encoding="utf-8")
    with pytest.raises(SourceError, match="install python3-yaml"):
        manifests.read_manifests(str(tmp_path))


NONE = {"clusterIP": "None"}


def test_a_bad_object_costs_only_itself() -> None:
    good = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "shop"}, "spec": NONE}
    bad = {**good, "metadata": {"name": "old", "namespace": "shop"}, "spec": {"clusterIP": "10.96.0.300"}}
    other = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}
    reading = read_documents([{"kind": "List", "items": [good, bad]}, other, "nonsense"])
    assert [obj.name for obj in reading.objects] == ["web"]
    assert ["Service shop/old" in str(refusal) for refusal in reading.refusals] == [True, False]


DEPLOYMENT = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}}
NODE = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}


@pytest.mark.parametrize("documents", [[], [{"kind": "List", "items": []}], [DEPLOYMENT, NODE], [{"kind": "Service"}]])
def test_a_source_may_hold_nothing_or_others_beside_ours(documents: list[dict[str, Any]]) -> None:
    module_options.read_source({"objects": documents}, "n1")


def test_the_wrong_place_is_not_taken_for_an_empty_cluster(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="none of the 2 objects is a Service"):
        module_options.read_source({"objects": [{"kind": "List", "items": [DEPLOYMENT, DEPLOYMENT]}]}, "n1")
    (tmp_path / "web.json").write_text(json.dumps(DEPLOYMENT))
    with pytest.raises(SourceError, match="none of the 1 objects is a Service"):
        module_options.read_source({"manifests": str(tmp_path)}, "n1")
    with pytest.raises(SourceError, match="none of the 1 objects is a Service"):
        module_options.read_source({"objects": [made("Endpoints")]}, "n1")


def made(kind: str, name: str = "web", **more: Any) -> dict[str, Any]:
    version = "discovery.k8s.io/v1" if kind == "EndpointSlice" else "v1"
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **more}


def slice_of(service: str, address_type: str = "IPv4") -> dict[str, Any]:
    return slice_with({"kubernetes.io/service-name": service}, address_type)


def slice_with(labels: dict[str, str], address_type: str = "IPv4") -> dict[str, Any]:
    return {**made("EndpointSlice", addressType=address_type), "metadata": {"name": "web-1", "labels": labels}}


SERVED = made("Service", spec={"clusterIP": "10.96.0.1"})
HEADLESS = made("Service", spec=NONE)
# objects, what is refused of them, and what is noted
CONNECTIONS: list[tuple[str, list[dict[str, Any]], list[str], list[str]]] = [
    ("all there", [SERVED, slice_of("web")], [], []),
    ("Endpoints alone", [SERVED, made("Endpoints")], ["Endpoints default/web"], ["no EndpointSlice names"]),
    ("Endpoints of nothing", [SERVED, slice_of("web"), made("Endpoints", "db")], ["Endpoints default/db"], []),
    ("mirrored", [made("Endpoints"), SERVED, slice_of("web")], [], []),
    ("headless", [made("Endpoints"), HEADLESS], [], []),
    ("no slice", [SERVED], [], ["no EndpointSlice names Service default/web, so its clients are refused"]),
    ("headless without a slice", [HEADLESS], [], []),
    ("no Service", [slice_of("web")], [], ["EndpointSlice default/web-1 names Service default/web, which is not"]),
    ("no label", [slice_with({})], [], ["EndpointSlice default/web-1 names no Service: write the label"]),
    ("no label needed", [slice_with({"service.kubernetes.io/headless": ""})], [], []),
    ("names", [slice_of("web", "FQDN"), SERVED], [], ["no EndpointSlice names Service default/web"]),
]


@pytest.mark.parametrize(("story", "objects", "refused", "notes"), CONNECTIONS, ids=[row[0] for row in CONNECTIONS])
def test_what_nobody_makes_among_manifests_is_missed(
    story: str, objects: list[dict[str, Any]], refused: list[str], notes: list[str]
) -> None:
    reading = module_options.read_source({"objects": objects}, "n1")
    assert [str(refusal).partition(":")[0] for refusal in reading.refusals] == refused
    assert len(reading.notes) == len(notes)
    assert all(note.startswith(words) for note, words in zip(reading.notes, notes))
