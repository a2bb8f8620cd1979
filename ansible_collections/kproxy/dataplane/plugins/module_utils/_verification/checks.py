# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Judge a node by named checks.

Each check is a claim that holds, does not, or has nothing to be tried on here; a warning is a claim that does not hold
and costs nothing yet. The names are stable: dashboards and JUnit histories know them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

OK = "ok"
FAIL = "fail"
WARN = "warn"
SKIP = "skip"


class Check(NamedTuple):
    name: str
    result: str
    message: str


class Evidence(NamedTuple):
    """What was collected on a node. An empty part was not asked for, and its checks are skipped.

    status, agreement: `kproxyctl status` and `kproxyctl verify`. residue: of module residue_info. probe: of module
    probe. preflight: findings of the filter preflight. cluster: of module kube_proxy_info.
    """

    status: Mapping[str, Any]
    agreement: Mapping[str, Any]
    residue: Mapping[str, Any]
    probe: Mapping[str, Any]
    preflight: Iterable[Mapping[str, Any]]
    cluster: Mapping[str, Any] = {}


def _claim(holds: bool, good: str, bad: str, otherwise: str = FAIL) -> tuple[str, str]:
    return (OK, good) if holds else (otherwise, bad)


def _canary(evidence: Evidence) -> str:
    """Return which Services are ours on a node whose kube-proxy serves the others; empty where all are."""
    return str(evidence.status.get("canary") or "")


def _no_process(evidence: Evidence) -> tuple[str, str]:
    running = evidence.residue.get("kube_proxy_running")
    if running is None:
        return SKIP, "not looked for"
    if _canary(evidence):
        return SKIP, "it serves what the canary does not choose"
    return _claim(not running, "no kube-proxy runs here", f"kube-proxy runs as process {', '.join(map(str, running))}")


def _not_scheduled(evidence: Evidence) -> tuple[str, str]:
    cluster = evidence.cluster
    if not cluster:
        return SKIP, "the API server was not asked"
    if _canary(evidence):
        return SKIP, "it serves what the canary does not choose"
    here = [*cluster["pods"], *(cluster["daemonsets"] if cluster["selected"] else ())]
    wrong = f"{', '.join(here)} puts kube-proxy here, as an upgrade does; run kproxy.dataplane.migrate again"
    return _claim(not here, "no DaemonSet puts it here", wrong)


def _ready(evidence: Evidence) -> tuple[str, str]:
    if not evidence.cluster:
        return SKIP, "the API server was not asked"
    return _claim(bool(evidence.cluster["node_ready"]), "the Node is Ready", "the Node is not Ready", WARN)


def _no_residue(evidence: Evidence) -> tuple[str, str]:
    counts = evidence.residue.get("counts")
    if counts is None:
        return SKIP, "not looked for"
    if _canary(evidence):
        return SKIP, "its objects serve what the canary does not choose"
    said = ", ".join(f"{owner} {count}" for owner, count in sorted(counts.items()))
    saved = evidence.residue.get("saved")
    if counts["kube-proxy"] == 0 and saved:
        return WARN, "; ".join(saved)
    return _claim(counts["kube-proxy"] == 0, said, f"{said}; remove it with kproxy.dataplane.residue")


def _rest_served(evidence: Evidence) -> tuple[str, str]:
    canary, residue = _canary(evidence), evidence.residue
    if not canary:
        return SKIP, "all Services are ours"
    if not residue:
        return SKIP, "not looked for"
    if not residue["kube_proxy_running"]:
        return FAIL, f"ours are {canary}, and no kube-proxy runs here for the rest"
    objects = residue["counts"]["kube-proxy"]
    good = f"ours are {canary}; kube-proxy has {objects} objects here"
    return _claim(objects > 0, good, "kube-proxy has no rule here")


def _in_step(evidence: Evidence) -> tuple[str, str]:
    status = evidence.status
    if not status:
        return SKIP, "the sidecar was not asked"
    waiting = ", ".join(map(str, status.get("waitingFor") or ())) or status.get("lastError") or "it does not say why"
    return _claim(bool(status["inStep"]), f"generation {status.get('generation')}", f"not in step: {waiting}")


