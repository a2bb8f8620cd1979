# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""PRIVATE: may change at any time.

Every effect on the host: nftables and conntrack over netlink, the nft command, addresses, sysctls, probes.
Nothing here decides what should be in force; it only puts values there and reads them back.
"""

from __future__ import annotations
