"""The variables that preflight knows are those that roles and playbooks read."""

from __future__ import annotations

import re

from ansible_collections.kproxy.dataplane.plugins.module_utils._preflight.variables import KNOWN
from devtools.environment import COLLECTION


def test_known_variables_are_those_that_are_read() -> None:
    files = [path for folder in ("roles", "playbooks") for path in (COLLECTION / folder).rglob("*.yml")]
    read = {name for path in files for name in re.findall(r"(?<![\w^'])kproxy_\w+", path.read_text())}
    # The fact is read by its name in ansible_facts.
    assert read | {"kproxy_node"} == KNOWN
