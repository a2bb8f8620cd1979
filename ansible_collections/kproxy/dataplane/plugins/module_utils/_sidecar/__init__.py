# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""PRIVATE: may change at any time. kproxyd: sources, the loop that owns the engine, health, metrics and the relay."""
