"""The shipped eBPF objects are what the sources compile to."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf import object_file, programs
from devtools import bpf_build

PACKAGE = "ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.programs"


def shipped(name: str) -> ModuleType:
    return importlib.import_module(f"{PACKAGE}.{name}")


@pytest.mark.parametrize("name", bpf_build.names())
def test_no_object_is_older_than_its_source(name: str) -> None:
    assert bpf_build.source_digest(name) == shipped(name).SOURCE_SHA256, "run devtools/bpf_build.py"


@pytest.mark.parametrize("name", bpf_build.names())
def test_rebuilding_gives_the_same_programs(name: str) -> None:
    """Another compiler version may choose other instructions; sections, maps and references must be the same."""
    module = shipped(name)
    ours = object_file.parse(programs.unpack(module.OBJECT))
    rebuilt = object_file.parse(bpf_build.compile_program(name))
    assert rebuilt.maps == ours.maps
    assert rebuilt.rodata == ours.rodata
    assert {program.section for program in rebuilt.programs} == {program.section for program in ours.programs}
    for one, other in zip(ours.programs, rebuilt.programs, strict=True):
        assert {held.name for held in one.references} == {held.name for held in other.references}
        if bpf_build.compiler() == module.COMPILER:
            assert one.instructions == other.instructions, one.section