def _healthy(evidence: Evidence) -> tuple[str, str]:
    if not evidence.status:
        return SKIP, "the sidecar was not asked"
    return _claim(bool(evidence.status["healthy"]), "healthy", "the sidecar says that it is not healthy")


def _eligible(evidence: Evidence) -> tuple[str, str]:
    if not evidence.status:
        return SKIP, "the sidecar was not asked"
    eligible = bool(evidence.status.get("nodeEligible"))
    return _claim(eligible, "the Node is known and stays", "the Node is unknown, or is to be removed", WARN)


def _sources(evidence: Evidence) -> tuple[str, str]:
    sources = evidence.status.get("sources")
    if not sources:
        return SKIP, "the sidecar was not asked"
    lost = [str(item["kind"]) for item in sources if not item.get("connected")]
    return _claim(not lost, f"{len(sources)} kinds are watched", f"no connection for {', '.join(lost)}")


def _objects(evidence: Evidence) -> tuple[str, str]:
    if not evidence.status:
        return SKIP, "the sidecar was not asked"
    refused = evidence.status.get("refused") or ()
    return _claim(not refused, "every object was understood", f"{len(refused)} refused, see kproxyctl status", WARN)


def _attention(evidence: Evidence) -> tuple[str, str]:
    if not evidence.status:
        return SKIP, "the sidecar was not asked"
    problems = [str(problem) for problem in evidence.status.get("problems") or ()]
    return _claim(not problems, "the sidecar has no complaint", "; ".join(problems), WARN)


def _agreement(evidence: Evidence) -> tuple[str, str]:
    if not evidence.agreement:
        return SKIP, "the sidecar was not asked"
    wrong = evidence.agreement.get("error") or f"{evidence.agreement.get('elements')} elements differ"
    return _claim(bool(evidence.agreement.get("agrees")), "the kernel holds what is wanted", str(wrong))


def _dialled(wanted: Callable[[Mapping[str, Any]], bool]) -> Callable[[Evidence], tuple[str, str]]:
    """Return a check that the probe's results that are wanted were led, refused or dropped as the table says."""

    def check(evidence: Evidence) -> tuple[str, str]:
        rows = [row for row in evidence.probe.get("results") or () if wanted(row)]
        return _without_faults("verdict", rows, "dialled") if rows else (SKIP, "there is none to dial here")

    return check


def _judged(about: str, nothing: str) -> Callable[[Evidence], tuple[str, str]]:
    """Return a check of everything that the probe judged about one thing."""

    def check(evidence: Evidence) -> tuple[str, str]:
        rows = [row for row in evidence.probe.get("results") or () if about in row["judged"]]
        return _without_faults(about, rows, "judged") if rows else (SKIP, nothing)

    return check


def _without_faults(about: str, rows: list[Mapping[str, Any]], done: str) -> tuple[str, str]:
    wrong = [
        f"{row['address']} from {row['client']}: {fault['message']}"
        for row in rows
        for fault in row["faults"]
        if fault["about"] == about
    ]
    return _claim(not wrong, f"{len(rows)} {done}", "; ".join(wrong[:3]))


def _answer(evidence: Evidence) -> tuple[str, str]:
    """Where connections were led is judged by itself; that nobody answers there is worth a look all the same."""
    results = evidence.probe.get("results") or ()
    rows = [row for row in results if row["expected"] == "dnat" and row["protocol"] != "UDP"]
    if not rows:
        return SKIP, "nothing that answers was dialled"
    found = {f"{end} of {row['service']}": row["client"] for row in rows for end in row.get("silent") or ()}
    said = ", ".join(f"{end} (asked from {client})" for end, client in sorted(found.items())[:5])
    more = f" and {len(found) - 5} more" if len(found) > 5 else ""
    wrong = f"no answer from {said}{more}: look at the pods and at the network between the nodes"
    return _claim(not found, f"{len(rows)} dialled", wrong, WARN)


