# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The options by which modules are told what to read and which node they stand for, and what follows from them."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.config import ProxyConfig, overridden_name
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.endpoints import ENDPOINTS
from ansible_collections.kproxy.dataplane.plugins.module_utils._sources.api_server import read_cluster
from ansible_collections.kproxy.dataplane.plugins.module_utils._sources.connection import from_options
from ansible_collections.kproxy.dataplane.plugins.module_utils._sources.errors import SourceError
from ansible_collections.kproxy.dataplane.plugins.module_utils._sources.manifests import read_manifests
from ansible_collections.kproxy.dataplane.plugins.module_utils._sources.reading import Reading, read_documents
from ansible_collections.kproxy.dataplane.plugins.module_utils._sources.unconnected import unconnected

NODE_OPTIONS: dict[str, Any] = {
    "node_name": {"type": "str"},
    "config": {"type": "dict", "default": {}},
}

SOURCE_OPTIONS: dict[str, Any] = {
    "objects": {"type": "list", "elements": "dict"},
    "manifests": {"type": "path"},
    "remote_src": {"type": "bool", "default": False},
    "api_servers": {"type": "list", "elements": "str"},
    "kubeconfig": {"type": "path"},
    "kubeconfig_data": {"type": "json", "no_log": True},
    "ca_cert": {"type": "path"},
    "client_cert": {"type": "path"},
    "client_key": {"type": "path"},
    "token": {"type": "str", "no_log": True},
    "token_file": {"type": "path"},
    "api_timeout": {"type": "int", "default": 15},
}

SOURCES_EXCLUDE = [
    ("objects", "manifests", "api_servers"),
    ("objects", "manifests", "kubeconfig", "kubeconfig_data"),
    ("token", "token_file"),
]
SOURCES = ("objects", "manifests", "api_servers", "kubeconfig", "kubeconfig_data")


def has_source(options: Mapping[str, Any]) -> bool:
    """Whether the options name a source; an empty list of objects is one, and means that there are no Services."""
    return any(options.get(name) is not None for name in SOURCES)


def read_source(options: Mapping[str, Any], node_name: str) -> Reading:
    """Read everything the options point at. Raises SourceError."""
    if options.get("objects") is not None:
        return _written_by_hand(read_documents(options["objects"]))
    if options.get("manifests"):
        return _written_by_hand(read_documents(read_manifests(options["manifests"])))
    # Certificates embedded in a kubeconfig have to be files for the TLS library; the folder is readable by us alone.
    with tempfile.TemporaryDirectory(prefix="kproxy-") as folder:
        connection = from_options(options, folder)
        return replace(read_documents(read_cluster(connection, node_name)), servers=connection.servers)


def _written_by_hand(reading: Reading) -> Reading:
    """Return what was read, with what is not connected in it.

    Raises SourceError if all of it is somebody else's: then the wrong place was named.
    """
    if reading.others and not reading.objects and all(one.kind == ENDPOINTS for one in reading.refusals):
        raise SourceError(
            f"none of the {reading.others} objects is a Service, EndpointSlice, Node or ServiceCIDR, so every Service "
            "would go: name the place of the right ones; to remove everything use state=absent"
        )
    return replace(reading, notes=tuple(unconnected(reading.objects)))


def proxy_config(options: Mapping[str, Any]) -> ProxyConfig:
    """Return the settings of this node's proxy. Raises ConfigError (a ValueError) naming the bad setting."""
    settings = {key: value for key, value in options["config"].items() if key not in ("nodeName", "hostnameOverride")}
    return ProxyConfig.from_mapping({**settings, "nodeName": node_name_of(options)})


def node_name_of(options: Mapping[str, Any]) -> str:
    """Return the name of the Node object: the option, the configuration's, or the host's own name."""
    config = options["config"]
    names = (options.get("node_name"), config.get("hostnameOverride"), config.get("nodeName"), socket.gethostname())
    return next(filter(None, map(overridden_name, names)))
