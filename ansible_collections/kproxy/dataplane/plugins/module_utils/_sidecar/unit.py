# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The systemd unit of kproxyd and where its files are. Pure and standard library only: modules render it too."""

from __future__ import annotations

from typing import NamedTuple

UNIT_NAME = "kproxyd.service"
UNIT_PATH = f"/etc/systemd/system/{UNIT_NAME}"
BUNDLE_PATH = "/usr/local/lib/kproxy/kproxy.pyz"
DAEMON_LINK = "/usr/local/sbin/kproxyd"
CLI_LINK = "/usr/local/bin/kproxyctl"
CONFIG_PATH = "/etc/kproxy/kproxyd.json"
SOCKET_PATH = "/run/kproxy/kproxyd.sock"
STATE_DIRECTORY = "/var/lib/kproxy"
CACHE_DIRECTORY = "/var/cache/kproxy"

# nftables, conntrack and addresses; health ports below 1024 are possible.
NFTABLES_CAPABILITIES = ("CAP_NET_ADMIN", "CAP_NET_BIND_SERVICE")
# Loading programs and maps, attaching to cgroups and links, reading BTF. CAP_SYS_ADMIN for two things the kernel asks
# no less for: entering the network namespaces of pods, to close UDP sockets whose endpoint has gone (setns), and
# opening the program that a link holds, to tell whether it is ours and of this version (BPF_PROG_GET_FD_BY_ID).
# CAP_SYS_RESOURCE for the limit of locked memory, which maps count against below Linux 5.11.
EBPF_CAPABILITIES = ("CAP_BPF", "CAP_PERFMON", "CAP_SYS_ADMIN", "CAP_SYS_RESOURCE")

# systemd that lets the pauses between restarts grow.
GROWING_PAUSES_SINCE = 254


class UnitOptions(NamedTuple):
    """What differs between nodes. systemd_version: an older systemd would complain about settings it does not know."""

    backend: str = "nftables"
    systemd_version: int = 0
    daemon: str = DAEMON_LINK
    config: str = CONFIG_PATH


def render(options: UnitOptions) -> str:
    """Return the unit file.

    kproxyd needs the host's network namespace, netlink, and (for nft) to start a program; it needs no file outside
    its own directories, no device and no other privilege.
    """
    ebpf = options.backend == "ebpf"
    capabilities = NFTABLES_CAPABILITIES + (EBPF_CAPABILITIES if ebpf else ())
    syscalls = "@system-service bpf perf_event_open" if ebpf else "@system-service"
    lines = [
        "[Unit]",
        "Description=kproxy: Kubernetes Services on this node without kube-proxy",
        "Wants=network-online.target",
        "After=network-online.target",
        # A daemon that keeps failing is tried again for ever: what is programmed keeps forwarding meanwhile.
        "StartLimitIntervalSec=0",
        "",
        "[Service]",
        "Type=notify",
        "NotifyAccess=main",
        f"ExecStart={options.daemon} --config {options.config}",
        "Restart=always",
        "RestartSec=500ms",
        *(["RestartSteps=6", "RestartMaxDelaySec=30s"] if options.systemd_version >= GROWING_PAUSES_SINCE else []),
        "WatchdogSec=30s",
        # The first lists of a large cluster, or an API server that is not up yet, must not count as a failed start.
        "TimeoutStartSec=infinity",
        "TimeoutStopSec=10s",
        "RuntimeDirectory=kproxy",
        "RuntimeDirectoryMode=0755",
        "StateDirectory=kproxy",
        "StateDirectoryMode=0750",
        "CacheDirectory=kproxy",
        "CacheDirectoryMode=0755",
        f"Environment=SHIV_ROOT={CACHE_DIRECTORY} MALLOC_ARENA_MAX=2",
        # As kube-proxy: under memory pressure pods go before the node's Services do.
        "OOMScoreAdjust=-999",
        "LimitNOFILE=65536",
        "",
        f"CapabilityBoundingSet={' '.join(capabilities)}",
        f"AmbientCapabilities={' '.join(capabilities)}",
        "NoNewPrivileges=yes",
        "ProtectSystem=strict",
        "ProtectHome=yes",
        "PrivateTmp=yes",
        # PrivateDevices=yes would say more, and takes a folder in /tmp to set up: a node that boots with a full disk
        # would have no Services.
        "DevicePolicy=closed",
        "ProtectClock=yes",
        "ProtectHostname=yes",
        "ProtectKernelLogs=yes",
        "ProtectKernelModules=yes",
        f"ProtectKernelTunables={'no' if ebpf else 'yes'}",
        f"ProtectControlGroups={'no' if ebpf else 'yes'}",
        "ProtectProc=invisible",
        "RestrictAddressFamilies=AF_INET AF_INET6 AF_NETLINK AF_UNIX",
        # Closing the UDP sockets of pods takes setns(), which "yes" refuses.
        f"RestrictNamespaces={'net' if ebpf else 'yes'}",
        "RestrictRealtime=yes",
        "RestrictSUIDSGID=yes",
        "LockPersonality=yes",
        "MemoryDenyWriteExecute=yes",
        "SystemCallArchitectures=native",
        f"SystemCallFilter={syscalls}",
        "SystemCallErrorNumber=EPERM",
        # What kproxyd unpacks is kproxyctl too, and has to tell others than root why they may not ask. What is not for
        # everybody is made with a mode of its own.
        "UMask=0022",
        *(["ReadWritePaths=/sys/fs/bpf"] if ebpf else []),
        "",
        "[Install]",
        "WantedBy=multi-user.target",
        "",
    ]
    return "\n".join(lines)
