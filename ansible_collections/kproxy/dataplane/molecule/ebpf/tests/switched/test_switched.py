"""What a node lost that went from eBPF to nftables and back under load, with kproxyd restarted and killed: nothing."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from testinfra.host import Host

HELD = ["ebpf-node-port", "ebpf-pod", "ebpf-pod-affinity", "nftables-node-port", "nftables-pod"]
# A load that was starved by the machine proves nothing.
FEWEST = 500


def state(host: Host, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(host.file(f"/run/{name}.json").content_string)
    return found


@pytest.mark.parametrize("name", HELD)
def test_open_connections_still_carry_bytes(host: Host, name: str) -> None:
    before = state(host, f"hold-{name}")
    assert before["error"] == ""
    deadline = time.monotonic() + 60
    while state(host, f"hold-{name}")["answers"] <= before["answers"]:
        assert time.monotonic() < deadline, "no answer for 60 s"
    assert state(host, f"hold-{name}")["pod"] == before["pod"]


@pytest.mark.parametrize("name", ["load-node", "load-pod"])
def test_no_new_connection_failed(host: Host, name: str) -> None:
    seen = state(host, name)
    assert seen["failed"] == []
    assert seen["answered"] >= FEWEST


def test_nftables_carried_everything_meanwhile(host: Host) -> None:
    meanwhile = state(host, "status-nftables")
    now = json.loads(host.check_output("kproxyctl status -o json"))
    assert (meanwhile["mode"], now["mode"]) == ("nftables", "ebpf")
    assert set(meanwhile["carriedBy"]) == {"nftables"}
    assert set(now["carriedBy"]) == {"ebpf"}
    assert now["carriedBy"]["ebpf"] == meanwhile["carriedBy"]["nftables"] > 0


def test_nftables_is_empty_again(host: Host) -> None:
    for family in ("ip", "ip6"):
        listing = json.loads(host.check_output(f"nft --json list map {family} kproxy services"))
        assert [item["map"]["elem"] for item in listing["nftables"] if "elem" in item.get("map", {})] == []


def test_every_hook_is_held_again(host: Host) -> None:
    pinned = host.check_output("ls /sys/fs/bpf/kproxy/v*/links").split()
    assert len([one for one in pinned if one.startswith("cgroup_")]) == 11
    devices = json.loads(host.check_output("ip -json link show"))
    assert len([one for one in pinned if one.startswith("tcx_")]) == 2 * len(devices) - 1


def test_nobody_retires_what_is_in_use(host: Host) -> None:
    deadline = time.monotonic() + 60
    while host.run("systemctl is-active kproxy-retirement").stdout.strip() == "active":
        assert time.monotonic() < deadline, "the retirement has not noticed that eBPF is back"
        time.sleep(0.2)
