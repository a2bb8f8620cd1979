"""Elements in a real kernel: what is committed is there, what is refused is named and leaves nothing."""

from __future__ import annotations

import ctypes
import errno
import os
import select
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.element_decoding import TimedElement
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.errors import ElementError, NetlinkError
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.netlink import NetlinkSocket
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.nfnetlink import Nfnetlink
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.nft_command import NftCommand
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.transaction import (
    Element,
    IntervalEnd,
    Key,
    SetName,
    Transaction,
    plain_interval,
)

STRUCTURE = """
table ip kproxy {
    map services { type ipv4_addr . inet_proto . inet_service : verdict; }
    map endpoints-tcp { typeof ip daddr . tcp dport . numgen random mod 65536 : ip daddr . tcp dport; }
    set ranges { type ipv4_addr . inet_proto . inet_service . ipv4_addr; flags interval; }
    set cidrs { type ipv4_addr; flags interval; }
    map pins { type ipv4_addr : ipv4_addr . inet_service; flags dynamic,timeout; timeout 1h; }
    chain pick-1 { }
    chain pick-5 {
        dnat ip to ip daddr . tcp dport . numgen random mod 5 map @endpoints-tcp
    }
    chain nat-prerouting {
        type nat hook prerouting priority dstnat
        ip daddr . ip protocol . th dport vmap @services
    }
}
table ip6 kproxy {
    map services { type ipv6_addr . inet_proto . inet_service : verdict; }
}
table inet kproxy {
    set others { type ipv4_addr; elements = { 192.0.2.1 }; }
}
"""
SERVICES, ENDPOINTS, RANGES = SetName(4, "services"), SetName(4, "endpoints-tcp"), SetName(4, "ranges")
CIDRS, PINS, SERVICES6 = SetName(4, "cidrs"), SetName(4, "pins"), SetName(6, "services")


@pytest.fixture
def nft(own_network: None) -> NftCommand:
    command = NftCommand()
    command.load(STRUCTURE)
    return command


@pytest.fixture
def kernel(nft: NftCommand) -> Iterator[Nfnetlink]:
    with Nfnetlink() as opened:
        yield opened


def frontend(number: int, port: int = 80) -> bytes:
    return struct.pack(">I", 0x0A600000 + number) + b"\x06\0\0\0" + struct.pack(">H2x", port)


def slot(number: int, index: int) -> bytes:
    return struct.pack(">IH2x", 0x0A600000 + number, 80) + struct.pack("=I", index)


def cluster(services: int, endpoints: int) -> Transaction:
    verdicts: list[Element] = [(frontend(n), "goto pick-5", f"ns{n % 100}/svc{n}:http") for n in range(services)]
    slots: list[Element] = [
        (slot(n, index), struct.pack(">IH2x", 0x0AB40000 + n, 8080), None)
        for n in range(services)
        for index in range(endpoints)
    ]
    return Transaction(adds={ENDPOINTS: slots, SERVICES: verdicts})


def deletes_of(transaction: Transaction) -> Transaction:
    return Transaction(deletes={name: [e[0] for e in elements] for name, elements in transaction.adds.items()})


def test_both_families_are_one_commit_and_nft_shows_it(kernel: Nfnetlink, nft: NftCommand) -> None:
    transaction = cluster(1, 2)
    key6 = bytes.fromhex("fd000000000000000000000000000009") + b"\x06\0\0\0\0\x50\0\0"
    transaction.add(SERVICES6, key6, "drop", "ns/six")
    before = kernel.generation()
    result = kernel.commit(transaction)
    assert (result.generation, result.foreign, result.batches) == (before + 1, False, 1)
    listed = nft.list_table(4, "kproxy", terse=False) or ""
    assert '10.96.0.0 . tcp . 80 comment "ns0/svc0:http" : goto pick-5' in listed
    assert "10.96.0.0 . 80 . 0x00000001 : 10.180.0.0 . 8080" in listed or "10.96.0.0 . 80 . 1 :" in listed
    assert 'fd00::9 . tcp . 80 comment "ns/six" : drop' in (nft.list_table(6, "kproxy", terse=False) or "")


def test_what_was_written_is_read_back(kernel: Nfnetlink) -> None:
    long = "x" * 128
    written: dict[SetName, list[Element]] = {
        SERVICES: [
            (frontend(1), "goto pick-5", long),
            (frontend(2), "jump pick-1", None),
            (frontend(3), "accept", "ä"),
            (frontend(4), "drop", None),
        ],
        ENDPOINTS: [(slot(1, 0), bytes.fromhex("0ab400011f900000"), None)],
        RANGES: [
            ((frontend(1) + bytes.fromhex("0a000000"), frontend(1) + bytes.fromhex("0a0000ff")), None, "a range"),
            (frontend(1) + bytes.fromhex("c0000201"), None, None),
        ],
        CIDRS: [(key, None, None) for key in plain_interval(bytes.fromhex("0ab40000"), bytes.fromhex("0ab4ffff"))],
    }
    kernel.commit(Transaction(adds=written))
    for name, elements in written.items():
        assert sorted(kernel.dump_elements(name), key=repr) == sorted(elements, key=repr)


