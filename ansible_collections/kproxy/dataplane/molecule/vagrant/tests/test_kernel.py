"""What only a kernel of its own shows: modules, settings of no namespace, IPVS, and a boot from nothing."""

from __future__ import annotations

import re

from testinfra.host import Host

FOREIGN_SERVERS = {"198.51.100.200:5432", "192.0.2.11:3306"}


def first_boot(host: Host) -> bool:
    """Tell whether the machine still runs since it was made."""
    now: str = host.file("/proc/sys/kernel/random/boot_id").content_string
    return bool(now == host.file("/root/first-boot").content_string)


def test_the_machine_has_modules_of_its_own(host: Host) -> None:
    release = host.check_output("uname -r")
    assert host.file(f"/lib/modules/{release}").is_directory
    assert "nf_conntrack" in host.check_output("lsmod")


def test_ipvs_of_kube_proxy_is_gone_and_that_of_others_is_not(host: Host) -> None:
    servers = set(re.findall(r"^-A -\w (\S+)", host.check_output("ipvsadm --save --numeric"), re.MULTILINE))
    assert servers == (FOREIGN_SERVERS if first_boot(host) else set())
    assert not host.interface("kube-ipvs0").exists
    assert host.interface("vip0").exists == (first_boot(host))


def test_no_ipset_of_kube_proxy_is_left(host: Host) -> None:
    names = set(host.check_output("ipset list -n").split())
    assert names == ({"f2b-sshd"} if first_boot(host) else set())


def test_settings_of_no_namespace_hold(host: Host) -> None:
    assert host.sysctl("net.netfilter.nf_conntrack_max") >= 131072
    assert host.sysctl("net.ipv4.ip_forward") == 1
    assert host.sysctl("net.ipv6.conf.all.forwarding") == 1


def test_the_dataplane_is_the_one_asked_for(host: Host) -> None:
    tables = host.check_output("nft list tables")
    programs = host.check_output("find /sys/fs/bpf -maxdepth 2")
    if host.file("/root/backend").exists:
        assert "/sys/fs/bpf/kproxy" in programs
    else:
        assert "table ip kproxy" in tables
        assert "kproxy" not in programs
