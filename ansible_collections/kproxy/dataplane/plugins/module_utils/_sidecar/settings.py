# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""kproxyd's configuration file: KubeProxyConfiguration's keys, plus our own under "kproxy".

YAML or JSON. A kube-proxy ConfigMap can be carried over as it is: keys that mean nothing here are named in the log and
left aside, keys nobody knows are an error, since a typo must not silently change what a node does. Every problem is
reported at once, each with its key.
"""

from __future__ import annotations

import difflib
import json
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf import capacity, maglev
from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.maglev import ALGORITHMS, RANDOM
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine import ebpf_options
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.canary import CanaryError, parse_canary
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.config import overridden_name
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import bpf_xdp
from ansible_collections.kproxy.dataplane.plugins.module_utils._takeover.listen_addresses import (
    HEALTHZ_PORT,
    METRICS_PORT,
    default_hosts,
    with_port,
)

API_VERSION = "kubeproxy.config.k8s.io/v1alpha1"
MODES = ("nftables", "ebpf")
# kube-proxy's modes that a configuration carried over may name; the reason to be here is to replace them.
_REPLACED_MODES = ("iptables", "ipvs")
DEFAULT_SYNC_PERIOD = 30.0
# Where kube-proxy listens, and where we do beside one: with a canary both run on the node.
_CANARY_HEALTHZ_PORT, _CANARY_METRICS_PORT = 10356, 10349
# Instead of an address: no endpoint at all. Empty means the default, as in KubeProxyConfiguration.
OFF = "off"

# Keys that decide about packets: ProxyConfig reads them.
_PROXY_KEYS = frozenset(
    {
        "bindAddress", "clusterCIDR", "detectLocal", "detectLocalMode", "featureGates", "ipFamilies", "nodeIPs",
        "nodePortAddresses", "podCIDRs", "zone",
    }
)  # fmt: skip
# Keys of KubeProxyConfiguration that have no meaning without kube-proxy's own machinery.
_LEFT_ASIDE = frozenset(
    {
        "configSyncPeriod", "conntrack", "enableProfiling", "iptables", "ipvs", "logging", "nftables", "oomScoreAdj",
        "portRange", "showHiddenMetricsForVersion", "udpIdleTimeout", "windowsRunAsService", "winkernel",
    }
)  # fmt: skip
_DURATION_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(h|ms|us|µs|ns|m|s)")


class SettingsError(Exception):
    """The configuration cannot be used; problems holds one sentence per mistake."""

    def __init__(self, problems: list[str]) -> None:
        """Take all problems found."""
        super().__init__("; ".join(problems))
        self.problems = problems


class BindAddress(NamedTuple):
    """Where an HTTP endpoint listens."""

    family: int
    address: str
    port: int

    def __str__(self) -> str:
        """Return host:port as people write it."""
        return f"[{self.address}]:{self.port}" if self.family == 6 else f"{self.address}:{self.port}"


class EbpfSettings(NamedTuple):
    """What only the eBPF backend reads; empty paths are its defaults."""

    directory: str
    cgroup: str
    host_namespace_only: bool
    protect_node_ports: bool
    algorithm: str
    maglev_table_size: int
    maglev_memory: int
    xdp: str
    xdp_devices: tuple[str, ...]
    forwarding: str
    excluded_devices: tuple[str, ...]


class Settings(NamedTuple):
    """The daemon's settings. Periods are seconds; an endpoint of None is switched off."""

    proxy: Mapping[str, Any]
    node_name: str
    mode: str
    source: str
    kubeconfig: str
    healthz: BindAddress | None
    metrics: BindAddress | None
    bind_hard_fail: bool
    sync_period: float
    min_sync_period: float
    audit_period: float
    socket_path: str
    state_directory: str
    history_bytes: int
    log_level: str
    left_aside: tuple[str, ...]
    ebpf: EbpfSettings


def load(path: str, overrides: Mapping[str, Any]) -> Settings:
    """Read a configuration file; overrides (from the command line, None is "not given") go to the "kproxy" section.

    Raises SettingsError, also for a file that cannot be read.
    """
    document: Any = {}
    if path:
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError([f"{path}: cannot be read: {error}"]) from error
        document = _decode(path, text)
    if not isinstance(document, Mapping):
        raise SettingsError([f"{path}: must be a mapping, not {type(document).__name__}"])
    try:
        return from_mapping(document, overrides)
    except SettingsError as error:
        raise SettingsError([f"{path or 'command line'}: {problem}" for problem in error.problems]) from None