def _sctp(evidence: Evidence) -> tuple[str, str]:
    missing = [text for text in evidence.probe.get("not_dialled") or () if text.startswith("SCTP")]
    return (SKIP, missing[0]) if missing else _dialled(lambda row: row["protocol"] == "SCTP")(evidence)


def _room(evidence: Evidence) -> tuple[str, str]:
    """The table must be large enough, and not be full: a new connection that finds no room is dropped."""
    limit, said = _findings("conntrack")(evidence)
    size = evidence.probe.get("conntrack")
    if not size or not size["maximum"]:
        return limit, said
    full = f"{size['entries']} of {size['maximum']} entries are taken"
    if size["entries"] > 0.8 * size["maximum"]:
        return (FAIL if size["entries"] > 0.95 * size["maximum"] else WARN), full
    return (OK, full) if limit in (OK, SKIP) else (limit, said)


def _kind(*kinds: str, node: bool | None = None) -> Callable[[Mapping[str, Any]], bool]:
    def wanted(row: Mapping[str, Any]) -> bool:
        return row["kind"] in kinds and node in (None, row["client"] == "node")

    return wanted


def _findings(*names: str) -> Callable[[Evidence], tuple[str, str]]:
    """Return a check that no finding of these names blocks, warns or has to be fixed."""

    def check(evidence: Evidence) -> tuple[str, str]:
        found = [item for item in evidence.preflight if item["check"].startswith(names)]
        if not found:
            return SKIP, "not looked at"
        wrong = [item for item in found if item["result"] in ("block", "fix", "warn")]
        worst = FAIL if any(item["result"] == "block" for item in wrong) else WARN
        return _claim(not wrong, f"{len(found)} looked at", "; ".join(str(item["message"]) for item in wrong), worst)

    return check


CHECKS: tuple[tuple[str, Callable[[Evidence], tuple[str, str]]], ...] = (
    ("kube-proxy does not run", _no_process),
    ("kube-proxy is not scheduled here", _not_scheduled),
    ("kube-proxy left nothing", _no_residue),
    ("kube-proxy serves the rest", _rest_served),
    ("sidecar is in step", _in_step),
    ("sidecar is healthy", _healthy),
    ("sources are connected", _sources),
    ("node is eligible", _eligible),
    ("node is ready", _ready),
    ("every object was understood", _objects),
    ("setup needs no attention", _attention),
    ("kernel holds what is wanted", _agreement),
    ("cluster IPs from the node", _dialled(_kind("cluster-ip", node=True))),
    ("cluster IPs from pods", _dialled(_kind("cluster-ip", node=False))),
    ("NodePorts", _dialled(_kind("node-port"))),
    ("external IPs", _dialled(_kind("external-ip"))),
    ("load balancer IPs", _dialled(_kind("load-balancer"))),
    ("SCTP", _sctp),
    ("cluster DNS", _dialled(lambda row: "kube-dns" in row["service"])),
    ("API server through its Service", _dialled(lambda row: row["service"].startswith("default/kubernetes"))),
    ("endpoints answer", _answer),
    ("services without endpoints refuse", _dialled(lambda row: row["expected"] == "reject")),
    ("local policy drops where it must", _dialled(lambda row: row["expected"] == "drop")),
    ("clients are seen as they should", _judged("source", "no endpoint's view is known here")),
    ("pods reach themselves", _judged("hairpin", "no pod was led to itself")),
    ("affinity holds", _judged("affinity", "no Service with affinity was dialled")),
    ("endpoints get even shares", _judged("spread", "not asked for, or no Service has several endpoints")),
    ("no other chain drops", _findings("forward_drop", "input_drop")),
    ("connection table has room", _room),
    ("forwarding is on", _findings("ipv4_forwarding", "ipv6_forwarding")),
    (
        "kernel settings suit Services",
        _findings("tcp_be_liberal", "br_netfilter", "ip_local_reserved_ports", "conntrack_delete", "route_localnet"),
    ),
)


def run(evidence: Evidence) -> list[Check]:
    """Return every check with its result, in a fixed order."""
    return [Check(name, *judge(evidence)) for name, judge in CHECKS]
