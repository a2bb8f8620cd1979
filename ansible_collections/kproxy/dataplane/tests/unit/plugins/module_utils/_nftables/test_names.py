"""Names and comments: within the kernel's limits, distinct, readable."""

from __future__ import annotations

import re

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.frontend import ServicePortName
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.names import affinity_id, service_port_comment
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.protocol import TCP, UDP

LONG = ServicePortName("n" * 62, "s" * 62 + "a", "port-with-a-name", TCP)
TWIN = LONG._replace(name="s" * 62 + "b")
NAMES = [
    ServicePortName("shop", "web", "http", TCP),
    ServicePortName("shop", "web", "", TCP),
    LONG,
    ServicePortName("é" * 100, "web", 'quote"and\nnewline', UDP),
]
#: Longest name of a chain or set (NFT_NAME_MAXLEN without its end).
MAX_NAME = 255


@pytest.mark.parametrize("name", NAMES)
def test_every_name_fits(name: ServicePortName) -> None:
    assert len(service_port_comment(name).encode()) <= 128
    made = "pins-local-" + affinity_id(name)
    assert len(made) <= MAX_NAME
    assert re.fullmatch(r"[a-z][A-Za-z0-9/._-]*", made)


def test_a_short_name_is_its_own_comment() -> None:
    assert service_port_comment(NAMES[0]) == "shop/web:http"
    assert service_port_comment(NAMES[1]) == "shop/web"


def test_names_that_differ_in_the_last_character_stay_apart() -> None:
    assert service_port_comment(LONG) != service_port_comment(TWIN)
    assert affinity_id(LONG) != affinity_id(TWIN)


def test_protocols_have_pins_of_their_own() -> None:
    assert affinity_id(NAMES[0]) != affinity_id(NAMES[0]._replace(protocol=UDP))
