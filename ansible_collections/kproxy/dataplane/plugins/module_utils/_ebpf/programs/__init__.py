# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""PRIVATE: may change at any time.

The compiled programs, one module each, written by devtools/bpf_build.py from _ebpf/src. They are modules and not files
beside the code because Ansible ships nothing but Python to a managed node.
"""

from __future__ import annotations

import base64
import zlib


def unpack(text: str) -> bytes:
    """Return the object file that `text` carries (base85 of zlib)."""
    return zlib.decompress(base64.b85decode("".join(text.split())))
