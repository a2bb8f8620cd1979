# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Answers laid out for people: aligned columns, short sentences. Pure: documents in, lines out."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Document = Mapping[str, Any]


def columns(header: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return rows under a header, each column as wide as its widest cell."""
    cells = [list(header), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[index]) for row in cells) for index in range(len(header))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in cells]


def services(documents: Sequence[Document]) -> list[str]:
    """Lay out frontends."""
    if not documents:
        return ["no Service has a frontend on this node"]
    return columns(
        ("SERVICE", "PORT", "KIND", "FRONTEND", "ENDPOINTS", "LOCAL", "OUTSIDERS", "PODS", "NODE"),
        (
            (
                one["service"],
                one["port"] or "-",
                one["kind"],
                frontend(one),
                one["endpoints"],
                one["localEndpoints"],
                target(one["outsiders"]),
                target(one["pods"]),
                target(one["node"]),
            )
            for one in documents
        ),
    )


def raw_backends(documents: Sequence[Document]) -> list[str]:
    """Lay out what the eBPF maps hold, one line per endpoint, slots in their order."""
    rows: list[tuple[object, ...]] = []
    for one in documents:
        flags = ",".join(
            [
                *(["affinity"] if one["affinitySeconds"] else []),
                *(["source-ranges"] if one["sourceRanges"] else []),
                *(["maglev"] if one["maglev"] else []),
            ]
        )
        held: list[tuple[object, str, str]] = [(slot, text, "") for slot, text in enumerate(one["endpoints"])]
        held += [(slot, text, "local") for slot, text in enumerate(one["localEndpoints"])]
        for slot, text, kind in held or [("-", one["verdict"], "")]:
            rows.append((one["frontend"], one["number"], slot, text, kind or "-", flags or "-"))
    return columns(("FRONTEND", "NUMBER", "SLOT", "ENDPOINT", "SET", "FLAGS"), rows)


def retirement(document: Document) -> list[str]:
    """Lay out how the retirement of the eBPF programs ended."""
    return [
        {
            "nothing": f"nothing is pinned under {document['directory']}",
            "taken back": f"the eBPF backend serves again from {document['directory']}",
            "removed": f"no connection needs them any more: removed what was pinned under {document['directory']}",
        }[document["ended"]]
    ]


def backends(documents: Sequence[Document]) -> list[str]:
    """Lay out endpoints."""
    if not documents:
        return ["no endpoint can be reached from this node"]
    return columns(
        ("SERVICE", "PORT", "PROTOCOL", "ENDPOINT", "HERE", "SETS"),
        (
            (
                one["service"],
                one["port"] or "-",
                one["protocol"],
                one["endpoint"],
                "yes" if one["local"] else "no",
                ",".join(one["sets"]),
            )
            for one in documents
        ),
    )


def show(document: Document) -> list[str]:
    """Lay out one Service."""
    lines = [
        f"Service {document['namespace']}/{document['name']}",
        f"  internalTrafficPolicy {document['internalTrafficPolicy']}, "
        f"externalTrafficPolicy {document['externalTrafficPolicy']}"
        + (f", health check port {document['healthCheckNodePort']}" if document["healthCheckNodePort"] else ""),
        f"  EndpointSlices: {', '.join(document['endpointSlices']) or 'none'}",
        "",
        *services(document["frontends"]),
    ]
    for one in document["frontends"]:
        if "sourceRanges" in one:
            lines.append(f"  {frontend(one)} may be dialled from {', '.join(one['sourceRanges'])} only")
        if one["affinitySeconds"]:
            lines.append(f"  {frontend(one)} keeps a client on its endpoint for {one['affinitySeconds']} s")
        if "loopback" in one:
            lines.append(f"  {frontend(one)} on loopback: {one['loopback']}")
    lines += ["", *backends(document["backends"])]
    if document["notes"]:
        lines += ["", "Notes:", *(f"  {note}" for note in document["notes"])]
    return lines


def trace(document: Document) -> list[str]:
    """Lay out what happens to one packet, and the way to it."""
    steps = document["steps"]
    lines = [f"{document['verdict']}: {document['reason']}"]
    if document["frontend"]:
        lines.append(f"frontend {document['frontend']} of {document['service']}")
    for one in document["endpoints"]:
        remarks = (" (on this node)" if one["local"] else "") + (", masqueraded" if one["masqueraded"] else "")
        lines.append(f"  -> {one['address']}{remarks}")
    return lines + [f"  because {one}" if not number else f"      and {one}" for number, one in enumerate(steps)]


def history(documents: Sequence[Document]) -> list[str]:
    """Lay out the change journal, oldest first."""
    if not documents:
        return ["no change has been recorded"]
    return columns(
        ("TIME", "GENERATION", "ACTION", "ELEMENTS", "FRONTENDS", "MS", "CAUSE"),
        (
            (
                timestamp(one["time"]),
                one["generation"],
                one["action"],
                one.get("elements", 0),
                f"+{one.get('added', 0)} ~{one.get('changed', 0)} -{one.get('removed', 0)}",
                f"{one['seconds'] * 1000:.1f}",
                one.get("error") or causes(one),
            )
            for one in documents
        ),
    )


def verify(document: Document) -> list[str]:
    """Lay out how the kernel compares with what should be there."""
    if document["error"]:
        return [f"the kernel could not be brought in step: {document['error']}"]
    if document["agrees"]:
        lines = [f"the kernel holds exactly generation {document['generation']} ({document['seconds'] * 1000:.1f} ms)"]
    else:
        lines = [f"the kernel differed in {document['elements']} elements and was repaired"]
        lines += [f"  {one}" for one in document["foreign"]]
    return lines + [f"not compared: {one}" for one in document["notCompared"]]


def status(document: Document) -> list[str]:
    """Lay out the daemon's state: the verdict first, then figures, then everything that needs attention."""
    lines = [
        f"{'in step' if document['inStep'] else 'NOT in step'} at generation {document['generation']}"
        f" ({document['mode']}, node {document['node']})",
        "",
    ]
    facts = [
        ("source", _source(document)),
        *([("canary", f"{document['canary']}; kube-proxy serves the rest")] if document.get("canary") else []),
        ("running since", timestamp(document["startedAt"])),
        ("last commit", timestamp(document["lastCommitAt"]) if document["lastCommitAt"] else "none yet"),
        ("services", document["objects"]["Service"]),
        ("endpoint slices", document["objects"]["EndpointSlice"]),
        ("frontends", ", ".join(f"{family} {count}" for family, count in document["frontends"].items())),
        ("carried by", ", ".join(f"{name} {count}" for name, count in sorted(document["carriedBy"].items())) or "-"),
        *_outsiders(document.get("outsiders")),
        ("healthy", "yes" if document["healthy"] else "NO: an update has waited for twice the sync period"),
        (
            "node eligible",
            {True: "yes", False: "NO", None: "unknown: its Node object was not seen"}[document["nodeEligible"]],
        ),
        ("foreign changes repaired", document["foreignRepairs"]),
        ("resident memory", f"{document['residentBytes'] / 1048576:.0f} MiB"),
        ("version", document["version"]),
    ]
    width = max(len(name) for name, _value in facts)
    lines += [f"  {name.ljust(width)}  {value}" for name, value in facts]
    attention = [
        *(f"waiting for the first list of {kind}" for kind in document["waitingFor"]),
        *([f"commit failed {document['failing']} times: {document['lastError']}"] if document["failing"] else []),
        *(f"{one['kind']}: {one['detail']}" for one in document["sources"] if one["detail"]),
        *(f"refused: {one}" for one in document["refused"]),
        *(f"the kernel refuses {one}" for one in document["leftOut"]),
        *document["notes"],
        *document["conflicts"],
        *document["problems"],
        *document.get("leftAside", ()),
    ]
    if attention:
        lines += ["", "Needs attention:", *(f"  {one}" for one in attention)]
    return lines


def _source(document: Document) -> str:
    """Lay out where the objects come from; of API servers, those that are connected."""
    servers = {one["server"] for one in document["sources"] if one["connected"] and one["kind"] != "manifests"}
    return ", ".join([str(document["source"]), *sorted(filter(None, servers))])


def _outsiders(document: Document | None) -> list[tuple[str, str]]:
    """Lay out how clients from outside are forwarded; nothing where there is only one way."""
    if document is None:
        return []
    modes = ", ".join(f"{device} {mode}" for device, mode in document["xdp"].items())
    packets = document["xdpPackets"]
    xdp = f"{modes}: {packets['by-xdp']} packets sent on, {packets['by-tc']} left to tc" if modes else "on no device"
    reasons = ", ".join(f"{name} {count}" for name, count in document["reasons"].items() if count)
    excluded = ", ".join(document.get("excludedDevices", ()))
    return [
        ("forwarding", document["forwarding"]),
        ("XDP", xdp),
        *([("excluded devices", excluded)] if excluded else []),
        ("not served", reasons or "-"),
    ]


def frontend(document: Document) -> str:
    """Return the address of a frontend as people write it."""
    address, port = document["address"], document["portNumber"]
    where = f"node:{port}" if not address else f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
    suffix = "" if address else f" ({document['family']})"
    return f"{where}/{document['protocol']}{suffix}"


def target(document: Document) -> str:
    """Return what happens to one kind of client, in a few characters."""
    if document["verdict"] != "dnat":
        return str(document["verdict"])
    return f"{document['endpointSet']}({document['endpoints']}){'+masq' if document['masquerade'] else ''}"


def timestamp(seconds: float) -> str:
    """Return a time in UTC to the second."""
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).strftime("%Y-%m-%d %H:%M:%SZ")


def causes(document: Document) -> str:
    """Return the causes of one commit, the first few by name."""
    named = list(document.get("causes", ()))
    more = len(named[3:]) + int(document.get("more_causes", 0))
    return ", ".join(named[:3]) + (f" and {more} more" if more else "")
