"""Cases 16, 17 and 18: what kube-proxy leaves, whose it is, and what remains after removal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.kproxy.dataplane.plugins.module_utils._residue import ledger, ownership, removal
from ansible_collections.kproxy.dataplane.plugins.module_utils._residue.dumps import (
    parse_brief_addresses,
    parse_ipset_save,
    parse_ipvs_save,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._residue.forward_walk import Packet, outcomes
from ansible_collections.kproxy.dataplane.plugins.module_utils._residue.iptables_save import parse

CASES = Path(__file__).parents[1] / "cases"
IPTABLES = CASES / "16-kube-residue-iptables"
IPVS = CASES / "17-ipvs-residue-keep-foreign"
KUBELET = CASES / "18-kubelet-owned-chains"


def surface(text: str, backend: str = "nft", family: int = 4) -> ledger.Surface:
    return ledger.Surface(backend, family, parse(text))


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("backend", ["legacy", "nft"])
def test_case_16_leaves_exactly_the_foreign_state(backend: str, family: int) -> None:
    before = surface((IPTABLES / "before.txt").read_text(), backend, family)
    capture = ledger.Capture((before,))
    plan = removal.plan_removal(capture, ledger.attribute(capture), {ownership.KUBE_PROXY})

    after = removal.surface_after(before, plan)
    assert after == (IPTABLES / "after.txt").read_text()
    assert [restore.table for restore in plan.restores] == ["mangle", "filter", "nat"]
    assert {(restore.backend, restore.family) for restore in plan.restores} == {(backend, family)}

    second = ledger.Capture((surface(after, backend, family),))
    assert removal.plan_removal(second, ledger.attribute(second), {ownership.KUBE_PROXY}).empty


def test_case_16_restore_empties_then_unlinks_then_deletes() -> None:
    capture = ledger.Capture((surface((IPTABLES / "before.txt").read_text()),))
    plan = removal.plan_removal(capture, ledger.attribute(capture), {ownership.KUBE_PROXY})
    for restore in plan.restores:
        verbs = [line[:2].rstrip("K") for line in restore.text.splitlines()[1:-1]]
        order = [":", "-D", "-X"]
        assert verbs == sorted(verbs, key=order.index)
        assert not any(line.startswith((":INPUT", ":FORWARD", ":OUTPUT")) for line in restore.text.splitlines())


def load_ipvs_case() -> ledger.Capture:
    return ledger.Capture(
        (surface((IPVS / "iptables-save.txt").read_text()),),
        parse_ipset_save((IPVS / "ipset-save.txt").read_text()),
        parse_ipvs_save((IPVS / "ipvs-save.txt").read_text()),
        parse_brief_addresses((IPVS / "addresses.txt").read_text()),
    )


def node_ports(documents: list[dict[str, Any]]) -> set[tuple[str, int]]:
    return {
        (port["protocol"].lower(), port["nodePort"])
        for document in documents
        if document["kind"] == "Service"
        for port in document["spec"]["ports"]
        if "nodePort" in port
    }


def test_case_17_removes_ours_and_keeps_the_foreign() -> None:
    expect = yaml.safe_load((IPVS / "expect.yaml").read_text())
    capture = load_ipvs_case()
    known = node_ports(list(yaml.safe_load_all((IPVS / "objects.yaml").read_text())))
    book = ledger.attribute(capture, known)
    plan = removal.plan_removal(capture, book, {ownership.KUBE_PROXY})

    assert [str(server) for server in plan.virtual_servers] == expect["remove"]["virtual_servers"]
    assert sorted(plan.ipsets) == sorted(expect["remove"]["ipsets"])
    assert list(plan.interfaces) == expect["remove"]["interfaces"]
    assert "KUBE-" not in removal.surface_after(capture.surfaces[0], plan)
    foreign = {entry.name for entry in book.entries if entry.owner == ownership.FOREIGN}
    assert foreign == set(expect["keep"]["virtual_servers"] + expect["keep"]["ipsets"])
    assert plan.kept == ()


def test_case_17_without_the_api_a_node_address_counts_as_foreign() -> None:
    capture = load_ipvs_case()
    plan = removal.plan_removal(capture, ledger.attribute(capture), {ownership.KUBE_PROXY})
    assert "192.0.2.11:31190/tcp" not in map(str, plan.virtual_servers)


@pytest.mark.parametrize("name", ["iptables-save.txt", "iptables-save-old-kubelet.txt"])
def test_case_18_tells_kubelet_from_kube_proxy(name: str) -> None:
    expect = yaml.safe_load((KUBELET / "expect.yaml").read_text())[name]
    text = (KUBELET / name).read_text()
    capture = ledger.Capture((surface(text),))
    book = ledger.attribute(capture)

    def chains(owner: str) -> set[str]:
        return {
            f"{entry.where.rsplit('/', 1)[1]}/{entry.name}"
            for entry in book.entries
            if entry.owner == owner and entry.kind == ledger.CHAIN
        }

    assert chains(ownership.KUBE_PROXY) == set()
    assert chains(ownership.KUBELET) == set(expect["kubelet_chains"])
    assert chains(ownership.EITHER) == set(expect.get("either_owner", []))
    assert (book.count(ownership.KUBE_PROXY) == 0) == expect["migration_complete"]
    assert removal.plan_removal(capture, book, {ownership.KUBE_PROXY}).empty


def test_case_18_kubelet_chains_go_only_when_asked_and_never_silently() -> None:
    before = surface((KUBELET / "iptables-save.txt").read_text())
    capture = ledger.Capture((before,))
    plan = removal.plan_removal(capture, ledger.attribute(capture), {ownership.KUBELET})
    assert "KUBE-" not in removal.surface_after(before, plan)
    assert any("kubelet makes its chains again" in warning for warning in plan.warnings)
    assert any("127.0.0.0/8" in warning for warning in plan.warnings)


FORWARD_DROP = CASES / "15-forward-drop-elsewhere"


@pytest.mark.parametrize("packet", [Packet(), Packet("203.0.113.7", "10.244.2.111", "tcp", 8080)])
def test_case_15_removing_kube_forward_would_lose_forwarded_traffic(packet: Packet) -> None:
    before = surface((FORWARD_DROP / "iptables-save.txt").read_text())
    capture = ledger.Capture((before,))
    plan = removal.plan_removal(capture, ledger.attribute(capture), {ownership.KUBE_PROXY})
    after = parse(removal.surface_after(before, plan))
    assert outcomes(before.tables, packet) == {"accept"}
    assert outcomes(after, packet) == {"drop"}
    lost = removal.lost_forwarding(capture, plan)
    assert lost == ("nft/ip/filter FORWARD drops forwarded Service traffic once KUBE-FORWARD is gone",)


def test_case_16_keeps_forwarding_by_the_pod_network_rules() -> None:
    before = surface((IPTABLES / "before.txt").read_text())
    capture = ledger.Capture((before,))
    plan = removal.plan_removal(capture, ledger.attribute(capture), {ownership.KUBE_PROXY})
    assert removal.lost_forwarding(capture, plan) == ()
    assert outcomes(parse((IPTABLES / "after.txt").read_text()), Packet("203.0.113.7", "10.244.2.21")) == {"accept"}
