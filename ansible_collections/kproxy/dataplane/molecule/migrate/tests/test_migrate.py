"""What a takeover promises of each node: kube-proxy gone, foreign state untouched, connections alive, ours in force."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
from testinfra.host import Host

CANARIES = ["gpu-a", "gpu-b", "gpu-c"]
DUMPS = ["iptables-legacy-save", "iptables-nft-save", "ip6tables-legacy-save", "ip6tables-nft-save"]


def undated(text: str) -> list[str]:
    """Return a dump's lines without dates, and without the counters of built-in policies, which count on."""
    lines = [re.sub(r"^(:\S+ \S+) \[\d+:\d+\]", r"\1", line) for line in text.splitlines()]
    return [line for line in lines if not line.startswith("#")]


def held(host: Host, name: str) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(host.file(f"/run/hold-{name}.json").content_string)
    return state


@pytest.mark.parametrize("command", DUMPS)
def test_no_chain_is_left(host: Host, command: str) -> None:
    # A foreign rule's comment names one of kube-proxy's chains, and stays.
    assert re.findall(r"^:KUBE-\S+|-[jg] KUBE-\S+$", host.check_output(command), re.MULTILINE) == []


def test_no_table_of_kube_proxy_is_left(host: Host) -> None:
    assert "kube-proxy" not in host.check_output("nft list tables")


def test_kube_proxy_does_not_run(host: Host) -> None:
    assert not host.service("kube-proxy").is_running


def test_foreign_rules_are_as_they_were(host: Host) -> None:
    saved = undated(host.file("/root/foreign-saved.txt").content_string)
    dumps = [undated(host.check_output(command)) for command in DUMPS[:2]]
    assert saved in dumps
    assert "table inet ops" in host.check_output("nft list tables")


@pytest.mark.parametrize("name", ["node", "pod", "canary"])
def test_open_connections_still_carry_bytes(host: Host, name: str) -> None:
    if name == "canary" and host.check_output("hostname") not in CANARIES:
        assert not host.file("/run/hold-canary.json").exists
        return
    before = held(host, name)
    assert before["error"] == ""
    deadline = time.monotonic() + 60
    while held(host, name)["answers"] <= before["answers"]:
        assert time.monotonic() < deadline, "no answer for 60 s"
    assert held(host, name)["pod"] == before["pod"]


def test_new_connections_use_our_table(host: Host) -> None:
    seen = json.loads(host.check_output("python3 /opt/kproxy-lab/dial.py TCP 10.96.10.10 80 60"))
    assert seen["errors"] == {}
    assert {answer["pod"] for answer in seen["answers"]} == {"frontend-1", "frontend-2", "frontend-3"}
    tables = host.check_output("nft list tables").splitlines()
    assert "table ip kproxy" in tables
    assert not [table for table in tables if "canary" in table]


def test_the_preview_told_what_would_go(host: Host) -> None:
    """Before anything was touched, each node's objects of kube-proxy were named, one a line."""
    mode = host.ansible.get_variables()["kube_proxy_mode"]
    told = (Path(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"]) / "preview.txt").read_text()
    removal = told.partition("Switch | Remove what kube-proxy left")[2].partition("\nTASK ")[0]
    node = removal.partition(f"changed: [{host.check_output('hostname')}]")[0].rpartition("--- before: ")[2]
    assert node.startswith("objects of kube-proxy\n")
    expected = "-nft table ip kube-proxy" if mode == "nftables" else f"-chain {mode}/ip/nat KUBE-SERVICES"
    assert expected in node.splitlines()
    assert not [line for line in node.splitlines() if "KUBE-FIREWALL" in line or "CILIUM" in line]


def test_kubernetes_settings_were_carried_over(host: Host) -> None:
    assert host.sysctl("net.netfilter.nf_conntrack_tcp_timeout_close_wait") == 900
    kept = json.loads(host.file("/etc/kproxy/carried-over.json").content_string)
    assert kept["clusterCIDR"] == "10.244.0.0/16,fd00:10:244::/48"
    assert kept["nodePortAddresses"] == ["all"]
    assert host.socket("tcp://0.0.0.0:10249").is_listening


def test_the_way_back_is_disarmed(host: Host) -> None:
    assert host.run("systemctl is-active kproxy-safeguard.timer").stdout.strip() == "inactive"
    assert host.file("/var/lib/kproxy/safeguard/undo.sh").mode == 0o700
