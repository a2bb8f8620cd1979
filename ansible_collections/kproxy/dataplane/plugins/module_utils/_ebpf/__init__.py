# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""PRIVATE: may change at any time.

The eBPF backend, pure half: the object files and their parser, the layout of every map, and the way from the service
table to map entries and to the smallest ordered change. Nothing here opens a socket or calls bpf(2); that is _kernel.
"""
