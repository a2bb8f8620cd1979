"""A small certificate authority: server certificates, client certificates and the kubeconfigs that carry them."""

from __future__ import annotations

import base64
import ipaddress
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALIDITY = timedelta(days=365)


@dataclass(frozen=True)
class KeyPair:
    """A certificate and its key, both PEM."""

    certificate: bytes
    key: bytes

    def write(self, folder: Path, name: str) -> tuple[Path, Path]:
        """Write NAME.crt and NAME.key into the folder; the key is readable by its owner only."""
        folder.mkdir(parents=True, exist_ok=True)
        certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
        certificate.write_bytes(self.certificate)
        key.touch(mode=0o600)
        key.write_bytes(self.key)
        return certificate, key


def _subject(name: str, organizations: Sequence[str]) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, value) for value in organizations]
    return x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _alternative_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )


class CertificateAuthority:
    """Signs what a test control plane needs. Keys are P-256: made in a millisecond."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self._certificate = certificate
        self._key = key
        self.pair = KeyPair(certificate.public_bytes(serialization.Encoding.PEM), _key_pem(key))

    @classmethod
    def create(cls, name: str = "kubernetes") -> CertificateAuthority:
        """Make a fresh authority."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _subject(name, ())
        now = datetime.now(UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + VALIDITY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.KeyUsage(True, False, False, False, False, True, True, False, False), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        return cls(certificate, key)

    @classmethod
    def load_or_create(cls, folder: Path) -> CertificateAuthority:
        """Use ca.crt and ca.key of the folder, or make and store them, so that a restart keeps clients valid."""
        certificate, key = folder / "ca.crt", folder / "ca.key"
        if not certificate.exists():
            authority = cls.create()
            authority.pair.write(folder, "ca")
            return authority
        loaded = serialization.load_pem_private_key(key.read_bytes(), password=None)
        if not isinstance(loaded, ec.EllipticCurvePrivateKey):
            raise ValueError(f"{key}: not an elliptic curve key")
        return cls(x509.load_pem_x509_certificate(certificate.read_bytes()), loaded)

    def issue(
        self, name: str, *, organizations: Sequence[str] = (), hosts: Sequence[str] = (), validity: timedelta = VALIDITY
    ) -> KeyPair:
        """Sign a server certificate if `hosts` are given, else a client certificate."""
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.now(UTC)
        usage = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = (
            x509.CertificateBuilder()
            .subject_name(_subject(name, organizations))
            .issuer_name(self._certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + validity)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if hosts:
            names = x509.SubjectAlternativeName([_alternative_name(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        return KeyPair(certificate.public_bytes(serialization.Encoding.PEM), _key_pem(key))


def kubeconfig(
    server: str, ca: bytes, *, user: str, pair: KeyPair | None = None, token: str = "", token_file: str = ""
) -> str:
    """Return a kubeconfig with everything inline; JSON, which is YAML too."""
    credentials: dict[str, Any] = {}
    if pair is not None:
        credentials["client-certificate-data"] = base64.b64encode(pair.certificate).decode()
        credentials["client-key-data"] = base64.b64encode(pair.key).decode()
    if token:
        credentials["token"] = token
    if token_file:
        credentials["tokenFile"] = token_file
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "cluster",
                "cluster": {"server": server, "certificate-authority-data": base64.b64encode(ca).decode()},
            }
        ],
        "users": [{"name": user, "user": credentials}],
        "contexts": [{"name": "default", "context": {"cluster": "cluster", "user": user}}],
        "current-context": "default",
    }
    return json.dumps(config, indent=2) + "\n"
