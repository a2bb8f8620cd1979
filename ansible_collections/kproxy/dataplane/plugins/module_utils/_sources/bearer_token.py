# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""How long a bearer token is good, as far as it says so itself: those of service accounts are JSON web tokens."""

from __future__ import annotations

import base64
import json

from ansible_collections.kproxy.dataplane.plugins.module_utils._sources.certificate import Validity

_PARTS = 3


def token_validity(token: str) -> Validity | None:
    """Return when a token begins and ends to be good (RFC 7519 iat, exp); None for one that does not say."""
    parts = token.split(".")
    if len(parts) != _PARTS:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return Validity(float(claims["iat"]), float(claims["exp"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
