"""`./dev vagrant` without a machine: the box's contents, the scenario's files, and what the two providers need."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from devtools import molecule
from devtools.bootstrap import package_names
from devtools.environment import BIN, COLLECTION, ROOT, command_environment
from devtools.lab import rootfs, workload
from devtools.lab.topology import LabError, Node
from devtools.vagrant import PACKAGES, acceleration, box, inside, parser, variables, world

SCENARIO = COLLECTION / "molecule/vagrant"
PLAYBOOKS = ("prepare.yml", "converge.yml", "reboot.yml", "change_backend.yml", "forward_by_xdp.yml", "cleanup.yml")


def settings(text: str, environment: dict[str, str]) -> dict[str, Any]:
    """Return a molecule.yml with its variables filled in."""

    def value(match: re.Match[str]) -> str:
        return environment.get(match["name"]) or match["default"] or ""

    filled = re.sub(r"\$\{(?P<name>\w+)(?::-(?P<default>[^}]*))?\}", value, text)
    parsed: dict[str, Any] = yaml.safe_load(filled)
    return parsed


SETTINGS = settings((SCENARIO / "molecule.yml").read_text(), {})


def test_boxes_differ_in_name_where_they_differ() -> None:
    assert len({box.name(suite) for suite in rootfs.SUITES}) == len(rootfs.SUITES)


def test_an_unknown_release_is_refused_with_the_known_ones() -> None:
    with pytest.raises(LabError, match="bookworm, trixie"):
        box.ensure_box("sid")


def test_the_newest_kernel_is_taken(tmp_path: Path) -> None:
    for name in ("vmlinuz-6.1.0-9-cloud-amd64", "vmlinuz-6.1.0-57-cloud-amd64", "initrd.img-6.1.0-99-cloud-amd64"):
        (tmp_path / name).touch()
    assert box.newest(tmp_path, "vmlinuz").name == "vmlinuz-6.1.0-57-cloud-amd64"


def test_a_box_without_a_kernel_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="vmlinuz"):
        box.newest(tmp_path, "vmlinuz")


def test_only_root_may_read_the_boxs_sudoers() -> None:
    assert box.FILES["etc/sudoers.d/vagrant"].startswith("vagrant ALL=")
    assert ("multi-user.target.wants", "ssh.service") in list(box.wanted_units())


def test_no_device_is_no_acceleration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceleration, "DEVICE", tmp_path / "kvm")
    assert not acceleration.works(tmp_path / "vmlinuz")


def test_a_world_replaces_what_libvirt_writes_and_ends_with_its_first_process() -> None:
    command = world.command(["molecule", "test"])
    assert {"--net", "--mount", "--pid", "--kill-child=SIGKILL"} <= set(command)
    assert command[-2:] == ["molecule", "test"]


def test_a_world_is_never_furnished_outside_of_one() -> None:
    with pytest.raises(LabError, match="first process"):
        inside.main(["true"])


@pytest.mark.parametrize(
    ("line", "provider", "named"),
    [
        ([], "libvirt", "debian/bookworm64"),
        (["--provider", "virtualbox"], "virtualbox", "debian/bookworm64"),
        (["--provider", "virtualbox", "--box", "generic/debian12"], "virtualbox", "generic/debian12"),
    ],
)
def test_the_scenario_is_told_provider_and_box(line: list[str], provider: str, named: str) -> None:
    given = variables(parser().parse_args(line))
    driver = settings((SCENARIO / "molecule.yml").read_text(), given)["driver"]
    assert (driver["provider"]["name"], driver["default_box"]) == (provider, named)
    assert (Path(given["KPROXY_VAGRANT_MODULES"]) / "vagrant.py").is_file()


def test_lab_stages_leave_the_scenario_to_its_own_command() -> None:
    assert "vagrant" not in molecule.scenarios()
    assert "default" in molecule.scenarios()


def test_machines_manifests_and_addresses_agree() -> None:
    objects = workload.load(ROOT / "tests/manifests/vagrant")
    addresses = {
        item["metadata"]["name"]: item["status"]["addresses"][0]["address"]
        for item in objects
        if item["kind"] == "Node"
    }
    numbers = {
        name: values["machine_number"] for name, values in SETTINGS["provisioner"]["inventory"]["host_vars"].items()
    }
    assert addresses == {platform["name"]: platform["interfaces"][0]["ip"] for platform in SETTINGS["platforms"]}
    assert numbers == {name: Node(name).number for name in addresses}
    assert set(workload.pods_behind(objects)) == {Node(name) for name in addresses}


def test_side_effects_are_playbooks_and_each_is_verified() -> None:
    sequence = SETTINGS["scenario"]["test_sequence"]
    # Without it molecule passes over all of them.
    assert (SCENARIO / SETTINGS["provisioner"]["playbooks"]["side_effect"]).is_file()
    for place, action in enumerate(sequence):
        verb, _, playbook = action.partition(" ")
        if verb == "side_effect":
            assert (SCENARIO / playbook).is_file()
            assert sequence[place + 1] == "verify"


def test_playbooks_can_be_read() -> None:
    playbooks = [str(SCENARIO / name) for name in PLAYBOOKS]
    command = [str(BIN / "ansible-playbook"), "--syntax-check", "-i", "gpu-a,", *playbooks]
    environment = os.environ | command_environment()
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_the_inventory_and_the_vagrantfile_name_the_same_machines() -> None:
    inventory = yaml.safe_load((COLLECTION / "inventories/vagrant/hosts.yml").read_text())["all"]["children"]
    named = {name: Node(name).number for group in inventory.values() for name in group["hosts"]}
    made = re.findall(r'"([a-z]+-[0-9a-d])" => (\d+)', (ROOT / "Vagrantfile").read_text())
    assert {name: int(number) for name, number in made} == named


def test_packages_of_the_command_are_its_own() -> None:
    everywhere = package_names((ROOT / "devtools/apt-packages.txt").read_text())
    assert set(package_names(PACKAGES.read_text())).isdisjoint(everywhere)
