"""What an uninstall leaves on a node that was served by eBPF: nothing."""

from __future__ import annotations

import json

from testinfra.host import Host


def test_no_pin_is_left(host: Host) -> None:
    # The kernel itself may put two files there, for looking at.
    assert set(host.check_output("ls /sys/fs/bpf").split()) <= {"maps.debug", "progs.debug"}


def test_no_program_is_left_on_the_cgroup(host: Host) -> None:
    # Prints nothing at all where nothing is attached.
    attached = json.loads(host.check_output("bpftool --json cgroup show /sys/fs/cgroup") or "[]")
    assert [one["name"] for one in attached if one["name"].startswith("kp_")] == []


def test_no_table_is_left(host: Host) -> None:
    assert host.check_output("nft list tables") == ""


def test_no_program_translates_any_more(host: Host) -> None:
    seen = json.loads(host.check_output("python3 /opt/kproxy-lab/dial.py TCP 10.96.1.10 80 1 0.3"))
    assert seen["answers"] == []
    assert host.run("python3 -c 'import socket; socket.create_server((\"0.0.0.0\", 30080))'").succeeded


def test_no_sidecar_is_left(host: Host) -> None:
    assert not host.file("/etc/kproxy").exists
    assert host.run("systemctl cat kproxyd.service kproxy-retirement.service").failed


def test_no_way_back_waits(host: Host) -> None:
    assert host.check_output("systemctl list-units --all --plain --no-legend 'kproxy-safeguard.*'") == ""
