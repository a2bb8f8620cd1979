# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""From raw documents to typed objects; a bad one costs only itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.endpoints import ENDPOINTS, needless
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.parse import ApiObject, expand, parse
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.refusal import Refusal


@dataclass(frozen=True)
class Reading:
    """What a source held: the usable objects, and why the others are not.

    servers: the API servers it was read from. others: how many objects are of other
    kinds, which are none of the proxy's business, and Endpoints. notes: what is not
    connected among objects that people wrote.
    """

    objects: tuple[ApiObject, ...] = ()
    refusals: tuple[Refusal, ...] = field(default=())
    servers: tuple[str, ...] = ()
    others: int = 0
    notes: tuple[str, ...] = ()


def read_documents(documents: Iterable[Any]) -> Reading:
    """Parse every manifest of the documents; kinds that are none of the proxy's business are left out."""
    objects: list[ApiObject] = []
    refusals: list[Refusal] = []
    others = 0
    for document in documents:
        for manifest in expand(document):
            try:
                parsed = parse(manifest)
            except Refusal as refusal:
                refusals.append(refusal)
                others += refusal.kind == ENDPOINTS
                continue
            if parsed is None:
                others += 1
            else:
                objects.append(parsed)
    missed_by_nobody = needless(refusals, objects)
    told = tuple(one for one in refusals if (one.namespace, one.name) not in missed_by_nobody or one.kind != ENDPOINTS)
    return Reading(tuple(objects), told, others=others)
