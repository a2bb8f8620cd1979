"""The stand-in API server itself: what a client may rely on, compared with the API conventions it imitates."""

from __future__ import annotations

import base64
import json
import signal
import ssl
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from devtools.apiserver import ApiServer
from devtools.apiserver.api import merge_patch
from devtools.apiserver.defaults import ServiceAllocator, default_service
from devtools.apiserver.faults import Drop, Fault, FaultBook, Hang, Refuse, fault_from_mapping
from devtools.apiserver.manifests import expand, load
from devtools.apiserver.resources import by_kind, by_plural, parse_path
from devtools.apiserver.selectors import BadSelector, field_selector, fields_of, label_selector, supported_fields
from devtools.apiserver.status import ApiStatus
from tests.api.objects import service

LABELS = {"app": "web", "tier": "front", "empty": ""}
SELECTORS = [
    ("", True),
    ("app", True),
    ("!app", False),
    ("!none", True),
    ("none", False),
    ("empty", True),
    ("app=web", True),
    ("app==web", True),
    ("app = web , tier=front", True),
    ("app=web,tier=back", False),
    ("app!=db", True),
    ("none!=db", True),
    ("app!=web", False),
    ("empty=", True),
    ("app in (web, db)", True),
    ("app in (db)", False),
    ("none in (db)", False),
    ("app notin (db,cache)", True),
    ("none notin (db)", True),
    ("app notin (web)", False),
    ("app in (web,db),!none,tier!=back", True),
    ("!service.kubernetes.io/headless", True),
]
NO_SELECTORS = ["a b c", "=x", "app in web", "app=web=db"]


@pytest.mark.parametrize(("selector", "matches"), SELECTORS)
def test_label_selectors(selector: str, matches: bool) -> None:
    assert label_selector(selector)(LABELS) is matches


@pytest.mark.parametrize("selector", NO_SELECTORS)
def test_what_is_no_selector(selector: str) -> None:
    with pytest.raises(BadSelector):
        label_selector(selector)


def test_field_selectors() -> None:
    fields = fields_of("Service", service("web", clusterIP="None"))
    matches = field_selector("spec.clusterIP!=None,metadata.namespace=shop", supported_fields("Service"))
    assert not matches(fields)
    assert matches({**fields, "spec.clusterIP": "10.96.0.1"})
    with pytest.raises(BadSelector, match="not supported"):
        field_selector("spec.clusterIP=None", supported_fields("Node"))
    with pytest.raises(BadSelector, match="invalid"):
        field_selector("metadata.name", supported_fields("Node"))


PATHS = [
    ("/api/v1/services", ("services", "", "", "")),
    ("/api/v1/namespaces/shop/services/web/status", ("services", "shop", "web", "status")),
    ("/api/v1/nodes/gpu-a", ("nodes", "", "gpu-a", "")),
    ("/api/v1/namespaces", ("namespaces", "", "", "")),
    ("/api/v1/namespaces/shop", ("namespaces", "", "shop", "")),
    ("/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices", ("endpointslices", "shop", "", "")),
    ("/apis/networking.k8s.io/v1/servicecidrs/kubernetes", ("servicecidrs", "", "kubernetes", "")),
    ("/apis/networking.k8s.io/v1beta1/servicecidrs", None),
    ("/api/v1/services/a/b/c/d", None),
    ("/healthz", None),
]


@pytest.mark.parametrize(("path", "expected"), PATHS)
def test_paths(path: str, expected: tuple[str, str, str, str] | None) -> None:
    target = parse_path(path)
    found = target and (target.resource.plural, target.namespace, target.name, target.subresource)
    assert found == expected
    if target is not None:
        assert target.resource.path(target.namespace, target.name, target.subresource) == path


def test_kinds_that_are_not_served_are_named() -> None:
    assert by_plural("services") is by_kind("v1", "Service")
    with pytest.raises(KeyError, match="apps/v1 Pod"):
        by_kind("apps/v1", "Pod")


# RFC 7396, appendix A.
PATCHES = [
    ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
    ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
]


@pytest.mark.parametrize(("current", "patch", "expected"), PATCHES)
def test_merge_patch(current: Any, patch: Any, expected: Any) -> None:
    assert merge_patch(current, patch) == expected


def spec(**fields: Any) -> dict[str, Any]:
    values: dict[str, Any] = {"ports": [{"port": 80}], **fields}
    default_service(values)
    return values


def test_addresses_and_ports_are_assigned_once() -> None:
    allocator = ServiceAllocator(["10.96.0.0/28", "fd00::/112"])
    first, second, both = spec(), spec(type="NodePort"), spec(ipFamilyPolicy="PreferDualStack")
    for owner, values in (("a/1", first), ("a/2", second), ("a/3", both)):
        allocator.assign(owner, values)
    assert [first["clusterIP"], second["clusterIP"], both["clusterIPs"]] == [
        "10.96.0.2",
        "10.96.0.3",
        ["10.96.0.4", "fd00::2"],
    ]
    assert "nodePort" not in first["ports"][0]
    assert second["ports"][0]["nodePort"] == 30000
    with pytest.raises(ApiStatus, match="already allocated to a/1"):
        allocator.assign("a/4", spec(clusterIP="10.96.0.2"))
    with pytest.raises(ApiStatus, match="30000/TCP is already allocated to a/2"):
        allocator.assign("a/5", spec(type="NodePort", ports=[{"port": 1, "nodePort": 30000}]))
    allocator.release("a/1")
    allocator.assign("a/6", spec(clusterIP="10.96.0.2"))


