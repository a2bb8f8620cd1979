# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Credentials that are renewed under our feet: kubeconfig, certificates and token are read again when a file changes.

Looking costs a stat() per file and request. A renewal in progress (new certificate, old key, an empty file) does not
break what works: the last good credentials stay in use and the problem is reported.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import threading
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._sources.bearer_token import token_validity
from ansible_collections.kproxy.dataplane.plugins.module_utils._sources.certificate import Validity, validity
from ansible_collections.kproxy.dataplane.plugins.module_utils._sources.kubeconfig import (
    Kubeconfig,
    KubeconfigError,
    Material,
    checked_token,
    no_passphrase,
    read,
)

_Signature = tuple[tuple[str, int, int, int], ...]


class Access(NamedTuple):
    """What is needed to send a request. generation: changes with everything but the token."""

    servers: tuple[str, ...]
    tls: ssl.SSLContext
    server_name: str
    authorization: str
    generation: int

    def __repr__(self) -> str:
        """Leave the credentials out."""
        return f"Access(servers={self.servers!r}, generation={self.generation})"


class Credentials:
    """The current context of a kubeconfig, kept up to date. Safe for several threads.

    Args:
        path: the kubeconfig.
        servers: addresses to use instead of those in it.
        service_cidrs: ranges no server may lie in.
    """

    def __init__(self, path: str, servers: Sequence[str] = (), service_cidrs: Sequence[str] = ()) -> None:
        self._path = path
        self._servers = tuple(servers)
        self._service_cidrs = tuple(service_cidrs)
        self._lock = threading.Lock()
        self._config: Kubeconfig | None = None
        self._access: Access | None = None
        self._signature: _Signature = ()
        self._token_signature: _Signature = ()
        self.problem = ""  # why the newest files are not in use; empty if they are
        self._validity: Validity | None = None

    def access(self) -> Access:
        """Return what to connect with now.

        Raises:
            KubeconfigError: there have never been usable credentials; afterwards the last good ones are returned.
        """
        with self._lock:
            try:
                self._refresh()
                self.problem = ""
            except KubeconfigError as error:
                self.problem = str(error)
                if self._access is None:
                    raise
            if self._access is None:
                raise AssertionError("the first read either succeeds or raises")
            return self._access

    @property
    def validity(self) -> Validity | None:
        """Return how long the client certificate in use is good; None without one."""
        return self._validity

    def ending(self, now: float) -> tuple[str, ...]:
        """Return a sentence for the client certificate and for the token, if it ends soon or has ended."""
        with self._lock:
            config, certificate, access = self._config, self._validity, self._access
        if config is None or access is None:
            return ()
        token = token_validity(access.authorization.removeprefix("Bearer "))
        return tuple(
            f"the {what} {file or 'in ' + self._path} {until.describe(now)}: renew it"
            for what, file, until in (
                ("client certificate", config.client_certificate.path, certificate),
                ("token", config.token_file, token),
            )
            if until is not None and until.ends_soon(now)
        )

    def _refresh(self) -> None:
        if self._access is None or _signature(self._files()) != self._signature:
            # Signed before reading: a change that comes in between is seen at the next look.
            kubeconfig_signature = _signature([self._path])
            config = read(self._path, self._service_cidrs)
            if self._servers:
                config = config._replace(servers=self._servers)
            files = _signature(_files_of(config))
            token_signature = _signature([config.token_file])
            try:
                tls, authorization = _tls(config), _authorization(config)
                until = _validity_of(config.client_certificate)
            except (KubeconfigError, OSError) as error:
                raise KubeconfigError(f"kubeconfig {self._path}: {error}") from error
            self._access = Access(
                config.servers,
                tls,
                config.tls_server_name,
                authorization,
                self._access.generation + 1 if self._access else 1,
            )
            self._config, self._token_signature = config, token_signature
            self._validity = until
            self._signature = kubeconfig_signature + files
            return
        if self._config is None:
            raise AssertionError("the first read sets the configuration")
        token_signature = _signature([self._config.token_file])
        if token_signature != self._token_signature:
            self._access = self._access._replace(authorization=_authorization(self._config))
            self._token_signature = token_signature

    def _files(self) -> list[str]:
        return [self._path, *(_files_of(self._config) if self._config else ())]


def _files_of(config: Kubeconfig) -> list[str]:
    return [material.path for material in (config.ca, config.client_certificate, config.client_key)]


def _signature(paths: Sequence[str]) -> _Signature:
    """Return what changes whenever one of the files does; a missing file is a state like any other."""
    found = []
    for path in filter(None, paths):
        try:
            status = os.stat(path)
        except OSError:
            found.append((path, 0, 0, 0))
        else:
            found.append((path, status.st_mtime_ns, status.st_size, status.st_ino))
    return tuple(found)


def _validity_of(certificate: Material) -> Validity | None:
    """Return how long a client certificate is good; the TLS library has just read the same file."""
    if not certificate:
        return None
    with _file_of(certificate) as name, open(name, "rb") as stream:
        return validity(stream.read())


def _authorization(config: Kubeconfig) -> str:
    """Return the Authorization header; a token file wins over a token, as in client-go."""
    token = config.token
    if config.token_file:
        try:
            with open(config.token_file, encoding="utf-8") as stream:
                token = stream.read().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise KubeconfigError(f"token file {config.token_file} cannot be read: {error}") from error
        if not token:
            raise KubeconfigError(f"token file {config.token_file} is empty")
        checked_token(token, f"what is in token file {config.token_file}")
    return f"Bearer {token}" if token else ""


def _tls(config: Kubeconfig) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if config.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        _trust(context, config.ca)
    if config.client_certificate:
        with _file_of(config.client_certificate) as certificate, _file_of(config.client_key) as key:
            try:
                context.load_cert_chain(certificate, key, no_passphrase)
            except (OSError, ssl.SSLError, ValueError) as error:
                shown = config.client_certificate.path or "in the kubeconfig"
                raise KubeconfigError(f"client certificate {shown} and its key cannot be used: {error}") from error
    return context


def _trust(context: ssl.SSLContext, ca: Material) -> None:
    if not ca:
        context.load_default_certs()
        return
    try:
        if ca.data:
            context.load_verify_locations(cadata=ca.data.decode("ascii"))
        else:
            context.load_verify_locations(cafile=ca.path)
    except (OSError, ssl.SSLError, UnicodeDecodeError) as error:
        shown = ca.path or "in the kubeconfig"
        raise KubeconfigError(f"certificate authority {shown} cannot be used: {error}") from error


@contextlib.contextmanager
def _file_of(material: Material) -> Iterator[str]:
    """Yield a path to a certificate or key; what came inline goes through memory, never onto a disk."""
    if material.path:
        yield material.path
        return
    handle = os.memfd_create("kproxy-credential", os.MFD_CLOEXEC)
    try:
        os.write(handle, material.data)
        yield f"/proc/self/fd/{handle}"
    finally:
        os.close(handle)
