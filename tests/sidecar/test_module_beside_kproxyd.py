"""A module beside a running kproxyd names the changes and leaves them to it; without one it writes them itself."""

from __future__ import annotations

from typing import Any

import pytest

from devtools.kproxyd_process import KproxydProcess
from devtools.waiting import eventually
from tests.module_run import run_module
from tests.sidecar.one_node import POD_IPS, PORT, endpoints, service, this_node

OLD = [this_node(), service(), endpoints(POD_IPS[0])]
NEW = [this_node(), service(), endpoints(*POD_IPS[1:])]
# The module asks where the unit listens; the mount is its process's own.
SOCKET_IN_PLACE = 'mount -t tmpfs none /run && mkdir /run/kproxy && ln -s $0 /run/kproxy/kproxyd.sock && exec "$@"'


def nftables(kproxyd: KproxydProcess, **options: Any) -> dict[str, Any]:
    link = kproxyd.config["kproxy"]["socketPath"]
    return run_module(
        "nftables",
        {"objects": NEW, "node_name": "n1", **options},
        kproxyd.namespace.joiner(),
        ("unshare", "--mount", "sh", "-c", SOCKET_IN_PLACE, link),
    )


def served(kproxyd: KproxydProcess) -> list[str]:
    """Return the endpoints that the kernel holds."""
    return [ip for ip in POD_IPS if f"{ip} . {PORT}" in kproxyd.table()]


@pytest.fixture
def running(kproxyd: KproxydProcess) -> KproxydProcess:
    kproxyd.write(OLD)
    kproxyd.start()
    return kproxyd


def test_changes_are_left_to_kproxyd_which_makes_them_once(running: KproxydProcess) -> None:
    result = nftables(running)
    assert (result["changed"], result["left_to_kproxyd"]) == (True, True)
    assert result["endpoints"]["counts"] == {"added": 1, "moved": 1, "removed": 0}
    assert served(running) == [POD_IPS[0]]
    running.write(NEW)
    eventually(lambda: served(running) == list(POD_IPS[1:]), "kproxyd to read what is new")
    result = nftables(running)
    assert (result["changed"], result["left_to_kproxyd"]) == (False, False)
    assert running.ask("status")["foreignRepairs"] == 0


def test_what_others_broke_is_repaired_before_changes_are_left(running: KproxydProcess) -> None:
    before = running.content()
    running.namespace.run(["nft", "flush", "chain", "ip", "kproxy", "dispatch"])
    result = nftables(running, objects=OLD)
    # kproxyd may have been quicker than the module's look.
    assert result["left_to_kproxyd"] is result["changed"]
    assert running.content() == before


@pytest.mark.parametrize("canary", [{"services": ["shop/web"]}])
def test_other_tables_than_those_of_kproxyd_are_written(kproxyd: KproxydProcess, canary: dict[str, Any]) -> None:
    kproxyd.config["kproxy"]["canary"] = canary
    kproxyd.write(OLD)
    kproxyd.start()
    assert nftables(kproxyd, canary=canary)["left_to_kproxyd"]
    result = nftables(kproxyd)
    assert (result["changed"], result["left_to_kproxyd"]) == (True, False)
    assert served(kproxyd) == list(POD_IPS[1:])


def test_a_kproxyd_without_its_first_list_keeps_nothing(kproxyd: KproxydProcess) -> None:
    kproxyd.config["kproxy"]["source"] = f"manifests:{kproxyd.folder / 'nowhere'}"
    kproxyd.start(wait=False)
    eventually(lambda: (kproxyd.folder / "kproxyd.sock").exists(), "kproxyd to answer")
    assert not kproxyd.in_step()
    result = nftables(kproxyd)
    assert (result["changed"], result["left_to_kproxyd"]) == (True, False)
    assert served(kproxyd) == list(POD_IPS[1:])


def test_without_kproxyd_changes_are_written(running: KproxydProcess) -> None:
    running.kill()
    result = nftables(running)
    assert (result["changed"], result["left_to_kproxyd"]) == (True, False)
    assert served(running) == list(POD_IPS[1:])
