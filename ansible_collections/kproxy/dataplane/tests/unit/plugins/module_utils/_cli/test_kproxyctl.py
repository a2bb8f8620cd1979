# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""kproxyctl against a socket that gives prepared answers."""

from __future__ import annotations

import functools
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._cli import exit_codes, main
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.nft_command import NftCommand

TRACE: dict[str, Any] = {
    "verdict": "dnat",
    "reason": "because",
    "steps": ["this", "that"],
    "service": None,
    "frontend": None,
    "endpoints": [],
}


class Answering:
    """Listens like kproxyd, remembers requests, and answers each with the same bytes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.requests: list[dict[str, Any]] = []
        self.answer = b""
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(8)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def result(self, document: Any) -> None:
        self.answer = json.dumps({"version": 1, "ok": True, "result": document}).encode() + b"\n"

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _peer = self._listener.accept()
            except OSError:
                return
            with connection:
                self.requests.append(json.loads(connection.makefile().readline()))
                connection.sendall(self.answer)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Answering]:
    answering = Answering(tmp_path / "socket")
    yield answering
    answering.close()


def kproxyctl(path: Path, *arguments: str) -> int:
    return main.main(["--socket", str(path), *arguments])


@pytest.mark.parametrize(
    ("arguments", "request_fields"),
    [
        (["services"], {"command": "services", "namespace": ""}),
        (["services", "-n", "shop"], {"command": "services", "namespace": "shop"}),
        (["backends"], {"command": "backends", "namespace": "", "service": ""}),
        (["backends", "shop/web"], {"command": "backends", "namespace": "shop", "service": "web"}),
        (["backends", "web"], {"command": "backends", "namespace": "default", "service": "web"}),
        (["history", "--last", "3"], {"command": "history", "last": 3}),
    ],
)
def test_what_is_asked(daemon: Answering, arguments: list[str], request_fields: dict[str, Any]) -> None:
    daemon.result([])
    assert kproxyctl(daemon.path, *arguments) == exit_codes.OK
    assert daemon.requests == [{"version": 1, **request_fields}]


def test_json_is_the_answer_as_it_is(daemon: Answering, capsys: pytest.CaptureFixture[str]) -> None:
    daemon.result([{"service": "shop/web", "more": 1}])
    assert kproxyctl(daemon.path, "services", "-o", "json") == exit_codes.OK
    assert json.loads(capsys.readouterr().out) == [{"service": "shop/web", "more": 1}]


@pytest.mark.parametrize(
    ("verdict", "code"),
    [("dnat", exit_codes.OK), ("relay", exit_codes.OK), ("pass", exit_codes.OK), ("drop", 1), ("reject", 1)],
)
def test_a_trace_that_goes_nowhere_is_bad_news(daemon: Answering, verdict: str, code: int) -> None:
    daemon.result({**TRACE, "verdict": verdict})
    assert kproxyctl(daemon.path, "trace", "--from", "10.0.0.1", "--to", "10.96.0.1", "--port", "80") == code
    assert daemon.requests[0]["from"] == "10.0.0.1"


@pytest.mark.parametrize(
    ("dialled", "asked"),
    [
        (["10.96.0.1:80"], ("10.96.0.1", 80, "TCP")),
        (["10.96.0.1:53/udp"], ("10.96.0.1", 53, "udp")),
        (["10.96.0.1:80/TCP", "--port", "81", "--protocol", "SCTP"], ("10.96.0.1", 81, "SCTP")),
        (["[fd00::1]:80/TCP"], ("fd00::1", 80, "TCP")),
        (["[fd00::1]"], ("fd00::1", 0, "TCP")),
        (["fd00::1:80"], ("fd00::1:80", 0, "TCP")),
        (["10.96.0.1/32"], ("10.96.0.1/32", 0, "TCP")),
        (["shop/web"], ("shop/web", 0, "TCP")),
    ],
)
def test_what_is_dialled_may_be_written_as_it_is_listed(
    daemon: Answering, dialled: list[str], asked: tuple[str, int, str]
) -> None:
    daemon.result(TRACE)
    assert kproxyctl(daemon.path, "trace", "--from", "[10.0.0.1]", "--to", *dialled) == exit_codes.OK
    assert [daemon.requests[0][key] for key in ("from", "to", "port", "protocol")] == ["10.0.0.1", *asked]


def test_a_refused_question_is_bad_news(daemon: Answering, capsys: pytest.CaptureFixture[str]) -> None:
    daemon.answer = b'{"version": 1, "ok": false, "error": "Service a/b is not known here"}\n'
    assert kproxyctl(daemon.path, "show", "a/b") == exit_codes.PROBLEM
    assert capsys.readouterr().err == "kproxyctl: Service a/b is not known here\n"


def test_a_daemon_that_hangs_up_is_down(daemon: Answering, capsys: pytest.CaptureFixture[str]) -> None:
    assert kproxyctl(daemon.path, "status") == exit_codes.NO_DAEMON
    assert "journalctl -u kproxyd" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["status", "services", "backends", "history", "verify"])
def test_without_a_daemon_the_next_step_is_named(
    tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert kproxyctl(tmp_path / "nothing", command) == exit_codes.NO_DAEMON
    message = capsys.readouterr().err
    assert "systemctl start kproxyd" in message
    assert "keeps forwarding" in message


def use_nft(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    """Let kproxyctl run this shell script for nft."""
    program = folder / "nft"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(main, "NftCommand", functools.partial(NftCommand, str(program)))


NO_TABLE = "echo 'Error: No such file or directory' >&2; exit 1"
ONE_TABLE = f"""case "$*" in
"list table ip kproxy") echo "table ip kproxy {{}}" ;;
"-j list table ip kproxy") echo '{{"nftables": [{{"metainfo": {{}}}}, {{"table": {{"family": "ip"}}}}]}}' ;;
"-j list table ip6 kproxy") echo '{{"nftables": [{{"table": {{"family": "ip6"}}}}]}}' ;;
*) {NO_TABLE} ;;
esac"""


def test_show_falls_back_to_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use_nft(monkeypatch, tmp_path, ONE_TABLE)
    assert kproxyctl(tmp_path / "nothing", "show", "shop/web") == exit_codes.NO_DAEMON
    shown = capsys.readouterr()
    assert shown.out == "table ip kproxy {}\n"
    assert "These are the tables in the kernel" in shown.err
    assert kproxyctl(tmp_path / "nothing", "show") == exit_codes.OK


def test_the_tables_of_both_families_are_one_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use_nft(monkeypatch, tmp_path, ONE_TABLE)
    assert kproxyctl(tmp_path / "nothing", "show", "-o", "json") == exit_codes.OK
    rows = json.loads(capsys.readouterr().out)["nftables"]
    assert [row["table"]["family"] for row in rows if "table" in row] == ["ip", "ip6"]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (NO_TABLE, "nothing is programmed"),
        ("echo 'Error: Operation not permitted' >&2; exit 1", "Operation not permitted"),
        ("kill -SEGV $$", "was killed by SIGSEGV"),
    ],
)
def test_why_no_table_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], script: str, said: str
) -> None:
    use_nft(monkeypatch, tmp_path, script)
    assert kproxyctl(tmp_path / "nothing", "show") == exit_codes.PROBLEM
    shown = capsys.readouterr()
    assert said in shown.err
    assert shown.out == ""


def test_a_missing_nft_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(main, "NftCommand", functools.partial(NftCommand, str(tmp_path / "nft")))
    assert kproxyctl(tmp_path / "nothing", "show") == exit_codes.PROBLEM
    assert "is not installed; install package nftables" in capsys.readouterr().err


def test_raw_maps_hold_no_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert kproxyctl(tmp_path / "nothing", "backends", "--raw", "shop/web") == exit_codes.USAGE
    assert "leave the Service out with --raw" in capsys.readouterr().err


def test_programs_in_use_are_not_retired(daemon: Answering, capsys: pytest.CaptureFixture[str]) -> None:
    daemon.result({"mode": "ebpf"})
    assert kproxyctl(daemon.path, "retire") == exit_codes.PROBLEM
    assert capsys.readouterr().err == "kproxyctl: kproxyd serves by ebpf: switch it to nftables first\n"


@pytest.mark.parametrize(
    "arguments", [[], ["reboot"], ["trace"], ["status", "-o", "xml"], ["history", "--last", "few"]]
)
def test_wrong_usage(tmp_path: Path, arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        kproxyctl(tmp_path / "nothing", *arguments)
    assert caught.value.code == exit_codes.USAGE
