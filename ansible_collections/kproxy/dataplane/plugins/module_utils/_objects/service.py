# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Service: what a Service object says about addresses, ports and policies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._objects import fields
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.address import (
    AddressError,
    Prefix,
    is_special,
    parse_address,
    parse_prefix,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.protocol import NAMES, NUMBERS, TCP
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.shown import shown

DEFAULT_AFFINITY_SECONDS = 10800
MAX_AFFINITY_SECONDS = 86400
_PROXY_NAME_LABEL = "service.kubernetes.io/service-proxy-name"


class ServicePort(NamedTuple):
    """One port of a Service. node_port is 0 where there is none."""

    name: str
    protocol: int
    port: int
    node_port: int


class Service(NamedTuple):
    """A Service as the proxy sees it; addresses are packed and of either family.

    proxied is False where the Service is not the proxy's business: ExternalName, headless, or handed to another
    proxy by the label service.kubernetes.io/service-proxy-name (KEP-2447).
    notes lists values that were left out, one sentence each.
    """

    namespace: str
    name: str
    proxied: bool
    cluster_ips: tuple[bytes, ...]
    external_ips: tuple[bytes, ...]
    load_balancer_ips: tuple[bytes, ...]
    source_ranges: tuple[Prefix, ...]
    internal_local: bool
    external_local: bool
    affinity_seconds: int
    health_check_node_port: int
    ports: tuple[ServicePort, ...]
    created: str
    labels: Mapping[str, str]
    notes: tuple[str, ...]


def parse_service(manifest: Mapping[str, Any], metadata: Mapping[str, Any], namespace: str, name: str) -> Service:
    """Return the Service of a manifest. Raises fields.FieldError or AddressError for one that is unusable.

    A bad external, load-balancer or source address costs only that address and is noted.
    """
    spec = fields.mapping(manifest, "spec", "spec")
    labels = fields.labels(metadata)
    notes: list[str] = []
    kind = fields.choice(spec, "type", "spec.type", ("ClusterIP", "NodePort", "LoadBalancer", "ExternalName"))
    cluster_ip = fields.text(spec, "clusterIP", "spec.clusterIP")
    ours = kind != "ExternalName" and _PROXY_NAME_LABEL not in labels
    if ours and not cluster_ip:
        # The API server gives every Service one, so this one has never been there.
        raise fields.FieldError("spec.clusterIP is missing, and nobody allocates one here: write an address, or None")
    proxied = ours and cluster_ip != "None"
    created = fields.text(metadata, "creationTimestamp", "metadata.creationTimestamp")
    if not proxied:
        return Service(namespace, name, False, (), (), (), (), False, False, 0, 0, (), created, labels, ())
    cluster_ips = _cluster_ips(spec, cluster_ip, notes)
    families = {len(packed) for packed in cluster_ips}
    internal = fields.choice(spec, "internalTrafficPolicy", "spec.internalTrafficPolicy", ("Cluster", "Local"))
    external = fields.choice(spec, "externalTrafficPolicy", "spec.externalTrafficPolicy", ("Cluster", "Local"))
    external_ips = _addresses(fields.sequence(spec, "externalIPs", "spec.externalIPs"), "externalIPs", families, notes)
    load_balancer = kind == "LoadBalancer"
    if load_balancer and spec.get("loadBalancerIP") and not _ingress(manifest):
        # A wish, which whoever gives addresses answers in the status.
        notes.append("loadBalancerIP: nobody has given it: write it to status.loadBalancer.ingress, or let it be given")
    check_port = fields.integer(spec, "healthCheckNodePort", "spec.healthCheckNodePort", 0, 65535) or 0
    return Service(
        namespace=namespace,
        name=name,
        proxied=True,
        cluster_ips=cluster_ips,
        external_ips=external_ips,
        # Addresses and node ports count while the object holds them, whatever its type: after a change of type they
        # serve until whoever gave them takes them away (pkg/proxy/serviceport.go newBaseServiceInfo).
        load_balancer_ips=_load_balancer_ips(manifest, families, notes),
        source_ranges=_source_ranges(spec, families, notes),
        internal_local=internal == "Local",
        # pkg/api/v1/service/util.go ExternallyAccessible
        external_local=external == "Local" and (kind != "ClusterIP" or bool(spec.get("externalIPs"))),
        affinity_seconds=_affinity_seconds(spec),
        health_check_node_port=check_port if load_balancer and external == "Local" else 0,
        ports=_ports(spec, kind, notes),
        created=created,
        labels=labels,
        notes=tuple(notes),
    )


def _cluster_ips(spec: Mapping[str, Any], cluster_ip: str, notes: list[str]) -> tuple[bytes, ...]:
    """Return the cluster IPs, at most one per family: clusterIPs[i] is the address of family ipFamilies[i].

    Without ipFamilies only clusterIP counts, with its own family; without clusterIPs it stands for them. Source:
    pkg/proxy/util/utils.go GetClusterIPByFamily.
    """
    texts = fields.sequence(spec, "clusterIPs", "spec.clusterIPs") or [cluster_ip]
    families = fields.sequence(spec, "ipFamilies", "spec.ipFamilies")
    if not families:
        notes += ["clusterIPs: %s is left out: ipFamilies does not name its family" % shown(text) for text in texts[1:]]
        texts = [cluster_ip]
    packed: list[bytes] = []
    for index, text in enumerate(texts):
        address = parse_address(text)
        if is_special(address):
            raise fields.FieldError("spec.clusterIP: %s is no address that clients could dial" % text)
        if families and (index >= len(families) or families[index] != ("IPv4" if len(address) == 4 else "IPv6")):
            notes.append("clusterIPs: %s is left out: ipFamilies does not name its family in this place" % text)
        elif len(address) not in {len(other) for other in packed}:
            packed.append(address)
    return tuple(packed)


def _addresses(texts: list[Any], field: str, families: set[int], notes: list[str]) -> tuple[bytes, ...]:
    found: list[bytes] = []
    for text in texts:
        try:
            packed = parse_address(text)
        except AddressError as error:
            notes.append("%s: %s; it is left out" % (field, error))
            continue
        if len(packed) not in families:
            notes.append("%s: %s is of a family that the Service does not have; it is left out" % (field, text))
        elif is_special(packed):
            notes.append("%s: %s is no address that clients could dial; it is left out" % (field, text))
        elif packed not in found:
            found.append(packed)
    return tuple(found)


def _ingress(manifest: Mapping[str, Any]) -> list[Any]:
    status = fields.mapping(manifest, "status", "status")
    load_balancer = fields.mapping(status, "loadBalancer", "status.loadBalancer")
    return fields.sequence(load_balancer, "ingress", "status.loadBalancer.ingress")


def _load_balancer_ips(manifest: Mapping[str, Any], families: set[int], notes: list[str]) -> tuple[bytes, ...]:
    """Return the ingress addresses in mode VIP, the default (KEP-1860); Proxy mode is left to the load balancer."""
    texts: list[Any] = []
    for ingress in _ingress(manifest):
        if not isinstance(ingress, Mapping):
            raise fields.FieldError("status.loadBalancer.ingress must be a list of objects")
        if ingress.get("ip") and ingress.get("ipMode", "VIP") in (None, "", "VIP"):
            texts.append(ingress["ip"])
    return _addresses(texts, "status.loadBalancer.ingress", families, notes)


def _source_ranges(spec: Mapping[str, Any], families: set[int], notes: list[str]) -> tuple[Prefix, ...]:
    found: list[Prefix] = []
    for text in fields.sequence(spec, "loadBalancerSourceRanges", "spec.loadBalancerSourceRanges"):
        try:
            prefix = parse_prefix(text)
        except AddressError:
            notes.append("loadBalancerSourceRanges: %s is not a CIDR block; it is left out" % shown(text))
            continue
        if len(prefix.network) not in families:
            notes.append("loadBalancerSourceRanges: %s is of a family that the Service does not have" % (str(prefix),))
        else:
            found.append(prefix)
    return tuple(found)


def _affinity_seconds(spec: Mapping[str, Any]) -> int:
    if fields.choice(spec, "sessionAffinity", "spec.sessionAffinity", ("None", "ClientIP")) == "None":
        return 0
    config = fields.mapping(spec, "sessionAffinityConfig", "spec.sessionAffinityConfig")
    client_ip = fields.mapping(config, "clientIP", "spec.sessionAffinityConfig.clientIP")
    path = "spec.sessionAffinityConfig.clientIP.timeoutSeconds"
    return fields.integer(client_ip, "timeoutSeconds", path, 1, MAX_AFFINITY_SECONDS) or DEFAULT_AFFINITY_SECONDS


def _ports(spec: Mapping[str, Any], kind: str, notes: list[str]) -> tuple[ServicePort, ...]:
    found: list[ServicePort] = []
    for index, item in enumerate(fields.sequence(spec, "ports", "spec.ports")):
        path = "spec.ports[%d]" % index
        if not isinstance(item, Mapping):
            raise fields.FieldError("%s must be an object" % path)
        port = fields.integer(item, "port", path + ".port", 1, 65535)
        if port is None:
            raise fields.FieldError("%s.port is missing" % path)
        protocol = fields.choice(item, "protocol", path + ".protocol", ("TCP", "UDP", "SCTP"))
        node_port = fields.integer(item, "nodePort", path + ".nodePort", 0, 65535) or 0
        if kind == "NodePort" and not node_port:
            notes.append("ports[%d] has no nodePort, and nobody allocates one here: write a number" % index)
        found.append(
            ServicePort(
                fields.text(item, "name", path + ".name"),
                NUMBERS.get(protocol, TCP),
                port,
                node_port,
            )
        )
    _tell_apart(found, notes)
    return tuple(found)


def _tell_apart(ports: list[ServicePort], notes: list[str]) -> None:
    """Raise fields.FieldError where a port's name, by which slices say where it leads, is not its own.

    The API server takes no such Service (pkg/apis/core/validation ValidateService), a folder of manifests may hold one.
    """
    if len(ports) < 2:
        return
    names: set[str] = set()
    taken: set[tuple[str, int, int]] = set()
    for index, port in enumerate(ports):
        if not port.name:
            raise fields.FieldError("spec.ports[%d].name is missing: each of several ports needs one" % index)
        if port.name in names:
            raise fields.FieldError("spec.ports[%d].name: %s is the name of another port" % (index, port.name))
        names.add(port.name)
        for kind, number in (("port", port.port), ("nodePort", port.node_port)):
            if number and (kind, port.protocol, number) in taken:
                protocol = NAMES[port.protocol]
                notes.append("ports[%d]: %s %d/%s is there twice; the last counts" % (index, kind, number, protocol))
            taken.add((kind, port.protocol, number))
