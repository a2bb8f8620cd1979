# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""How long a certificate is good, and when it is time to say so."""

from __future__ import annotations

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._sources.certificate import Validity, validity

# Both begin at 2026-01-02 03:04:05; one ends a year later, the other after 2050, which takes another form of time.
OF_A_YEAR = b"""\
-----BEGIN CERTIFICATE-----
MIIBFjCBvaADAgECAgEHMAoGCCqGSM49BAMCMBUxEzARBgNVBAMMCmt1YmUtcHJv
eHkwHhcNMjYwMTAyMDMwNDA1WhcNMjcwMTAyMDMwNDA1WjAVMRMwEQYDVQQDDApr
dWJlLXByb3h5MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAENM5RpYYI5c+VX8vL
6aDQLhJigNhDQUAufp2GMj5+648gMic7hBs+aBNY4j+4UGXxvz9e90lq4bGPE+eU
rl9h8TAKBggqhkjOPQQDAgNIADBFAiBCOCL+hUtUvI80Ys4LWPVln0N9B/zG6AEN
xATDmDOG7gIhAMKHD5u43JxjJPvejqq2R74jtTw7k7QsNi/cj3lQKTBO
-----END CERTIFICATE-----
"""
OF_FIFTY_YEARS = b"""\
-----BEGIN CERTIFICATE-----
MIIBGTCBv6ADAgECAgEHMAoGCCqGSM49BAMCMBUxEzARBgNVBAMMCmt1YmUtcHJv
eHkwIBcNMjYwMTAyMDMwNDA1WhgPMjA3NjAxMDIwMzA0MDVaMBUxEzARBgNVBAMM
Cmt1YmUtcHJveHkwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAAQ+VXwquqt1j+fJ
XkWmw5bqz2axDR3mYLgp/P7ZXnKKeVhhxQC0zTyyUeB/y3setxqRmz4xVxhBNGVk
0HNti4kZMAoGCCqGSM49BAMCA0kAMEYCIQCYd0x2OJF8X/baSw2CAbgbj7yo+wJz
ioNrulGuPfszKgIhAPcRs4aUP0kppOofMpYwB6F/YQAB4wpvIwn8LQIcsyye
-----END CERTIFICATE-----
"""
BEGIN, YEAR_LATER, FIFTY_LATER = 1767323045.0, 1798859045.0, 3345159845.0
HOUR, DAY = 3600.0, 86400.0

TEXTS = [
    ("a year", OF_A_YEAR, Validity(BEGIN, YEAR_LATER)),
    ("past 2050", OF_FIFTY_YEARS, Validity(BEGIN, FIFTY_LATER)),
    ("the first of a chain", OF_A_YEAR + OF_FIFTY_YEARS, Validity(BEGIN, YEAR_LATER)),
    ("words before it", b"subject=kube-proxy\n" + OF_A_YEAR, Validity(BEGIN, YEAR_LATER)),
    ("nothing", b"", None),
    ("no text", b"\xff\x00", None),
    ("half of one", OF_A_YEAR[:100], None),
    ("cut short", OF_A_YEAR.replace(b"eHkwHhcN", b"")[:-200] + b"\n-----END CERTIFICATE-----\n", None),
    ("no certificate inside", b"-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n", None),
    ("no base64 inside", b"-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n", None),
]


@pytest.mark.parametrize(("name", "pem", "expected"), TEXTS, ids=[row[0] for row in TEXTS])
def test_when_it_begins_and_ends(name: str, pem: bytes, expected: Validity | None) -> None:
    assert validity(pem) == expected


# Days or hours it is good for, seconds left, and whether that is soon.
LEFT = [
    (365 * DAY, 31 * DAY, False, "in 31 days"), (365 * DAY, 29 * DAY, True, "in 29 days"),
    (365 * DAY, DAY, True, "in 1 day"), (365 * DAY, HOUR, True, "within a day"),
    (365 * DAY, 0, True, "API servers refuse it"), (365 * DAY, -DAY, True, "API servers refuse it"),
    # One that something renews every day has not much left ever.
    (DAY, 3 * HOUR, False, "within a day"), (DAY, 2 * HOUR, True, "within a day"),
]  # fmt: skip


@pytest.mark.parametrize(("lifetime", "left", "soon", "words"), LEFT)
def test_what_is_soon(lifetime: float, left: float, soon: bool, words: str) -> None:
    held = Validity(YEAR_LATER - lifetime, YEAR_LATER)
    assert held.ends_soon(YEAR_LATER - left) is soon
    assert held.describe(YEAR_LATER - left).startswith("ended" if left <= 0 else "ends at 2027-01-02 03:04 UTC")
    assert held.describe(YEAR_LATER - left).endswith(words)
