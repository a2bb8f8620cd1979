"""A folder of manifests on a real file system, written to in all the ways people and programs write."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.manifests_source import ManifestsSource
from tests.api.objects import Manifest, endpoint_slice, service
from tests.api.recorder import Recorder

Start = Callable[[Path], tuple[ManifestsSource, Recorder]]
Watch = Callable[[Path], Recorder]


@pytest.fixture
def start() -> Iterator[Start]:
    sources = []

    def start_on(folder: Path) -> tuple[ManifestsSource, Recorder]:
        source, recorder = ManifestsSource(str(folder)), Recorder()
        sources.append(source)
        source.start(recorder)
        return source, recorder

    yield start_on
    for source in sources:
        source.stop()


@pytest.fixture
def watch(start: Start) -> Watch:
    return lambda folder: start(folder)[1]


def text(*names: str, ip: str = "10.96.0.10") -> str:
    manifests: list[Manifest] = [service(name, clusterIP=ip) for name in names]
    return yaml.safe_dump_all(manifests)


def known(*names: str) -> Callable[[Recorder], bool]:
    return lambda recorder: recorder.names("Service") == set(names) and bool(recorder.lists("Service"))


def test_every_kind_is_listed_once_even_if_there_is_nothing(tmp_path: Path, watch: Watch) -> None:
    recorder = watch(tmp_path)
    recorder.wait(lambda r: bool(r.lists("ServiceCIDR")))
    assert [len(recorder.lists(kind)) for kind in ("Service", "EndpointSlice", "Node", "ServiceCIDR")] == [1, 1, 1, 1]


def test_files_come_change_and_go(tmp_path: Path, watch: Watch) -> None:
    (tmp_path / "a.yaml").write_text(text("web"))
    recorder = watch(tmp_path)
    recorder.wait(known("web"))
    (tmp_path / "b.yml").write_text(text("db", "cache"))
    recorder.wait(known("web", "db", "cache"))
    (tmp_path / "b.yml").write_text(text("db"))
    recorder.wait(known("web", "db"))
    (tmp_path / "a.yaml").unlink()
    recorder.wait(known("db"))


def in_place(file: Path) -> None:
    file.write_text(text("new"))


def renamed_over(file: Path) -> None:
    temporary = file.with_name(".a.yaml.tmp")
    temporary.write_text(text("new"))
    temporary.replace(file)


def as_vim_does(file: Path) -> None:
    backup = file.rename(file.with_name("a.yaml~"))
    file.write_text(text("new"))
    backup.unlink()


def _elsewhere(file: Path) -> Path:
    elsewhere = file.parent.parent / "elsewhere.yaml"
    elsewhere.write_text(text("new"))
    file.unlink()
    return elsewhere


def hard_link(file: Path) -> None:
    os.link(_elsewhere(file), file)


def symbolic_link(file: Path) -> None:
    file.symlink_to(_elsewhere(file))


@pytest.mark.parametrize("save", [in_place, renamed_over, as_vim_does, hard_link, symbolic_link])
def test_a_file_can_be_saved_in_many_ways(tmp_path: Path, watch: Watch, save: Callable[[Path], None]) -> None:
    folder = tmp_path / "manifests"
    folder.mkdir()
    (folder / "a.yaml").write_text(text("old"))
    recorder = watch(folder)
    recorder.wait(known("old"))
    save(folder / "a.yaml")
    recorder.wait(known("new"))


def test_a_mounted_config_map(tmp_path: Path, watch: Watch) -> None:
    """The kubelet swaps a symbolic link to a whole folder; the files themselves are links through it."""
    for version, name in (("v1", "old"), ("v2", "new")):
        (tmp_path / version).mkdir()
        (tmp_path / version / "a.yaml").write_text(text(name))
    (tmp_path / "..data").symlink_to("v1")
    (tmp_path / "a.yaml").symlink_to("..data/a.yaml")
    recorder = watch(tmp_path)
    recorder.wait(known("old"))
    (tmp_path / "..data_tmp").symlink_to("v2")
    (tmp_path / "..data_tmp").replace(tmp_path / "..data")
    recorder.wait(known("new"))


def test_half_a_file_is_never_taken_for_a_whole_one(tmp_path: Path, watch: Watch) -> None:
    (tmp_path / "a.yaml").write_text(text("web", "db"))
    recorder = watch(tmp_path)
    recorder.wait(known("web", "db"))
    with open(tmp_path / "a.yaml", "w") as stream:  # truncated now, filled later
        stream.write(text("web"))
        stream.flush()
        # Another file shows that events up to here have been dealt with.
        (tmp_path / "b.yaml").write_text(text("other"))
        recorder.wait(known("web", "db", "other"))
        stream.write("---\n" + text("db", ip="10.96.0.11"))
    recorder.wait(lambda r: getattr(r.objects["Service", "shop", "db"], "cluster_ips", ()) == (bytes([10, 96, 0, 11]),))
    assert all({"web", "db"} <= names for names in recorder.history if names)


def test_a_file_that_is_not_yaml_costs_only_itself(tmp_path: Path, watch: Watch) -> None:
    (tmp_path / "a.yaml").write_text(text("web"))
    recorder = watch(tmp_path)
    recorder.wait(known("web"))
    (tmp_path / "a.yaml").write_text("apiVersion: v1\nkind: [Service\nmetadata: {}\n")
    recorder.wait(lambda r: "manifest a.yaml is not YAML: line 3" in r.details())
    (tmp_path / "b.yaml").write_text(text("db"))
    recorder.wait(known("web", "db"))
    (tmp_path / "a.yaml").write_text(text("web", "more"))
    recorder.wait(known("web", "db", "more"))
    recorder.wait(lambda r: r.states[-1].connected and not r.states[-1].detail)


def test_an_object_in_two_files_is_named(tmp_path: Path, watch: Watch) -> None:
    (tmp_path / "b.yaml").write_text(text("web", ip="10.96.0.2"))
    (tmp_path / "a.yaml").write_text(text("web", ip="10.96.0.1"))
    recorder = watch(tmp_path)
    recorder.wait(known("web"))
    assert recorder.refused == {"web": "is in a.yaml and in b.yaml; the one in a.yaml is used"}
    (tmp_path / "a.yaml").unlink()
    recorder.wait(lambda r: getattr(r.objects["Service", "shop", "web"], "cluster_ips", ()) == (bytes([10, 96, 0, 2]),))


def test_a_folder_that_comes_later_goes_and_comes_back(tmp_path: Path, watch: Watch) -> None:
    folder = tmp_path / "etc" / "kproxy" / "manifests"
    recorder = watch(folder)
    recorder.wait(lambda r: "does not exist" in r.details())
    assert not recorder.history, "nothing is known, so nothing may change"
    folder.mkdir(parents=True)
    (folder / "a.yaml").write_text(text("web"))
    recorder.wait(known("web"))
    folder.rename(tmp_path / "aside")
    recorder.wait(lambda r: not r.states[-1].connected)
    (tmp_path / "aside" / "a.yaml").unlink()
    assert recorder.names("Service") == {"web"}, "what is in force stays"
    folder.mkdir()
    (folder / "b.yaml").write_text(text("db"))
    recorder.wait(known("db"))


def test_foreign_files_are_left_alone(tmp_path: Path, watch: Watch) -> None:
    for name in (".a.yaml.swp", "a.yaml~", "README", ".hidden.yaml"):
        (tmp_path / name).write_text("not: [yaml")
    (tmp_path / "folder.yaml").mkdir()
    recorder = watch(tmp_path)
    recorder.wait(lambda r: "folder.yaml cannot be read: Is a directory" in r.details())
    assert recorder.states[-1].detail.count("manifest") == 1


def test_a_folder_that_serves_nothing_is_a_problem(tmp_path: Path, start: Start) -> None:
    source, recorder = start(tmp_path)
    recorder.wait(lambda _r: source.synced)
    assert source.problems() == (f"folder {tmp_path} holds no Service, so nothing is served: write manifests into it",)
    (tmp_path / "a.yaml").write_text(text("web"))
    recorder.wait(known("web"))
    (problem,) = source.problems()
    assert problem.startswith("no EndpointSlice names Service shop/web")
    (tmp_path / "b.yaml").write_text(yaml.safe_dump(endpoint_slice("web-1", "10.244.1.5", of="web")))
    recorder.wait(lambda r: r.names("EndpointSlice") == {"web-1"})
    assert source.problems() == ()


def test_a_folder_that_is_not_there_is_told_as_such_alone(tmp_path: Path, start: Start) -> None:
    source, recorder = start(tmp_path / "later")
    recorder.wait(lambda r: "does not exist" in r.details())
    assert source.problems() == ()
