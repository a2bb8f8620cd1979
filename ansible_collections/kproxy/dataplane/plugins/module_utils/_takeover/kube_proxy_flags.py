# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""kube-proxy's command line as the fields of KubeProxyConfiguration (cmd/kube-proxy/app/options.go)."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

CONFIG_FLAG = "config"
HOSTNAME_FLAG = "hostname-override"

_TEXT = {
    "proxy-mode": "mode",
    "cluster-cidr": "clusterCIDR",
    "detect-local-mode": "detectLocalMode",
    "pod-bridge-interface": "detectLocal.bridgeInterface",
    "pod-interface-name-prefix": "detectLocal.interfaceNamePrefix",
    HOSTNAME_FLAG: "hostnameOverride",
    "bind-address": "bindAddress",
    "healthz-bind-address": "healthzBindAddress",
    "metrics-bind-address": "metricsBindAddress",
    "config-sync-period": "configSyncPeriod",
    "iptables-sync-period": "iptables.syncPeriod",
    "iptables-min-sync-period": "iptables.minSyncPeriod",
    "ipvs-scheduler": "ipvs.scheduler",
    "ipvs-sync-period": "ipvs.syncPeriod",
    "ipvs-min-sync-period": "ipvs.minSyncPeriod",
    "ipvs-tcp-timeout": "ipvs.tcpTimeout",
    "ipvs-tcpfin-timeout": "ipvs.tcpFinTimeout",
    "ipvs-udp-timeout": "ipvs.udpTimeout",
    "conntrack-tcp-timeout-established": "conntrack.tcpEstablishedTimeout",
    "conntrack-tcp-timeout-close-wait": "conntrack.tcpCloseWaitTimeout",
    "conntrack-udp-timeout": "conntrack.udpTimeout",
    "conntrack-udp-timeout-stream": "conntrack.udpStreamTimeout",
    "show-hidden-metrics-for-version": "showHiddenMetricsForVersion",
    "kubeconfig": "clientConnection.kubeconfig",
}
_NUMBER = {
    "conntrack-max-per-core": "conntrack.maxPerCore",
    "conntrack-min": "conntrack.min",
    "iptables-masquerade-bit": "iptables.masqueradeBit",
    "oom-score-adj": "oomScoreAdj",
}
_SWITCH = {
    "masquerade-all": "iptables.masqueradeAll",
    "iptables-localhost-nodeports": "iptables.localhostNodePorts",
    "ipvs-strict-arp": "ipvs.strictARP",
    "conntrack-tcp-be-liberal": "conntrack.tcpBeLiberal",
    "profiling": "enableProfiling",
    "bind-address-hard-fail": "bindAddressHardFail",
}
_LIST = {"nodeport-addresses": "nodePortAddresses", "ipvs-exclude-cidrs": "ipvs.excludeCIDRs"}
# The log's, the file's own, and what kube-proxy itself does not read any more; they say nothing about Services.
_WITHOUT_MEANING = frozenset(
    (
        CONFIG_FLAG, "v", "vmodule", "logging-format", "log-flush-frequency", "cleanup", "add-dir-header",
        "alsologtostderr", "log-backtrace-at", "log-dir", "log-file", "log-file-max-size", "logtostderr", "one-output",
        "skip-headers", "skip-log-headers", "stderrthreshold", "log-json-info-buffer-size", "log-json-split-stream",
        "log-text-info-buffer-size", "log-text-split-stream", "healthz-port", "metrics-port", "proxy-port-range",
        "udp-timeout", "resource-container", "conntrack-max", "cleanup-iptables", "boot-id-file", "machine-id-file",
        "kube-api-burst", "kube-api-qps", "kube-api-content-type", "master", "init-only", "write-config-to",
    )
)  # fmt: skip
# These take no word after them; `--name=false` is the only way to switch one off.
_TAKE_NO_WORD = frozenset(
    (
        *_SWITCH, "cleanup", "cleanup-iptables", "init-only", "add-dir-header", "alsologtostderr", "logtostderr",
        "one-output", "skip-headers", "skip-log-headers", "log-json-split-stream", "log-text-split-stream",
    )
)  # fmt: skip
# Given several times, these add up; of others the last one counts.
_ADD_UP = frozenset((*_LIST, "feature-gates"))
_PROGRAM = "kube-proxy"