def test_a_set_can_be_emptied_again(kernel: Nfnetlink) -> None:
    transaction = cluster(3, 2)
    transaction.add(RANGES, (frontend(1) + bytes(4), frontend(1) + b"\x0a\0\0\xff"))
    for key in plain_interval(bytes.fromhex("0ab40000"), bytes.fromhex("0ab4ffff")):
        transaction.add(CIDRS, key)
    kernel.commit(transaction)
    kernel.commit(deletes_of(transaction))
    assert not any(kernel.dump_elements(name) for name in (SERVICES, ENDPOINTS, RANGES, CIDRS))


def test_delete_and_add_of_a_key_change_it_in_one_generation(kernel: Nfnetlink) -> None:
    kernel.commit(cluster(1, 5))
    change = Transaction(deletes={SERVICES: [frontend(0)], ENDPOINTS: [slot(0, index) for index in range(1, 5)]})
    change.add(SERVICES, frontend(0), "goto pick-1")
    before = kernel.generation()
    assert kernel.commit(change).generation == before + 1
    assert kernel.dump_elements(SERVICES) == [(frontend(0), "goto pick-1", None)]
    assert [element[0] for element in kernel.dump_elements(ENDPOINTS)] == [slot(0, 0)]


def test_a_hundred_thousand_elements_are_one_commit(kernel: Nfnetlink) -> None:
    transaction = cluster(20_000, 4)
    assert transaction.size == 100_000
    assert kernel.commit(transaction).batches == 1
    assert sorted(kernel.dump_elements(SERVICES)) == transaction.adds[SERVICES]
    assert sorted(kernel.dump_elements(ENDPOINTS)) == sorted(transaction.adds[ENDPOINTS])
    kernel.commit(deletes_of(transaction))
    assert not kernel.dump_elements(ENDPOINTS)


REFUSALS: list[tuple[str, SetName, str, Element, int]] = [
    ("chain that is missing", SERVICES, "add", (frontend(7), "goto nowhere", None), errno.ENOENT),
    ("key of a wrong length", SERVICES, "add", (b"\x0a\0\0\1", "drop", None), errno.EINVAL),
    ("data instead of a verdict", SERVICES, "add", (frontend(7), bytes(8), None), errno.EINVAL),
    ("element that is missing", SERVICES, "delete", (frontend(7), None, None), errno.ENOENT),
    ("element of another value", SERVICES, "add", (frontend(1), "goto pick-1", None), errno.EEXIST),
]


@pytest.mark.parametrize("extended", [True, False], ids=["extended acknowledgement", "older kernel"])
@pytest.mark.parametrize(("name", "operation", "bad", "code"), [r[1:] for r in REFUSALS], ids=[r[0] for r in REFUSALS])
def test_a_refused_element_is_named_and_nothing_is_in_force(
    kernel: Nfnetlink, name: SetName, operation: str, bad: Element, code: int, extended: bool
) -> None:
    kernel.commit(cluster(5, 2))
    if not extended:
        # NETLINK_EXT_ACK off: errors carry no offset, as from kernels that do not set one for elements.
        kernel._socket._socket.setsockopt(270, 11, 0)
    transaction = Transaction()
    for number in range(100, 150):
        transaction.add(ENDPOINTS, slot(number, 0), bytes(8))
    if operation == "add":
        transaction.adds[name] = [(frontend(200 + n), "drop", None) for n in range(2500)]
        transaction.adds[name].insert(1234, bad)
    else:
        transaction.deletes[name] = [frontend(0), frontend(2), bad[0], frontend(3)]
    index = 1234 if operation == "add" else 2
    before = (kernel.generation(), sorted(kernel.dump_elements(SERVICES)), sorted(kernel.dump_elements(ENDPOINTS)))
    with pytest.raises(ElementError) as raised:
        kernel.commit(transaction)
    error = raised.value
    assert (error.set_name, error.operation, error.index, error.key) == (name, operation, index, bad[0])
    assert error.errno == code
    assert f"element {index} ({bad[0].hex() if isinstance(bad[0], bytes) else ''}) of ip services" in str(error)
    after = (kernel.generation(), sorted(kernel.dump_elements(SERVICES)), sorted(kernel.dump_elements(ENDPOINTS)))
    assert after == before


