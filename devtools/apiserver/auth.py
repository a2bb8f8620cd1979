"""Who asks, and may they: bearer tokens, client certificates, and the two roles the stand-in knows."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from devtools.apiserver.status import ApiStatus

ADMIN_GROUP = "system:masters"
KUBE_PROXY = "system:kube-proxy"

# ClusterRole system:node-proxier of Kubernetes 1.36, bound to the user system:kube-proxy by the API server itself.
NODE_PROXIER: Mapping[tuple[str, str], frozenset[str]] = {
    ("", "services"): frozenset({"list", "watch"}),
    ("", "nodes"): frozenset({"get", "list", "watch"}),
    ("discovery.k8s.io", "endpointslices"): frozenset({"list", "watch"}),
    ("networking.k8s.io", "servicecidrs"): frozenset({"list", "watch"}),
    ("", "events"): frozenset({"create", "patch", "update"}),
    ("events.k8s.io", "events"): frozenset({"create", "patch", "update"}),
}


@dataclass(frozen=True)
class User:
    """An authenticated identity."""

    name: str
    groups: frozenset[str] = frozenset()


def user_of_certificate(certificate: Mapping[str, Any] | None) -> User | None:
    """Read the identity of a verified client certificate: common name and organisations."""
    if not certificate:
        return None
    attributes = [pair for relative in certificate.get("subject", ()) for pair in relative]
    names = [value for key, value in attributes if key == "commonName"]
    groups = frozenset(value for key, value in attributes if key == "organizationName")
    return User(names[0], groups) if names else None


def authenticate(headers: Mapping[str, str], tokens: Mapping[str, User], tls: ssl.SSLObject | None) -> User:
    """Return who asks; 401 for a wrong token, and for nobody."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        user = tokens.get(token.strip())
        if user is None:
            raise ApiStatus(401, "Unauthorized")
        return user
    user = user_of_certificate(tls.getpeercert()) if tls is not None else None
    if user is None:
        raise ApiStatus(401, "Unauthorized")
    return user


def authorize(user: User, verb: str, group: str, plural: str) -> None:
    """Raise 403, worded as the real one, unless the user may do this."""
    if ADMIN_GROUP in user.groups:
        return
    if user.name == KUBE_PROXY and verb in NODE_PROXIER.get((group, plural), frozenset()):
        return
    raise ApiStatus(
        403,
        f'{plural} is forbidden: User "{user.name}" cannot {verb} resource "{plural}" in API group "{group}"'
        " at the cluster scope",
    )
