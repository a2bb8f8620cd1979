"""How long it takes to get Services into the kernel, all of them at a cold start and one change afterwards.

The kernel path starts from parsed objects and ends with the commit's acknowledgement. The API path is kproxyd itself
against an API server: the cold start runs from the start of the process to its readiness, which it reports after
its first commit; a change is timed by the process from the event's arrival to the acknowledged commit. Everything runs
in a network namespace of its own.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
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

from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.engine import Engine
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.nftables_backend import NftablesBackend
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.config import ProxyConfig
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.nfnetlink import Nfnetlink
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.structure import list_chains
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.parse import Upsert, parse
from devtools.bench import objects
from devtools.bootstrap import ROOT
from devtools.conformance.netns import NetworkNamespace
from devtools.control_plane import StandIn
from devtools.http_probe import get

MODULE = "ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.main"
CHANGES = 200
READY_SECONDS = 120.0
_METRICS_PORT = 10249
_LATENCY = "kproxy_event_to_commit_seconds"


@dataclass(frozen=True)
class Figures:
    """What was measured; the names are those of the JSON output."""

    services: int
    endpoints: int
    backend: str
    kernel_cold_start_s: float
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
    print(f"kernel path: {services} services with {endpoints} endpoints", file=sys.stderr, flush=True)
    with _namespace():
        kernel = _in_child(lambda: _kernel_path(services, endpoints, backend))
    print("API path: API server, kproxyd", file=sys.stderr, flush=True)
    with _namespace() as namespace:
        api = _api_path(services, endpoints, backend, namespace)
    return Figures(services, endpoints, backend, kernel["cold"], kernel["change"], *api)


# ---------------------------------------------------------------------- kernel path


def _kernel_path(services: int, endpoints: int, backend: str) -> dict[str, float]:
    changes = [Upsert(obj) for manifest in objects.cluster(services, endpoints) if (obj := parse(manifest))]
    # What is measured is the proxy's work, not the collector's walks over the objects of this benchmark.
    gc.collect()
    gc.freeze()
    gc.disable()
    config = ProxyConfig.from_mapping({"nodeName": objects.NODE_NAME, "clusterCIDR": objects.CLUSTER_CIDR})
    engine = Engine(config, _backend(backend, config))
    started = time.monotonic()
    engine.apply(changes)
    engine.sync()
    cold = time.monotonic() - started
    seconds = []
    for turn in range(CHANGES):
        manifest = objects.endpointslice(services // 2, endpoints, extra=1 - turn % 2)
        started = time.monotonic()
        obj = parse(manifest)
        engine.apply([Upsert(obj)] if obj is not None else [])
        engine.sync()
        seconds.append(time.monotonic() - started)
    return {"cold": round(cold, 3), "change": _milliseconds(_percentile(seconds[1:], 50))}


def _backend(name: str, config: ProxyConfig) -> Any:
    if name == "nft":
        return NftablesBackend(config.families)
    from devtools.bench.ebpf_backend import make

    return make(config)


def _in_child(work: Any) -> dict[str, float]:
    """Run in a forked child, so that what it allocates does not weigh on what is measured next."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.write(writing, json.dumps(work()).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    if os.waitpid(pid, 0)[1]:
        raise RuntimeError("the kernel path failed; its error is above")
    found: dict[str, float] = json.loads(text)
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


def _api_path(
    services: int, endpoints: int, backend: str, namespace: NetworkNamespace
) -> tuple[float, float, float, float, int]:
    with tempfile.TemporaryDirectory(prefix="kproxy-bench-") as name:
        folder = Path(name)
        plane = LoadedStandIn(folder / "api", service_cidrs=[objects.SERVICE_CIDR])
        with plane.preload(folder, objects.cluster(services, endpoints)):
            kubeconfig = plane.write_kubeconfig(folder / "kubeconfig")
            config = folder / "kproxyd.json"
            config.write_text(json.dumps(_config(folder, kubeconfig, backend)))
            process, cold = _start_kproxyd(folder, config)
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
        },
    }


def _start_kproxyd(folder: Path, config: Path) -> tuple[subprocess.Popen[bytes], float]:
    """Start kproxyd and wait for the readiness that it reports after its first commit, as systemd would."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifications:
        notifications.bind(str(folder / "notify"))
        notifications.settimeout(READY_SECONDS)
        environment = {**os.environ, "NOTIFY_SOCKET": str(folder / "notify")}
        with (folder / "kproxyd.log").open("wb") as log:
            started = time.monotonic()
            process = subprocess.Popen(
                [sys.executable, "-m", MODULE, "--config", str(config)],
                cwd=ROOT,
                env=environment,
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
