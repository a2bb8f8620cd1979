# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""IP protocol numbers of the three protocols a Service can have."""

from __future__ import annotations

TCP = 6
UDP = 17
SCTP = 132

NUMBERS = {"TCP": TCP, "UDP": UDP, "SCTP": SCTP}
NAMES = {number: name for name, number in NUMBERS.items()}
