"""Case 21 and what follows from it: real addresses, several of them, and credentials that change under our feet."""

from __future__ import annotations

import base64
import json
import ssl
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar import api_client, reflector
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.credentials import Credentials
from ansible_collections.kproxy.dataplane.plugins.module_utils._sources.kubeconfig import KubeconfigError, read
from devtools.apiserver import ApiServer
from devtools.apiserver.auth import KUBE_PROXY, User
from devtools.apiserver.faults import Action, Garbage, Hang, Refuse, ReplyStream
from devtools.apiserver.pki import CertificateAuthority
from devtools.apiserver.pki import kubeconfig as kubeconfig_text
from devtools.waiting import eventually
from tests.api.conftest import StartSource
from tests.api.objects import service

CASE = Path(__file__).parent.parent / "cases" / "21-bootstrap-needs-real-endpoint"
EXPECT: dict[str, Any] = yaml.safe_load((CASE / "expect.yaml").read_text())
SERVICE_CIDR = yaml.safe_load((CASE / "inventory.yml").read_text())["all"]["vars"]["service_cidr"]
KUBECONFIGS = sorted(name for name in EXPECT if name.endswith(".yaml"))


@pytest.mark.parametrize("name", KUBECONFIGS)
def test_case_21_kubeconfigs(name: str) -> None:
    if EXPECT[name]["accepted"]:
        assert read(str(CASE / name), [SERVICE_CIDR]).servers == ("https://192.0.2.200:6443",)
        return
    with pytest.raises(KubeconfigError) as refused:
        read(str(CASE / name), [SERVICE_CIDR])
    # The message names the server between the words of the case.
    words = str(refused.value)
    assert all(word in words for word in EXPECT[name]["message_says"].split())


def test_a_refused_server_is_never_asked(server: ApiServer, kubeconfig: Path, start_source: StartSource) -> None:
    config = json.loads(kubeconfig.read_text())
    config["clusters"][0]["cluster"]["extensions"] = [
        {"name": "kproxy.dataplane", "extension": {"servers": ["https://kubernetes.default.svc"]}}
    ]
    kubeconfig.write_text(json.dumps(config))
    _source, recorder = start_source(kubeconfig)
    recorder.wait(lambda r: "resolves only inside the cluster" in r.details())
    assert not server.requests
    server.apply(service("web"))
    kubeconfig.write_text(server.kubeconfig())
    recorder.wait(lambda r: r.names("Service") == {"web"})


@pytest.fixture
def control_plane() -> Iterator[ApiServer]:
    """Three addresses of one API server."""
    with ApiServer(listen=[("127.0.0.1", 0)] * 3) as server:
        server.apply(service("web"))
        yield server


def test_case_21_boot_without_an_api_server(
    control_plane: ApiServer, tmp_path: Path, start_source: StartSource
) -> None:
    for listener in control_plane.listeners:
        listener.close()
    path = tmp_path / "kubeconfig"
    path.write_text(control_plane.kubeconfig())
    source, recorder = start_source(path, servers=control_plane.urls)
    # It keeps trying every address, and says nothing about objects, so that existing rules stay untouched.
    recorder.wait(lambda r: all(url in r.details() for url in control_plane.urls))
    recorder.wait(lambda r: len(r.states) > 12)
    assert not recorder.history
    assert not source.synced
    control_plane.listeners[1].open()
    recorder.wait(lambda r: r.names("Service") == {"web"})
    recorder.wait(lambda _r: source.synced)
    assert {request.port for request in control_plane.requests} == {control_plane.listeners[1].port}


def test_a_kubeconfig_that_comes_later(server: ApiServer, tmp_path: Path, start_source: StartSource) -> None:
    server.apply(service("web"))
    _source, recorder = start_source(tmp_path / "later")
    recorder.wait(lambda r: "later cannot be read" in r.details())
    (tmp_path / "later").write_text(server.kubeconfig())
    recorder.wait(lambda r: r.names("Service") == {"web"})


