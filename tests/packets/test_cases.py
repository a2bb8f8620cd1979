"""The faults in tests/cases that packets can show, on the service table and with real packets through kproxyd."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from devtools.conformance import population
from devtools.conformance.corpus import Case
from devtools.conformance.judge import Circumstances
from devtools.conformance.kproxyd import Kproxyd
from devtools.conformance.model_system import ModelSystem
from devtools.conformance.packet_system import PacketSystem
from devtools.conformance.play import Story, play
from tests.packets.reported_cases import case, expectations, folder, manifests, probe, step

BACKENDS = ("model", "nft")


def problems(backend: str, one: Case) -> list[str]:
    if backend == "model":
        return list(play(Story(one, population.doubles(one), Circumstances(one.node.addresses)), ModelSystem(one)))
    system = PacketSystem(one, population.doubles(one), Kproxyd(backend))
    try:
        return list(play(Story(one, population.doubles(one), Circumstances(one.node.addresses)), system))
    finally:
        system.close()


def nodes_of(flows: list[dict[str, Any]]) -> list[str]:
    return sorted({flow["node"] for flow in flows})


def simple_cases() -> Iterator[Any]:
    """Folders whose expectation is one set of flows over one set of objects."""
    for number in ("02", "03", "04", "05", "06", "08", "09", "12", "13"):
        flows = expectations(number)["flows"]
        objects = manifests(folder(number) / "objects.yaml")
        for node in nodes_of(flows):
            yield pytest.param(case(folder(number).name, node, objects, flows), id=f"{folder(number).name}-{node}")
    # 06: the order of slices, and of entries in them, must not matter.
    objects = manifests(folder("06") / "objects.yaml")[::-1]
    backwards = [{**one, "endpoints": one["endpoints"][::-1]} if "endpoints" in one else one for one in objects]
    yield pytest.param(
        case("06-backwards", "n1", backwards, expectations("06")["flows"]), id="06-same-ip-endpoints-backwards"
    )


def stepped_cases() -> Iterator[Any]:
    yield pytest.param(_health_checks("n1"), id="05-health-check-n1")
    yield pytest.param(_health_checks("n2"), id="05-health-check-n2")
    yield pytest.param(_health_checks("n3"), id="05-health-check-n3")
    yield pytest.param(_zone_label_arrives(), id="08-node-n3-labelled")
    yield pytest.param(_duplicate_goes(), id="10-shared-lb-ip-and-duplicates")
    yield pytest.param(_failed_syncs_forgotten(), id="26-changes-in-order")


def _health_checks(node: str) -> Case:
    status = expectations("05")["health_check_port"][node]
    count = 1 if status == 200 else 0
    check = {
        "service": "edge/ingress",
        "port": 32080,
        "family": "IPv4",
        "expect": {
            "status": status,
            "local_endpoints": count,
            "weight_header": str(count),
            "service_proxy_healthy": True,
        },
    }
    return case("05-health-check", node, manifests(folder("05") / "objects.yaml"), health_checks=[check])


def _zone_label_arrives() -> Case:
    objects = manifests(folder("08") / "objects.yaml")
    expect = expectations("08")
    labelled = manifests(folder("08") / "node-n3-labelled.yaml")
    after = [labelled[0] if one["kind"] == "Node" and one["metadata"]["name"] == "n3" else one for one in objects]
    probes = [probe(flow, ["192.0.2.13"]) for flow in expect["after_node_n3_labelled"]]
    return case(
        "08-labelled", "n3", objects, expect["flows"], after=[step("n3 is labelled", objects, after, probes=probes)]
    )


def _duplicate_goes() -> Case:
    expect = expectations("10")
    first, second = (manifests(folder("10") / f"objects-{number}.yaml") for number in (1, 2))
    probes = [probe(flow, ["192.0.2.11"]) for flow in expect["objects-2.yaml"]]
    return case(
        "10-duplicates", "n1", first, expect["objects-1.yaml"], after=[step("two go", first, second, probes=probes)]
    )


def _failed_syncs_forgotten() -> Case:
    sets = [manifests(folder("26") / f"objects-{number}.yaml") for number in (1, 2, 3, 4)]
    probes = [probe(flow, ["192.0.2.11"]) for flow in expectations("26")["flows"]]
    steps = [step(f"objects-{number}", sets[number - 2], sets[number - 1]) for number in (2, 3)]
    return case("26-in-order", "n1", sets[0], after=[*steps[:-1], {**steps[-1], "probes": probes}])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("one", [*simple_cases(), *stepped_cases()])
def test_flows(backend: str, one: Case) -> None:
    assert one.probes or any(scope.health_checks for scope in one.scopes)
    assert problems(backend, one) == []
