# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""PRIVATE: may change at any time. kproxyctl: asks the running kproxyd, and reads the kernel where that suffices."""
