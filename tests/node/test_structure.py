"""The structure of our table is read as digests that change when, and only when, somebody alters it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import ruleset_survey
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.nfnetlink import Nfnetlink
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.nft_command import NftCommand, NftError
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.structure import (
    dump_rules,
    list_chains,
    list_sets,
    structure_digests,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.transaction import (
    Element,
    SetName,
    Transaction,
)

CASES = Path(__file__).parents[1] / "cases"
STRUCTURE = """
table ip kproxy {
    map services { type ipv4_addr . inet_proto . inet_service : verdict; comment "who is dialled"; }
    map pins { type ipv4_addr : ipv4_addr . inet_service; flags dynamic,timeout; timeout 1h; size 1024; }
    chain pick-5 {
        ip saddr { 192.0.2.1, 192.0.2.2 } tcp dport { 80, 443 } counter accept comment "first"
        ip saddr vmap { 192.0.2.1 : jump other, 192.0.2.3 : drop }
        quota over 10 mbytes drop
        meta l4proto tcp update @pins { ip saddr timeout 60s : ip daddr . tcp dport }
    }
    chain other { }
    chain nat-prerouting {
        type nat hook prerouting priority dstnat; policy accept;
        ip daddr . ip protocol . th dport vmap @services
    }
}
"""


@pytest.fixture
def nft(own_network: None) -> NftCommand:
    command = NftCommand()
    command.load(STRUCTURE)
    return command


@pytest.fixture
def kernel(nft: NftCommand) -> Iterator[Nfnetlink]:
    with Nfnetlink() as opened:
        yield opened


ALTERATIONS: list[tuple[str, str, set[str]]] = [
    ("rule in front", "insert rule ip kproxy pick-5 drop", {"chain pick-5"}),
    ("rule behind", "add rule ip kproxy nat-prerouting drop", {"chain nat-prerouting"}),
    ("rules gone", "flush chain ip kproxy pick-5", {"chain pick-5"}),
    ("new chain", "add chain ip kproxy pick-6", {"chain pick-6"}),
    ("chain gone", "flush chain ip kproxy pick-5; delete chain ip kproxy other", {"chain pick-5", "chain other"}),
    ("policy", "chain ip kproxy nat-prerouting { policy drop; }", {"chain nat-prerouting"}),
    ("new set", "add set ip kproxy t { type ipv4_addr; }", {"set t"}),
    (
        "set of another type",
        "flush chain ip kproxy nat-prerouting; delete map ip kproxy services; "
        "add map ip kproxy services { type ipv4_addr : verdict; }",
        {"chain nat-prerouting", "set services"},
    ),
    ("element", "add element ip kproxy services { 192.0.2.1 . tcp . 80 : drop }", set()),
    ("foreign table", "table ip kproxy-old { chain pick-5 { drop; }; }", set()),
    ("our name in another family", "table inet kproxy { chain pick-5 { drop; }; set t { type ipv4_addr; }; }", set()),
]


@pytest.mark.parametrize(("text", "altered"), [row[1:] for row in ALTERATIONS], ids=[row[0] for row in ALTERATIONS])
def test_an_alteration_is_named(text: str, altered: set[str], kernel: Nfnetlink, nft: NftCommand) -> None:
    before = structure_digests(kernel, 4)
    nft.load(text)
    after = structure_digests(kernel, 4)
    assert {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)} == altered


def test_a_reload_of_the_same_text_has_the_same_digests(kernel: Nfnetlink, nft: NftCommand) -> None:
    before = structure_digests(kernel, 4)
    nft.load("delete table ip kproxy\n" + STRUCTURE)
    assert structure_digests(kernel, 4) == before
    assert set(before) == {
        "chain pick-5",
        "chain other",
        "chain nat-prerouting",
        "set services",
        "set pins",
    }


def test_an_anonymous_set_with_another_element_is_an_alteration(kernel: Nfnetlink, nft: NftCommand) -> None:
    before = dump_rules(kernel, 4)
    nft.load("delete table ip kproxy\n" + STRUCTURE.replace("{ 80, 443 }", "{ 80, 444 }"))
    after = dump_rules(kernel, 4)
    assert before["pick-5"] != after["pick-5"]
    assert before["nat-prerouting"] == after["nat-prerouting"]
    assert dump_rules(kernel, 4, "pick-5") == {"pick-5": after["pick-5"]}
    assert dump_rules(kernel, 4, "other") == {}


def test_a_missing_table_has_no_structure(kernel: Nfnetlink) -> None:
    assert structure_digests(kernel, 6) == {}
    assert dump_rules(kernel, 6) == {}


def test_declarations(kernel: Nfnetlink) -> None:
    chains = list_chains(kernel, 4)
    base = chains["nat-prerouting"]
    assert (base.hook, base.priority, base.policy, base.type) == (0, -100, 1, "nat")
    assert (chains["other"].hook, chains["other"].type) == (None, "")
    sets = list_sets(kernel, 4)
    assert set(sets) == {"services", "pins"}
    assert (sets["pins"].key_length, sets["pins"].data_length, sets["pins"].timeout_ms) == (4, 8, 3_600_000)


def test_foreign_tables_are_neither_read_nor_changed(kernel: Nfnetlink, nft: NftCommand, tmp_path: Path) -> None:
    # tests/cases/13: an nft that dies as soon as a listing is not limited to our family and table.
    stand_in = tmp_path / "nft"
    stand_in.write_text(
        "#!/bin/sh\n"
        'case " $* " in\n'
        '*" list table ip kproxy "*|*" list table ip6 kproxy "*) ;;\n'
        '*" list "*) kill -SEGV $$ ;;\n'
        "esac\n"
        f'exec {nft.path} "$@"\n'
    )
    stand_in.chmod(0o755)
    theirs = (CASES / "13-foreign-nft-set" / "foreign.nft").read_text()
    nft.load(theirs)
    listed = {name: NftCommand().list_table(4, name, terse=False) for name in ("kproxy-old",)}
    ours = NftCommand(str(stand_in))
    before = structure_digests(kernel, 4)
    ours.load("add chain ip kproxy pick-7")
    elements: list[Element] = [(b"\xc0\0\2\1\6\0\0\0\0\x50\0\0", "goto pick-7", None)]
    kernel.commit(Transaction(adds={SetName(4, "services"): elements}))
    assert kernel.dump_elements(SetName(4, "services")) == elements
    assert structure_digests(kernel, 4).keys() - before.keys() == {"chain pick-7"}
    assert "chain pick-7" in (ours.list_table(4, "kproxy") or "")
    with pytest.raises(NftError, match="SIGSEGV.*another program made with a newer nft"):
        ours._run(["list", "tables"], None)
    assert {name: NftCommand().list_table(4, name, terse=False) for name in listed} == listed
    assert "table inet edge_guard" in f"table {' '.join(ruleset_survey.tables()[1])}"


def test_the_survey_names_tables_and_base_chains_of_everybody(kernel: Nfnetlink, nft: NftCommand) -> None:
    nft.load("table inet host-fw { chain forward { type filter hook forward priority 5; policy drop; }; chain x { }; }")
    assert [" ".join(table) for table in ruleset_survey.tables()] == ["ip kproxy", "inet host-fw"]
    assert [tuple(chain) for chain in ruleset_survey.base_chains()] == [
        ("ip", "kproxy", "nat-prerouting", "prerouting", "nat", -100, "accept"),
        ("inet", "host-fw", "forward", "forward", "filter", 5, "drop"),
    ]
