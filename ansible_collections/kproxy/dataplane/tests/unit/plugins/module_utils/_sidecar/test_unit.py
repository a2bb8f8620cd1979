# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import configparser

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import folder_lock
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.nft_command import NftCommand
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.unit import UnitOptions, render


def parsed(options: UnitOptions) -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(render(options))
    assert parser.sections() == ["Unit", "Service", "Install"]
    return parser["Service"]


def test_the_service_is_watched_restarted_and_may_do_little() -> None:
    service = parsed(UnitOptions())
    assert (service["Type"], service["Restart"], service["WatchdogSec"]) == ("notify", "always", "30s")
    assert service["ExecStart"] == "/usr/local/sbin/kproxyd --config /etc/kproxy/kproxyd.json"
    assert service["CapabilityBoundingSet"] == "CAP_NET_ADMIN CAP_NET_BIND_SERVICE"
    assert service["AmbientCapabilities"] == service["CapabilityBoundingSet"]
    assert service["ProtectSystem"] == "strict"
    assert "bpf" not in service["SystemCallFilter"]


def test_what_kproxyd_waits_for_ends_before_its_watchdog_does() -> None:
    """Else a hanging nft, or a stopped process that holds a lock, would end kproxyd, and nobody would learn why."""
    waits = (NftCommand().timeout_seconds, folder_lock.PATIENCE_SECONDS)
    assert max(waits) <= float(parsed(UnitOptions())["WatchdogSec"].rstrip("s")) / 2


def test_others_may_read_what_is_unpacked() -> None:
    """kproxyctl runs from it, and says to whoever is not root that it takes root; the state is for root alone."""
    service = parsed(UnitOptions())
    assert service["UMask"] == "0022"
    assert (service["CacheDirectoryMode"], service["StateDirectoryMode"]) == ("0755", "0750")


def test_a_full_disk_keeps_it_from_nothing() -> None:
    """systemd makes a folder in /tmp for private devices, and starts nothing where it cannot."""
    service = parsed(UnitOptions())
    assert "PrivateDevices" not in service
    assert service["DevicePolicy"] == "closed"


def test_ebpf_adds_what_it_needs_and_nothing_else() -> None:
    plain, ebpf = parsed(UnitOptions()), parsed(UnitOptions(backend="ebpf"))
    more = {key for key in {*plain, *ebpf} if plain.get(key) != ebpf.get(key)}
    assert more == {
        "AmbientCapabilities",
        "CapabilityBoundingSet",
        "ProtectControlGroups",
        "ProtectKernelTunables",
        "ReadWritePaths",
        "RestrictNamespaces",
        "SystemCallFilter",
    }
    assert (plain["RestrictNamespaces"], ebpf["RestrictNamespaces"]) == ("yes", "net")
    assert set(plain["CapabilityBoundingSet"].split()) < set(ebpf["CapabilityBoundingSet"].split())
    assert "CAP_SYS_ADMIN" not in plain["CapabilityBoundingSet"]


@pytest.mark.parametrize(("version", "grows"), [(0, False), (252, False), (254, True), (257, True)])
def test_an_older_systemd_sees_no_setting_that_it_does_not_know(version: int, grows: bool) -> None:
    assert ("RestartMaxDelaySec" in parsed(UnitOptions(systemd_version=version))) is grows
