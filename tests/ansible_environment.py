"""What ansible-playbook is told by tests that read what it prints."""

from __future__ import annotations

import os

from devtools.environment import ROOT


def ansible_environment(**more: str) -> dict[str, str]:
    """Return our environment without anybody's settings of Ansible, and with the project's: they change what it prints.

    A forced colour, for one, outweighs that none is wanted.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    return {**kept, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), **more}
