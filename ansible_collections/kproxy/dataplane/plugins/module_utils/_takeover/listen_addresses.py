# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Where kube-proxy serves health and metrics when its configuration leaves a part of that open.

Source: pkg/proxy/apis/config/v1alpha1/defaults.go and pkg/proxy/util AppendPortIfNeeded.
"""

from __future__ import annotations

import ipaddress
from typing import NamedTuple

HEALTHZ_PORT, METRICS_PORT = 10256, 10249


class Hosts(NamedTuple):
    """The hosts that stand for an empty address, without brackets."""

    healthz: str
    metrics: str


def default_hosts(bind_address: str) -> Hosts:
    """Return where an empty address listens: the family is that of bindAddress."""
    return Hosts("::", "::1") if ":" in bind_address else Hosts("0.0.0.0", "127.0.0.1")


def with_port(text: str, port: int) -> str:
    """Return `text` with a port where it is a bare address; anything else is returned as it is."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return text
    return f"[{text}]:{port}" if address.version == 6 else f"{text}:{port}"


def listen_address(field: str, value: object, default_host: str, port: int) -> str:
    """Return ADDRESS:PORT of a field. Raises ValueError that names it for what kube-proxy would not listen on."""
    text = with_port(str(value or default_host), port)
    host, _colon, given = text.rpartition(":")
    try:
        ipaddress.ip_address(host.strip("[]"))
        if 0 < int(given) < 65536 and (":" not in host or host.startswith("[")):
            return text
    except ValueError:
        pass
    raise ValueError(f"{field} is {value!r}; kube-proxy takes ADDRESS:PORT, such as 0.0.0.0:{port} or [::]:{port}")
