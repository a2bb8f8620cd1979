# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Errors of reading a source; each message names what was read and what to do."""

from __future__ import annotations


class SourceError(Exception):
    """The objects could not be read as a whole, so nothing may be concluded from what was read."""
