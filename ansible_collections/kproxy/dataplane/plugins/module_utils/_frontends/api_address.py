# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Tell an API server's address that is a Service's: who programs Services must not reach the API through one.

Such an address works while old rules are in place and fails at the next boot (cilium#35440).
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.frontend import FrontendKey
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.table import ServiceTable
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.address import (
    AddressError,
    family_of,
    parse_address,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.protocol import TCP

_ADVICE = (
    "which nobody serves until this node is programmed: after the next boot it is not. Give the control plane's own "
    "address, a virtual IP in front of it, or a list of them (kproxy_api_servers)"
)


def through_services(servers: Iterable[str], table: ServiceTable) -> list[str]:
    """Return one sentence for every API server's URL whose host is an address of a Service; names are not resolved."""
    found = []
    for server in dict.fromkeys(servers):
        parts = urlsplit(server)
        try:
            address = parse_address(parts.hostname or "")
        except AddressError:
            continue
        row = table.frontends.get(FrontendKey(family_of(address), address, TCP, parts.port or 443))
        ranges = [prefix for obj in table.store.service_cidrs.values() for prefix in obj.cidrs]
        if row is not None:
            port = row.service_port
            found.append(f"API server {server} is the Service {port.namespace}/{port.name}, {_ADVICE}")
        else:
            found += [
                f"API server {server} is in the service range {prefix}, {_ADVICE}"
                for prefix in ranges
                if prefix.contains(address)
            ][:1]
    return found
