"""The nodes' root filesystem: built once by mmdebstrap, cached, shared by all nodes as the lower layer."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from devtools.bootstrap import locked, say
from devtools.lab.commands import run
from devtools.lab.topology import CACHE, LabError

GUEST = Path(__file__).parent / "guest"
SUITES = ("bookworm", "trixie")
PACKAGES = [
    *("systemd", "systemd-sysv", "dbus", "openssh-server", "python3", "python3-apt", "sudo", "ca-certificates"),
    *("nftables", "iptables", "ipset", "conntrack", "iproute2", "bpftool", "libbpf1", "procps", "kmod"),
    *("iputils-ping", "netcat-openbsd", "curl"),
]
# Nothing a disposable node without a console or the internet could use.
MASKED = [
    *("apt-daily.timer", "apt-daily-upgrade.timer", "e2scrub_all.timer", "fstrim.timer", "dpkg-db-backup.timer"),
    *("systemd-firstboot.service", "console-getty.service", "getty@tty1.service"),
]
FILES = {
    "etc/ssh/sshd_config.d/lab.conf": "UseDNS no\nMaxStartups 50\nHostKey /etc/ssh/ssh_host_ed25519_key\n",
    "etc/systemd/journald.conf.d/lab.conf": "[Journal]\nStorage=persistent\nSystemMaxUse=16M\n",
    "etc/machine-id": "",
}


def mirrors(sources: str) -> list[str]:
    """Return the Debian archives that apt's sources name (either format), in order, security ones left out."""
    found = re.findall(r"^(?:deb\s+(?:\[[^\]]*\]\s+)?|URIs:\s*)(https?://\S+/debian/?)(?:\s|$)", sources, re.MULTILINE)
    return list(dict.fromkeys(uri.rstrip("/") for uri in found))


def suite() -> str:
    """Return the Debian release of the nodes: KPROXY_LAB_SUITE or bookworm."""
    chosen = os.environ.get("KPROXY_LAB_SUITE") or SUITES[0]
    if chosen not in SUITES:
        raise LabError(f"KPROXY_LAB_SUITE={chosen}: use one of {', '.join(SUITES)}")
    return chosen


def key(release: str) -> str:
    """Return a digest that changes when the tree must be built anew."""
    return hashlib.sha256(repr((release, PACKAGES, MASKED, FILES)).encode()).hexdigest()[:12]


def ensure_root() -> Path:
    """Return the cached tree, building it when there is none for these contents (about a minute)."""
    release = suite()
    root = CACHE / f"root-{release}-{key(release)}"
    with locked(CACHE / "root.lock"):
        if not root.exists():
            build(release, root)
    return root


def build(release: str, root: Path) -> None:
    """Build the tree beside its place and move it there when complete."""
    say(f"lab: building the nodes' root filesystem ({release}, once, about a minute)")
    unfinished = root.with_name(f"{root.name}.unfinished")
    if unfinished.exists():
        shutil.rmtree(unfinished)
    bootstrap(release, unfinished, PACKAGES)
    furnish(unfinished)
    unfinished.rename(root)


def bootstrap(release: str, root: Path, packages: Sequence[str]) -> None:
    """Make a tree of a Debian release with these packages, from the archive and by the proxy of the host's own apt."""
    sources = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]
    text = "\n".join(path.read_text() for path in sources if path.is_file())
    proxy = subprocess.run(["apt-config", "dump", "Acquire"], capture_output=True, text=True, check=False).stdout
    inherited = [line for line in proxy.splitlines() if re.match(r'Acquire::https?::Proxy "', line)]
    options = [f"--aptopt={line}" for line in ["Acquire::Retries 5;", *inherited]]
    archives = mirrors(text)
    if not archives:
        raise LabError("apt's sources name no Debian archive: add one, the nodes are built from it")
    mirror = archives[0]
    include = f"--include={','.join(packages)}"
    # Its mounts below the tree must go with it, also when it is killed: the next run removes the tree.
    own_mounts = ["unshare", "--mount"]
    run([*own_mounts, "mmdebstrap", "--quiet", "--variant=minbase", include, *options, release, str(root), mirror])


def furnish(root: Path) -> None:
    """Turn a fresh Debian tree into a node's: own units, nothing that waits for a console, no shared identity."""
    for name, content in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    units = root / "etc/systemd/system"
    for unit in MASKED:
        (units / unit).unlink(missing_ok=True)
        (units / unit).symlink_to("/dev/null")
    (root / "etc/hostname").unlink(missing_ok=True)
    for pattern in ("etc/ssh/ssh_host_*", "var/cache/apt/archives/*.deb", "var/lib/apt/lists/*_*"):
        for path in root.glob(pattern):
            path.unlink()


def install_guest(upper: Path) -> None:
    """Put the lab's own programs and units into a node's layer, so that they are always the checkout's."""
    programs, units = upper / "opt/kproxy-lab", upper / "etc/systemd/system"
    wants = units / "sysinit.target.wants"
    for folder in (programs, wants):
        folder.mkdir(parents=True)
    for path in GUEST.iterdir():
        if path.suffix in (".py", ".service"):
            shutil.copy(path, programs if path.suffix == ".py" else units)
    (wants / "kproxy-lab.service").symlink_to("/etc/systemd/system/kproxy-lab.service")
