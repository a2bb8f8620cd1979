"""One control plane for tests, demos and benchmarks: the real API server where there is one, else the stand-in.

With `KUBEBUILDER_ASSETS` naming a folder that holds `kube-apiserver` and `etcd` (the convention of envtest), these two
are started; without it `devtools.apiserver`. Both come with certificates of their own, a kubeconfig for the proxy's
identity `system:kube-proxy`, and the same few verbs.
"""

from __future__ import annotations

import ipaddress
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from typing import Any, Self

from devtools.api_admin import Admin, ControlPlaneError, NotFoundError
from devtools.apiserver.auth import ADMIN_GROUP, KUBE_PROXY
from devtools.apiserver.netns import inside
from devtools.apiserver.pki import CertificateAuthority, kubeconfig
from devtools.apiserver.server import DEFAULT_SERVICE_CIDRS

__all__ = [
    "Admin",
    "ControlPlane",
    "ControlPlaneError",
    "NotFoundError",
    "RealControlPlane",
    "StandIn",
    "start_control_plane",
]

ASSETS = "KUBEBUILDER_ASSETS"
NODE_PROXIER_GROUP = "system:node-proxier"
START_SECONDS = 180.0  # loading 44,000 Services on a busy machine is part of it
DOCUMENTATION_ADDRESS = "192.0.2.1"


