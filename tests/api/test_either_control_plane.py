"""The source against the control plane at hand: the real one if KUBEBUILDER_ASSETS is set, else the stand-in.

The same tests for both keep the stand-in honest.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.endpointslice import EndpointSlice
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.node import Node
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.service import Service
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.servicecidr import ServiceCIDR
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar import reflector
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.api_client import ApiClient
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.api_error import ApiError, Fault
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.credentials import Credentials
from devtools.control_plane import ControlPlane, ControlPlaneError, NotFoundError, start_control_plane
from tests.api.conftest import NODE, StartSource
from tests.api.objects import endpoint_slice, node, service
from tests.api.recorder import Recorder

HEADLESS = "service.kubernetes.io/headless"
OTHER_PROXY = "service.kubernetes.io/service-proxy-name"


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with start_control_plane(service_cidrs=["10.96.0.0/12", "fd00:96::/108"]) as started:
        started.apply(node(NODE, zone="a"), node("gpu-b", zone="b"))
        yield started


@pytest.fixture
def path(plane: ControlPlane, tmp_path: Path) -> Path:
    return plane.write_kubeconfig(tmp_path / "kubeconfig")


@pytest.fixture(autouse=True)
def _clean(plane: ControlPlane) -> Iterator[None]:
    """Leave no object of this test behind; the namespace is the test's own by name only."""
    created: list[dict[str, object]] = []
    apply = plane.apply

    def remember(*manifests: dict[str, object]) -> None:
        created.extend(manifests)
        apply(*manifests)

    plane.apply = remember  # type: ignore[method-assign,assignment]
    yield
    plane.apply = apply  # type: ignore[method-assign]
    plane.delete(*(manifest for manifest in created if manifest["kind"] != "Node"))


def get(recorder: Recorder, kind: str, name: str, namespace: str = "shop") -> object:
    return recorder.objects.get((kind, namespace, name))


def test_first_lists(plane: ControlPlane, path: Path, start_source: StartSource) -> None:
    plane.apply(service("web", clusterIP="10.96.7.7"), endpoint_slice("web-1", "10.244.1.5", "10.244.1.6", of="web"))
    source, recorder = start_source(path)
    recorder.wait(lambda _r: source.synced)
    recorder.wait(lambda r: "web" in r.names("Service") and "web-1" in r.names("EndpointSlice"))
    web = get(recorder, "Service", "web")
    assert isinstance(web, Service)
    assert web.cluster_ips == (bytes([10, 96, 7, 7]),)
    slice_ = get(recorder, "EndpointSlice", "web-1")
    assert isinstance(slice_, EndpointSlice)
    assert len(slice_.endpoints) == 2
    assert recorder.names("Node") == {NODE}, "no other node is our business"
    assert all(isinstance(obj, Node) for key, obj in recorder.objects.items() if key[0] == "Node")


def test_service_ranges(plane: ControlPlane, path: Path, start_source: StartSource) -> None:
    extra = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "ServiceCIDR",
        "metadata": {"name": "more"},
        "spec": {"cidrs": ["10.200.0.0/24"]},
    }
    _source, recorder = start_source(path)
    recorder.wait(lambda r: bool(r.lists("ServiceCIDR")))
    plane.apply(extra)
    recorder.wait(lambda r: "more" in r.names("ServiceCIDR"))
    assert isinstance(get(recorder, "ServiceCIDR", "more", ""), ServiceCIDR)
    plane.delete(extra)


def test_changes_arrive(plane: ControlPlane, path: Path, start_source: StartSource) -> None:
    _source, recorder = start_source(path)
    recorder.wait(lambda r: bool(r.lists("EndpointSlice")) and bool(r.lists("Service")))
    plane.apply(service("db"), endpoint_slice("db-1", "10.244.1.5", of="db"))
    recorder.wait(lambda r: "db" in r.names("Service") and "db-1" in r.names("EndpointSlice"))
    plane.apply(endpoint_slice("db-1", "10.244.1.5", "10.244.1.6", "10.244.1.7", of="db"))
    recorder.wait(lambda r: len(getattr(get(r, "EndpointSlice", "db-1"), "endpoints", ())) == 3)
    plane.delete(endpoint_slice("db-1", of="db"), service("db"))
    recorder.wait(lambda r: "db" not in r.names("Service") and "db-1" not in r.names("EndpointSlice"))


