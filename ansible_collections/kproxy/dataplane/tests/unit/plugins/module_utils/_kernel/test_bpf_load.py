# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Loading a program while signals arrive, which end the verifier's work with EAGAIN."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import bpf_syscall

LIMIT = bpf_syscall.LOAD_ATTEMPTS


def load(monkeypatch: pytest.MonkeyPatch, errors: Iterator[int]) -> int:
    """Load a program on a kernel that fails with these errors, one after the other, and then has it loaded."""

    def answer(_command: int, _attributes: bytes) -> int:
        number = next(errors, 0)
        if number:
            raise OSError(number, os.strerror(number))
        return 77

    monkeypatch.setattr(bpf_syscall, "_fd", answer)
    return bpf_syscall.program_load("kp_test", 3, 0, bytes(16), b"GPL")


@pytest.mark.parametrize("times", [0, 1, LIMIT - 1])
def test_a_load_that_a_signal_cut_short_is_begun_again(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    assert load(monkeypatch, iter([errno.EAGAIN] * times)) == 77


@pytest.mark.parametrize(
    ("errors", "told"),
    [
        pytest.param([errno.EINVAL] * 2, errno.EINVAL, id="refused"),
        pytest.param([errno.EAGAIN, errno.EACCES, errno.EAGAIN, errno.EACCES], errno.EACCES, id="refused-later"),
        pytest.param([errno.EAGAIN] * 2 * LIMIT, errno.EAGAIN, id="signals-without-end"),
    ],
)
def test_what_the_verifier_refuses_is_told(monkeypatch: pytest.MonkeyPatch, errors: list[int], told: int) -> None:
    with pytest.raises(bpf_syscall.VerifierError) as raised:
        load(monkeypatch, iter(errors))
    assert raised.value.errno == told