def from_mapping(document: Mapping[str, Any], overrides: Mapping[str, Any]) -> Settings:
    """Return the settings of a decoded configuration. Raises SettingsError naming every bad key."""
    reader = _Reader(document)
    own = reader.section("kproxy")
    own.values = {**own.values, **{key: value for key, value in overrides.items() if value is not None}}
    client = reader.section("clientConnection")
    version = reader.text("apiVersion", API_VERSION)
    if version != API_VERSION:
        reader.problem("apiVersion", f"is {version!r}, but only {API_VERSION} is known")
    kind = reader.text("kind", "KubeProxyConfiguration")
    if kind != "KubeProxyConfiguration":
        reader.problem("kind", f"is {kind!r}, but must be KubeProxyConfiguration")
    given_mode = reader.text("mode", "") or "nftables"
    if given_mode not in (*MODES, *_REPLACED_MODES):
        reader.problem("mode", f"is {given_mode!r}, but must be one of {', '.join(MODES)}")
    # kube-proxy reads the section of its mode, and that of iptables in mode ipvs.
    rules = reader.section("iptables" if given_mode in _REPLACED_MODES else "nftables")
    source = own.text("source", "api")
    if source != "api" and not (source.startswith("manifests:") and len(source) > len("manifests:")):
        own.problem("source", f"is {source!r}, but must be 'api' or 'manifests:DIR'")
    kubeconfig = client.text("kubeconfig", "")
    if source == "api" and not kubeconfig:
        client.problem("kubeconfig", "is missing; it names the file with the API servers and the credentials")
    canary = _canary(own, given_mode)
    proxy = {key: document[key] for key in _PROXY_KEYS if document.get(key) is not None}
    for key in ("masqueradeAll", "masqueradeBit"):
        if rules.values.get(key) is not None:
            proxy[key] = rules.values[key]
    if canary is not None:
        proxy["canary"] = canary
    hosts = default_hosts(reader.text("bindAddress", ""))
    overridden = overridden_name(reader.text("hostnameOverride", ""))
    names = (own.text("nodeName", ""), overridden, socket.gethostname().lower())
    settings = Settings(
        proxy=proxy,
        node_name=next(name for name in names if name),
        mode=given_mode if given_mode in MODES else "nftables",
        source=source,
        kubeconfig=kubeconfig,
        healthz=reader.bind(
            "healthzBindAddress", hosts.healthz, HEALTHZ_PORT if canary is None else _CANARY_HEALTHZ_PORT
        ),
        metrics=reader.bind(
            "metricsBindAddress", hosts.metrics, METRICS_PORT if canary is None else _CANARY_METRICS_PORT
        ),
        bind_hard_fail=reader.boolean("bindAddressHardFail", False),
        sync_period=rules.duration("syncPeriod", 0.0) or DEFAULT_SYNC_PERIOD,
        min_sync_period=rules.duration("minSyncPeriod", 0.0),
        audit_period=own.duration("auditPeriod", 300.0, minimum=1.0),
        socket_path=own.text("socketPath", "/run/kproxy/kproxyd.sock"),
        state_directory=own.text("stateDirectory", "/var/lib/kproxy"),
        history_bytes=own.integer("historyBytes", 1 << 20, 4096, 1 << 30),
        log_level=own.choice("logLevel", "info", ("debug", "info", "warning", "error")),
        left_aside=tuple(sorted(key for key in document if key in _LEFT_ASIDE and key not in reader.used)),
        ebpf=EbpfSettings(
            own.text("bpfDirectory", ""),
            own.text("cgroup", ""),
            own.boolean("hostNamespaceOnly", False),
            own.boolean("protectNodePorts", True),
            own.choice("algorithm", RANDOM, ALGORITHMS),
            own.one_of("maglevTableSize", maglev.DEFAULT_SIZE, maglev.SIZES),
            own.integer("maglevMemory", capacity.DEFAULT_TABLE_MEMORY, 1, 1 << 20),
            own.choice("xdp", bpf_xdp.DISABLED, bpf_xdp.CHOICES),
            own.texts("xdpDevices"),
            own.choice("forwarding", ebpf_options.SNAT, ebpf_options.FORWARDINGS),
            own.texts("excludedDevices"),
        ),
    )
    rules.known("localhostNodePorts", "masqueradeAll", "masqueradeBit")
    client.known("acceptContentTypes", "contentType", "qps", "burst")
    reader.known(*_PROXY_KEYS, *_LEFT_ASIDE)
    if reader.problems:
        raise SettingsError(reader.problems)
    return settings


