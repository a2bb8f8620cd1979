# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""One complete reading of the API server: the objects the dataplane is made from.

Chunked lists, a fresh start when a list expires half-way, and the next server when one does not answer.
"""

from __future__ import annotations

import http.client
import json
import urllib.error
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode

from ansible.module_utils.urls import SSLValidationError, open_url

from ansible_collections.kproxy.dataplane.plugins.module_utils._sources.connection import Connection
from ansible_collections.kproxy.dataplane.plugins.module_utils._sources.errors import SourceError

CHUNK = 500

# A list that expires between two chunks (410) is started anew this often before the reading is given up.
ATTEMPTS = 3

# Answers that speak about this server at this moment, not about the request: another server may well do better.
TRY_ANOTHER_SERVER = frozenset({429, 500, 502, 503, 504})

SERVICES = "/api/v1/services"
SLICES = "/apis/discovery.k8s.io/v1/endpointslices"
SERVICE_CIDRS = "/apis/networking.k8s.io/v1/servicecidrs"
NODES = "/api/v1/nodes"

# The selectors of kube-proxy: Services left to another proxy and slices of headless Services are never seen.
NOT_ANOTHER_PROXYS = "!service.kubernetes.io/service-proxy-name"
NOT_HEADLESS = "!service.kubernetes.io/headless"

_HINTS = {
    401: "the credentials are not accepted; check the client certificate or token and their dates",
    403: "the user may not do that; give it the ClusterRole system:node-proxier",
}


class _Unanswered(Exception):
    """A server gave no usable answer."""


class _Expired(Exception):
    """The list's continue token is too old."""


def read_cluster(connection: Connection, node_name: str) -> list[Any]:
    """Return the lists of Services, EndpointSlices, this Node and ServiceCIDRs as the API server sent them.

    All of it comes from one server, so that the lists fit each other.

    Raises:
        SourceError: no server gave all of it, or the request is not allowed.
    """
    complaints: list[str] = []
    for server in connection.servers:
        try:
            return _read_server(server, connection, node_name)
        except _Unanswered as error:
            complaints.append(f"{server}: {error}")
    raise SourceError("no API server gave a complete answer: " + "; ".join(complaints))


def _read_server(server: str, connection: Connection, node_name: str) -> list[Any]:
    documents = list(_list(server, connection, SERVICES, {"labelSelector": NOT_ANOTHER_PROXYS}))
    documents += _list(server, connection, SLICES, {"labelSelector": NOT_HEADLESS})
    documents += _list(server, connection, NODES, {"fieldSelector": f"metadata.name={node_name}"})
    documents += _list(server, connection, SERVICE_CIDRS, {}, optional=True)
    return documents


def _list(
    server: str, connection: Connection, path: str, query: dict[str, str], optional: bool = False
) -> list[dict[str, Any]]:
    """Return the chunks of one list; none if it is ``optional`` and the server does not have it or let us."""
    for _attempt in range(ATTEMPTS):
        try:
            return list(_chunks(server, connection, path, query, optional))
        except _Expired:
            continue
    raise _Unanswered(f"{path} expired {ATTEMPTS} times while it was read; the server may be overloaded")


def _chunks(
    server: str, connection: Connection, path: str, query: dict[str, str], optional: bool
) -> Iterator[dict[str, Any]]:
    token = ""
    while True:
        parameters = {**query, "limit": str(CHUNK), **({"continue": token} if token else {})}
        chunk = _get(f"{server}{path}?{urlencode(parameters, quote_via=quote)}", connection, path, optional)
        if chunk is None:
            return
        yield chunk
        token = (chunk.get("metadata") or {}).get("continue") or ""
        if not token:
            return


def _get(url: str, connection: Connection, path: str, optional: bool) -> dict[str, Any] | None:
    headers = {"Accept": "application/json"}
    if connection.token:
        headers["Authorization"] = f"Bearer {connection.token}"
    try:
        response = open_url(
            url,
            headers=headers,
            timeout=connection.timeout,
            ca_path=connection.ca_cert,
            client_cert=connection.client_cert,
            client_key=connection.client_key,
            validate_certs=connection.validate_certs,
            http_agent="kproxy.dataplane",
            # The way to a node's own control plane never leads through a proxy.
            use_proxy=False,
            follow_redirects="none",
        )
        document = json.loads(response.read())
    except urllib.error.HTTPError as error:
        # Older clusters do not have it, older versions of our role do not allow it.
        if error.code in (403, 404) and optional:
            return None
        raise _refusal(error, path) from error
    except (SSLValidationError, urllib.error.URLError) as error:
        raise _Unanswered(str(getattr(error, "reason", error))) from error
    except (OSError, http.client.HTTPException) as error:
        raise _Unanswered(f"the answer broke off: {error!r}") from error
    except (ValueError, RecursionError) as error:
        raise _Unanswered(f"the answer to {path} is not JSON") from error
    if isinstance(document, dict) and "items" in document and document["items"] is None:
        document["items"] = []  # how some servers write an empty list
    if not isinstance(document, dict) or not isinstance(document.get("items"), list):
        raise _Unanswered(f"the answer to {path} is not a list of objects")
    return document


def _refusal(error: urllib.error.HTTPError, path: str) -> Exception:
    """Return what an HTTP error means to us: start the list anew, try another server, or give up."""
    if error.code == 410:
        return _Expired()
    if error.code in TRY_ANOTHER_SERVER:
        return _Unanswered(f"HTTP {error.code} for {path}")
    hint = _HINTS.get(error.code, "is this the API server of the cluster?")
    return SourceError(f"the API server answered HTTP {error.code} for {path}: {hint}")
