# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""PRIVATE: may change at any time.

The named checks of a node: what the sidecar, the residue ledger, the probe and the preflight found, judged one by one,
and written as a table or as JUnit. Pure.
"""
