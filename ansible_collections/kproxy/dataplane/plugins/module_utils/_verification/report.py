# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Write checks for people and for machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from xml.etree import ElementTree

from ansible_collections.kproxy.dataplane.plugins.module_utils._verification.checks import FAIL, SKIP, WARN, Check


def table(checks: Sequence[Check]) -> list[str]:
    """Return one line per check and a closing one."""
    width = max((len(check.name) for check in checks), default=0)
    lines = [f"{check.result:<4}  {check.name:<{width}}  {check.message}" for check in checks]
    counts = Counter(check.result for check in checks)
    good = len(checks) - counts[FAIL] - counts[SKIP]
    lines.append(f"{good} of {len(checks) - counts[SKIP]} hold, {counts[WARN]} with a warning, {counts[SKIP]} skipped")
    return lines


def junit(node: str, checks: Sequence[Check]) -> str:
    """Return the checks of a node as a JUnit test suite; warnings pass and carry their text."""
    counts = Counter(check.result for check in checks)
    suite = ElementTree.Element(
        "testsuite",
        name=f"kproxy.dataplane.verify.{node}",
        tests=str(len(checks)),
        failures=str(counts[FAIL]),
        skipped=str(counts[SKIP]),
    )
    for check in checks:
        case = ElementTree.SubElement(suite, "testcase", classname=node, name=check.name)
        if check.result == FAIL:
            ElementTree.SubElement(case, "failure", message=check.message)
        elif check.result == SKIP:
            ElementTree.SubElement(case, "skipped", message=check.message)
        else:
            ElementTree.SubElement(case, "system-out").text = f"{check.result}: {check.message}"
    return ElementTree.tostring(suite, encoding="unicode") + "\n"
