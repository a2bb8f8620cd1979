# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""What a token says about its own end."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._sources.bearer_token import token_validity
from ansible_collections.kproxy.dataplane.plugins.module_utils._sources.certificate import Validity


def token(claims: str) -> str:
    return "e30.%s.c2lnbmVk" % base64.urlsafe_b64encode(claims.encode()).decode().rstrip("=")


TOKENS: list[tuple[str, str, Any]] = [
    ("bound", token('{"iat": 1000, "exp": 4600}'), Validity(1000, 4600)),
    ("fractions", token('{"iat": 1000.5, "exp": 4600.5}'), Validity(1000.5, 4600.5)),
    ("without an end", token('{"iat": 1000}'), None),
    ("no numbers", token('{"iat": "x", "exp": []}'), None),
    ("no object", token("[1]"), None),
    ("no JSON", token("x"), None),
    ("no base64", "a.\u00e9.c", None),
    ("bootstrap", "abcdef.0123456789abcdef", None),
    ("static", "secret", None),
    ("none", "", None),
]


@pytest.mark.parametrize(("given", "expected"), [row[1:] for row in TOKENS], ids=[row[0] for row in TOKENS])
def test_what_a_token_says(given: str, expected: Validity | None) -> None:
    assert token_validity(given) == expected
