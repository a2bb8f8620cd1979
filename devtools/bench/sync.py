"""How long it takes to get Services into the kernel, all of them at a cold start and one change afterwards.

The kernel path starts from parsed objects and ends with the commit's acknowledgement. The API path is the bundle that
nodes get, run by the interpreter that nodes have, against an API server: the cold start runs from the start of the
process to the readiness that it reports after its first commit; a change is timed by the process from the event's
arrival to the acknowledged commit. Everything runs in network namespaces of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.nfnetlink import Nfnetlink
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.structure import list_chains
from ansible_collections.kproxy.dataplane.plugins.plugin_utils._bundle import build
from devtools.bench import ebpf_backend, objects
from devtools.bench.listeners import ruleset_listeners
from devtools.bootstrap import ROOT
from devtools.conformance.netns import NetworkNamespace
from devtools.control_plane import StandIn
from devtools.environment import CACHE
from devtools.http_probe import get

CHANGES = 200
READY_SECONDS = 120.0
_METRICS_PORT = 10249
_POLL_SECONDS = 0.05
_LATENCY = "kproxy_event_to_commit_seconds"


@dataclass(frozen=True)
class Figures:
    """What was measured; the names are those of the JSON output.

    kernel_cold_start_cpu_s: the processor time of the kernel path's cold start, for machines that are busy.
    map_fill_s: the part of the kernel path's cold start that writes the eBPF maps, None for nftables.
    ruleset_listeners: sockets on this machine that make the kernel's part of a commit dearer, two to eight times.
    """

    services: int
    endpoints: int
    backend: str
    ruleset_listeners: int
    kernel_cold_start_s: float
    kernel_cold_start_cpu_s: float
    map_fill_s: float | None
    kernel_change_p50_ms: float
    api_cold_start_s: float
    change_p50_ms: float
    change_p99_ms: float
    rss_mb: float
    chains: int


def main(argv: list[str]) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="./dev bench sync", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--services", type=int, default=10000)
    parser.add_argument("--endpoints", type=int, default=5, help="of each service")
    parser.add_argument("--backend", choices=("nft", "ebpf"), default="nft")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    options = parser.parse_args(argv)
    figures = measure(options.services, options.endpoints, options.backend)
    for name, value in asdict(figures).items():
        print(f"{name:<24}{value}")
    if options.json is not None:
        options.json.write_text(json.dumps(asdict(figures), indent=2) + "\n")
    return 0


def measure(services: int, endpoints: int, backend: str) -> Figures:
    """Measure both paths."""
    listeners = ruleset_listeners()
    if listeners:
        print(
            f"note: {listeners} sockets on this machine listen for changes of rulesets, so that the kernel makes a "
            "message for each element of a commit; take labs down (./dev lab down) for figures to compare",
            file=sys.stderr,
        )
    print(f"kernel path: {services} services with {endpoints} endpoints", file=sys.stderr, flush=True)
    with _namespace():
        kernel = _kernel_path(services, endpoints, backend)
    print("API path: API server, kproxyd", file=sys.stderr, flush=True)
    # Packed outside of the namespace: the first time it takes libraries from the package index.
    bundle = build(CACHE / "bundle").path
    with _namespace():
        api = _api_path(services, endpoints, backend, bundle)
    return Figures(
        services,
        endpoints,
        backend,
        listeners,
        kernel["cold_s"],
        kernel["cold_cpu_s"],
        kernel["fill_s"],
        kernel["change_p50_ms"],
        *api,
    )


def _node_python() -> str:
    """Return the interpreter that nodes run the product with, the distribution's; else our own."""
    return shutil.which("python3", path="/usr/bin") or sys.executable


def _kernel_path(services: int, endpoints: int, backend: str) -> dict[str, Any]:
    command = [_node_python(), "-m", "devtools.bench.kernel_path", str(services), str(endpoints), backend]
    done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


# ---------------------------------------------------------------------- API path


class LoadedStandIn(StandIn):
    """The stand-in with objects that it has from the start."""

    def preload(self, folder: Path, manifests: Iterator[dict[str, Any]]) -> LoadedStandIn:
        """Write the objects to where the process reads them, before start()."""
        self.manifests = folder / "objects.json"
        self.manifests.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(manifests)}))
        return self

    def _spawn(self, name: str, command: Sequence[str]) -> None:
        super()._spawn(name, [*command, str(self.manifests)])