class Flags(NamedTuple):
    """What the command line says. `ignored` names flags that a configuration file, empty for none, overrules."""

    config: dict[str, Any]
    config_file: str
    ignored: tuple[str, ...]
    unknown: tuple[str, ...]

    @property
    def has_config_file(self) -> bool:
        return bool(self.config_file)


def _words(command: Iterable[str]) -> dict[str, str]:
    """Return flags with their values as pflag reads them; of names, _ is - (component-base WordSepNormalizeFunc)."""
    values: dict[str, str] = {}
    pending = ""
    for word in _arguments(list(command)):
        if word.startswith("-"):
            name, equals, value = word.lstrip("-").partition("=")
            name = name.replace("_", "-")
            pending = "" if equals or name in _TAKE_NO_WORD else name
            _note(values, name, value if equals else "" if pending in _ADD_UP else "true")
        elif pending:
            _note(values, pending, word)
            pending = ""
    return values


def _note(values: dict[str, str], name: str, value: str) -> None:
    values[name] = f"{values[name]},{value}" if name in _ADD_UP and name in values else value


def _arguments(command: list[str]) -> list[str]:
    """Return what follows the program's name, also where a shell is told to run it; all words if it is not named."""
    words: list[str] = []
    for word in command:
        script = f"{_PROGRAM} " in word and not word.startswith("-")
        words += _split(word) if script else [word]
    for number, word in enumerate(words):
        if word.rpartition("/")[2] == _PROGRAM:
            return words[number + 1 :]
    return words


def _split(script: str) -> list[str]:
    try:
        return shlex.split(script)
    except ValueError:  # a quote that nobody closes, of which the shell would complain as well
        return script.split()


def _put(config: dict[str, Any], path: str, value: Any) -> None:
    head, _dot, rest = path.partition(".")
    if rest:
        config.setdefault(head, {})[rest] = value
    else:
        config[head] = value


def _truth(text: str) -> bool:
    return text.lower() in ("1", "t", "true")


def _number(name: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise ValueError(f"--{name} of kube-proxy is {value!r}, which is no number") from None


def _gates(text: str) -> dict[str, bool]:
    return {name: _truth(value) for name, _equals, value in (pair.partition("=") for pair in text.split(",")) if name}


def parse(command: Iterable[str]) -> Flags:
    """Read a container's command and arguments.

    With `--config` kube-proxy takes everything from the file and only `--hostname-override` still counts.
    Raises ValueError, naming the flag, for a number that is none.
    """
    values = _words(command)
    with_file = CONFIG_FLAG in values
    config: dict[str, Any] = {}
    ignored: list[str] = []
    unknown: list[str] = []
    for name, value in values.items():
        if name in _WITHOUT_MEANING:
            continue
        if with_file and name != HOSTNAME_FLAG:
            ignored.append("--" + name)
        elif name in _TEXT:
            _put(config, _TEXT[name], value)
        elif name in _NUMBER:
            _put(config, _NUMBER[name], _number(name, value))
        elif name in _SWITCH:
            _put(config, _SWITCH[name], _truth(value))
        elif name in _LIST:
            _put(config, _LIST[name], [item for item in value.split(",") if item])
        elif name == "feature-gates":
            config["featureGates"] = _gates(value)
        else:
            unknown.append("--" + name)
    return Flags(config, values.get(CONFIG_FLAG, ""), tuple(ignored), tuple(unknown))


def with_file(flags: Flags, file: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration in force: the file where one is given, with the flags that outrank it."""
    return {**file, **flags.config} if flags.has_config_file else flags.config
