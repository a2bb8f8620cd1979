# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Read and remove IPVS virtual servers, and interfaces that hold their addresses."""

from __future__ import annotations

from pathlib import Path

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import tool
from ansible_collections.kproxy.dataplane.plugins.module_utils._residue.dumps import (
    VirtualServer,
    count_ipvs_connections,
)

# Present once the module is loaded. ipvsadm would load it, which hosts without IPVS do not want.
PROC = Path("/proc/net/ip_vs")
CONNECTIONS = Path("/proc/net/ip_vs_conn")
_HEADER_LINES = 3
_SERVICE_OPTIONS = {"tcp": "-t", "udp": "-u", "sctp": "--sctp-service"}


class IpvsadmMissing(RuntimeError):
    """The kernel holds virtual servers, and the tool to read them is not installed."""


def save(proc: Path = PROC) -> str:
    """Return `ipvsadm -S -n`, empty where IPVS holds nothing.

    Raises IpvsadmMissing when it holds virtual servers but ipvsadm is not installed.
    """
    try:
        lines = proc.read_text(encoding="ascii").splitlines()[_HEADER_LINES:]
    except OSError:
        return ""
    if not lines:
        return ""
    ipvsadm = tool.find("ipvsadm")
    if ipvsadm is None:
        raise IpvsadmMissing("the kernel holds IPVS virtual servers; install ipvsadm so that they can be attributed")
    return tool.run([ipvsadm, "-S", "-n"])


def connections(proc: Path = CONNECTIONS) -> int:
    """Return the number of open connections that IPVS carries in this network namespace; 0 where there is no IPVS."""
    try:
        return count_ipvs_connections(proc.read_text(encoding="ascii"))
    except OSError:
        return 0


def delete(server: VirtualServer) -> None:
    """Delete one virtual server; its open connections end with it."""
    address = f"[{server.address}]" if ":" in server.address else server.address
    tool.run([tool.find("ipvsadm") or "ipvsadm", "-D", _SERVICE_OPTIONS[server.protocol], f"{address}:{server.port}"])


def brief_addresses() -> str:
    """Return `ip -brief address`."""
    return tool.run([tool.find("ip") or "ip", "-brief", "address", "show"])


def delete_interface(name: str) -> None:
    """Delete one interface."""
    tool.run([tool.find("ip") or "ip", "link", "delete", name])