def test_a_missing_set_is_named(kernel: Nfnetlink) -> None:
    adds: list[Element] = [(bytes(4), None, None), (b"\1" * 4, None, None)]
    with pytest.raises(ElementError, match="add an element of ip6 nothing: .* table kproxy has no such set or map"):
        kernel.commit(Transaction(adds={SetName(6, "nothing"): adds}))


def test_an_expected_generation_is_checked_by_the_kernel(kernel: Nfnetlink, nft: NftCommand) -> None:
    generation = kernel.generation()
    nft.load("add table ip kp-test-other")
    with pytest.raises(NetlinkError) as raised:
        kernel.commit(cluster(1, 1), expected_generation=generation)
    assert "ERESTART" in str(raised.value) or raised.value.errno == 85
    kernel.commit(cluster(1, 1), expected_generation=generation + 1)
    assert len(kernel.dump_elements(SERVICES)) == 1


@pytest.mark.parametrize("destroy", [None, False], ids=["as the kernel can", "without destroy"])
def test_elements_that_are_gone_already_do_not_matter(kernel: Nfnetlink, destroy: bool | None) -> None:
    kernel.destroy_works = destroy
    pins: list[Key] = [struct.pack(">I", 0x0A000000 + n) for n in range(3000)]
    kernel.commit(Transaction(adds={PINS: [(key, bytes(8), None) for key in pins[::2]]}))
    kernel.delete_elements_ignoring_missing(PINS, pins[:2000])
    assert sorted(e.key for e in kernel.dump_timed_elements(PINS)) == pins[2000::2]
    kernel.delete_elements_ignoring_missing(PINS, [])
    kernel.delete_elements_ignoring_missing(PINS, pins)
    assert kernel.dump_elements(PINS) == []
    with pytest.raises(NetlinkError):
        kernel.delete_elements_ignoring_missing(SetName(4, "nothing") if destroy is None else PINS, [b"\0"])


def test_pins_tell_what_is_left_of_them(kernel: Nfnetlink, nft: NftCommand) -> None:
    nft.load("add element ip kproxy pins { 10.0.0.1 timeout 3h expires 5m : 10.180.0.1 . 8080 }")
    (pin,) = kernel.dump_timed_elements(PINS)
    assert (pin.key, pin.value, pin.timeout_ms) == (b"\x0a\0\0\1", bytes.fromhex("0ab400011f900000"), 10_800_000)
    assert pin.expires_in_ms is not None
    assert 240_000 < pin.expires_in_ms <= 300_000


def test_pins_are_added_with_what_is_left_of_their_time(kernel: Nfnetlink, nft: NftCommand) -> None:
    nft.load("add map ip kproxy ports { type ipv4_addr : inet_service; flags dynamic,timeout; timeout 1h; }")
    ports = SetName(4, "ports")
    keys = [struct.pack(">I", 0x0A000000 + n) for n in range(1200)]
    pins = [TimedElement(key, bytes.fromhex("0ab400011f900000"), 10_800_000, 300_000) for key in keys]
    kernel.add_timed_elements({PINS: pins, ports: [pin._replace(value=b"\x1f\x90") for pin in pins]})
    for name, value in ((PINS, pins[0].value), (ports, b"\x1f\x90")):
        found = kernel.dump_timed_elements(name)
        assert sorted(pin.key for pin in found) == keys
        assert {(pin.value, pin.timeout_ms) for pin in found} == {(value, 10_800_000)}
        assert all(pin.expires_in_ms is not None and 240_000 < pin.expires_in_ms <= 300_000 for pin in found)
    kernel.add_timed_elements({PINS: []})
    with pytest.raises(ElementError) as raised:
        kernel.add_timed_elements({PINS: [pins[0]._replace(value=bytes(8))]})
    assert raised.value.errno in (errno.EBUSY, errno.EEXIST)


def test_what_is_not_there_is_told(kernel: Nfnetlink, nft: NftCommand) -> None:
    assert kernel.table_exists(4)
    assert kernel.set_exists(SERVICES)
    assert not kernel.set_exists(SetName(6, "endpoints-tcp"))
    assert not kernel.set_exists(SetName(4, "others")), "a table of our name in family inet is not ours"
    nft.load("delete table ip6 kproxy")
    assert not kernel.table_exists(6)
    with pytest.raises(NetlinkError, match="read ip6 services"):
        kernel.dump_elements(SERVICES6)


