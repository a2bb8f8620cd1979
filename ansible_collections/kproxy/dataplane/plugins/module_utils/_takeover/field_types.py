# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Whether the fields of a KubeProxyConfiguration are of their types (pkg/proxy/apis/config/v1alpha1/types.go).

A value of another type, such as a text where a list belongs, is none that kube-proxy could have run with, and to make
something of it would program what nobody wrote.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable

from ansible_collections.kproxy.dataplane.plugins.module_utils._takeover import duration

_NUMBERS = (
    "conntrack.maxPerCore", "conntrack.min", "iptables.masqueradeBit", "nftables.masqueradeBit", "oomScoreAdj",
)  # fmt: skip
_SWITCHES = (
    "iptables.masqueradeAll", "nftables.masqueradeAll", "iptables.localhostNodePorts", "conntrack.tcpBeLiberal",
    "ipvs.strictARP", "bindAddressHardFail", "enableProfiling",
)  # fmt: skip
_LISTS = ("nodePortAddresses", "ipvs.excludeCIDRs")
_TEXTS = (
    "mode", "clusterCIDR", "detectLocalMode", "detectLocal.bridgeInterface", "detectLocal.interfaceNamePrefix",
    "hostnameOverride", "bindAddress", "healthzBindAddress", "metricsBindAddress", "ipvs.scheduler",
)  # fmt: skip
_DURATIONS = (
    "conntrack.tcpEstablishedTimeout", "conntrack.tcpCloseWaitTimeout", "conntrack.udpTimeout",
    "conntrack.udpStreamTimeout",
)  # fmt: skip


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_duration(value: Any) -> bool:
    try:
        return isinstance(value, str) and duration.seconds(value) >= 0
    except ValueError:
        return False


def _is_switches(value: Any) -> bool:
    # Files of old releases say "" for no gates at all.
    return value == "" or (isinstance(value, Mapping) and all(isinstance(state, bool) for state in value.values()))


_CHECKS: tuple[tuple[tuple[str, ...], Callable[[Any], bool], str], ...] = (
    (_NUMBERS, _is_number, "a number without quotes"),
    (_SWITCHES, lambda value: isinstance(value, bool), "true or false"),
    (_LISTS, _is_list, "a list of texts"),
    (_TEXTS, lambda value: isinstance(value, str), "a text"),
    (_DURATIONS, _is_duration, "a duration such as 12h0m0s"),
    (("featureGates",), _is_switches, "gates with true or false"),
)


def check(flat: Mapping[str, Any]) -> None:
    """Raise ValueError that names the first field whose value is not of its type. Null is nothing set.

    flat: fields by their paths, such as `conntrack.min`.
    """
    for names, fits, wanted in _CHECKS:
        for name in names:
            value = flat.get(name)
            if value is not None and not fits(value):
                raise ValueError(f"{name} is {value!r}; kube-proxy takes {wanted} here and does not start with this")
