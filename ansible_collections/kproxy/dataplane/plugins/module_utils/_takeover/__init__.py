# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""PRIVATE: may change at any time.

Decisions of the takeover of a node from kube-proxy: what its configuration means here, whether it still runs, how its
DaemonSet is kept off one node, and how the way back is prepared. Pure; objects go in as the API returns them.
"""
