"""A network namespace of the test's own, entered by the test process itself."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.namespace import unshare_network

_CLONE_NEWNET = 0x40000000


@pytest.fixture
def own_network() -> Iterator[None]:
    """Run the test in a new network namespace with its loopback up; the namespace ends with the test."""
    before = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        unshare_network()
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        yield
    finally:
        assert ctypes.CDLL(None).setns(before, _CLONE_NEWNET) == 0
        os.close(before)
