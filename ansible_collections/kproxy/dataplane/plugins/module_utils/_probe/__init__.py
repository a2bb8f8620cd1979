# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""PRIVATE: may change at any time.

Proves with real connections what a node serves: what to dial (``choice``), dialling (``dial``), which endpoint it led
to (``translation``) and whether that is what the service table says (``judge``).
"""
