"""Settings by sysctl name."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import sysctl

PATHS = [
    ("net.ipv4.ip_forward", "/proc/sys/net/ipv4/ip_forward"),
    ("net.ipv4.conf.eth0/100.rp_filter", "/proc/sys/net/ipv4/conf/eth0.100/rp_filter"),
]


@pytest.mark.parametrize(("name", "path"), PATHS)
def test_path_of(name: str, path: str) -> None:
    assert sysctl.path_of(name) == path


def test_values_are_read_as_words(tmp_path: Path) -> None:
    folder = tmp_path / "net" / "ipv4"
    folder.mkdir(parents=True)
    (folder / "ip_local_port_range").write_text("32768\t60999\n")
    (folder / "ip_local_reserved_ports").write_text("\n")
    names = ("net.ipv4.ip_local_port_range", "net.ipv4.ip_local_reserved_ports", "net.ipv4.missing")
    assert sysctl.read_all(names, str(tmp_path)) == {
        "net.ipv4.ip_local_port_range": "32768 60999",
        "net.ipv4.ip_local_reserved_ports": "",
    }
    assert not sysctl.writable("net.ipv4.missing", str(tmp_path))
    assert sysctl.writable("net.ipv4.ip_local_port_range", str(tmp_path))
