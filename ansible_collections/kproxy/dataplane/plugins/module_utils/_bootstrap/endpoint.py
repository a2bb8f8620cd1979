# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Refuse an API server address that works only once Services do.

An agent that programs Services must not reach the API through one: it works while old rules are in place and fails at
the next boot (cilium#35440).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

_CLUSTER_SUFFIXES = (".svc", ".svc.cluster.local", ".cluster.local")
_IN_CLUSTER_NAMES = ("kubernetes", "kubernetes.default")


class EndpointError(ValueError):
    """A server that cannot be used; the message says why and what to give instead."""


def check_server(server: str, service_cidrs: Iterable[str]) -> str:
    """Return the host of the server's URL. Raises EndpointError for a Service address or a name of cluster DNS."""
    try:
        parts = urlsplit(server)
        host, port = parts.hostname, parts.port
    except ValueError:  # brackets or port
        parts, host, port = urlsplit(""), None, None
    if parts.username is not None:
        raise EndpointError("the server's URL holds a user name; put credentials into the kubeconfig's user")
    odd = port == 0 or not server.isprintable() or " " in server
    if parts.scheme != "https" or not host or odd:
        raise EndpointError(f"server {server!r} is not an https URL; write it as https://192.0.2.200:6443")
    advice = "; give the control plane's own address, a virtual IP in front of it, or a list of them"
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        name = host.rstrip(".").lower()
        if name in _IN_CLUSTER_NAMES or name.endswith(_CLUSTER_SUFFIXES):
            raise EndpointError(f"server {server}: the name resolves only inside the cluster{advice}") from None
        return host
    for cidr in service_cidrs:
        network = ipaddress.ip_network(cidr.strip(), strict=False)
        if address.version == network.version and address in network:
            raise EndpointError(f"server {server} is inside the service CIDR {network}{advice}")
    return host


def current_server(kubeconfig: Mapping[str, Any]) -> str:
    """Return the server URL of a kubeconfig's current context. Raises EndpointError when there is none."""
    name = kubeconfig.get("current-context")
    contexts = {item.get("name"): item.get("context") or {} for item in kubeconfig.get("contexts") or []}
    clusters = {item.get("name"): item.get("cluster") or {} for item in kubeconfig.get("clusters") or []}
    if name not in contexts:
        raise EndpointError(f"the kubeconfig has no context {name!r}, which its current-context names")
    server = clusters.get(contexts[name].get("cluster"), {}).get("server")
    if not server:
        raise EndpointError(f"the kubeconfig's context {name!r} leads to no cluster with a server")
    return str(server)


def check_kubeconfig(kubeconfig: Mapping[str, Any], service_cidrs: Iterable[str]) -> str:
    """Return the server URL of a kubeconfig that may be used. Raises EndpointError."""
    server = current_server(kubeconfig)
    check_server(server, service_cidrs)
    return server
