"""Removal of residue on a real kernel, in a network namespace of the test's own, with both iptables back ends."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.module_run import run_module

ROOT = Path(__file__).parents[2]
CASES = ROOT / "tests" / "cases"
COLLECTION = ROOT / "ansible_collections" / "kproxy" / "dataplane"
BACKENDS = ["legacy", "nft"]


class Namespace:
    """A network namespace that runs commands and this collection's modules."""

    def __init__(self, name: str) -> None:
        self.name = name

    def run(self, *command: str, stdin: str = "") -> str:
        done = subprocess.run(
            ["ip", "netns", "exec", self.name, *command], input=stdin, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def module(self, name: str, **options: Any) -> dict[str, Any]:
        """Run a module as Ansible would, and return what it printed."""
        return run_module(name, options, before=["ip", "netns", "exec", self.name])

    def module_without(self, tools: str, name: str, **options: Any) -> dict[str, Any]:
        """Run a module where the program behind some tools cannot be run, as on a host that lacks it."""
        hide = f'mount --bind /dev/null /usr/sbin/{tools} && exec "$@"'
        before = ["ip", "netns", "exec", self.name, "unshare", "--mount", "sh", "-c", hide, "sh"]
        return run_module(name, options, before=before)

    def undo_script(self) -> str:
        """Return the script that the safeguard would arm here."""
        code = (
            "import types\n"
            "from ansible_collections.kproxy.dataplane.plugins.modules import safeguard\n"
            "options = dict(restore=True, node_ports=[], units=[], node_name='', kubelet_kubeconfig='')\n"
            "print(safeguard.build_script(types.SimpleNamespace(params=options)), end='')\n"
        )
        done = subprocess.run(
            ["ip", "netns", "exec", self.name, sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert done.stdout.startswith("#!/bin/sh")
        return done.stdout

    def save(self, command: str) -> str:
        """Return a dump without the lines that carry dates."""
        lines = self.run(command).splitlines(keepends=True)
        return "".join(line for line in lines if not line.startswith("#"))


@pytest.fixture
def node() -> Iterator[Namespace]:
    name = f"kp-residue-{os.getpid()}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    yield Namespace(name)
    subprocess.run(["ip", "netns", "del", name], check=True)


def expected_after(node: Namespace, backend: str, tool: str, text: str) -> str:
    """Return what the tool itself prints for a text, asked in another namespace."""
    other = Namespace(node.name + "-x")
    subprocess.run(["ip", "netns", "add", other.name], check=True)
    try:
        other.run(f"{tool}-{backend}-restore", stdin=text)
        return other.save(f"{tool}-{backend}-save")
    finally:
        subprocess.run(["ip", "netns", "del", other.name], check=True)


# The IPv4 case text as IPv6: the rules with IPv4 addresses do not parse there and are left out.
def as_ipv6(text: str) -> str:
    lines = [line.replace("icmp-port-unreachable", "icmp6-port-unreachable") for line in text.splitlines()]
    return "".join(
        f"{line}\n" for line in lines if not any(mark in line for mark in (".0/", "/32", "--to-destination", "/25"))
    )


@pytest.mark.parametrize("tool", ["iptables", "ip6tables"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_only_the_foreign_state_remains(node: Namespace, backend: str, tool: str) -> None:
    before = (CASES / "16-kube-residue-iptables" / "before.txt").read_text()
    after = (CASES / "16-kube-residue-iptables" / "after.txt").read_text()
    if tool == "ip6tables":
        before, after = as_ipv6(before), as_ipv6(after)
    node.run(f"{tool}-{backend}-restore", stdin=before)
    loaded = node.save(f"{tool}-{backend}-save")

    check = node.module("residue", _ansible_check_mode=True, _ansible_diff=True, forward_drop="warn")
    assert check["changed"]
    assert f"chain {backend}/{'ip' if tool == 'iptables' else 'ip6'}/nat KUBE-SERVICES" in check["removed"]
    assert check["diff"]["before"].splitlines() == check["removed"]
    assert node.save(f"{tool}-{backend}-save") == loaded

    done = node.module("residue", forward_drop="warn")
    assert done["changed"], done
    assert done["removed"] == check["removed"]
    assert node.save(f"{tool}-{backend}-save") == expected_after(node, backend, tool, after)
    again = node.module("residue")
    assert not again["changed"], again
    assert node.module("residue_info")["counts"]["kube-proxy"] == 0


def test_both_back_ends_at_once(node: Namespace) -> None:
    before = (CASES / "16-kube-residue-iptables" / "before.txt").read_text()
    after = (CASES / "16-kube-residue-iptables" / "after.txt").read_text()
    for backend in BACKENDS:
        node.run(f"iptables-{backend}-restore", stdin=before)
    assert node.module("residue")["changed"]
    for backend in BACKENDS:
        assert node.save(f"iptables-{backend}-save") == expected_after(node, backend, "iptables", after)


@pytest.mark.parametrize("backend", BACKENDS)
def test_odd_foreign_rules_and_their_counters_survive(node: Namespace, backend: str) -> None:
    # The legacy tool zeroes the counters of built-in policies at every commit, whoever makes it; rules keep theirs.
    foreign = r"""*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:odd - [0:0]
[7:420] -A INPUT -m comment --comment "quote \" and 'tick' and \\ -j KUBE-SERVICES" -j odd
[3:180] -A odd -p tcp -m comment --comment "-X KUBE-FORWARD" -j RETURN
COMMIT
"""
    node.run(f"iptables-{backend}-restore", "--counters", stdin=foreign)
    plain = node.run(f"iptables-{backend}-save", "-c")
    residue = (
        "*filter\n:KUBE-FORWARD - [0:0]\n"
        "-A FORWARD -j KUBE-FORWARD\n-A INPUT -j KUBE-FORWARD\n-A odd -g KUBE-FORWARD\nCOMMIT\n"
    )
    node.run(f"iptables-{backend}-restore", "--noflush", stdin=residue)
    done = node.module("residue")
    assert done["changed"], done

    def undated(text: str) -> list[str]:
        return [line for line in text.splitlines() if not line.startswith("#")]

    assert undated(node.run(f"iptables-{backend}-save", "-c")) == undated(plain)


@pytest.mark.parametrize("backend", BACKENDS)
def test_sets_go_after_the_rules_that_name_them(node: Namespace, backend: str) -> None:
    case = CASES / "17-ipvs-residue-keep-foreign"
    # The kernel may lack bitmap:port and set types of IPv6; those lines do not change what is tested.
    sets = "".join(
        line for line in (case / "ipset-save.txt").read_text().splitlines(keepends=True) if "f2b-sshd 203" not in line
    )
    node.run("ipset", "restore", stdin=sets)
    node.run(f"iptables-{backend}-restore", stdin=(case / "iptables-save.txt").read_text())
    done = node.module("residue")
    assert done["changed"], done
    assert node.run("ipset", "list", "-n").split() == ["f2b-sshd"]
    assert "KUBE-" not in node.save(f"iptables-{backend}-save")
    assert not node.module("residue")["changed"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_kubelet_chains_stay_unless_asked(node: Namespace, backend: str) -> None:
    text = (CASES / "18-kubelet-owned-chains" / "iptables-save.txt").read_text()
    node.run(f"iptables-{backend}-restore", stdin=text)
    loaded = node.save(f"iptables-{backend}-save")
    info = node.module("residue_info")
    assert (info["counts"]["kube-proxy"], info["counts"]["kubelet"]) == (0, 7)
    assert not node.module("residue")["changed"]
    assert node.save(f"iptables-{backend}-save") == loaded
    asked = node.module("residue", owners=["kubelet"])
    assert asked["changed"]
    assert "127.0.0.0/8" in str(asked["warnings"])
    assert "KUBE-" not in node.save(f"iptables-{backend}-save")


def test_kube_proxy_nft_tables_go_and_others_stay(node: Namespace) -> None:
    node.run(
        "nft",
        "-f",
        "-",
        stdin="table ip kube-proxy {}\ntable ip6 kube-proxy {}\ntable inet mine {}\n",
    )
    done = node.module("residue")
    assert done["removed"] == ["nft table ip kube-proxy", "nft table ip6 kube-proxy"]
    assert node.run("nft", "list", "tables") == "table inet mine\n"


def test_forward_policy_drop_is_refused_before_anything_changes(node: Namespace) -> None:
    text = (CASES / "15-forward-drop-elsewhere" / "iptables-save.txt").read_text()
    node.run("iptables-nft-restore", stdin=text)
    loaded = node.save("iptables-nft-save")
    refused = node.module("residue")
    assert refused["failed"]
    assert "nft/ip/filter FORWARD" in refused["msg"]
    assert node.save("iptables-nft-save") == loaded
    assert node.module("residue", forward_drop="warn")["changed"]


@pytest.mark.parametrize("kube", [True, False])
def test_a_table_that_iptables_does_not_show_is_never_taken_for_clean(node: Namespace, kube: bool) -> None:
    """Where nft put foreign rules into iptables' own table, iptables-nft-save leaves it out and succeeds."""
    node.run("iptables-nft", "-t", "nat", "-N", "KUBE-SERVICES" if kube else "OTHERS")
    node.run("iptables-nft", "-t", "nat", "-A", "PREROUTING", "-j", "KUBE-SERVICES" if kube else "OTHERS")
    node.run("nft", "add rule ip nat PREROUTING ct state vmap { invalid : drop, established : accept }")
    assert "KUBE" not in node.run("iptables-nft-save")
    info = node.module("residue_info")
    if kube:
        assert "does not show table nat, which holds KUBE-SERVICES and 0 more" in info["msg"]
        assert "nft list table ip nat" in node.module("residue")["msg"]
    else:
        assert info["counts"]["kube-proxy"] == 0


@pytest.mark.parametrize("tool", ["iptables", "ip6tables"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_chains_that_no_tool_of_this_host_shows_are_never_taken_for_clean(
    node: Namespace, backend: str, tool: str
) -> None:
    """kube-proxy's container brings its own iptables, of either back end; the host may have one of them, or none."""
    programs = f"xtables-{backend}-multi"
    rules = "*{}\n:{} - [0:0]\n-A OUTPUT -m comment --comment c -j {}\nCOMMIT\n"
    node.run(f"{tool}-{backend}-restore", stdin=rules.format("filter", "KUBE-ROUTER-OUTPUT", "KUBE-ROUTER-OUTPUT"))
    assert node.module_without(programs, "residue_info")["counts"]["kube-proxy"] == 0, "an agent's are none of ours"
    node.run(f"{tool}-{backend}-restore", stdin=rules.format("nat", "KUBE-SERVICES", "KUBE-SERVICES"))
    refused = node.module_without(programs, "residue_info")
    assert refused["failed"]
    assert (
        f"{backend} iptables of {'ip' if tool == 'iptables' else 'ip6'} holds KUBE-SERVICES in table nat"
        in refused["msg"]
    )
    assert node.module("residue_info")["counts"]["kube-proxy"] > 0


def test_a_running_kube_proxy_is_refused(node: Namespace, tmp_path: Path) -> None:
    node.run("iptables-nft-restore", stdin=(CASES / "16-kube-residue-iptables" / "before.txt").read_text())
    program = tmp_path / "kube-proxy"
    program.symlink_to("/bin/sleep")
    process = subprocess.Popen(["ip", "netns", "exec", node.name, str(program), "600"])
    try:
        while node.module("residue_info")["kube_proxy_running"] != [process.pid]:
            assert process.poll() is None
        refused = node.module("residue")
        assert refused["failed"]
        assert str(process.pid) in refused["msg"]
        # A preview comes before it is stopped, and whoever runs it may be about to: nothing to be warned of.
        preview = node.module("residue", _ansible_check_mode=True, _ansible_diff=True)
        assert (preview["kube_proxy_running"], "warnings" in preview) == ([process.pid], False)
        assert f"once kube-proxy (process {process.pid}) is gone" in preview["diff"]["after_header"]
    finally:
        process.kill()
        process.wait()
    assert node.module("residue")["changed"]


def test_a_kube_proxy_within_another_program_is_seen(node: Namespace, tmp_path: Path) -> None:
    """k3s runs kube-proxy within itself: no process of that name, but its health port."""
    program = tmp_path / "k3s"
    program.symlink_to(sys.executable)
    serve = "socket.create_server(('127.0.0.1', 10256))"
    code = f"import socket, sys; server = {serve}; print('up', flush=True); sys.stdin.read()"
    node.run("ip", "link", "set", "lo", "up")
    process = subprocess.Popen(
        ["ip", "netns", "exec", node.name, str(program), "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        assert node.module("residue_info")["kube_proxy_running"] == [process.pid]
    finally:
        process.kill()
        process.communicate()
    assert node.module("residue_info")["kube_proxy_running"] == []


def test_a_node_without_anything_is_no_error(node: Namespace) -> None:
    result = node.module("residue")
    result.pop("invocation", None)  # Only some releases of ansible-core add it.
    assert result == {
        "changed": False,
        "removed": [],
        "kept": [],
        "counts": {"kube-proxy": 0, "kubelet": 0, "network-policy-agent": 0, "either": 0, "kproxy": 0, "foreign": 0},
        "kube_proxy_running": [],
    }


@pytest.mark.parametrize("removed", [True, False], ids=["after the removal", "before the removal"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_way_back_restores_every_rule_in_its_place(node: Namespace, backend: str, removed: bool) -> None:
    text = (CASES / "16-kube-residue-iptables" / "before.txt").read_text()
    node.run(f"iptables-{backend}-restore", stdin=text)
    node.run("nft", "-f", "-", stdin="table ip kube-proxy {}\n")
    before = node.save(f"iptables-{backend}-save")
    script = node.undo_script()
    node.run("nft", "add", "table", "ip", "kproxy")
    if removed:
        assert node.module("residue")["changed"]
        assert node.save(f"iptables-{backend}-save") != before
    for _again in range(2):
        node.run("sh", "-c", script)
        assert node.save(f"iptables-{backend}-save") == before
        tables = node.run("nft", "list", "tables").splitlines()
        assert "table ip kube-proxy" in tables
        assert "table ip kproxy" not in tables


def test_the_way_back_notes_that_it_ran(node: Namespace, tmp_path: Path) -> None:
    """A run that disarms it afterwards learns that what it did was undone."""
    node.run("nft", "-f", "-", stdin="table ip kube-proxy {}\n")
    script = tmp_path / "undo.sh"
    script.write_text(node.undo_script())
    assert not node.module("safeguard", state="disarmed", folder=str(tmp_path))["ran"]
    node.run("sh", str(script))
    disarmed = node.module("safeguard", state="disarmed", folder=str(tmp_path))
    assert disarmed["ran"]
    assert disarmed["changed"] is False


def test_the_way_back_when_foreign_rules_went_meanwhile(node: Namespace) -> None:
    text = (CASES / "16-kube-residue-iptables" / "before.txt").read_text()
    node.run("iptables-nft-restore", stdin=text)
    script = node.undo_script()
    assert node.module("residue")["changed"]
    node.run("iptables-nft", "-t", "filter", "-F", "INPUT")
    node.run("iptables-nft", "-t", "nat", "-F", "PREROUTING")
    node.run("sh", "-c", script)
    saved = node.save("iptables-nft-save")
    assert '-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES' in saved
    assert "-j KUBE-EXTERNAL-SERVICES" in saved


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_way_back_when_some_jumps_are_still_there(node: Namespace, backend: str) -> None:
    node.run(f"iptables-{backend}-restore", stdin=(CASES / "16-kube-residue-iptables" / "before.txt").read_text())
    before = node.save(f"iptables-{backend}-save")
    script = node.undo_script()
    node.run(f"iptables-{backend}", "-t", "nat", "-D", "PREROUTING", "1")
    node.run(f"iptables-{backend}", "-t", "nat", "-F", "KUBE-SERVICES")
    node.run("sh", "-c", script)
    assert node.save(f"iptables-{backend}-save") == before


def test_the_way_back_brings_sets_and_the_rules_that_name_them(node: Namespace) -> None:
    case = CASES / "17-ipvs-residue-keep-foreign"
    node.run("ipset", "restore", stdin=(case / "ipset-save.txt").read_text())
    node.run("iptables-nft-restore", stdin=(case / "iptables-save.txt").read_text())
    before = node.save("iptables-nft-save")
    members = node.run("ipset", "save", "KUBE-CLUSTER-IP")
    script = node.undo_script()
    assert node.module("residue")["changed"]
    node.run("sh", "-c", script)
    assert node.save("iptables-nft-save") == before
    assert sorted(node.run("ipset", "save", "KUBE-CLUSTER-IP").split()) == sorted(members.split())
