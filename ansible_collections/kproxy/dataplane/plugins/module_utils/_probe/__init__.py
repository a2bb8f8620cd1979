# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""PRIVATE: may change at any time.

Proves with real connections what a node serves: what to dial (``choice``), dialling (``dial``), where it was led and
whom the endpoint sees (``translation``, ``peers``), whether that is what the service table says (``judge``) and whether
many connections were spread evenly (``spread``).
"""