def test_the_next_server_takes_over_and_the_watch_resumes(
    control_plane: ApiServer, tmp_path: Path, start_source: StartSource
) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(control_plane.kubeconfig())
    source, recorder = start_source(path, servers=control_plane.urls)
    recorder.wait(lambda _r: source.synced)
    names = {"web"}
    for number, listener in enumerate(control_plane.listeners[:2]):
        control_plane.wait_for_requests(
            lambda log, port=listener.port: sum(r.verb == "watch" and r.port == port for r in log) == 4  # type: ignore[misc]
        )
        listener.close()
        names.add(f"after-{number}")
        control_plane.apply(service(f"after-{number}"))
        recorder.wait(lambda r: r.names("Service") == names)
    assert len(recorder.lists("Service")) == 1, "the watch went on from its version"
    assert {request.port for request in control_plane.requests[:4]} == {control_plane.listeners[0].port}


# How long one server wants to be spared is no matter of the next one.
SICK: list[Action] = [Refuse(500), Hang(), Garbage(), Refuse(503, retry_after=300), Refuse(429, retry_after=300)]


@pytest.mark.parametrize("action", SICK, ids=["500", "no answer", "garbage", "503 for long", "429 for long"])
def test_a_sick_server_is_left_for_a_sound_one(
    control_plane: ApiServer,
    tmp_path: Path,
    start_source: StartSource,
    monkeypatch: pytest.MonkeyPatch,
    action: Action,
) -> None:
    if isinstance(action, Hang):
        monkeypatch.setattr(api_client, "READ_SECONDS", 0.5)
    control_plane.inject(action, port=control_plane.listeners[0].port, times=None)
    path = tmp_path / "kubeconfig"
    path.write_text(control_plane.kubeconfig())
    source, recorder = start_source(path, servers=control_plane.urls)
    recorder.wait(lambda _r: source.synced)
    recorder.wait(lambda r: r.names("Service") == {"web"})
    assert source.counters["Service"].reconnects <= 1


