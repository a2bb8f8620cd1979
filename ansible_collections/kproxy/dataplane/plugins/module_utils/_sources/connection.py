# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""How to reach an API server: given directly, or taken from a kubeconfig's current context."""

from __future__ import annotations

import json
import os
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ansible_collections.kproxy.dataplane.plugins.module_utils._sources import kubeconfig
from ansible_collections.kproxy.dataplane.plugins.module_utils._sources.errors import SourceError


@dataclass(frozen=True)
class Connection:
    """Where the API server is and who we are. Paths are on this machine; the token is never printed."""

    servers: tuple[str, ...] = ()
    ca_cert: str | None = None
    client_cert: str | None = None
    client_key: str | None = None
    token: str | None = None
    timeout: int = 15
    validate_certs: bool = True

    def __repr__(self) -> str:
        """Leave the credentials out."""
        return f"Connection(servers={self.servers!r})"


def from_kubeconfig(path: str, folder: str) -> Connection:
    """Return the current context of a kubeconfig; certificates embedded in it are written into ``folder``.

    Raises:
        SourceError: the file cannot be read, or says something that cannot be used here.
    """
    try:
        return _from_context(kubeconfig.read(path), f"kubeconfig {path}", folder)
    except kubeconfig.KubeconfigError as error:
        raise SourceError(str(error)) from error


def from_data(data: str, folder: str) -> Connection:
    """Return the current context of a kubeconfig given as JSON. Raises SourceError."""
    try:
        return _from_context(kubeconfig.from_mapping(json.loads(data), os.sep), "kubeconfig_data", folder)
    except (kubeconfig.KubeconfigError, ValueError, AttributeError) as error:
        raise SourceError(f"kubeconfig_data: {error}") from error


def _from_context(config: kubeconfig.Kubeconfig, where: str, folder: str) -> Connection:
    if config.tls_server_name:
        raise SourceError(f"{where}: tls-server-name is not supported here; use an address that the certificate names")
    return Connection(
        servers=config.servers,
        ca_cert=_file_of(config.ca, "ca", folder),
        client_cert=_file_of(config.client_certificate, "client-certificate", folder),
        client_key=_file_of(config.client_key, "client-key", folder),
        token=config.token or (read_token(config.token_file) if config.token_file else None),
        validate_certs=not config.insecure,
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
    try:
        return kubeconfig.checked_token(token, f"what is in token file {path}")
    except kubeconfig.KubeconfigError as error:
        raise SourceError(str(error)) from error


def from_options(options: Mapping[str, Any], folder: str) -> Connection:
    """Return the connection a module's options describe; single options win over the kubeconfig.

    Raises:
        SourceError: the options lead to no server, or a file they name is missing or no certificate.
    """
    connection = Connection()
    if options.get("kubeconfig_data"):
        connection = from_data(options["kubeconfig_data"], folder)
    elif options.get("kubeconfig"):
        connection = from_kubeconfig(options["kubeconfig"], folder)
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
        raise SourceError("no API server is given; set api_servers, kubeconfig or kubeconfig_data")
    for server in connection.servers:
        if not server.startswith(("https://", "http://")):
            raise SourceError(f"API server {server!r} is not a URL such as https://192.0.2.10:6443")
    _check_files(connection)
    return connection


def _file_of(material: kubeconfig.Material, name: str, folder: str) -> str | None:
    """Return a file with the certificate or key, for the TLS library reads nothing but files."""
    if not material.data:
        return material.path or None
    handle, path = tempfile.mkstemp(prefix=f"{name}-", suffix=".pem", dir=folder)
    with os.fdopen(handle, "wb") as stream:
        stream.write(material.data)
    return path


def _check_files(connection: Connection) -> None:
    """Find a missing or broken file before a TLS library says the same in worse words."""
    for option in ("ca_cert", "client_cert", "client_key"):
        path = getattr(connection, option)
        if path and not os.path.isfile(path):
            raise SourceError(f"{option} {path} does not exist on this node")
    if connection.ca_cert:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=connection.ca_cert)
        except (ssl.SSLError, OSError) as error:
            raise SourceError(f"ca_cert {connection.ca_cert} holds no certificate that can be used: {error}") from error
    if connection.client_cert:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            context.load_cert_chain(connection.client_cert, connection.client_key, kubeconfig.no_passphrase)
        except (ssl.SSLError, OSError, ValueError) as error:
            raise SourceError(f"client_cert {connection.client_cert} and its key cannot be used: {error}") from error
