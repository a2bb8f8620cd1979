# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""PRIVATE: may change at any time.

The nftables backend's pure half: service table in, smallest change of our tables out.
"""

from __future__ import annotations
