# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""What a kubeconfig says about its current context, with every mistake named. No files but the kubeconfig are read.

Several addresses of one cluster have no place of their own in the format; they go where it lets programs keep what is
theirs, the cluster's `extensions`:

    clusters:
    - name: home
      cluster:
        server: https://192.0.2.200:6443
        certificate-authority: /etc/kubernetes/pki/ca.crt
        extensions:
        - name: kproxy.dataplane
          extension: {servers: ["https://192.0.2.11:6443", "https://192.0.2.12:6443"]}

Format: k8s.io/client-go tools/clientcmd/api/v1 (Config, Cluster, AuthInfo, NamedExtension).
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._bootstrap.endpoint import check_server
from ansible_collections.kproxy.dataplane.plugins.module_utils._sources.errors import SourceError
from ansible_collections.kproxy.dataplane.plugins.module_utils._sources.manifests import parse_text

EXTENSION = "kproxy.dataplane"


class KubeconfigError(Exception):
    """The kubeconfig cannot be used; the message names the file, the entry and what to do."""


class Material(NamedTuple):
    """A certificate or key: in a file, or in the kubeconfig itself. Both empty: there is none."""

    path: str = ""
    data: bytes = b""

    def __bool__(self) -> bool:
        """Return whether there is any."""
        return bool(self.path or self.data)


class Kubeconfig(NamedTuple):
    """The current context: where to connect, whom to trust, and who we are."""

    servers: tuple[str, ...]
    ca: Material = Material()
    tls_server_name: str = ""
    insecure: bool = False
    client_certificate: Material = Material()
    client_key: Material = Material()
    token: str = ""
    token_file: str = ""

    def __repr__(self) -> str:
        """Leave the credentials out."""
        return f"Kubeconfig(servers={self.servers!r})"


def read(path: str, service_cidrs: Sequence[str] = ()) -> Kubeconfig:
    """Return the current context of a kubeconfig.

    Raises:
        KubeconfigError: it cannot be read, says nothing usable, or names a server that needs us to work.
    """
    try:
        with open(path, encoding="utf-8") as stream:
            documents = parse_text(path, stream.read())
    except (OSError, UnicodeDecodeError, SourceError) as error:
        raise KubeconfigError(f"kubeconfig {path} cannot be read: {error}") from error
    if not documents or not isinstance(documents[0], Mapping):
        raise KubeconfigError(f"kubeconfig {path} is empty or no mapping")
    try:
        return from_mapping(documents[0], os.path.dirname(os.path.abspath(path)), service_cidrs)
    except KubeconfigError as error:
        raise KubeconfigError(f"kubeconfig {path}: {error}") from None


def from_mapping(config: Mapping[str, Any], base: str, service_cidrs: Sequence[str] = ()) -> Kubeconfig:
    """Return the current context of a decoded kubeconfig; relative paths are taken from the folder `base`."""
    if not isinstance(config, Mapping):
        raise KubeconfigError("is empty or no mapping")
    if not config.get("current-context"):
        raise KubeconfigError("has no current-context; set it to the name of one of its contexts")
    context = _named(config, "contexts", "context", config.get("current-context"))
    cluster = _named(config, "clusters", "cluster", context.get("cluster"))
    user = _named(config, "users", "user", context.get("user"))
    for unsupported in ("exec", "auth-provider", "username"):
        if user.get(unsupported):
            raise KubeconfigError(
                f"user {context.get('user')!r} authenticates by {unsupported}; use a client certificate or a token"
            )
    servers = _servers(cluster)
    if not servers:
        raise KubeconfigError(f"cluster {context.get('cluster')!r} names no server")
    for server in servers:
        try:
            check_server(server, service_cidrs)
        except ValueError as error:
            raise KubeconfigError(str(error)) from None
    certificate, key = _material(user, "client-certificate", base), _material(user, "client-key", base)
    if bool(certificate) != bool(key):
        raise KubeconfigError(f"user {context.get('user')!r} has only one of client-certificate and client-key")
    token_file = _text(user, "tokenFile")
    return Kubeconfig(
        servers=servers,
        ca=_material(cluster, "certificate-authority", base),
        tls_server_name=_text(cluster, "tls-server-name"),
        insecure=cluster.get("insecure-skip-tls-verify") is True,
        client_certificate=certificate,
        client_key=key,
        token=checked_token(_text(user, "token"), f"token of user {context.get('user')!r}"),
        token_file=os.path.join(base, token_file) if token_file else "",
    )


def no_passphrase() -> str:
    """Stand in for the terminal where the TLS library would ask for a key's passphrase, and wait for ever."""
    raise ValueError("the key is encrypted; give one without a passphrase")


def checked_token(token: str, what: str) -> str:
    """Return a token that a header can carry. Raises KubeconfigError, which does not show it."""
    if not token.isascii() or not token.isprintable() or " " in token:
        raise KubeconfigError(f"{what} is no bearer token: it holds blanks, line ends or other than ASCII characters")
    return token


def _named(config: Mapping[str, Any], plural: str, singular: str, name: object) -> Mapping[str, Any]:
    entries = config.get(plural)
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, Mapping) and entry.get("name") == name and isinstance(entry.get(singular), Mapping):
            found: Mapping[str, Any] = entry[singular]
            return found
    raise KubeconfigError(f"has no {singular} called {name!r}")


def _text(section: Mapping[str, Any], key: str) -> str:
    value = section.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise KubeconfigError(f"{key} must be a string, not {type(value).__name__}")
    if "\0" in value:
        raise KubeconfigError(f"{key} holds a NUL character")
    return value


def _servers(cluster: Mapping[str, Any]) -> tuple[str, ...]:
    servers = [_text(cluster, "server")]
    extensions = cluster.get("extensions")
    for entry in extensions if isinstance(extensions, list) else ():
        if isinstance(entry, Mapping) and entry.get("name") == EXTENSION:
            extension = entry.get("extension")
            further = extension.get("servers") if isinstance(extension, Mapping) else None
            if not isinstance(further, list) or not all(isinstance(server, str) for server in further):
                raise KubeconfigError(f"extension {EXTENSION} must hold servers, a list of URLs")
            servers += further
    return tuple(dict.fromkeys(server.rstrip("/") for server in servers if server))


def _material(section: Mapping[str, Any], key: str, base: str) -> Material:
    """Return a certificate or key; `-data` wins over a path, as in client-go."""
    data = "".join(_text(section, f"{key}-data").split())  # line ends are no part of base64, as for client-go
    if data:
        try:
            return Material(data=base64.b64decode(data, validate=True))
        except (binascii.Error, ValueError) as error:
            raise KubeconfigError(f"{key}-data is not base64: {error}") from error
    path = _text(section, key)
    return Material(path=os.path.join(base, path)) if path else Material()