class ControlPlane:
    """A running control plane; use as a context manager, made by `start_control_plane` or by a class below.

    Attributes:
        url: address of the API server.
        admin: what creates and deletes objects.
    """

    kind = ""

    def __init__(
        self,
        data: Path | None = None,
        *,
        bind: str = "127.0.0.1",
        port: int = 0,
        network_namespace: str | None = None,
        service_cidrs: Sequence[str] = DEFAULT_SERVICE_CIDRS,
        hosts: Sequence[str] = (),
    ) -> None:
        self._own_data = data is None
        self.data = Path(tempfile.mkdtemp(prefix="kp-control-plane-")) if data is None else data
        self.data.mkdir(parents=True, exist_ok=True)
        self.bind = bind
        self.port = port
        self.network_namespace = network_namespace
        self.service_cidrs = tuple(service_cidrs)
        self.hosts = tuple(dict.fromkeys(("localhost", "127.0.0.1", "::1", "kubernetes", bind, *hosts)))
        self.authority = CertificateAuthority.load_or_create(self.data / "pki")
        self._processes: list[subprocess.Popen[bytes]] = []
        self._reserved: list[socket.socket] = []
        self.url = ""
        self._admin: Admin | None = None
        self._admin_tls: ssl.SSLContext | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> Self:
        """Start everything; return once the API server is ready."""
        try:
            self.port = self.port or self._reserve(self.bind)
            self._locate()
            self._launch()
            self._become_admin()
            self._wait("API server", self._ready)
            self._unreserve()
            return self
        except BaseException:
            self.stop()
            raise

    def attach(self) -> bool:
        """Speak to an API server that an earlier process left running on this data folder; tell whether one answers."""
        self._locate()
        self._become_admin()
        return self._ready()

    def _reserve(self, address: str) -> int:
        """Return a free TCP port, and keep it from everybody but a process that asks for it by its number."""
        with inside(self.network_namespace):
            held = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        self._reserved.append(held)
        # Linux lets a server of the same option listen beside a socket that is bound and does not listen.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((address, 0))
        port: int = held.getsockname()[1]
        return port

    def _unreserve(self) -> None:
        for held in self._reserved:
            held.close()
        self._reserved.clear()

    def _locate(self) -> None:
        host = f"[{self.bind}]" if ":" in self.bind else self.bind
        self.url = f"https://{host}:{self.port}"

    def _become_admin(self) -> None:
        self._admin_tls = self._client_tls("admin", [ADMIN_GROUP])
        self._admin = self.new_admin()

    def stop(self) -> None:
        """End every process that was started, newest first; a temporary data folder goes with them."""
        if self._admin is not None:
            self._admin.close()
        self._unreserve()
        for process in reversed(self._processes):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()
        if self._own_data:
            shutil.rmtree(self.data, ignore_errors=True)

    def new_admin(self) -> Admin:
        """Return an administrator's client with a connection of its own, for another thread."""
        if self._admin_tls is None:
            raise ControlPlaneError("the control plane is not running")
        return Admin(self.url, self._admin_tls, self.network_namespace)

    @property
    def admin(self) -> Admin:
        if self._admin is None:
            raise ControlPlaneError("the control plane is not running")
        return self._admin

    @property
    def process_ids(self) -> tuple[int, ...]:
        """The processes that were started, for whoever leaves them running."""
        return tuple(process.pid for process in self._processes)

    def apply(self, *manifests: Mapping[str, Any]) -> None:
        """Create or replace objects, status included."""
        self.admin.apply(*manifests)

    def load(self, manifests: Iterable[Mapping[str, Any]], connections: int = 8) -> None:
        """Create many new objects over several connections; the first refusal is raised once all are through."""
        waiting = iter(manifests)
        lock = threading.Lock()

        def create_some() -> None:
            admin = self.new_admin()
            try:
                while True:
                    with lock:
                        manifest = next(waiting, None)
                    if manifest is None:
                        return
                    admin.create(manifest)
            finally:
                admin.close()

        with ThreadPoolExecutor(connections) as pool:
            for done in [pool.submit(create_some) for _ in range(connections)]:
                done.result()

    def delete(self, *manifests: Mapping[str, Any]) -> None:
        """Delete objects."""
        self.admin.delete(*manifests)

    def kubeconfig(self, user: str = KUBE_PROXY, *, groups: Sequence[str] = (), server: str = "") -> str:
        """Return a kubeconfig with a fresh client certificate; `server` replaces the address."""
        organizations = tuple(groups) or ((ADMIN_GROUP,) if user == "admin" else (NODE_PROXIER_GROUP,))
        pair = self.authority.issue(user, organizations=organizations)
        return kubeconfig(server or self.url, self.authority.pair.certificate, user=user, pair=pair)

    def write_kubeconfig(self, path: Path, user: str = KUBE_PROXY, *, server: str = "") -> Path:
        """Write such a kubeconfig, readable by its owner only."""
        path.touch(mode=0o600)
        path.write_text(self.kubeconfig(user, server=server))
        return path

    def _launch(self) -> None:
        raise NotImplementedError

    def _spawn(self, name: str, command: Sequence[str]) -> None:
        """Start a process, in the network namespace if there is one; its output goes to NAME.log in the data folder."""
        if self.network_namespace is not None:
            command = ["ip", "netns", "exec", self.network_namespace, *command]
        root = str(Path(__file__).resolve().parent.parent)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
        with open(self.data / f"{name}.log", "ab") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        self._processes.append(process)

    def _client_tls(self, user: str, organizations: Sequence[str]) -> ssl.SSLContext:
        certificate, key = self.authority.issue(user, organizations=organizations).write(self.data / "pki", user)
        context = ssl.create_default_context(cadata=self.authority.pair.certificate.decode())
        context.load_cert_chain(certificate, key)
        return context

    def _ready(self) -> bool:
        try:
            return bool(self.admin.request("GET", "/readyz") == "ok")
        except (OSError, HTTPException, ControlPlaneError):
            return False

    def _wait(self, what: str, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not ready():
            for process in self._processes:
                if process.poll() is not None:
                    raise ControlPlaneError(f"{process.args!r} ended with {process.returncode}: {self._log_tail()}")
            if time.monotonic() > deadline:
                raise ControlPlaneError(f"{what} not ready after {START_SECONDS:.0f} s: {self._log_tail()}")
            time.sleep(0.05)

    def _log_tail(self) -> str:
        tails = []
        for path in sorted(self.data.glob("*.log")):
            lines = path.read_text(errors="replace").splitlines()[-8:]
            tails.append(f"{path.name}:\n" + "\n".join(line[:300] for line in lines))
        return "\n".join(tails)


class StandIn(ControlPlane):
    """The stand-in as a process of its own."""

    kind = "stand-in"

    def __init__(self, data: Path | None = None, *, proxy_token: str = "", **options: Any) -> None:
        """Take, besides everybody's options, a bearer token that stands for kube-proxy's user."""
        super().__init__(data, **options)
        self.proxy_token = proxy_token

    def _launch(self) -> None:
        command = [sys.executable, "-m", "devtools.apiserver", "--data", str(self.data)]
        command += ["--bind", self.bind, "--port", str(self.port)]
        command += [f"--service-cidr={cidr}" for cidr in self.service_cidrs]
        command += [f"--host={host}" for host in self.hosts]
        if self.proxy_token:
            command += ["--proxy-token", self.proxy_token]
        self._spawn("apiserver", command)


class RealControlPlane(ControlPlane):
    """etcd and kube-apiserver."""

    kind = "kube-apiserver"

    def __init__(self, assets: Path, data: Path | None = None, **options: Any) -> None:
        super().__init__(data, **options)
        self.assets = assets

    def _launch(self) -> None:
        # Always loopback of the namespace: etcd is for this API server alone.
        client_port, peer_port = self._reserve("127.0.0.1"), self._reserve("127.0.0.1")
        etcd = f"http://127.0.0.1:{client_port}"
        peer = f"http://127.0.0.1:{peer_port}"
        self._spawn(
            "etcd",
            [
                str(self.assets / "etcd"),
                f"--data-dir={self.data / 'etcd'}",
                f"--listen-client-urls={etcd}",
                f"--advertise-client-urls={etcd}",
                f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}",
                f"--initial-cluster=default={peer}",
                "--unsafe-no-fsync",
            ],
        )
        pki = self.data / "pki"
        certificate, key = self.authority.issue("kube-apiserver", hosts=self.hosts).write(pki, "apiserver")
        self.authority.issue("service-accounts").write(pki, "sa")
        advertised = DOCUMENTATION_ADDRESS if ipaddress.ip_address(self.bind).is_loopback else self.bind
        self._spawn(
            "apiserver",
            [
                str(self.assets / "kube-apiserver"),
                f"--etcd-servers={etcd}",
                f"--bind-address={self.bind}",
                f"--secure-port={self.port}",
                # Never used without the endpoint reconciler, but a namespace without a default route has no other.
                f"--advertise-address={advertised}",
                f"--tls-cert-file={certificate}",
                f"--tls-private-key-file={key}",
                f"--client-ca-file={pki / 'ca.crt'}",
                f"--service-cluster-ip-range={','.join(self.service_cidrs)}",
                "--authorization-mode=Node,RBAC",
                # There are no controllers here that would make the accounts this plugin insists on.
                "--disable-admission-plugins=ServiceAccount",
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-account-key-file={pki / 'sa.key'}",
                f"--service-account-signing-key-file={pki / 'sa.key'}",
                # Its own Service must not appear among those under test with an endpoint nobody can reach.
                "--endpoint-reconciler-type=none",
            ],
        )


def real_assets() -> Path | None:
    """Return the folder with kube-apiserver and etcd, or None if KUBEBUILDER_ASSETS names none.

    Raises:
        ControlPlaneError: the variable is set but a program is missing: falling back silently would hide it.
    """
    named = os.environ.get(ASSETS)
    if not named:
        return None
    folder = Path(named)
    missing = [name for name in ("kube-apiserver", "etcd") if not os.access(folder / name, os.X_OK)]
    if missing:
        raise ControlPlaneError(f"{ASSETS}={named} lacks {' and '.join(missing)}; unset it to use the stand-in")
    return folder


def new_control_plane(data: Path | None = None, **options: Any) -> ControlPlane:
    """Return the real control plane if KUBEBUILDER_ASSETS is set, else the stand-in; not started yet."""
    assets = real_assets()
    return StandIn(data, **options) if assets is None else RealControlPlane(assets, data, **options)


def start_control_plane(data: Path | None = None, **options: Any) -> ControlPlane:
    """Start the real control plane if KUBEBUILDER_ASSETS is set, else the stand-in; the caller stops it."""
    return new_control_plane(data, **options).start()
