# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""PRIVATE: may change at any time.

What kube-proxy left on a node: read from the tools' own dumps, attributed to an owner, and planned away. Everything
here is pure: dumps and facts go in, values and texts come out. Running the tools is `_kernel`'s part.
"""
