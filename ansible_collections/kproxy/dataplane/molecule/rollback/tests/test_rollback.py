"""What a rollback promises of each node: kube-proxy back, ours gone, connections alive, also without a controller."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
from testinfra.host import Host


def held(host: Host, name: str) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(host.file(f"/run/hold-{name}.json").content_string)
    return state


def test_kube_proxy_runs_and_has_its_rules(host: Host) -> None:
    assert host.service("kube-proxy").is_running
    dumps = [host.check_output(command) for command in ("iptables-legacy-save", "iptables-nft-save", "nft list tables")]
    assert any(":KUBE-SERVICES" in dump or "kube-proxy" in dump for dump in dumps)


def test_ours_is_gone(host: Host) -> None:
    assert not re.findall(r"table \S+ kproxy$", host.check_output("nft list tables"), re.MULTILINE)
    assert not host.service("kproxyd").is_running
    assert not host.file("/etc/kproxy/carried-over.json").exists


def test_no_way_back_waits(host: Host) -> None:
    assert host.run("systemctl is-active kproxy-safeguard.timer").stdout.strip() == "inactive"


@pytest.mark.parametrize("name", ["node", "pod"])
def test_open_connections_still_carry_bytes(host: Host, name: str) -> None:
    before = held(host, name)
    assert before["error"] == ""
    deadline = time.monotonic() + 60
    while held(host, name)["answers"] <= before["answers"]:
        assert time.monotonic() < deadline, "no answer for 60 s"


def test_a_node_without_a_controller_came_back_by_itself(host: Host) -> None:
    if host.check_output("hostname") != "gpu-a":
        assert not host.file("/run/unplugged").exists
        return
    # When the network went the node was ours; when it came back, kube-proxy's rules were there and ours were not.
    assert "table ip kproxy" in host.file("/run/unplugged").content_string.splitlines()
    assert "table ip kproxy" not in host.file("/run/tables-restored.txt").content_string.splitlines()
    saved = host.file("/root/kube-proxy-saved.txt").content_string.splitlines()
    restored = host.file("/run/restored.txt").content_string.splitlines()

    def uncounted(lines: list[str]) -> list[str]:
        return [re.sub(r"^(:\S+ \S+) \[\d+:\d+\]", r"\1", line) for line in lines if not line.startswith("#")]

    assert uncounted(restored) == uncounted(saved)