def test_a_range_can_be_exhausted() -> None:
    allocator = ServiceAllocator(["10.96.0.0/29"])
    for number in range(5):
        allocator.assign(f"a/{number}", spec())
    with pytest.raises(ApiStatus, match="is full"):
        allocator.assign("a/6", spec())


def test_faults_are_taken_in_order_and_counted() -> None:
    book = FaultBook()
    book.add(Fault(Drop(), verb="list", resource="services"))
    book.add(Fault(Hang(), times=2))
    book.add(Fault(Refuse(410), verb="list", continued=True, times=None))
    assert book.take("watch", "services") == Hang()
    assert book.take("list", "services") == Drop()
    assert book.take("list", "nodes") == Hang()
    assert book.take("list", "services") is None
    assert book.take("list", "services", continued=True) == Refuse(410)
    assert book.take("list", "services", continued=True) == Refuse(410)
    book.clear()
    assert book.take("list", "services", continued=True) is None


def test_faults_from_other_processes() -> None:
    fault = fault_from_mapping({"action": "refuse", "code": 500, "verb": "list", "times": 3})
    assert (fault.action, fault.verb, fault.times) == (Refuse(500), "list", 3)
    for order in ({"action": "explode"}, {"action": "refuse"}, {"action": "hang", "code": 1}):
        with pytest.raises(ApiStatus, match="action"):
            fault_from_mapping(order)


