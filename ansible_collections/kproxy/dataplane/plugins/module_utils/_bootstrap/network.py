# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The ranges and addresses of a cluster: which IP versions it speaks, and whether they fit together.

Kubernetes takes one range of Services and one of pods, or one of each IP version in the same order; the first is the
primary one, and everything that exists once (the Service of the API server, cluster DNS) has an address of it
(https://kubernetes.io/docs/concepts/services-networking/dual-stack/).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Union

Network = Union[ipaddress.IPv4Network, ipaddress.IPv6Network]


class NetworkError(ValueError):
    """Ranges or addresses that make no cluster; the message says which and what to give instead."""


def parse_ranges(what: str, ranges: Sequence[str]) -> list[Network]:
    """Return one range, or one of each IP version. Raises NetworkError."""
    try:
        found = [ipaddress.ip_network(str(item).strip()) for item in ranges]
    except ValueError as error:
        raise NetworkError(f"{what}: {error}; write a range as 10.96.0.0/12 or fd00:10:96::/108") from None
    versions = [item.version for item in found]
    if not found or len(found) > 2 or len(set(versions)) < len(versions):
        raise NetworkError(
            f"{what}: give one range, or one of each IP version, not {', '.join(map(str, found)) or 'none'}"
        )
    return found


def ip_versions(services: Sequence[str], pods: Sequence[str], node: Sequence[str]) -> list[int]:
    """Return the IP versions of a cluster, the primary one first.

    Args:
        services: ranges of the Services.
        pods: ranges of the pods.
        node: this node's own addresses, of which each IP version of the cluster needs one.

    Raises:
        NetworkError: they do not fit together.
    """
    service_ranges, pod_ranges = parse_ranges("service ranges", services), parse_ranges("pod ranges", pods)
    versions: list[int] = [item.version for item in service_ranges]
    if versions != [item.version for item in pod_ranges]:
        raise NetworkError(
            f"service ranges {', '.join(map(str, service_ranges))} and pod ranges {', '.join(map(str, pod_ranges))}"
            " are not of the same IP versions in the same order"
        )
    for one in service_ranges:
        for other in pod_ranges:
            # The version is asked first, as ranges of two versions cannot be compared.
            if one.version == other.version and one.overlaps(other):
                raise NetworkError(f"service range {one} and pod range {other} overlap")
    addresses = [address_of(item) for item in node]
    if [item.version for item in addresses] != versions:
        raise NetworkError(
            f"node addresses {', '.join(map(str, addresses)) or 'none'}: give one of "
            + ", then one of ".join(f"IPv{version}" for version in versions)
            + ", as the ranges of the Services are"
        )
    for what, ranges in (("service", service_ranges), ("pod", pod_ranges)):
        for network in ranges:
            inside = [str(item) for item in addresses if item.version == network.version and item in network]
            if inside:
                raise NetworkError(
                    f"node address {inside[0]} is inside the {what} range {network}, so packets for one would go to "
                    "the other; give a range that nothing else of your network uses"
                )
    return versions


def address_of(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return an address. Raises NetworkError for anything else, names included."""
    try:
        return ipaddress.ip_address(str(text).strip())
    except ValueError:
        raise NetworkError(
            f"{text!r} is no IP address; a name cannot be resolved before cluster DNS works, give the address itself"
        ) from None
