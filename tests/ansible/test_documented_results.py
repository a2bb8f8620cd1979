"""What modules return is what their documentation says, no more and no less."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from ansible_collections.kproxy.dataplane.tests.unit.plugins.modules.test_return_docs import returns
from tests.module_run import run_module

NAMESPACE = f"kp-documented-results-{os.getpid()}"
#: What every module may return; Ansible documents it.
COMMON = {"changed", "diff", "invocation", "warnings", "deprecations"}
SERVICE = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "web", "namespace": "shop"},
    "spec": {"clusterIP": "10.96.0.20", "ports": [{"port": 80}]},
}
RUNS: list[tuple[str, dict[str, Any]]] = [
    ("bpf_info", {}),
    ("ebpf", {"state": "absent"}),
    ("nftables", {"objects": [SERVICE]}),
    ("nftables", {"state": "absent"}),
    ("node_facts", {}),
    ("node_settings", {"sysctls": {}}),
    ("probe", {"objects": [SERVICE]}),
    ("residue", {}),
    ("residue_info", {}),
    ("safeguard", {"state": "disarmed"}),
    ("service_info", {"objects": [SERVICE]}),
    ("sidecar", {"state": "absent"}),
]


@pytest.fixture(scope="module")
def namespace() -> Iterator[str]:
    subprocess.run(["ip", "netns", "add", NAMESPACE], check=True)
    yield NAMESPACE
    subprocess.run(["ip", "netns", "delete", NAMESPACE], check=True)


@pytest.mark.parametrize(("name", "options"), RUNS, ids=[f"{name}-{number}" for number, (name, _) in enumerate(RUNS)])
def test_results_are_documented(name: str, options: dict[str, Any], namespace: str) -> None:
    given = {**options, "_ansible_check_mode": True, "_ansible_diff": True}
    result = run_module(name, given, before=["ip", "netns", "exec", namespace])
    assert not result.get("failed"), result
    documented = returns(name)
    always = {key for key, value in documented.items() if value["returned"] in ("success", "always")}
    assert (result.keys() - COMMON - documented.keys(), always - result.keys()) == (set(), set())
    nested(result, documented, name)


def nested(result: dict[str, Any], documented: dict[str, Any], place: str) -> None:
    """Compare mappings whose fields are documented, and the types of all that is."""
    kinds = {"str": str, "bool": bool, "int": int, "list": list, "dict": dict, "float": float}
    for key, value in result.items():
        if key not in documented or value is None:
            continue
        said = documented[key]
        assert isinstance(value, kinds[said["type"]]), f"{place}.{key} is {value!r}"
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, dict) and "contains" in said:
                assert one.keys() - said["contains"].keys() == set(), f"{place}.{key}"
                nested(one, said["contains"], f"{place}.{key}")
