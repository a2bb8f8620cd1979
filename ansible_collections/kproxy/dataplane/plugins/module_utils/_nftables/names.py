# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Names of everything in our tables. They are documentation: `nft list table` is meant to be read."""

from __future__ import annotations

import hashlib
import re

from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.frontend import ServicePortName
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.transaction import COMMENT_MAX_BYTES
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.protocol import NAMES

#: Raised whenever a set's declaration changes: tables of another layout are made anew, not adopted.
LAYOUT = 1

# Maps from an address that a client dials to how an endpoint is found for it. The node-port-... twins have no
# address in their key: they hold NodePorts, for every address that accepts them.
SERVICES = "services"
SHORT_CIRCUIT = "short-circuit"
NO_ENDPOINTS = "no-endpoints"
AFFINITY = "affinity"
UNPINNED = "unpinned"
UNPINNED_LOCAL = "unpinned-local"
LEARN_AFFINITY = "learn-affinity"
NODE_PORT = "node-port-"
VERDICT_MAPS = (SERVICES, SHORT_CIRCUIT, NO_ENDPOINTS, AFFINITY, UNPINNED, UNPINNED_LOCAL, LEARN_AFFINITY)

#: Endpoint maps, one per protocol: nft cannot share one among protocols in a rule.
ENDPOINTS = "endpoints-"

CLUSTER_IPS = "cluster-ips"
HAIRPIN = "hairpin-endpoints"
SOURCE_RESTRICTED = "source-restricted"
ALLOWED_SOURCES = "allowed-sources"
LOOPBACK_NODE_PORTS = "loopback-node-ports"
POD_ADDRESSES = "pod-addresses"
NODE_PORT_ADDRESSES = "node-port-addresses"
SERVICE_CIDRS = "service-cidrs"
#: One element whose comment says what the tables were made from; see `_nftables.about`.
ABOUT = "about"

#: Slots from here on hold the Local policy's endpoints of a frontend, those below the Cluster policy's.
LOCAL_SLOTS = 32768
#: How many slots either may use: one stays empty between them, for runs of slots are read up to the first empty one.
MAX_SLOTS = LOCAL_SLOTS - 1

#: Chains an element may name, by how the connection is marked before an endpoint is picked.
PICK = "pick"
CLUSTER_IP = "cluster-ip"
EXTERNAL = "external"
SHORT_CIRCUITED = "short-circuited"
#: Refuses NodePorts on the loopback address and counts the packets by protocol.
REFUSE_LOOPBACK = "refuse-loopback"

_UNSAFE = re.compile(r"[^A-Za-z0-9._/-]")
_MAX_WORDS = 160


def protocol_suffix(protocol: int) -> str:
    """Return tcp, udp or sctp."""
    return NAMES[protocol].lower()


def service_port_comment(name: ServicePortName) -> str:
    """Return namespace/service:port within nft's limit for comments, distinct for distinct service ports."""
    namespace, service, port, _protocol = name
    text = f"{namespace}/{service}:{port}" if port else f"{namespace}/{service}"
    if len(text) <= COMMENT_MAX_BYTES and text.isascii():
        return text
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= COMMENT_MAX_BYTES:
        return text
    digest = hashlib.sha256(encoded).hexdigest()[:10]
    kept = encoded[: COMMENT_MAX_BYTES - len(digest) - 1].decode("utf-8", "ignore")
    return "%s~%s" % (kept, digest)


def affinity_id(name: ServicePortName) -> str:
    """Return the part of a name that belongs to one service port: a hash for distinctness, then words for people."""
    words = "%s/%s/%s/%s" % (name.namespace, name.name, protocol_suffix(name.protocol), name.port)
    digest = hashlib.sha256(words.encode("utf-8", "replace")).hexdigest()[:10]
    return "%s-%s" % (digest, _UNSAFE.sub("_", words)[:_MAX_WORDS])
