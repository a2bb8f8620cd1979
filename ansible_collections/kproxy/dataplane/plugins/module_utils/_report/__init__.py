# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""PRIVATE: may change at any time. Turns what a commit would change into lines for people. Pure."""
