"""Changes of others are noticed, with what they did to our table; our own are not reported."""

from __future__ import annotations

import os
import select
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.nfnetlink import Nfnetlink
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.nft_command import NftCommand
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.ruleset_watch import ForeignChange, RulesetWatch
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.transaction import (
    Element,
    SetName,
    Transaction,
)

CASES = Path(__file__).parents[1] / "cases"
STRUCTURE = """
table ip kproxy { set s { type ipv4_addr; }; chain c { accept; }; }
table ip6 kproxy { set s { type ipv6_addr; }; }
"""
SECONDS = 60.0
#: PROC_PID_INIT_INO (include/linux/proc_ns.h).
FIRST_PID_NAMESPACE = 0xEFFFFFFC


@pytest.fixture
def kernel(own_network: None) -> Iterator[Nfnetlink]:
    NftCommand().load(STRUCTURE)
    with Nfnetlink() as opened:
        yield opened


@pytest.fixture
def watch(kernel: Nfnetlink) -> Iterator[RulesetWatch]:
    with RulesetWatch(own_ports=[kernel.port]) as opened:
        yield opened


def foreign(text: str) -> None:
    """Somebody else runs nft."""
    subprocess.run(["nft", "-f", "-"], input=text, text=True, check=True)


def noticed(watch: RulesetWatch) -> ForeignChange:
    readable, _, _ = select.select([watch], [], [], SECONDS)
    assert readable, f"nothing within {SECONDS} s"
    change = watch.read()
    assert change is not None
    return change


CHANGES: list[tuple[str, str, bool, tuple[str, ...]]] = [
    ("other table", "add table ip kp-other", False, ()),
    ("our name as a prefix", "table ip kproxy-old { chain c { accept; }; }", False, ()),
    ("our name in another family", "table inet kproxy { set s { type ipv4_addr; }; }", False, ()),
    ("element", "add element ip6 kproxy s { fd00::1 }", True, ("new element in ip6 kproxy s",)),
    ("rule", "insert rule ip kproxy c drop", True, ("new rule in ip kproxy c",)),
    ("chain emptied", "flush chain ip kproxy c", True, ("deleted rule in ip kproxy c",)),
    ("chain added", "add chain ip kproxy mine", True, ("new chain ip kproxy mine",)),
    ("set gone", "delete set ip kproxy s", True, ("deleted set ip kproxy s",)),
    ("table gone", "delete table ip kproxy", True, ("deleted table ip kproxy",)),
    (
        "two tables at once",
        "add table ip kp-other; add element ip kproxy s { 10.0.0.1 }",
        True,
        ("new element in ip kproxy s",),
    ),
]


@pytest.mark.parametrize(("text", "touches", "objects"), [row[1:] for row in CHANGES], ids=[row[0] for row in CHANGES])
def test_a_change_of_others(
    text: str, touches: bool, objects: tuple[str, ...], watch: RulesetWatch, kernel: Nfnetlink
) -> None:
    foreign(text)
    change = noticed(watch)
    assert (change.touches_us, change.complete, change.objects) == (touches, True, objects)
    assert change.generation == kernel.generation()
    assert change.process == "nft"
    assert watch.read() is None


def test_a_host_firewall_reload_is_noticed(watch: RulesetWatch, kernel: Nfnetlink) -> None:
    elements: list[Element] = [(n.to_bytes(4, "big"), None, None) for n in range(5000)]
    kernel.commit(Transaction(adds={SetName(4, "s"): elements}))
    foreign((CASES / "14-host-flush-ruleset" / "host-firewall.nft").read_text())
    change = noticed(watch)
    assert change.touches_us
    assert any(words.startswith("deleted") for words in change.objects)
    assert not kernel.table_exists(4)


def test_our_own_commits_are_not_reported(watch: RulesetWatch, kernel: Nfnetlink) -> None:
    elements: list[Element] = [(n.to_bytes(4, "big"), None, None) for n in range(60_000)]
    kernel.commit(Transaction(adds={SetName(4, "s"): elements}))
    NftCommand().load("add chain ip kproxy pick-3")
    watch.expect_generation(kernel.generation())
    assert watch.read() is None
    foreign("add element ip kproxy s { 192.0.2.1 }")
    assert noticed(watch).objects == ("new element in ip kproxy s",)


def test_without_our_port_our_commits_count_as_foreign(kernel: Nfnetlink) -> None:
    with RulesetWatch() as watch:
        kernel.commit(Transaction(adds={SetName(4, "s"): [(b"\x0a\0\0\1", None, None)]}))
        change = noticed(watch)
        assert (change.touches_us, change.process) == (True, Path("/proc/self/comm").read_text().strip())
        # The kernel tells the number that a process has on the machine, whatever it is called in a container.
        in_container = os.stat("/proc/self/ns/pid").st_ino != FIRST_PID_NAMESPACE
        assert change.pid == os.getpid() or in_container


def test_lost_notifications_are_told(watch: RulesetWatch) -> None:
    watch._socket._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    for number in range(100):
        foreign(f"table ip kp-other{number} {{ set s {{ type ipv4_addr; }}; chain c {{ accept; accept; accept; }}; }}")
        if number > 2 and not noticed(watch).complete:
            break
        if number <= 2:
            continue
    else:
        pytest.fail("a full receive buffer went unnoticed")
    watch.read()
    foreign("add element ip kproxy s { 192.0.2.1 }")
    assert noticed(watch).touches_us
