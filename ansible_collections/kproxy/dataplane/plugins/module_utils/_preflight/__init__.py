# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""PRIVATE: may change at any time.

Decides whether a node may carry the dataplane: facts in, findings out. Pure; nothing here reads or changes a node.
"""
