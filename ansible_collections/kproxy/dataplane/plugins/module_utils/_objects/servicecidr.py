# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""ServiceCIDR: a range that ClusterIPs are taken from (KEP-1880)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._objects import fields
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.address import Prefix, parse_prefix


class ServiceCIDR(NamedTuple):
    """The service ranges of one ServiceCIDR object, of either family."""

    name: str
    cidrs: tuple[Prefix, ...]


def parse_servicecidr(manifest: Mapping[str, Any], name: str) -> ServiceCIDR:
    """Return the ServiceCIDR of a manifest. Raises fields.FieldError or AddressError."""
    spec = fields.mapping(manifest, "spec", "spec")
    texts = fields.sequence(spec, "cidrs", "spec.cidrs")
    return ServiceCIDR(name, tuple(parse_prefix(text) for text in texts))
