# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""PRIVATE: may change at any time. Puts kproxyd on a node: its files, its unit, and the wait until it is in step."""
