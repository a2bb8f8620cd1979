"""The engine alone as the product under test: no daemon round it, a child process in the node's namespace."""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

from ansible_collections.kproxy.dataplane.plugins.module_utils._engine import ebpf_options
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.backend import Backend
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.ebpf_backend import EbpfBackend
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.ebpf_upkeep import EbpfUpkeep
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.engine import Engine
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.nftables_backend import NftablesBackend
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.config import ProxyConfig
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.parse import Delete
from devtools.conformance import own_health
from devtools.conformance.corpus import Case, ObjectKey
from devtools.conformance.facts import HttpResponse
from devtools.conformance.manifests import changes, settings
from devtools.conformance.netns import NetworkNamespace
from devtools.conformance.product import Manifests

STEP_SECONDS = 30.0


class EngineProduct:
    """Changes go through a pipe; the answer says that the commit is made, or why not."""

    def __init__(self, backend: str = "nft", options: Mapping[str, str] | None = None) -> None:
        """options: where the eBPF backend finds its cgroup and BPF file system."""
        self._backend = backend
        self._options = dict(options or {})
        self._process: multiprocessing.process.BaseProcess | None = None
        self._case: Case | None = None

    def start(self, case: Case, node: NetworkNamespace, objects: Manifests) -> None:
        self._case = case
        context = multiprocessing.get_context("fork")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(node, settings(case), theirs, self._backend, self._options), daemon=True
        )
        self._process.start()
        theirs.close()
        self._send(objects, [])

    def apply(self, changed: Manifests, deleted: Sequence[ObjectKey], objects: Manifests) -> None:
        self._send(changed, deleted)

    def _send(self, changed: Manifests, deleted: Sequence[ObjectKey]) -> None:
        self._pipe.send((list(changed), list(deleted)))
        if not self._pipe.poll(STEP_SECONDS):
            raise RuntimeError(f"the engine has not answered in {STEP_SECONDS:.0f} s")
        problem = self._pipe.recv()
        if problem:
            raise RuntimeError(problem)

    def proxy_health(self, check: Mapping[str, Any]) -> HttpResponse:
        assert self._case is not None, "start() comes first"
        return own_health.proxy_health(check, self._case.node)

    def stop(self) -> None:
        if self._process is not None:
            self._pipe.send(None)
            self._process.join(5)
            self._process.kill()


def _made(backend: str, options: Mapping[str, str]) -> Backend:
    if backend == "nft":
        return NftablesBackend()
    made = EbpfBackend(options=ebpf_options.Options(options["bpfDirectory"], options["cgroup"]))
    EbpfUpkeep(made).start()
    return made


def _serve(
    node: NetworkNamespace, values: Mapping[str, Any], pipe: Connection, backend: str, options: Mapping[str, str]
) -> None:
    node.joiner()()
    engine = Engine(ProxyConfig.from_mapping(values), _made(backend, options))
    while True:
        request = pipe.recv()
        if request is None:
            return
        changed, deleted = request
        try:
            engine.apply(changes(changed) + [Delete(*key) for key in deleted])
            result = engine.sync()
            pipe.send(f"left out: {result.left_out}" if result.left_out else "")
        except Exception as error:
            pipe.send(f"{type(error).__name__}: {error}")