def test_dumps_are_whole_while_others_change_the_ruleset(kernel: Nfnetlink, nft: NftCommand) -> None:
    transaction = cluster(3000, 1)
    kernel.commit(transaction)
    churn = "import subprocess,sys\nwhile True: subprocess.run(['nft','add table ip kp-o; delete table ip kp-o'])"
    before = kernel.generation()
    other = subprocess.Popen([sys.executable, "-c", churn])
    try:
        dumps = 0
        while dumps < 20 or kernel.generation() < before + 5:
            assert sorted(kernel.dump_elements(SERVICES)) == transaction.adds[SERVICES]
            dumps += 1
            assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_map_to_which_packets_add_can_be_read_meanwhile(kernel: Nfnetlink, nft: NftCommand) -> None:
    nft.load(
        "add chain ip kproxy learn { type filter hook output priority 0; }\n"
        "add rule ip kproxy learn meta l4proto udp update @pins { ip daddr timeout 1h : ip daddr . udp dport }"
    )
    sender = (
        "import socket\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\nn = 0\n"
        "while True:\n n = (n + 1) % (1 << 22)\n"
        " try: s.sendto(b'', (f'127.{n >> 16}.{n >> 8 & 255}.{n & 255}', 5353))\n except OSError: pass\n"
    )
    other = subprocess.Popen([sys.executable, "-c", sender])
    try:
        sizes = [0]
        while sizes[-1] < 8000:
            keys = [element[0] for element in kernel.dump_elements(PINS)]
            assert len(set(keys)) == len(keys)
            assert len({pin.key for pin in kernel.dump_timed_elements(PINS)}) >= len(keys) // 2
            sizes.append(len(keys))
            assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def in_user_namespace(work: Callable[[], bytes]) -> bytes:
    """Run work in a child that is root of its own user and network namespace alone; return its answer."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            assert ctypes.CDLL(None).unshare(0x10000000 | 0x40000000) == 0
            for name, text in (("setgroups", "deny"), ("uid_map", "0 0 1"), ("gid_map", "0 0 1")):
                Path(f"/proc/self/{name}").write_text(text)
            os.write(writer, work())
        except BaseException as error:
            os.write(writer, repr(error).encode()[:1000])
        finally:
            os._exit(0)
    os.close(writer)
    try:
        ready, _, _ = select.select([reader], [], [], 60)
        return os.read(reader, 1000) if ready else b"no answer"
    finally:
        os.close(reader)
        os.kill(child, 9)
        os.waitpid(child, 0)


def commit_and_fail() -> bytes:
    """Commit much, then delete it again with one element too many; return what happened."""
    with Nfnetlink() as kernel:
        transaction = cluster(8000, 2)
        kernel.commit(transaction)
        same = sorted(kernel.dump_elements(ENDPOINTS)) == sorted(transaction.adds[ENDPOINTS])
        bad = deletes_of(transaction)
        bad.delete(SERVICES, frontend(9999))
        try:
            kernel.commit(bad)
        except ElementError as error:
            return b"%d %s" % (same, str(error).encode())
        return b"no error"


def test_a_user_namespace_can_do_the_same() -> None:
    def work() -> bytes:
        NftCommand().load(STRUCTURE)
        return commit_and_fail()

    answer = in_user_namespace(work)
    assert answer.startswith(b"1 delete element 8000 (" + frontend(9999).hex().encode() + b") of ip services"), answer


def test_several_batches_do_where_no_large_one_is_allowed(nft: NftCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NetlinkSocket, "ensure_send_buffer", lambda self, size: self.send_limit() >= size)
    answer = commit_and_fail()
    assert answer.startswith(b"1 delete element 8000 (" + frontend(9999).hex().encode() + b") of ip services"), answer
    with Nfnetlink() as kernel:
        kernel.commit(deletes_of(Transaction(adds={SERVICES: kernel.dump_elements(SERVICES)})))
        result = kernel.commit(cluster(9000, 2))
        assert result.batches > 1
        assert not result.foreign
        assert len(kernel.dump_elements(SERVICES)) == 9000


def test_an_end_without_start_is_an_element_like_others(kernel: Nfnetlink) -> None:
    kernel.commit(Transaction(adds={CIDRS: [(IntervalEnd(b"\x0a\0\0\0"), None, None)]}))
    assert kernel.dump_elements(CIDRS) == [(IntervalEnd(b"\x0a\0\0\0"), None, None)]


def test_nothing_to_do_sends_nothing(kernel: Nfnetlink) -> None:
    before = kernel.generation()
    assert kernel.commit(Transaction()).bytes == 0
    assert kernel.generation() == before
    with pytest.raises(ElementError, match="no verdict: 'goto'"):
        kernel.commit(Transaction(adds={SERVICES: [(frontend(1), "goto", None)]}))
    assert kernel.generation() == before
