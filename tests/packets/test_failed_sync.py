"""Case 26: a sync that fails must not swallow the changes it carried; the engine alone, in the node's namespace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.backend import CommitError
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.engine import Engine, SyncResult
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.nftables_backend import NftablesBackend
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.config import ProxyConfig
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.plan import Plan
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.parse import Delete
from devtools.conformance.corpus import Case, Client, ConntrackEntry, Destination, ObjectKey, SocketAddress
from devtools.conformance.facts import HttpResponse
from devtools.conformance.manifests import changes, settings
from devtools.conformance.netns import NetworkNamespace
from devtools.conformance.observation import ANSWERED
from devtools.conformance.packet_system import PacketSystem
from devtools.conformance.product import Manifests
from devtools.conformance.traffic import Shot
from tests.packets.reported_cases import case, expectations, folder, manifests, step

BEFORE, AFTER = "before the kernel sees it", "after the kernel has taken it"


class FlakyNftables(NftablesBackend):
    """A backend whose next commit fails when told so."""

    failing = ""

    def commit(self, plan: Plan) -> None:
        failing, self.failing = self.failing, ""
        if failing == BEFORE:
            raise CommitError("injected: nothing was written")
        super().commit(plan)
        if failing == AFTER:
            raise CommitError("injected: the answer was lost")


class FlakyEngine:
    """The engine as a product whose failures the test decides."""

    def start(self, case: Case, node: NetworkNamespace, objects: Manifests) -> None:
        self._node = node
        with node.entered():
            self.backend = FlakyNftables()
            self.engine = Engine(ProxyConfig.from_mapping(settings(case)), self.backend)
        self.apply(objects, [], objects)

    def apply(self, changed: Manifests, deleted: Sequence[ObjectKey], objects: Manifests) -> None:
        self.engine.apply(changes(changed) + [Delete(*key) for key in deleted])
        self.sync()

    def sync(self) -> SyncResult:
        with self._node.entered():
            return self.engine.sync()

    def proxy_health(self, check: Mapping[str, Any]) -> HttpResponse:
        raise NotImplementedError

    def stop(self) -> None:
        self.backend.close()


def reached(system: PacketSystem, to: str) -> set[str]:
    address, _, protocol = to.partition("/")
    ip, port = SocketAddress.parse(address)
    shot = Shot(Client("10.244.1.9", "pod-local"), 0, Destination(ip, protocol.upper(), port))
    return {str(one.server) if one.outcome == ANSWERED else one.outcome for one in system.shoot([shot] * 5)}


@pytest.mark.parametrize("moment", [BEFORE, AFTER])
def test_26_failed_sync_keeps_changes(moment: str) -> None:
    sets = [manifests(folder("26") / f"objects-{number}.yaml") for number in (1, 2, 3, 4)]
    flows = expectations("26")["flows"]
    steps = [step(f"objects-{number}", sets[number - 2], sets[number - 1]) for number in (2, 3, 4)]
    one = case("26", "n1", sets[0], flows, after=steps)
    product = FlakyEngine()
    system = PacketSystem(one, {}, product)
    try:
        system.start(one.start)
        stale = ConntrackEntry("stale", "UDP", SocketAddress("10.97.0.3", 514), SocketAddress("10.244.1.153", 514))
        system.insert_conntrack([stale])
        product.backend.failing = moment
        with pytest.raises(CommitError, match="injected"):
            system.apply(one.steps[0])
        assert product.engine.pending
        if moment == BEFORE:
            assert reached(system, "10.97.0.1:80/tcp") == {"10.244.1.151:8080"}
        system.apply(one.steps[1])
        for flow in flows:
            assert reached(system, flow["to"]) == set(flow["backends"])
        assert system.conntrack_left() == set()
        # objects-4 differs in nothing from objects-3.
        assert sets[3] == sets[2]
        system.apply(one.steps[2])
        assert not product.sync().wrote
        with system.node.entered():
            assert not product.engine.audit().wrote
    finally:
        system.close()
