"""Case files of the conformance format, read into typed values.

The format is described in tests/conformance/README.md; validate.py beside it checks files. This module trusts a file
that validate.py accepts and raises ValueError, naming the file and the case, for one that it does not.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

Manifest = Mapping[str, Any]
ObjectKey = tuple[str, str, str]
"""Kind, namespace ("" for cluster-wide kinds), name."""


class SocketAddress(tuple[str, int]):
    """An ip and a port; str() is how the corpus writes it."""

    __slots__ = ()

    def __new__(cls, ip: str, port: int) -> SocketAddress:
        return super().__new__(cls, (canonical(ip), port))

    @classmethod
    def parse(cls, text: str) -> SocketAddress:
        ip, _, port = text.rpartition(":")
        return cls(ip.strip("[]"), int(port))

    @property
    def ip(self) -> str:
        return self[0]

    @property
    def port(self) -> int:
        return self[1]

    def __str__(self) -> str:
        return f"[{self.ip}]:{self.port}" if ":" in self.ip else f"{self.ip}:{self.port}"


def canonical(ip: str) -> str:
    """The usual spelling of an address; leading zeros in IPv4 are decimal, as the API reads them."""
    if ":" not in ip:
        ip = ".".join(str(int(part)) for part in ip.split("."))
    return str(ipaddress.ip_address(ip))


def family(ip: str) -> int:
    return 6 if ":" in ip else 4


@dataclass(frozen=True)
class Client:
    """Where a probe comes from."""

    ip: str
    kind: str
    interface: str | None = None

    @property
    def on_node(self) -> bool:
        return self.kind == "node"


@dataclass(frozen=True)
class Destination:
    ip: str
    protocol: str
    port: int = 0

    def __str__(self) -> str:
        return f"{SocketAddress(self.ip, self.port)}/{self.protocol}" if self.port else f"{self.ip}/{self.protocol}"


@dataclass(frozen=True)
class Expectation:
    verdict: str
    endpoints: tuple[SocketAddress, ...] = ()
    masquerade: Mapping[SocketAddress, bool] | None = None
    """Per endpoint; None: either is right."""
    groups: tuple[tuple[SocketAddress, ...], ...] = ()
    affinity_seconds: int | None = None
    same_as: str | None = None
    independent_of: str | None = None


@dataclass(frozen=True)
class Probe:
    client: Client
    to: Destination
    expect: Expectation
    id: str | None = None

    def __str__(self) -> str:
        via = f" on {self.client.interface}" if self.client.interface else ""
        return f"{self.client.kind} {self.client.ip}{via} -> {self.to}"


@dataclass(frozen=True)
class NodeFacts:
    """The node under test."""

    name: str
    zone: str | None
    labels: Mapping[str, str]
    primary: tuple[str, ...]
    extra: tuple[str, ...]
    pod_cidrs: tuple[str, ...]

    @property
    def addresses(self) -> tuple[str, ...]:
        return self.primary + self.extra


@dataclass(frozen=True)
class ConntrackEntry:
    id: str
    protocol: str
    orig_dst: SocketAddress
    reply_src: SocketAddress


@dataclass(frozen=True)
class Scope:
    """One point in time: what changes, then what has to hold."""

    title: str
    changed: tuple[Manifest, ...] = ()
    deleted: tuple[ObjectKey, ...] = ()
    advance_seconds: float = 0
    probes: tuple[Probe, ...] = ()
    health_checks: tuple[Mapping[str, Any], ...] = ()
    proxy_health: tuple[Mapping[str, Any], ...] = ()
    metrics: tuple[Mapping[str, Any], ...] = ()
    conntrack_flush: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Case:
    name: str
    node: NodeFacts
    config: Mapping[str, Any]
    start: Scope
    steps: tuple[Scope, ...] = ()
    conntrack_entries: tuple[ConntrackEntry, ...] = ()
    proxy_state: Mapping[str, Any] | None = None
    cidrs: tuple[str, ...] = field(default=())
    """Every range that is written anywhere in the case."""

    @property
    def scopes(self) -> tuple[Scope, ...]:
        return (self.start, *self.steps)

    @property
    def probes(self) -> tuple[Probe, ...]:
        return tuple(probe for scope in self.scopes for probe in scope.probes)

    @property
    def manifests(self) -> tuple[Manifest, ...]:
        """Every version of every object of the case."""
        return tuple(manifest for scope in self.scopes for manifest in scope.changed)


def object_key(manifest: Mapping[str, Any]) -> ObjectKey:
    metadata = manifest.get("metadata") or {}
    return str(manifest["kind"]), str(metadata.get("namespace") or ""), str(metadata["name"])


def slice_endpoints(manifests: Iterable[Manifest]) -> Iterator[tuple[SocketAddress, str]]:
    """Every (address, protocol) that an EndpointSlice names, usable or not."""
    for manifest in manifests:
        if manifest.get("kind") != "EndpointSlice" or manifest.get("addressType") == "FQDN":
            continue
        for port in manifest.get("ports") or ():
            for endpoint in manifest.get("endpoints") or ():
                for address in endpoint.get("addresses") or ():
                    if port.get("port"):
                        yield SocketAddress(address, port["port"]), port.get("protocol") or "TCP"


def load(paths: Sequence[Path]) -> list[Case]:
    """Read the cases of files and of all *.yaml and *.yml in folders, in order."""
    cases: list[Case] = []
    for path in paths:
        if path.is_dir():
            files = sorted(file for file in path.iterdir() if file.suffix in (".yaml", ".yml"))
            if not files:
                raise ValueError(f"{path}: no case files")
        elif path.is_file():
            files = [path]
        else:
            raise ValueError(f"{path}: no such file or folder")
        for file in files:
            cases.extend(_load_file(file))
    return cases


def _load_file(file: Path) -> Iterator[Case]:
    try:
        document = yaml.load(file.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise ValueError(f"{file}: not YAML: {error}") from error
    if not isinstance(document, dict) or document.get("format") != 1 or not isinstance(document.get("cases"), list):
        raise ValueError(f"{file}: not a case file of format 1")
    for number, raw in enumerate(document["cases"], 1):
        try:
            yield parse_case(raw)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            name = raw.get("name", f"number {number}") if isinstance(raw, dict) else f"number {number}"
            raise ValueError(f"{file}: case {name}: {type(error).__name__}: {error}") from error


def parse_case(raw: Mapping[str, Any]) -> Case:
    node = raw["node"]
    return Case(
        name=raw["name"],
        node=NodeFacts(
            name=node["name"],
            zone=node.get("zone"),
            labels=dict(node.get("labels") or {}),
            primary=tuple(canonical(ip) for ip in node["ips"].get("primary") or ()),
            extra=tuple(canonical(ip) for ip in node["ips"].get("extra") or ()),
            pod_cidrs=tuple(node.get("pod_cidr") or ()),
        ),
        config=dict(raw.get("config") or {}),
        start=_scope("start", raw, changed=tuple(raw.get("objects") or ())),
        steps=tuple(
            _scope(step["step"], step, changed=(*(step.get("add") or ()), *(step.get("modify") or ())))
            for step in raw.get("after") or ()
        ),
        conntrack_entries=tuple(
            ConntrackEntry(
                entry["id"],
                entry["protocol"],
                SocketAddress.parse(entry["orig_dst"]),
                SocketAddress.parse(entry["reply_src"]),
            )
            for entry in raw.get("conntrack_entries") or ()
        ),
        proxy_state=raw.get("proxy_state"),
        cidrs=tuple(sorted(set(_ranges(raw)))),
    )


def _scope(title: str, raw: Mapping[str, Any], changed: tuple[Manifest, ...]) -> Scope:
    return Scope(
        title=title,
        changed=changed,
        deleted=tuple((ref["kind"], ref.get("namespace") or "", ref["name"]) for ref in raw.get("delete") or ()),
        advance_seconds=raw.get("advance_seconds") or 0,
        probes=tuple(_probe(probe) for probe in raw.get("probes") or ()),
        health_checks=tuple(raw.get("health_checks") or ()),
        proxy_health=tuple(raw.get("proxy_health") or ()),
        metrics=tuple(raw.get("metrics") or ()),
        conntrack_flush=raw.get("expect_conntrack_flush"),
    )


def _probe(raw: Mapping[str, Any]) -> Probe:
    expect = raw["expect"]
    endpoints = tuple(SocketAddress.parse(text) for text in expect.get("endpoints") or ())
    masquerade: dict[SocketAddress, bool] | None = None
    wanted = expect.get("masquerade")
    if isinstance(wanted, dict):
        masquerade = {SocketAddress.parse(text): value for text, value in wanted.items()}
    elif wanted is not None:
        masquerade = dict.fromkeys(endpoints, bool(wanted))
    return Probe(
        client=Client(canonical(raw["from"]["ip"]), raw["from"]["kind"], raw["from"].get("interface")),
        to=Destination(canonical(raw["to"]["ip"]), raw["to"]["protocol"], raw["to"].get("port") or 0),
        expect=Expectation(
            verdict=expect["verdict"],
            endpoints=endpoints,
            masquerade=masquerade,
            groups=tuple(tuple(SocketAddress.parse(text) for text in group) for group in expect.get("one_of") or ()),
            affinity_seconds=(expect.get("affinity") or {}).get("timeout_seconds"),
            same_as=expect.get("same_as"),
            independent_of=expect.get("independent_of"),
        ),
        id=raw.get("id"),
    )


def _ranges(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        if "/" in value:
            try:
                yield str(ipaddress.ip_network(value.strip(), strict=False))
            except ValueError:
                return
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _ranges(item)
    elif isinstance(value, Sequence):
        for item in value:
            yield from _ranges(item)
