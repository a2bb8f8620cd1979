# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""How long a certificate is good, read from its PEM text; whether it may be trusted is for the TLS library to say."""

from __future__ import annotations

import datetime
import ssl
from typing import NamedTuple

_DAY = 86400.0
#: A certificate of a year is renewed within its last month, one of hours within the last tenth of its time.
_SOON_SECONDS, _SOON_SHARE = 30 * _DAY, 0.1

_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
# Tags of DER (ITU-T X.690) in a certificate (RFC 5280, section 4.1).
_VERSION = 0xA0
_TIME_FORMATS = {0x17: "%y%m%d%H%M%SZ", 0x18: "%Y%m%d%H%M%SZ"}
_LONG_LENGTH = 0x80


class Validity(NamedTuple):
    """When a certificate or token begins and ends to be good, in seconds since the epoch."""

    begins: float
    ends: float

    def ends_soon(self, now: float) -> bool:
        """Return whether it is time to renew it, or past that."""
        return self.ends - now < min(_SOON_SECONDS, (self.ends - self.begins) * _SOON_SHARE)

    def describe(self, now: float) -> str:
        """Say when it ends, or has ended."""
        day = datetime.datetime.fromtimestamp(self.ends, datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
        left = self.ends - now
        if left <= 0:
            return f"ended at {day}, and API servers refuse it"
        days = int(left / _DAY)
        return f"ends at {day}, in {days} day{'s' * (days != 1)}" if days else f"ends at {day}, within a day"


def validity(pem: bytes) -> Validity | None:
    """Return how long the first certificate of a PEM text is good, which is the one presented; None if it is none."""
    text = pem.decode("ascii", errors="replace")
    begin, end = text.find(_BEGIN), text.find(_END)
    if begin < 0 or end < begin:
        return None
    try:
        return _validity(ssl.PEM_cert_to_DER_cert(text[begin : end + len(_END)]))
    except (ValueError, IndexError, KeyError, OverflowError):
        return None


def _validity(der: bytes) -> Validity:
    certificate = _elements(der)[0][1]
    signed = _elements(certificate)[0][1]
    # serialNumber, signature, issuer, validity
    fields = [content for tag, content in _elements(signed) if tag != _VERSION]
    times = _elements(fields[3])
    return Validity(_time(*times[0]), _time(*times[1]))


def _elements(der: bytes) -> list[tuple[int, bytes]]:
    """Return (tag, content) of elements that follow one another."""
    found = []
    at = 0
    while at < len(der):
        tag, length = der[at], der[at + 1]
        at += 2
        if length & _LONG_LENGTH:
            count = length & ~_LONG_LENGTH
            length = int.from_bytes(der[at : at + count], "big")
            at += count
        found.append((tag, der[at : at + length]))
        at += length
    return found


def _time(tag: int, value: bytes) -> float:
    # Two digits mean up to 2068 here and up to 2049 in RFC 5280: no certificate in use began in the fifties.
    moment = datetime.datetime.strptime(value.decode("ascii"), _TIME_FORMATS[tag])
    return moment.replace(tzinfo=datetime.timezone.utc).timestamp()
