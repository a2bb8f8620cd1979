# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Settings are added, kept at boot, and put back unless somebody else changed them since."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._node_settings import plan, system
from ansible_collections.kproxy.dataplane.plugins.module_utils._node_settings.plan import Ledger

FORWARD = "net.ipv4.ip_forward"
PORTS = "net.ipv4.ip_local_port_range"
BRIDGE = "net.bridge.bridge-nf-call-iptables"


def test_first_run_writes_and_remembers() -> None:
    change = plan.apply(Ledger(), {FORWARD: "0"}, [], {FORWARD: "1"}, [])
    assert change.changed
    assert change.write == {FORWARD: "1"}
    assert change.ledger == Ledger({FORWARD: "1"}, {FORWARD: "0"})


def test_second_run_changes_nothing() -> None:
    ledger = Ledger({FORWARD: "1"}, {FORWARD: "0"})
    change = plan.apply(ledger, {FORWARD: "1"}, [], {FORWARD: "1"}, [])
    assert not change.changed
    assert (change.write, change.load, change.ledger) == ({}, (), ledger)


def test_later_settings_join_earlier_ones_and_the_first_value_is_remembered() -> None:
    ledger = Ledger({FORWARD: "1"}, {FORWARD: "0"})
    change = plan.apply(ledger, {FORWARD: "1", PORTS: "32768\t60999"}, [], {FORWARD: 1, PORTS: "40000 60999"}, [])
    assert change.write == {PORTS: "40000 60999"}
    assert change.ledger == Ledger({FORWARD: "1", PORTS: "40000 60999"}, {FORWARD: "0", PORTS: "32768 60999"})


def test_the_kernel_separates_by_tabs() -> None:
    assert plan.apply(Ledger(), {PORTS: "1024\t65535"}, [], {PORTS: "1024 65535"}, []).write == {}


@pytest.mark.parametrize(
    ("sysctls", "modules"),
    [
        ([FORWARD, PORTS], []),
        (["net.netfilter.nf_conntrack_max", "net.netfilter.nf_conntrack_tcp_be_liberal"], ["nf_conntrack"]),
        (["net.netfilter.nf_log_all_netns"], []),
        ([BRIDGE, "net.netfilter.nf_conntrack_max"], ["br_netfilter", "nf_conntrack"]),
    ],
)
def test_a_sysctl_of_a_module_needs_that_module_at_every_boot(sysctls: list[str], modules: list[str]) -> None:
    assert plan.modules_behind(sysctls) == modules


def test_modules_are_looked_for_by_the_running_kernel(tmp_path: Path) -> None:
    assert not system.has_modules(str(tmp_path))
    (tmp_path / os.uname().release).mkdir()
    assert system.has_modules(str(tmp_path))


@pytest.mark.parametrize(
    ("loaded", "load"), [([], ("br_netfilter",)), (["br_netfilter"], ())], ids=["missing", "loaded already"]
)
def test_modules_are_loaded_once_and_at_every_boot(loaded: list[str], load: tuple[str, ...]) -> None:
    change = plan.apply(Ledger(), {}, loaded, {BRIDGE: "1"}, ["br_netfilter"])
    assert change.load == load
    assert change.ledger.modules == ("br_netfilter",)
    assert "br_netfilter\n" in plan.modules_file(change.ledger)


@pytest.mark.parametrize(
    ("current", "write"),
    [
        ({FORWARD: "1"}, {FORWARD: "0"}),
        ({FORWARD: "0"}, {}),
        ({FORWARD: "2"}, {}),
        ({}, {}),
    ],
    ids=["as we left it", "back already", "changed by somebody", "gone from the kernel"],
)
def test_restore(current: dict[str, str], write: dict[str, str]) -> None:
    change = plan.restore(Ledger({FORWARD: "1"}, {FORWARD: "0"}), current)
    assert change.write == write
    assert change.changed
    assert change.ledger == Ledger()


def test_nothing_to_restore_is_no_change() -> None:
    assert not plan.restore(Ledger(), {}).changed


def test_ledger_survives_the_disk() -> None:
    ledger = Ledger({FORWARD: "1"}, {FORWARD: "0"}, ("br_netfilter",))
    assert Ledger.load(ledger.dump()) == ledger
    assert Ledger.load("") == Ledger()


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 1}', '{"format": 9, "set": {}, "before": {}, "modules": []}'])
def test_a_ledger_that_cannot_be_understood_is_refused(text: str) -> None:
    with pytest.raises(plan.LedgerError, match="record of settings"):
        Ledger.load(text)


def test_files_for_boot() -> None:
    assert plan.sysctl_file(Ledger({FORWARD: "1"})).splitlines()[1:] == [f"{FORWARD} = 1"]
    assert plan.sysctl_file(Ledger()) == ""
    assert plan.modules_file(Ledger()) == ""


@pytest.mark.parametrize("name", ["../../etc/passwd", "net..ip", "", "a b", "/abs"])
def test_what_is_no_sysctl_never_becomes_a_path(name: str) -> None:
    with pytest.raises(system.SettingError, match="not the name of a sysctl"):
        system.sysctl_path(name)


def test_sysctls_that_the_kernel_lacks_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "there").write_text("7\n", encoding="ascii")
    assert system.read_sysctls(["net.there", "net.absent"], str(tmp_path)) == {"net.there": "7"}
    system.write_sysctl("net.there", "8", str(tmp_path))
    assert system.read_sysctls(["net.there"], str(tmp_path)) == {"net.there": "8"}
    with pytest.raises(system.SettingError, match="sysctl net.absent.x cannot be set to '1'"):
        system.write_sysctl("net.absent.x", "1", str(tmp_path))


def test_an_empty_text_removes_the_file(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "file"
    system.write_text(str(path), "x\n")
    assert path.read_text(encoding="ascii") == "x\n"
    system.write_text(str(path), "")
    assert list(path.parent.iterdir()) == []


MISTAKES = [
    ({"net.ipv4.ip_forward": 1}, [], []),
    ({"net.ipv4.ip_forward": True}, [], ["net.ipv4.ip_forward is True; write 1 or 0"]),
    ({"net.ipv4.ip_forwardd": 1}, [], ["no sysctl net.ipv4.ip_forwardd"]),
    ({"net.bridge.bridge-nf-call-iptables": 1}, [], []),
    ({"net.ours.switch": 1}, ["ours"], []),
]


@pytest.mark.parametrize(("sysctls", "load", "told"), MISTAKES)
def test_what_cannot_be_meant_is_told_before_anything_is_set(
    sysctls: dict[str, Any], load: list[str], told: list[str]
) -> None:
    found = plan.mistakes(sysctls, {"net.ipv4.ip_forward": "0"}, load)
    assert len(found) == len(told)
    assert all(text in sentence for text, sentence in zip(told, found))


def test_a_slash_in_a_name_is_a_dot_of_the_device() -> None:
    assert system.sysctl_path("net.ipv6.conf.eth0/100.accept_ra", "/p") == "/p/net/ipv6/conf/eth0.100/accept_ra"
