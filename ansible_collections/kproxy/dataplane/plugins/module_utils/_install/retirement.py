# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The end of the eBPF programs of a node that kproxyd serves by nftables now.

They have connections to finish, which takes as long as those last. kproxyd may not touch eBPF any more, so a transient
systemd unit does it: no file of it is left, and after a reboot there is nothing for it to do.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.layout import DEFAULT_ROOT
from ansible_collections.kproxy.dataplane.plugins.module_utils._install.service import Runner, ServiceError
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.unit import CLI_LINK

UNIT_NAME = "kproxy-retirement.service"


class Retirement:
    """The transient unit on this node."""

    def __init__(self, run: Runner, settings: Mapping[str, Any]) -> None:
        """Take how commands are run, and kproxyd's own settings, which say where programs are pinned."""
        self._run = run
        self._directory = str(settings.get("bpfDirectory") or DEFAULT_ROOT)

    def active(self) -> bool:
        """Whether it runs, or waits to be tried again."""
        return self._run(["systemctl", "is-active", UNIT_NAME])[1].strip() in ("active", "activating")

    def due(self) -> bool:
        """Whether something is pinned and nobody retires it yet."""
        return os.path.isdir(self._directory) and not self.active()

    def start(self) -> None:
        """Start it; kproxyd must be in step with nftables. Raises ServiceError."""
        code, out, err = self._run(
            [
                "systemd-run",
                "--quiet",
                "--collect",
                f"--unit={UNIT_NAME}",
                "--description=kproxy: eBPF programs finish their connections",
                "--property=Restart=on-failure",
                "--property=RestartSec=5s",
                CLI_LINK,
                "retire",
                f"--bpf-directory={self._directory}",
            ]
        )
        if code:
            raise ServiceError(f"the eBPF programs stay attached: systemd-run failed: {(err or out).strip()}")

    def stop(self) -> None:
        """End it, if it runs; what is pinned stays."""
        if self.active():
            self._run(["systemctl", "stop", UNIT_NAME])
