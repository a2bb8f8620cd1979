"""Facts about the node, found without leaving a trace on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import probe, ruleset_survey
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.conntrack import Conntrack
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.namespace import IsolationError, run_isolated
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.nft_command import NftCommand
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.nft_protocol import FAMILY_WORD
from ansible_collections.kproxy.dataplane.plugins.module_utils._preflight.base_chains import from_facts
from ansible_collections.kproxy.dataplane.plugins.module_utils._preflight.examine import foreign_drops
from ansible_collections.kproxy.dataplane.plugins.module_utils._preflight.node_facts import NodeFacts
from ansible_collections.kproxy.dataplane.plugins.modules import node_facts

ROOT = Path(__file__).parents[2]


def test_this_kernel_loads_everything_that_is_probed(own_network: None) -> None:
    facts = probe.collect_facts()
    assert facts["probe_errors"] == []
    nftables = {name: works for name, works in facts["features"].items() if name.startswith(("nft_", "conntrack_"))}
    assert set(nftables.values()) == {True}, nftables
    assert {"nft_ip", "nft_ip6", "nft_dnat_map", "nft_concatenated_interval", "conntrack_delete"} <= nftables.keys()
    assert facts["kernel"] == os.uname().release
    assert facts["nft"] == ".".join(map(str, NftCommand().version()))
    assert facts["cap_net_admin"] is True
    assert json.loads(json.dumps(facts)) == facts


def test_probing_leaves_nothing_behind(own_network: None) -> None:
    NftCommand().load("table ip kproxy { chain c { type filter hook forward priority 0; policy drop; }; }")
    before = (ruleset_survey.tables(), NftCommand().list_table(4, "kproxy"), os.listdir("/sys/class/net"))
    facts = probe.collect_facts()
    assert facts["tables"] == [f"{FAMILY_WORD[4]} kproxy"]
    assert [(chain["hook"], chain["policy"]) for chain in facts["base_chains"]] == [("forward", "drop")]
    assert (ruleset_survey.tables(), NftCommand().list_table(4, "kproxy"), os.listdir("/sys/class/net")) == before
    with Conntrack() as table:
        assert table.size().entries == 0


def test_what_nft_refuses_is_a_missing_feature_with_its_reason(
    own_network: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in = tmp_path / "nft"
    stand_in.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = --version ]; then echo "nftables v1.0.1 (x)"; exit 0; fi\n'
        "text=$(cat)\n"
        'case "$text" in *numgen*) echo "Error: no numgen in maps" >&2; exit 1 ;; esac\n'
        f'echo "$text" | {NftCommand().path} -f -\n'
    )
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    facts = probe.collect_facts()
    assert facts["nft"] == "1.0.1"
    assert [name for name, works in facts["features"].items() if name.startswith("nft_") and not works] == [
        "nft_dnat_map"
    ]
    assert any(
        reason.startswith("nft_dnat_map: ") and "no numgen in maps" in reason for reason in facts["probe_errors"]
    )


def test_without_privilege_the_facts_say_so() -> None:
    code = "import json; from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import probe; "
    done = subprocess.run(
        ["setpriv", "--bounding-set", "-net_admin,-sys_admin", "--inh-caps", "-net_admin,-sys_admin"]
        + [sys.executable, "-c", code + "print(json.dumps(probe.collect_facts()))"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
    )
    facts = json.loads(done.stdout)
    assert facts["cap_net_admin"] is False
    assert facts["probe_errors"] == ["features were not probed: no CAP_NET_ADMIN"]
    assert not any(name.startswith("nft_") for name in facts["features"])


def refuse() -> None:
    raise ValueError("no such thing")


def die() -> None:
    os._exit(3)


def hang() -> None:
    os.read(os.pipe()[0], 1)


ENDINGS: list[tuple[Callable[[], None], float, str]] = [
    (refuse, 60.0, "ValueError: no such thing"),
    (die, 60.0, "died without an answer"),
    (hang, 0.3, "did not end within 0.3 s"),
]


@pytest.mark.parametrize(("function", "limit", "words"), ENDINGS)
def test_a_probe_that_fails_costs_only_itself(function: Callable[[], None], limit: float, words: str) -> None:
    with pytest.raises(IsolationError, match=words):
        run_isolated(function, timeout_seconds=limit)


def test_a_probe_runs_in_a_namespace_of_its_own() -> None:
    own = os.readlink("/proc/self/ns/net")
    assert run_isolated(lambda: os.readlink("/proc/self/ns/net")) != own
    assert os.readlink("/proc/self/ns/net") == own


@pytest.mark.parametrize("tool", ["iptables-legacy", "ip6tables-legacy"])
def test_the_chains_of_iptables_legacy_are_seen(own_network: None, tool: str) -> None:
    """A policy that nftables does not show drops all the same."""
    subprocess.run([tool, "-P", "FORWARD", "DROP"], check=True)
    family = "ip6" if tool.startswith("ip6") else "ip"
    dropping = [chain for chain in node_facts.legacy_base_chains() if chain["policy"] == "drop"]
    assert [(chain["family"], chain["table"], chain["hook"]) for chain in dropping] == [(family, "filter", "forward")]
    findings = foreign_drops(NodeFacts("6.1", "1.0.6", base_chains=tuple(from_facts(dropping))))
    assert [finding.result for finding in findings] == ["warn", "ok"]
    assert f"chain {family} filter/FORWARD of iptables-legacy" in findings[0].message
