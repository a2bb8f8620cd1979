"""An administrator's client for either control plane: whole objects in, whole objects out."""

from __future__ import annotations

import contextlib
import json
import ssl
from collections.abc import Mapping
from http.client import HTTPException, HTTPResponse, HTTPSConnection, RemoteDisconnected
from typing import Any
from urllib.parse import quote, urlsplit

from devtools.apiserver.netns import inside
from devtools.apiserver.resources import ResourceType, by_kind


class ControlPlaneError(RuntimeError):
    """The control plane did not start, or refused what it was asked."""


class NotFoundError(ControlPlaneError):
    """The object is not there."""


class Admin:
    """A plain administrator's client: whole objects in, whole objects out."""

    def __init__(self, url: str, tls: ssl.SSLContext, network_namespace: str | None = None) -> None:
        self._url = urlsplit(url)
        self._tls = tls
        self._network_namespace = network_namespace
        self._connection: HTTPSConnection | None = None
        self._known_namespaces = {"default", "kube-system", "kube-public", "kube-node-lease"}

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self) -> HTTPSConnection:
        connection = HTTPSConnection(str(self._url.hostname), self._url.port, timeout=30, context=self._tls)
        with inside(self._network_namespace):
            connection.connect()
        return connection

    def request(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> Any:
        """Send one request and return the decoded answer.

        Raises:
            NotFoundError: 404.
            ControlPlaneError: any other refusal, with the server's words.
            OSError: the server cannot be reached.
        """
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": content_type} if data else {}
        reused = self._connection is not None
        try:
            response, answer = self._exchange(method, path, data, headers)
        except (RemoteDisconnected, ConnectionError):
            if not reused:
                raise
            # A server may close a connection that has been idle, at the very moment we use it again.
            response, answer = self._exchange(method, path, data, headers)
        if response.status >= 400:
            try:
                message = json.loads(answer)["message"]
            except (ValueError, KeyError, TypeError):
                message = answer[:300].decode(errors="replace")
            failure = NotFoundError if response.status == 404 else ControlPlaneError
            raise failure(f"{method} {path}: {response.status} {message}")
        return json.loads(answer) if answer[:1] == b"{" else answer.decode()

    def _exchange(
        self, method: str, path: str, data: bytes | None, headers: Mapping[str, str]
    ) -> tuple[HTTPResponse, bytes]:
        if self._connection is None:
            self._connection = self._connect()
        try:
            self._connection.request(method, path, data, dict(headers))
            response = self._connection.getresponse()
            return response, response.read()
        except (OSError, HTTPException):
            self.close()
            raise

    def _ensure_namespace(self, namespace: str) -> None:
        if namespace not in self._known_namespaces:
            body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
            with contextlib.suppress(ControlPlaneError):  # it exists already
                self.request("POST", "/api/v1/namespaces", body)
            self._known_namespaces.add(namespace)

    def apply(self, *manifests: Mapping[str, Any]) -> None:
        """Create or replace objects. A status is set through the status subresource: there is nobody else to do it."""
        for manifest in manifests:
            body = json.loads(json.dumps(manifest))
            resource, namespace, name = _identity(body)
            if resource.namespaced:
                body["metadata"]["namespace"] = namespace
                self._ensure_namespace(namespace)
            try:
                current = self.request("GET", resource.path(namespace, name))
            except NotFoundError:
                self.request("POST", resource.path(namespace), body)
            else:
                body["metadata"]["resourceVersion"] = current["metadata"]["resourceVersion"]
                if resource.kind == "Service":
                    _carry_over(current["spec"], body.setdefault("spec", {}))
                self.request("PUT", resource.path(namespace, name), body)
            if manifest.get("status"):
                self.set_status(manifest)

    def create(self, manifest: Mapping[str, Any]) -> None:
        """Create an object that is not there yet: one request, for loading many."""
        body = dict(manifest)
        resource, namespace, _name = _identity(body)
        if resource.namespaced:
            self._ensure_namespace(namespace)
        self.request("POST", resource.path(namespace), body)

    def set_status(self, manifest: Mapping[str, Any]) -> None:
        """Write a manifest's status, e.g. a load balancer's ingress addresses."""
        resource, namespace, name = _identity(manifest)
        path = resource.path(namespace, name, "status")
        self.request("PATCH", path, {"status": manifest["status"]}, "application/merge-patch+json")

    def get(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Return the object a manifest names."""
        resource, namespace, name = _identity(manifest)
        found: dict[str, Any] = self.request("GET", resource.path(namespace, name))
        return found

    def delete(self, *manifests: Mapping[str, Any]) -> None:
        """Delete the objects the manifests name; what is not there is no error."""
        for manifest in manifests:
            resource, namespace, name = _identity(manifest)
            with contextlib.suppress(NotFoundError):
                self.request("DELETE", resource.path(namespace, name))


def _identity(manifest: Mapping[str, Any]) -> tuple[ResourceType, str, str]:
    resource = by_kind(manifest["apiVersion"], manifest["kind"])
    metadata = manifest["metadata"]
    return resource, metadata.get("namespace") or ("default" if resource.namespaced else ""), quote(metadata["name"])


def _carry_over(current: Mapping[str, Any], spec: dict[str, Any]) -> None:
    """Keep the immutable addresses of a Service in a new spec that leaves them out."""
    if "ExternalName" in (current.get("type"), spec.get("type")):
        return
    for field in ("clusterIP", "clusterIPs"):
        if current.get(field) and not spec.get(field):
            spec[field] = current[field]