def test_manifests_of_lists_and_folders(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text("kind: Service\n---\n---\nkind: List\nitems: [{kind: Node}, {kind: Pod}]\n")
    (tmp_path / "a.json").write_text('{"kind": "ServiceList", "apiVersion": "v1", "items": [{"metadata": {}}]}')
    (tmp_path / "README").write_text("nothing")
    assert [manifest["kind"] for manifest in load([tmp_path])] == ["Service", "Service", "Node", "Pod"]
    assert list(expand("text")) == []


class Client:
    """A client that shares nothing with the product."""

    def __init__(self, kubeconfig: str) -> None:
        config = json.loads(kubeconfig)
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self.url = cluster["server"]
        ca = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self._tls = ssl.create_default_context(cadata=ca)
        with tempfile.NamedTemporaryFile() as pair:
            for field in ("client-certificate-data", "client-key-data"):
                pair.write(base64.b64decode(user[field]))
            pair.flush()
            self._tls.load_cert_chain(pair.name)

    def open(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": content_type}, method=method)
        return urllib.request.urlopen(request, context=self._tls, timeout=60)

    def __call__(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> Any:
        with self.open(method, path, body, content_type) as response:
            return json.load(response)


@pytest.fixture
def admin(server: ApiServer) -> Client:
    return Client(server.kubeconfig("admin"))


SERVICES = "/api/v1/namespaces/shop/services"


def refusal(error: urllib.error.HTTPError) -> tuple[int, str]:
    status = json.load(error)
    assert (status["kind"], status["status"], status["code"]) == ("Status", "Failure", error.code)
    return error.code, status["reason"]


REFUSALS: list[tuple[str, str, Any, tuple[int, str]]] = [
    ("GET", f"{SERVICES}/none", None, (404, "NotFound")),
    ("GET", "/apis/example.com/v1/things", None, (404, "NotFound")),
    ("GET", "/api/v1/services?labelSelector=a%20b%20c", None, (400, "BadRequest")),
    ("GET", "/api/v1/nodes?fieldSelector=spec.x%3D1", None, (400, "BadRequest")),
    ("GET", "/api/v1/services?continue=nonsense", None, (400, "BadRequest")),
    ("GET", "/api/v1/services?resourceVersion=99999", None, (504, "Timeout")),
    ("POST", SERVICES, {"metadata": {"name": "web"}}, (409, "AlreadyExists")),
    ("POST", SERVICES, {"metadata": {}}, (422, "Invalid")),
    ("POST", SERVICES, {"metadata": {"name": "x", "namespace": "other"}}, (400, "BadRequest")),
    ("POST", SERVICES, ["no object"], (400, "BadRequest")),
    ("PUT", f"{SERVICES}/web", {"metadata": {"name": "web", "resourceVersion": "1"}}, (409, "Conflict")),
    ("PATCH", f"{SERVICES}/web", {}, (415, "UnsupportedMediaType")),
    ("DELETE", f"{SERVICES}/none", None, (404, "NotFound")),
]


@pytest.mark.parametrize(("method", "path", "body", "expected"), REFUSALS)
def test_refusals(
    server: ApiServer, admin: Client, method: str, path: str, body: Any, expected: tuple[int, str]
) -> None:
    server.apply(service("web"))
    with pytest.raises(urllib.error.HTTPError) as refused:
        admin(method, path, body)
    assert refusal(refused.value) == expected


def test_spec_and_status_are_written_apart(admin: Client) -> None:
    created = admin("POST", SERVICES, service("web", type="LoadBalancer"))
    merge = "application/merge-patch+json"
    ingress = {"loadBalancer": {"ingress": [{"ip": "192.0.2.9"}]}}
    admin("PATCH", f"{SERVICES}/web/status", {"status": ingress, "spec": {"type": "NodePort"}}, merge)
    admin("PATCH", f"{SERVICES}/web", {"status": {}, "metadata": {"labels": {"a": "b"}}}, merge)
    found = admin("GET", f"{SERVICES}/web")
    assert found["status"] == ingress
    assert found["spec"] == created["spec"]
    assert found["metadata"]["labels"] == {"a": "b"}
    assert found["metadata"]["uid"] == created["metadata"]["uid"]
    unchanged = admin("PATCH", f"{SERVICES}/web", {"metadata": {"labels": {"a": "b"}}}, merge)
    assert unchanged["metadata"]["resourceVersion"] == found["metadata"]["resourceVersion"]


def watch_lines(response: Any) -> Iterator[dict[str, Any]]:
    for line in response:
        yield json.loads(line)


def test_a_watch_tells_what_its_selector_sees(server: ApiServer, admin: Client) -> None:
    server.apply(service("a", labels={"x": "1"}), service("b"))
    version = admin("GET", "/api/v1/services")["metadata"]["resourceVersion"]
    path = f"/api/v1/services?watch=1&allowWatchBookmarks=true&resourceVersion={version}&labelSelector=x"
    with admin.open("GET", path) as response:
        server.apply(service("b", labels={"x": "2"}), service("a"), service("b", labels={"x": "3"}), service("c"))
        server.delete(service("b"))
        lines = watch_lines(response)
        seen = [(event["type"], event["object"]["metadata"]["name"]) for event in islice(lines, 4)]
        assert seen == [("ADDED", "b"), ("DELETED", "a"), ("MODIFIED", "b"), ("DELETED", "b")]
        server.send_bookmarks()
        bookmark = next(lines)
        assert bookmark["type"] == "BOOKMARK"
        assert bookmark["object"]["metadata"]["resourceVersion"] == str(server.store.version)
        server.forget_history()
        server.apply(service("d", labels={"x": "1"}))
        assert next(lines)["type"] == "ADDED"


def test_a_watch_ends_when_asked(server: ApiServer, admin: Client) -> None:
    version = admin("GET", "/api/v1/services")["metadata"]["resourceVersion"]
    path = f"/api/v1/services?watch=1&allowWatchBookmarks=true&timeoutSeconds=0.1&resourceVersion={version}"
    with admin.open("GET", path) as response:
        assert [event["type"] for event in watch_lines(response)] == ["BOOKMARK"]


def test_pages_are_one_consistent_list(server: ApiServer, admin: Client) -> None:
    server.apply(*(service(f"s-{number}") for number in range(7)))
    page = admin("GET", "/api/v1/services?limit=3")
    assert page["metadata"]["remainingItemCount"] == 4
    server.delete(service("s-6"))
    rest = admin("GET", f"/api/v1/services?limit=10&continue={page['metadata']['continue']}")
    names = [item["metadata"]["name"] for item in page["items"] + rest["items"]]
    assert names == [f"s-{number}" for number in range(7)]
    assert rest["metadata"]["resourceVersion"] == page["metadata"]["resourceVersion"]
    server.expire_continue_tokens()
    with pytest.raises(urllib.error.HTTPError) as refused:
        admin("GET", f"/api/v1/services?limit=3&continue={page['metadata']['continue']}")
    assert refusal(refused.value) == (410, "Expired")


def test_as_a_process(tmp_path: Path) -> None:
    (tmp_path / "objects.json").write_text(json.dumps(service("web")))
    command = [
        sys.executable,
        "-m",
        "devtools.apiserver",
        "--data",
        str(tmp_path / "data"),
        str(tmp_path / "objects.json"),
    ]
    root = Path(__file__).parent.parent.parent
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=root) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        admin = Client(Path(ready["admin_kubeconfig"]).read_text())
        assert [item["metadata"]["name"] for item in admin("GET", "/api/v1/services")["items"]] == ["web"]
        admin("POST", "/standin/faults", {"action": "refuse", "code": 503, "verb": "list"})
        with pytest.raises(urllib.error.HTTPError) as refused:
            admin("GET", "/api/v1/services")
        assert refused.value.code == 503
        proxy = Client(Path(ready["kube-proxy_kubeconfig"]).read_text())
        with pytest.raises(urllib.error.HTTPError) as refused:
            proxy("POST", "/standin/faults", {"action": "hang"})
        assert refused.value.code == 403
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
