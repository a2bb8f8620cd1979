# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Read, change and delete single objects through the API server; the next server when one does not answer."""

from __future__ import annotations

import http.client
import json
import urllib.error
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlencode

from ansible.module_utils.urls import SSLValidationError, open_url

from ansible_collections.kproxy.dataplane.plugins.module_utils._sources.connection import Connection
from ansible_collections.kproxy.dataplane.plugins.module_utils._sources.errors import SourceError

_MERGE_PATCH = "application/merge-patch+json"
# Answers that speak about this server at this moment, not about the request.
_TRY_ANOTHER_SERVER = frozenset((429, 500, 502, 503, 504))


class ObjectPath(NamedTuple):
    """Where an object, or with an empty name a whole list, is found."""

    root: str  # such as /api/v1 or /apis/apps/v1
    plural: str
    namespace: str = ""
    name: str = ""
    field_selector: str = ""

    def __str__(self) -> str:
        parts = [self.root]
        if self.namespace:
            parts += ["namespaces", self.namespace]
        path = "/".join(parts + [part for part in (self.plural, self.name) if part])
        return f"{path}?{urlencode({'fieldSelector': self.field_selector})}" if self.field_selector else path


class Listing(NamedTuple):
    """The objects of a list, and the version of it from which changes can be watched."""

    items: list[dict[str, Any]]
    version: str


def node(name: str) -> ObjectPath:
    return ObjectPath("/api/v1", "nodes", name=name)


def daemonsets(namespace: str = "", name: str = "") -> ObjectPath:
    return ObjectPath("/apis/apps/v1", "daemonsets", namespace, name)


def config_map(namespace: str, name: str) -> ObjectPath:
    return ObjectPath("/api/v1", "configmaps", namespace, name)


def pods(node_name: str = "") -> ObjectPath:
    return ObjectPath("/api/v1", "pods", field_selector=f"spec.nodeName={node_name}" if node_name else "")


def services() -> ObjectPath:
    return ObjectPath("/api/v1", "services")


class ApiObjects:
    """A client for whole objects. Every method raises SourceError when no server answers, or the request is refused."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def get(self, path: ObjectPath) -> dict[str, Any] | None:
        """Return an object, or None when there is none."""
        return self._request("GET", path)

    def items(self, path: ObjectPath) -> list[dict[str, Any]]:
        """Return the objects of a list."""
        return self.listing(path).items

    def listing(self, path: ObjectPath) -> Listing:
        """Return the objects of a list, and its version."""
        found = self._request("GET", path) or {}
        version = (found.get("metadata") or {}).get("resourceVersion") or ""
        return Listing(list(found.get("items") or ()), str(version))

    def wait_for_change(self, path: ObjectPath, version: str, seconds: float) -> bool:
        """Wait until anything of a list changes after this version, at most so long; False if that cannot be told.

        The list has to be read anew in either case: what changed is not looked at.
        """
        for server in self._connection.servers:
            question = {"watch": "1", "resourceVersion": version, "timeoutSeconds": str(max(1, round(seconds)))}
            separator = "&" if path.field_selector else "?"
            try:
                stream = self._open(f"{server}{path}{separator}{urlencode(question)}", "GET", None, seconds)
                with stream:
                    return bool(stream.readline())
            except (SSLValidationError, OSError, http.client.HTTPException, ValueError):
                # urllib's errors are OSErrors: this server does not let itself be watched now.
                continue
        return False

    def merge(self, path: ObjectPath, patch: Mapping[str, Any]) -> dict[str, Any]:
        """Merge a change into an object and return it as it is now; null removes a key, a list replaces a list."""
        found = self._request("PATCH", path, patch)
        if found is None:
            raise SourceError(f"{path} does not exist, so it cannot be changed")
        return found

    def delete(self, path: ObjectPath) -> None:
        """Delete an object; one that is gone already is fine."""
        self._request("DELETE", path)

    def _request(self, method: str, path: ObjectPath, body: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
        complaints = []
        for server in self._connection.servers:
            try:
                return self._ask(server, method, path, body)
            except urllib.error.HTTPError as error:
                if error.code == 404:
                    return None
                if error.code not in _TRY_ANOTHER_SERVER:
                    raise SourceError(
                        f"the API server answered HTTP {error.code} to {method} {path}: {_message(error)}"
                    ) from error
                complaints.append(f"{server}: HTTP {error.code}")
            except (SSLValidationError, urllib.error.URLError) as error:
                complaints.append(f"{server}: {getattr(error, 'reason', error)}")
            except (OSError, http.client.HTTPException, ValueError) as error:
                complaints.append(f"{server}: the answer broke off: {error!r}")
        raise SourceError(f"no API server answered {method} {path}: " + "; ".join(complaints))

    def _ask(self, server: str, method: str, path: ObjectPath, body: Mapping[str, Any] | None) -> dict[str, Any]:
        response = self._open(f"{server}{path}", method, body, self._connection.timeout)
        document: dict[str, Any] = json.loads(response.read() or b"{}")
        return document

    def _open(self, url: str, method: str, body: Mapping[str, Any] | None, timeout: float) -> Any:
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = _MERGE_PATCH
        if self._connection.token:
            headers["Authorization"] = f"Bearer {self._connection.token}"
        return open_url(
            url,
            method=method,
            data=None if body is None else json.dumps(body),
            headers=headers,
            timeout=timeout,
            ca_path=self._connection.ca_cert,
            validate_certs=self._connection.validate_certs,
            client_cert=self._connection.client_cert,
            client_key=self._connection.client_key,
            http_agent="kproxy.dataplane",
            use_proxy=False,
            follow_redirects="none",
        )


def _message(error: urllib.error.HTTPError) -> str:
    """Return the API server's own words (metav1.Status), or the reason of HTTP."""
    try:
        return str(json.loads(error.read())["message"])
    except (ValueError, KeyError, TypeError, OSError):
        return str(error.reason)
