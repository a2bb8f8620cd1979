"""Addresses and prefixes: what is read, how it is written back, what is refused."""

from __future__ import annotations

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.address import (
    AddressError,
    Prefix,
    format_address,
    format_socket_address,
    is_special,
    merge_ranges,
    parse_address,
    parse_prefix,
)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("10.96.0.1", "10.96.0.1"),
        ("010.096.000.001", "10.96.0.1"),
        ("fd00::a00:3", "fd00::a00:3"),
        ("FD00:0:0::A00:3", "fd00::a00:3"),
        ("fd00::10.0.0.3", "fd00::a00:3"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("10.96.0.0001", "10.96.0.1"),
        ("::ffff:192.000.002.001", "192.0.2.1"),
        ("fd00::010.0.0.3", "fd00::a00:3"),
    ],
)
def test_an_address_is_written_back_in_canonical_form(text: str, canonical: str) -> None:
    assert format_address(parse_address(text)) == canonical


@pytest.mark.parametrize(
    "text",
    [
        "",
        "10.96.0",
        "10.96.0.256",
        "10.96.0.0256",
        "::ffff:192.0.2",
        "::ffff:192.0.2.256",
        "10.96.0.1.1",
        "fe80::1%eth0",
        "example.org",
        " 10.0.0.1",
        "9" * 5000 + ".1.1.1",
    ],
)
def test_what_is_no_address_is_refused_by_its_text(text: str) -> None:
    with pytest.raises(AddressError, match="is not an IP address"):
        parse_address(text)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("192.0.2.77/24", "192.0.2.0/24"),
        (" 192.000.002.000/026 ", "192.0.2.0/26"),
        ("0.0.0.0/0", "0.0.0.0/0"),
        ("2001:db8::1/64", "2001:db8::/64"),
        # The length counts the bits of what is written; what is left of the address says whose block it is.
        ("::ffff:192.0.2.77/120", "192.0.2.0/24"),
        ("::ffff:0.0.0.0/96", "0.0.0.0/0"),
        ("::ffff:192.0.2.77/128", "192.0.2.77/32"),
        ("::ffff:192.0.2.77/24", "::/24"),
    ],
)
def test_a_prefix_loses_its_host_bits(text: str, canonical: str) -> None:
    assert str(parse_prefix(text)) == canonical


@pytest.mark.parametrize(
    "text",
    ["192.0.2.0", "192.0.2.0/33", "::ffff:192.0.2.0/129", "192.0.2.0/-1", "192.0.2.0/a", "/24", "2001:db8::/129"],
)
def test_what_is_no_prefix_is_refused(text: str) -> None:
    with pytest.raises(AddressError):
        parse_prefix(text)


def test_a_prefix_knows_its_ends() -> None:
    prefix = parse_prefix("192.0.2.128/26")
    assert (prefix.network, prefix.last) == (bytes([192, 0, 2, 128]), bytes([192, 0, 2, 191]))
    assert prefix.contains(bytes([192, 0, 2, 191]))
    assert not prefix.contains(bytes([192, 0, 2, 192]))
    assert not Prefix(b"\0" * 16, 0).contains(bytes([192, 0, 2, 1])), "families do not mix"


def test_ranges_are_merged_over_overlaps_repeats_and_neighbours() -> None:
    ranges = [(b"\x05", b"\x09"), (b"\x01", b"\x02"), (b"\x03", b"\x03"), (b"\x06", b"\x07"), (b"\x0b", b"\x0b")]
    assert merge_ranges(ranges) == ((b"\x01", b"\x03"), (b"\x05", b"\x09"), (b"\x0b", b"\x0b"))


def test_ipv6_socket_addresses_have_brackets() -> None:
    assert format_socket_address(parse_address("2001:db8::1"), 80) == "[2001:db8::1]:80"


@pytest.mark.parametrize(
    ("text", "special"),
    [
        ("0.0.0.0", True),
        ("127.0.0.1", True),
        ("224.0.0.1", True),
        ("255.255.255.255", True),
        ("::", True),
        ("::1", True),
        ("ff02::1", True),
        ("10.0.0.0", False),
        ("169.254.20.10", False),
        ("240.0.0.1", False),
        ("fe80::1", False),
        ("::2", False),
        ("fd00::", False),
    ],
)
def test_addresses_of_no_one_place_are_told_apart(text: str, special: bool) -> None:
    assert is_special(parse_address(text)) is special
