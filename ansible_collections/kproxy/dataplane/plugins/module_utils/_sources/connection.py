# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""How to reach an API server: given directly, or taken from a kubeconfig's current context."""

from __future__ import annotations

import base64
import binascii
import os
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ansible_collections.kproxy.dataplane.plugins.module_utils._sources.errors import SourceError
from ansible_collections.kproxy.dataplane.plugins.module_utils._sources.manifests import parse_text


@dataclass(frozen=True)
class Connection:
    """Where the API server is and who we are. Paths are on this machine; ``token`` is never printed."""

    servers: tuple[str, ...] = ()
    ca_cert: str | None = None
    client_cert: str | None = None
    client_key: str | None = None
    token: str | None = None
    timeout: int = 15

    def __repr__(self) -> str:
        """Leave the credentials out."""
        return f"Connection(servers={self.servers!r})"


def from_kubeconfig(path: str, folder: str) -> Connection:
    """Return the current context of a kubeconfig; embedded certificates are written into ``folder``.

    Other contexts with the same user are further API servers of the same cluster: a kubeconfig has no other way to name
    several.

    Raises:
        SourceError: the file cannot be read, or its current context does not lead to a server.
    """
    try:
        with open(path, encoding="utf-8") as stream:
            documents = parse_text(path, stream.read())
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"cannot read kubeconfig {path}: {error}") from error
    config = documents[0] if documents and isinstance(documents[0], Mapping) else {}
    context = _named(config, "contexts", "context", config.get("current-context"), path)
    cluster = _named(config, "clusters", "cluster", context.get("cluster"), path)
    user = _named(config, "users", "user", context.get("user"), path)
    if not cluster.get("server"):
        raise SourceError(f"kubeconfig {path}: cluster {context.get('cluster')!r} names no server")
    unsupported = [name for name in ("exec", "auth-provider") if user.get(name)]
    if unsupported:
        raise SourceError(
            f"kubeconfig {path}: user {context.get('user')!r} authenticates by {unsupported[0]}; "
            "use a client certificate or a token"
        )

    base = os.path.dirname(os.path.abspath(path))

    def material(section: Mapping[str, Any], name: str) -> str | None:
        """Return a file for certificate or key ``name``; -data wins over a path, as in client-go."""
        data = section.get(f"{name}-data")
        if data:
            try:
                content = base64.b64decode(str(data), validate=True)
            except (binascii.Error, ValueError) as error:
                raise SourceError(f"kubeconfig {path}: {name}-data is not base64") from error
            handle, written = tempfile.mkstemp(prefix=f"{name}-", suffix=".pem", dir=folder)
            with os.fdopen(handle, "wb") as stream:
                stream.write(content)
            return written
        return os.path.join(base, str(section[name])) if section.get(name) else None

    token = user.get("token")
    if not token and user.get("tokenFile"):
        token = read_token(os.path.join(base, str(user["tokenFile"])))
    return Connection(
        servers=(str(cluster["server"]).rstrip("/"), *_further_servers(config, context, path)),
        ca_cert=material(cluster, "certificate-authority"),
        client_cert=material(user, "client-certificate"),
        client_key=material(user, "client-key"),
        token=str(token) if token else None,
    )


def read_token(path: str) -> str:
    """Return the bearer token in a file. Raises SourceError if there is none."""
    try:
        with open(path, encoding="utf-8") as stream:
            token = stream.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"cannot read token file {path}: {error}") from error
    if not token:
        raise SourceError(f"token file {path} is empty")
    return token


def from_options(options: Mapping[str, Any], folder: str) -> Connection:
    """Return the connection a module's options describe; single options win over the kubeconfig.

    Raises:
        SourceError: the options lead to no server, or a file they name is missing or no certificate.
    """
    connection = from_kubeconfig(options["kubeconfig"], folder) if options.get("kubeconfig") else Connection()
    given = {name: options.get(name) for name in ("ca_cert", "client_cert", "client_key", "token")}
    if options.get("token_file"):
        given["token"] = read_token(options["token_file"])
    changes: dict[str, Any] = {name: value for name, value in given.items() if value}
    if options.get("api_servers"):
        changes["servers"] = tuple(server.rstrip("/") for server in options["api_servers"])
    if options.get("api_timeout"):
        changes["timeout"] = options["api_timeout"]
    connection = replace(connection, **changes)
    if not connection.servers:
        raise SourceError("no API server is given; set api_servers or kubeconfig")
    for server in connection.servers:
        if not server.startswith(("https://", "http://")):
            raise SourceError(f"API server {server!r} is not a URL such as https://192.0.2.10:6443")
    _check_files(connection)
    return connection


def _check_files(connection: Connection) -> None:
    """Find a missing or broken file before a TLS library says the same in worse words."""
    for option in ("ca_cert", "client_cert", "client_key"):
        path = getattr(connection, option)
        if path and not os.path.isfile(path):
            raise SourceError(f"{option} {path} does not exist on this node")
    if connection.client_cert:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            context.load_cert_chain(connection.client_cert, connection.client_key)
        except (ssl.SSLError, OSError) as error:
            raise SourceError(
                f"client_cert {connection.client_cert} and its key cannot be used: {error}"
            ) from error


def _further_servers(config: Mapping[str, Any], current: Mapping[str, Any], path: str) -> list[str]:
    """Return the servers of the other contexts that have the current context's user."""
    servers = []
    for entry in config.get("contexts") or ():
        context = entry.get("context") if isinstance(entry, Mapping) else None
        if isinstance(context, Mapping) and context != current and context.get("user") == current.get("user"):
            server = _named(config, "clusters", "cluster", context.get("cluster"), path).get("server")
            if server:
                servers.append(str(server).rstrip("/"))
    return servers


def _named(config: Mapping[str, Any], plural: str, singular: str, name: Any, path: str) -> Mapping[str, Any]:
    """Return the entry ``name`` of one of the kubeconfig's lists of named things."""
    for entry in config.get(plural) or ():
        if isinstance(entry, Mapping) and entry.get("name") == name and isinstance(entry.get(singular), Mapping):
            found: Mapping[str, Any] = entry[singular]
            return found
    raise SourceError(f"kubeconfig {path} has no {singular} called {name!r}")