def _api_path(services: int, endpoints: int, backend: str, bundle: Path) -> tuple[float, float, float, float, int]:
    with tempfile.TemporaryDirectory(prefix="kproxy-bench-") as name:
        folder = Path(name)
        plane = LoadedStandIn(folder / "api", service_cidrs=[objects.SERVICE_CIDR])
        with plane.preload(folder, objects.cluster(services, endpoints)):
            kubeconfig = plane.write_kubeconfig(folder / "kubeconfig")
            config = folder / "kproxyd.json"
            config.write_text(json.dumps(_config(folder, kubeconfig, backend)))
            _unpack(folder, bundle)
            process, cold = _start_kproxyd(folder, bundle, config)
            try:
                seconds = [_one_change(plane, services, endpoints, turn) for turn in range(CHANGES)]
                rss = _resident_megabytes(process.pid)
                with Nfnetlink() as kernel:
                    chains = len(list_chains(kernel, 4))
            finally:
                process.terminate()
                process.wait(20)
    # The first change may need a chain for a count of endpoints that nothing had; it counts, as one of many.
    p50, p99 = _percentile(seconds, 50), _percentile(seconds, 99)
    return round(cold, 2), _milliseconds(p50), _milliseconds(p99), round(rss, 1), chains


def _config(folder: Path, kubeconfig: Path, backend: str) -> dict[str, Any]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": {"nft": "nftables", "ebpf": "ebpf"}[backend],
        "clusterCIDR": objects.CLUSTER_CIDR,
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        "kproxy": {
            "nodeName": objects.NODE_NAME,
            "source": "api",
            "socketPath": str(folder / "kproxyd.sock"),
            "stateDirectory": str(folder / "state"),
            **(ebpf_backend.places() if backend == "ebpf" else {}),
        },
    }


def _unpack(folder: Path, bundle: Path) -> None:
    """Let the bundle unpack itself, as it has on a node where it ran before."""
    subprocess.run(
        [_node_python(), str(bundle), "kproxyd", "--help"],
        env=_environment(folder),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        check=True,
    )


def _environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "SHIV_ROOT": str(folder / "unpacked"), "NOTIFY_SOCKET": str(folder / "notify")}


def _start_kproxyd(folder: Path, bundle: Path, config: Path) -> tuple[subprocess.Popen[bytes], float]:
    """Start kproxyd and wait for the readiness that it reports after its first commit, as systemd would."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifications:
        notifications.bind(str(folder / "notify"))
        notifications.settimeout(READY_SECONDS)
        with (folder / "kproxyd.log").open("wb") as log:
            started = time.monotonic()
            process = subprocess.Popen(
                [_node_python(), str(bundle), "kproxyd", "--config", str(config)],
                cwd=ROOT,
                env=_environment(folder),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            while b"READY=1" not in notifications.recv(4096):
                pass
        except TimeoutError:
            process.kill()
            process.wait()
            raise RuntimeError((folder / "kproxyd.log").read_text()[-2000:]) from None
        return process, time.monotonic() - started


def _one_change(plane: StandIn, services: int, endpoints: int, turn: int) -> float:
    """Change one endpoint; return the seconds from the event's arrival in kproxyd to the commit."""
    count, total = _latency()
    plane.apply(objects.endpointslice(services // 2, endpoints, extra=1 - turn % 2))
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        # Asking without a pause would measure how the daemon answers questions while it works.
        time.sleep(_POLL_SECONDS)
        now, seconds = _latency()
        if now > count:
            return (seconds - total) / (now - count)
    raise RuntimeError("a change did not reach the kernel")


def _latency() -> tuple[float, float]:
    """Return (events committed so far, their seconds in all), from the daemon's own histogram."""
    text = get(_METRICS_PORT, "/metrics").body.decode()
    found = {name: float(value) for name, value in re.findall(rf"^{_LATENCY}_(count|sum) (\S+)$", text, re.MULTILINE)}
    return found["count"], found["sum"]


def _resident_megabytes(pid: int) -> float:
    match = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(match.group(1)) / 1000 if match else 0.0


@contextmanager
def _namespace() -> Iterator[NetworkNamespace]:
    namespace = NetworkNamespace()
    try:
        namespace.ip(["link set lo up"])
        with namespace.entered():
            yield namespace
    finally:
        namespace.close()


def _percentile(values: Sequence[float], percent: int) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 2)
