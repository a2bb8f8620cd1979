# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""PRIVATE: may change at any time.

What the modules that program a dataplane share: one run of the engine, and what it changes as lines for people.
"""
