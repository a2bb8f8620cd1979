# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""PRIVATE: may change at any time. One object that takes changes of objects and keeps the kernel in step with them."""