def test_a_server_that_hangs_is_left_although_its_connections_live(
    control_plane: ApiServer, tmp_path: Path, start_source: StartSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a stopped process, whose kernel acknowledges all it gets: open watches are silent, requests have no answer."""
    monkeypatch.setattr(api_client, "READ_SECONDS", 0.5)
    monkeypatch.setattr(reflector, "QUIET_SECONDS", 0.5)
    port = control_plane.listeners[0].port
    control_plane.inject(ReplyStream([], hold=True), verb="watch", port=port, times=4)
    path = tmp_path / "kubeconfig"
    path.write_text(control_plane.kubeconfig())
    source, recorder = start_source(path, servers=control_plane.urls)
    control_plane.wait_for_requests(lambda log: sum(r.verb == "watch" for r in log) >= 4)
    control_plane.inject(Hang(), port=port, times=None)
    control_plane.apply(service("late"))
    recorder.wait(lambda r: r.names("Service") == {"web", "late"})
    assert len(recorder.lists("Service")) == 1, "the watch went on from its version"
    assert "no answer in time" in recorder.details()


def test_a_watch_that_is_quiet_is_opened_again_without_a_complaint(
    server: ApiServer, kubeconfig: Path, start_source: StartSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reflector, "QUIET_SECONDS", 0.1)
    server.apply(service("web"))
    source, recorder = start_source(kubeconfig)
    recorder.wait(lambda _r: source.synced)
    eventually(lambda: all(counters.watches > 3 for counters in source.counters.values()), "watches to be opened anew")
    server.apply(service("late"))
    recorder.wait(lambda r: r.names("Service") == {"web", "late"})
    assert not recorder.details()
    assert {counters.lists for counters in source.counters.values()} == {1}
    assert not any(counters.errors or counters.reconnects for counters in source.counters.values())


def test_a_token_file_is_read_again(tmp_path: Path, start_source: StartSource) -> None:
    with ApiServer(tokens={"old": User(KUBE_PROXY)}) as server:
        server.apply(service("web"))
        (tmp_path / "token").write_text("old\n")
        path = tmp_path / "kubeconfig"
        ca = server.authority.pair.certificate
        path.write_text(kubeconfig_text(server.url, ca, user="proxy", token_file=str(tmp_path / "token")))
        source, recorder = start_source(path)
        recorder.wait(lambda r: r.names("Service") == {"web"})
        server.call(lambda: server.tokens.clear())
        server.listeners[0].drop_connections()
        recorder.wait(lambda r: "HTTP 401" in r.details())
        server.call(lambda: server.tokens.update({"new": User(KUBE_PROXY)}))
        (tmp_path / "token").write_text("new\n")
        server.apply(service("late"))
        recorder.wait(lambda r: r.names("Service") == {"web", "late"})
        assert len(recorder.lists("Service")) == 1
        source.stop()


def test_a_client_certificate_is_renewed_without_a_restart(
    server: ApiServer, kubeconfig: Path, start_source: StartSource
) -> None:
    _source, recorder = start_source(kubeconfig)
    recorder.wait(lambda _r: _source.synced)
    server.wait_for_requests(lambda log: sum(r.verb == "watch" for r in log) >= 4)
    assert {request.user for request in server.requests} == {KUBE_PROXY}
    kubeconfig.write_text(server.kubeconfig("renewed", groups=["system:masters"]))
    server.listeners[0].drop_connections()
    server.wait_for_requests(lambda log: any(r.user == "renewed" and r.verb == "watch" for r in log))


def test_a_renewal_that_goes_wrong_leaves_the_old_credentials_in_use(
    server: ApiServer, kubeconfig: Path, start_source: StartSource
) -> None:
    source, recorder = start_source(kubeconfig)
    recorder.wait(lambda _r: source.synced)
    server.wait_for_requests(lambda log: sum(r.verb == "watch" for r in log) >= 4)
    kubeconfig.write_text("half a fi")
    server.listeners[0].drop_connections()
    server.apply(service("late"))
    recorder.wait(lambda r: r.names("Service") == {"late"})
    recorder.wait(lambda r: any(s.connected and "is empty or no mapping" in s.detail for s in r.states))


def test_a_server_of_another_authority_is_not_trusted(
    server: ApiServer, kubeconfig: Path, start_source: StartSource
) -> None:
    stranger = CertificateAuthority.create()
    kubeconfig.write_text(kubeconfig_text(server.url, stranger.pair.certificate, user="proxy", token="secret"))
    source, recorder = start_source(kubeconfig)
    recorder.wait(lambda r: any(state.kind == "Service" for state in r.states))
    assert "TLS failed" in recorder.details()
    assert "check the certificate authority" in recorder.details()
    assert source.counters["Service"].errors.keys() == {"tls"}
    assert not server.requests


def test_a_user_without_the_role_is_told_what_it_lacks(
    server: ApiServer, kubeconfig: Path, start_source: StartSource
) -> None:
    kubeconfig.write_text(server.kubeconfig("somebody", groups=["nobodies"]))
    source, recorder = start_source(kubeconfig)
    recorder.wait(lambda r: 'User "somebody" cannot list resource "services"' in r.details())
    assert "system:node-proxier" in recorder.details()
    assert not source.synced


MATERIAL = [
    ("client-certificate-data", "Zm9v", "client certificate in the kubeconfig and its key cannot be used"),
    ("client-key-data", "", "only one of"),
]


@pytest.mark.parametrize(("field", "value", "message"), MATERIAL)
def test_unusable_material_is_named(server: ApiServer, kubeconfig: Path, field: str, value: str, message: str) -> None:
    config = json.loads(kubeconfig.read_text())
    config["users"][0]["user"][field] = value
    kubeconfig.write_text(json.dumps(config))
    with pytest.raises(KubeconfigError, match=message):
        Credentials(str(kubeconfig)).access()


def test_certificates_in_files_are_watched(server: ApiServer, tmp_path: Path) -> None:
    ca = tmp_path / "ca.crt"
    ca.write_bytes(server.authority.pair.certificate)
    server.authority.issue("one").write(tmp_path, "client")
    config = json.loads(server.kubeconfig())
    config["clusters"][0]["cluster"] = {"server": server.url, "certificate-authority": "ca.crt"}
    config["users"][0]["user"] = {"client-certificate": "client.crt", "client-key": "client.key"}
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(config))
    credentials = Credentials(str(path))
    first = credentials.access()
    assert credentials.access() is first
    (tmp_path / "client.crt").write_bytes(server.authority.issue("two").certificate)
    assert credentials.access() is first, "a new certificate with the old key is a renewal in progress"
    assert "client.crt" in credentials.problem
    server.authority.issue("two").write(tmp_path, "client")
    second = credentials.access()
    assert (second.generation, credentials.problem) == (first.generation + 1, "")
    assert isinstance(second.tls, ssl.SSLContext)


@pytest.mark.parametrize("inline", [True, False], ids=["in the kubeconfig", "in a file"])
def test_a_client_certificate_that_ends_soon_is_a_problem_until_it_is_renewed(
    server: ApiServer, tmp_path: Path, inline: bool
) -> None:
    path = tmp_path / "kubeconfig"

    def issue(days: float) -> None:
        pair = server.authority.issue("proxy", validity=timedelta(days=days))
        config = json.loads(kubeconfig_text(server.url, server.authority.pair.certificate, user="proxy", pair=pair))
        if not inline:
            pair.write(tmp_path, "client")
            config["users"][0]["user"] = {"client-certificate": "client.crt", "client-key": "client.key"}
        path.write_text(json.dumps(config))

    issue(365)
    credentials = Credentials(str(path))
    assert credentials.ending(time.time()) == (), "nothing was read yet"
    credentials.access()
    until = credentials.validity
    assert until is not None
    assert credentials.ending(time.time()) == ()
    (sentence,) = credentials.ending(until.ends - 29.5 * 86400)
    assert sentence.startswith(f"the client certificate {f'in {path}' if inline else tmp_path / 'client.crt'} ends at")
    assert sentence.endswith("in 29 days: renew it")
    assert "ended at" in credentials.ending(until.ends + 1)[0]
    issue(730)
    credentials.access()
    assert credentials.ending(until.ends) == ()


@pytest.mark.parametrize("inline", [True, False], ids=["in the kubeconfig", "in a file"])
def test_a_token_that_ends_soon_is_a_problem_until_it_is_renewed(
    server: ApiServer, tmp_path: Path, inline: bool
) -> None:
    path, file, ca = tmp_path / "kubeconfig", tmp_path / "token", server.authority.pair.certificate

    def issue(ends: int) -> None:
        claims = base64.urlsafe_b64encode(json.dumps({"iat": ends - 3600, "exp": ends}).encode()).decode().rstrip("=")
        file.write_text(f"e30.{claims}.x\n")
        token, name = (file.read_text().strip(), "") if inline else ("", str(file))
        path.write_text(kubeconfig_text(server.url, ca, user="proxy", token=token, token_file=name))

    issue(1_800_000_000)
    credentials = Credentials(str(path))
    credentials.access()
    assert credentials.ending(1_800_000_000 - 600) == (), "a projected one is renewed when a fifth of its time is left"
    (sentence,) = credentials.ending(1_800_000_000 - 300)
    assert sentence.startswith(
        f"the token {f'in {path}' if inline else file} ends at 2027-01-15 08:00 UTC, within a day"
    )
    issue(1_800_003_600)
    credentials.access()
    assert credentials.ending(1_800_000_000) == ()
