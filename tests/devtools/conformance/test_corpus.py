"""Reading cases, and what is made of them before the first packet."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from devtools.conformance import corpus, population, timescale
from devtools.conformance.command import main
from devtools.conformance.corpus import Case, SocketAddress, parse_case
from devtools.conformance.facts import find_sample
from devtools.conformance.manifests import ApiState, node_manifest, settings
from devtools.conformance.world import layout

CORPUS = Path(__file__).resolve().parents[2] / "conformance"


def make(**more: Any) -> Case:
    return parse_case(
        {
            "name": "topic/case",
            "node": {"name": "n1", "zone": "z", "ips": {"primary": ["192.0.2.11"], "extra": []}, "pod_cidr": []},
            "config": {},
            "objects": [],
            "probes": [],
            **more,
        }
    )


def service(timeout: int, **more: Any) -> dict[str, Any]:
    return {
        "kind": "Service",
        "metadata": {"namespace": "a", "name": "b"},
        "spec": {
            "clusterIP": "10.96.0.1",
            "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": timeout}},
            "ports": [{"port": 80, "protocol": "TCP"}],
            **more,
        },
    }


def test_the_copy_follows_its_own_format() -> None:
    checked = subprocess.run([sys.executable, CORPUS / "validate.py"], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    assert len(corpus.load([CORPUS])) == 147


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "not YAML"),
        ("format: 2\ncases: []", "not a case file of format 1"),
        ("format: 1\ncases: [{name: x}]", "case x: KeyError"),
        ("format: 1\ncases: [7]", "case number 1"),
    ],
)
def test_bad_files_are_named(text: str, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    assert main(["--backend", "model", str(file)]) == 2
    said = capsys.readouterr().err
    assert complaint in said
    assert str(file) in said


def test_a_wrong_expectation_fails_on_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = yaml.safe_load((CORPUS / "clusterip.yaml").read_text())
    document["cases"][0]["probes"][0]["expect"] = {"verdict": "reject"}
    file = tmp_path / "clusterip.yaml"
    file.write_text(yaml.safe_dump(document))
    assert main(["--backend", "model", str(file)]) == 1
    out = capsys.readouterr().out
    assert f"FAIL {document['cases'][0]['name']}: " in out
    assert ", wanted reject" in out
    assert out.endswith(f"{len(document['cases']) - 1} passed, 1 failed, 0 skipped\n")


@pytest.mark.parametrize(
    ("text", "ip", "port"),
    [("010.042.7.9:80", "10.42.7.9", 80), ("[fd00::0:1]:53", "fd00::1", 53)],
)
def test_addresses_are_canonical(text: str, ip: str, port: int) -> None:
    address = SocketAddress.parse(text)
    assert (address.ip, address.port) == (ip, port)
    assert SocketAddress.parse(str(address)) == address


@pytest.mark.parametrize(
    ("timeouts", "wait", "kept"),
    [
        pytest.param([60], 75, [(4, 5.0)], id="just expired stays expired"),
        pytest.param([60], 45, None, id="cannot keep a margin on the same side"),
        pytest.param([10800], 20, None, id="far from any timeout"),
        pytest.param([60], 5, [(60, 5.0)], id="short enough as it is"),
    ],
)
def test_times_keep_their_order(timeouts: list[int], wait: int, kept: list[tuple[int, float]] | None) -> None:
    one = make(objects=[service(timeout) for timeout in timeouts], after=[{"step": "wait", "advance_seconds": wait}])
    short = timescale.shorten(one)
    got = [
        (manifest["spec"]["sessionAffinityConfig"]["clientIP"]["timeoutSeconds"], short.steps[0].advance_seconds)
        for manifest in short.manifests
    ]
    if kept is not None:
        assert got == kept
    for (timeout, waited), original in zip(got, timeouts, strict=True):
        assert (timeout > waited) == (original > wait)


def test_neighbours_are_alike_in_every_range() -> None:
    probes = [{"from": {"ip": "10.42.7.40", "kind": "pod-local"}, "to": {"ip": "10.96.0.1", "port": 80,
               "protocol": "TCP"}, "expect": {"verdict": "reject"}}]  # fmt: skip
    one = make(objects=[service(60, loadBalancerSourceRanges=["10.42.7.32/27"])], probes=probes)
    (found,) = population.doubles(one).values()
    assert found
    assert all(32 <= int(ip.rpartition(".")[2]) < 64 and ip != "10.42.7.40" for ip in found)
    assert population.is_pinned(one, one.probes[0].to)


def test_the_node_object_of_a_case_overrides_the_block() -> None:
    given = {"kind": "Node", "metadata": {"name": "n1", "labels": {"topology.kubernetes.io/zone": "other"}}}
    one = make(objects=[given])
    state = ApiState(one)
    state.apply(one.start)
    (node,) = state.objects.values()
    assert node["metadata"]["labels"] == {"topology.kubernetes.io/zone": "other"}
    assert node["status"]["addresses"] == [{"type": "InternalIP", "address": "192.0.2.11"}]
    assert node_manifest(one.node)["metadata"]["labels"] == {"topology.kubernetes.io/zone": "z"}


def test_settings_use_the_names_of_kube_proxy() -> None:
    one = make(config={"detectLocalMode": "BridgeInterface", "bridgeInterface": "cni0", "masqueradeAll": True})
    assert settings(one) == {
        "nodeName": "n1",
        "detectLocalMode": "BridgeInterface",
        "detectLocal": {"bridgeInterface": "cni0"},
        "masqueradeAll": True,
    }


def test_one_address_behind_two_interfaces_has_two_leaves() -> None:
    probes = [
        {"from": {"ip": "10.42.7.40", "kind": "pod-local", "interface": name}, "to": {"ip": "10.96.0.1", "port": 80,
         "protocol": "TCP"}, "expect": {"verdict": "reject"}} for name in ("veth1", "eth0")
    ]  # fmt: skip
    plan = layout(make(probes=probes, config={"interfaceNamePrefix": "kp"}), {})
    assert plan.leaves_of("10.42.7.40") == ["veth1", "eth0"]
    assert plan.beyond == ["10.96.0.1"]
    assert not plan.uplink.startswith("kp")


def test_samples_are_found_by_name_and_labels() -> None:
    text = '# HELP x y\nx_total{a="1",b="2"} 3.0\nx_total{a="2",b="2"} 4\nplain 5\n'
    assert find_sample(text, "x_total", {"b": "2", "a": "1"}) == 3
    assert find_sample(text, "plain", {}) == 5
    assert find_sample(text, "x_total", {"a": "1"}) is None