def test_status_brings_load_balancer_addresses(plane: ControlPlane, path: Path, start_source: StartSource) -> None:
    _source, recorder = start_source(path)
    balanced = {**service("lb", type="LoadBalancer"), "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.80"}]}}}
    plane.apply(balanced)
    wanted = (bytes([192, 0, 2, 80]),)
    recorder.wait(lambda r: getattr(get(r, "Service", "lb"), "load_balancer_ips", ()) == wanted)


def test_dual_stack(plane: ControlPlane, path: Path, start_source: StartSource) -> None:
    _source, recorder = start_source(path)
    plane.apply(service("both", ipFamilyPolicy="RequireDualStack"))
    recorder.wait(lambda r: {len(ip) for ip in getattr(get(r, "Service", "both"), "cluster_ips", ())} == {4, 16})


def test_what_kube_proxy_does_not_watch(plane: ControlPlane, path: Path, start_source: StartSource) -> None:
    plane.apply(
        service("headless", clusterIP="None"),
        service("theirs", labels={OTHER_PROXY: ""}),
        endpoint_slice("headless-1", "10.244.1.9", of="headless", labels={HEADLESS: ""}),
        service("ours"),
    )
    _source, recorder = start_source(path)
    recorder.wait(lambda r: "ours" in r.names("Service") and bool(r.lists("EndpointSlice")))
    assert not {"headless", "theirs"} & recorder.names("Service")
    assert "headless-1" not in recorder.names("EndpointSlice")
    # A label that comes or goes moves the object into or out of sight.
    plane.apply(service("ours", labels={OTHER_PROXY: "mesh"}), service("theirs"))
    recorder.wait(lambda r: "theirs" in r.names("Service") and "ours" not in r.names("Service"))


def test_zone_of_the_node(plane: ControlPlane, path: Path, start_source: StartSource) -> None:
    _source, recorder = start_source(path)
    recorder.wait(lambda r: r.names("Node") == {NODE})
    plane.apply(node(NODE, zone="z"))
    recorder.wait(lambda r: getattr(get(r, "Node", NODE, ""), "zone", None) == "z")
    plane.apply(node("gpu-b", zone="y"))
    plane.apply(node(NODE, zone="a"))
    recorder.wait(lambda r: getattr(get(r, "Node", NODE, ""), "zone", None) == "a")
    assert recorder.names("Node") == {NODE}


def test_a_list_in_many_pages(
    plane: ControlPlane, path: Path, start_source: StartSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reflector, "PAGE", 7)
    names = {f"page-{number}" for number in range(30)}
    plane.apply(*(service(name) for name in names))
    source, recorder = start_source(path)
    recorder.wait(lambda r: names <= r.names("Service"))
    assert source.counters["Service"].lists == 1


def test_the_proxy_may_do_nothing_else(plane: ControlPlane, path: Path) -> None:
    client = ApiClient(Credentials(str(path)))
    assert client.get_json("/api/v1/services", {"limit": "1"})[0]["kind"] == "ServiceList"
    with pytest.raises(ApiError) as refused:
        client.get_json("/api/v1/secrets", {})
    assert refused.value.fault is Fault.FORBIDDEN


def test_the_administrators_verbs(plane: ControlPlane) -> None:
    web = service("admin-web", clusterIP="10.96.9.9")
    plane.apply(web)
    plane.apply(web)
    assert plane.admin.get(web)["spec"]["clusterIP"] == "10.96.9.9"
    with pytest.raises(ControlPlaneError, match="already allocated"):
        plane.admin.create(service("taken", clusterIP="10.96.9.9"))
    plane.delete(web, web)
    with pytest.raises(NotFoundError):
        plane.admin.get(web)
