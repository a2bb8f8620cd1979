"""Label selectors: what kubectl accepts after -l, and what it refuses."""

from __future__ import annotations

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.label_selector import (
    SelectorError,
    parse_selector,
)

WEB = {"app": "web", "tier": "front", "example.org/canary": ""}

MATCHES = [
    # selector                              labels                  holds
    ("", WEB, True),
    ("app=web", WEB, True),
    ("app==web", WEB, True),
    (" app = web ", WEB, True),
    ("app=api", WEB, False),
    ("app=web,tier=front", WEB, True),
    ("app=web,tier=back", WEB, False),
    ("app!=api", WEB, True),
    ("app!=web", WEB, False),
    ("owner!=ops", WEB, True),  # a label that is missing is not equal
    ("tier in (front,api)", WEB, True),
    ("tier in ( front , api ),app", WEB, True),
    ("tier in (api)", WEB, False),
    ("owner in (ops)", WEB, False),
    ("tier notin (front)", WEB, False),
    ("tier notin (api),app=web", WEB, True),
    ("owner notin (ops)", WEB, True),
    ("app", WEB, True),
    ("owner", WEB, False),
    ("!owner", WEB, True),
    ("! app", WEB, False),
    ("example.org/canary", WEB, True),
    ("example.org/canary=", WEB, True),
    ("example.org/canary=true", WEB, False),
    ("in=a,notin", {"in": "a", "notin": "b"}, True),
    ("app", {}, False),
]


@pytest.mark.parametrize(("selector", "labels", "holds"), MATCHES)
def test_a_selector_holds(selector: str, labels: dict[str, str], holds: bool) -> None:
    assert all(requirement.holds(labels) for requirement in parse_selector(selector)) is holds


@pytest.mark.parametrize(
    "selector",
    [",", "app=web,", "app=web,,tier", "=web", "app web", "app in front", "app in (a", "app in (a b)", "app=-",
     "app=a b", "-app", "app>5", "a/b/c", "/app", "app=web;tier=front", "app=" + "x" * 64, "app===web", "!app=web"],
)  # fmt: skip
def test_what_is_no_selector_is_refused_by_its_place(selector: str) -> None:
    with pytest.raises(SelectorError, match="no label selector|no value of a label"):
        parse_selector(selector)
