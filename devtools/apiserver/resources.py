"""The resource types the stand-in serves, and how a request path names one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ResourceType:
    """One served resource, as the API server's discovery would list it."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def root(self) -> str:
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the request path of the collection, or of one object."""
        parts = [self.root]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        parts += [part for part in (name, subresource) if part]
        return "/".join(parts)


RESOURCES: tuple[ResourceType, ...] = (
    ResourceType("", "v1", "services", "Service", True),
    ResourceType("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", True),
    ResourceType("", "v1", "nodes", "Node", False),
    ResourceType("networking.k8s.io", "v1", "servicecidrs", "ServiceCIDR", False),
    ResourceType("", "v1", "namespaces", "Namespace", False),
    ResourceType("", "v1", "events", "Event", True),
    ResourceType("events.k8s.io", "v1", "events", "Event", True),
    ResourceType("", "v1", "configmaps", "ConfigMap", True),
    ResourceType("", "v1", "pods", "Pod", True),
    ResourceType("", "v1", "secrets", "Secret", True),
    ResourceType("", "v1", "serviceaccounts", "ServiceAccount", True),
    ResourceType("apps", "v1", "daemonsets", "DaemonSet", True),
    ResourceType("coordination.k8s.io", "v1", "leases", "Lease", True),
    ResourceType("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", False),
    ResourceType("rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", False),
    ResourceType("rbac.authorization.k8s.io", "v1", "roles", "Role", True),
    ResourceType("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding", True),
)

_BY_KIND = {(resource.api_version, resource.kind): resource for resource in RESOURCES}
_BY_PLURAL = {(resource.group, resource.version, resource.plural): resource for resource in RESOURCES}


def by_kind(api_version: str, kind: str) -> ResourceType:
    """Return the resource type of a manifest; KeyError names what is not served."""
    try:
        return _BY_KIND[api_version, kind]
    except KeyError:
        raise KeyError(f"{api_version} {kind} is not served here") from None


def by_plural(plural: str) -> ResourceType:
    """Return the first resource type with this plural, e.g. "services"."""
    for resource in RESOURCES:
        if resource.plural == plural:
            return resource
    raise KeyError(f"no resource called {plural}")


@dataclass(frozen=True)
class Target:
    """What a request path points at."""

    resource: ResourceType
    namespace: str = ""
    name: str = ""
    subresource: str = ""


def parse_path(path: str) -> Target | None:
    """Read a request path; None if it names no served resource."""
    parts = [part for part in path.split("/") if part]
    if parts[:1] == ["api"] and len(parts) >= 3:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[:1] == ["apis"] and len(parts) >= 4:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    namespace = ""
    if rest[0] == "namespaces" and len(rest) >= 3 and (group, version, rest[2]) in _BY_PLURAL:
        namespace, rest = rest[1], rest[2:]
    resource = _BY_PLURAL.get((group, version, rest[0]))
    if resource is None or len(rest) > 3:
        return None
    name, subresource = [*rest[1:], "", ""][:2]
    return Target(resource, namespace, name, subresource)