def parse_duration(value: Any) -> float:
    """Return seconds of "30s", "1h5m", "250ms" or a plain number. Raises ValueError."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0:
        return float(value)
    if isinstance(value, str) and value in ("0", ""):
        return 0.0
    if isinstance(value, str) and re.fullmatch(f"(?:{_DURATION.pattern})+", value):
        return sum(float(number) * _DURATION_UNITS[unit] for number, unit in _DURATION.findall(value))
    raise ValueError(f"is {value!r}, but must be a duration such as 30s or 1m30s")


def parse_bind_address(value: str) -> BindAddress:
    """Return the parts of "address:port" or "[v6]:port". Raises ValueError."""
    host, colon, port = value.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    for family, kind in ((4, socket.AF_INET), (6, socket.AF_INET6)):
        try:
            socket.inet_pton(kind, host)
        except OSError:
            continue
        if colon and port.isdigit() and 0 < int(port) < 65536 and (family == 4 or bracketed):
            return BindAddress(family, host, int(port))
    raise ValueError(f"is {value!r}, but must be ADDRESS:PORT, e.g. 127.0.0.1:10249 or [::]:10256, or {OFF}")


def _canary(own: _Reader, mode: str) -> Mapping[str, Any] | None:
    """Return the choice of Services as it was given, once it can be used."""
    value = own.get("canary")
    try:
        canary = parse_canary(value)
    except CanaryError as error:
        own.problem(*str(error).split(" ", 1))
        return None
    if canary is not None and mode == "ebpf":
        own.problem(
            "canary",
            "needs mode nftables; with ebpf all Services of a node are ours",
        )
    return None if canary is None else dict(value)


def _decode(path: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    import yaml  # Only needed for people's own files: the role writes JSON, and starting without it is faster.

    try:
        return yaml.safe_load(text) or {}
    # A value that is none of its explicit type (`!!int ""`) raises what it does to PyYAML's own code.
    except (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise SettingsError([f"{path}: is neither JSON nor YAML: {error}"]) from error


class _Reader:
    """Takes values out of one section, remembers which keys were meant and what was wrong."""

    def __init__(self, values: Mapping[str, Any], prefix: str = "", problems: list[str] | None = None) -> None:
        self.values = values
        self.prefix = prefix
        self.used: set[str] = set()
        self.problems: list[str] = [] if problems is None else problems
        self.sections: list[_Reader] = []

    def problem(self, key: str, text: str) -> None:
        self.problems.append(f"{self.prefix}{key} {text}")

    def section(self, key: str) -> _Reader:
        self.used.add(key)
        values = self.values.get(key)
        if values is not None and not isinstance(values, Mapping):
            self.problem(key, f"must be a mapping, not {type(values).__name__}")
            values = None
        section = _Reader(values or {}, f"{self.prefix}{key}.", self.problems)
        self.sections.append(section)
        return section

    def text(self, key: str, default: str) -> str:
        value = self.get(key)
        if value is not None and not isinstance(value, str):
            self.problem(key, f"is {value!r}, but must be text")
            return default
        return default if value is None else value

    def texts(self, key: str) -> tuple[str, ...]:
        value = self.get(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
            self.problem(key, f"is {value!r}, but must be a list of texts")
            return ()
        return tuple(value)

    def choice(self, key: str, default: str, choices: tuple[str, ...]) -> str:
        value = self.text(key, default)
        if value not in choices:
            self.problem(key, f"is {value!r}, but must be one of {', '.join(choices)}")
        return value

    def boolean(self, key: str, default: bool) -> bool:
        value = self.get(key)
        if value is not None and not isinstance(value, bool):
            self.problem(key, f"is {value!r}, but must be true or false")
            return default
        return default if value is None else value

    def integer(self, key: str, default: int, minimum: int, maximum: int) -> int:
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
            self.problem(key, f"is {value!r}, but must be a number from {minimum} to {maximum}")
            return default
        return value

    def one_of(self, key: str, default: int, choices: tuple[int, ...]) -> int:
        value = self.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or value not in choices:
            self.problem(key, f"is {value!r}, but must be one of {', '.join(map(str, choices))}")
            return default
        return int(value)

    def duration(self, key: str, default: float, minimum: float = 0.0) -> float:
        value = self.get(key)
        if value is None:
            return default
        try:
            seconds = parse_duration(value)
        except ValueError as error:
            self.problem(key, str(error))
            return default
        if seconds < minimum:
            self.problem(key, f"is {value!r}, but must be at least {minimum:g}s")
        return seconds

    def bind(self, key: str, host: str, port: int) -> BindAddress | None:
        """Return where to listen; host and port stand for what the value leaves open."""
        value = self.text(key, host) or host
        if value == OFF:
            return None
        try:
            return parse_bind_address(with_port(value, port))
        except ValueError as error:
            self.problem(key, str(error))
            return None

    def known(self, *others: str) -> None:
        """Report every key that nobody asked for, here and in the sections."""
        known = self.used | set(others)
        for key in self.values:
            if key not in known:
                near = difflib.get_close_matches(str(key), known, 1)
                self.problem(str(key), "is not known" + (f"; did you mean {near[0]}?" if near else ""))
        for section in self.sections:
            if section.prefix == f"{self.prefix}kproxy.":
                section.known()

    def get(self, key: str) -> Any:
        self.used.add(key)
        return self.values.get(key)
