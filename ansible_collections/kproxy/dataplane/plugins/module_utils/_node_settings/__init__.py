# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""PRIVATE: may change at any time.

Kernel settings the dataplane needs, set now and at every boot, with what was there before kept so that it can be put
back. ``plan`` is pure, ``system`` reads and writes the node.
"""
