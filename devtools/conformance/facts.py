"""Compare what the product says beside the packets with what a case expects. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple


class HttpResponse(NamedTuple):
    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes


_JSON_HEADERS = {"content-type": "application/json", "x-content-type-options": "nosniff"}


def judge_health_check(check: Mapping[str, Any], got: HttpResponse | None) -> list[str]:
    """got None: nothing listens."""
    where = f"health check {check['service']} port {check['port']} {check['family']}"
    expect = check["expect"]
    if expect.get("listening") is False:
        return [f"{where}: got HTTP {got.status}, wanted a closed port"] if got is not None else []
    if got is None:
        return [f"{where}: got a closed port, wanted HTTP {expect['status']}"]
    namespace, name = check["service"].split("/")
    problems = _judge_response(where, got, expect["status"], {
        **_JSON_HEADERS, "x-load-balancing-endpoint-weight": expect["weight_header"]
    })  # fmt: skip
    document = _document(got.body)
    wanted = {
        "service": {"namespace": namespace, "name": name},
        "localEndpoints": expect["local_endpoints"],
        "serviceProxyHealthy": expect["service_proxy_healthy"],
    }
    found = {key: document.get(key) for key in wanted}
    service = found["service"]
    if isinstance(service, dict):
        found["service"] = {key: service.get(key) for key in ("namespace", "name")}
    if found != wanted:
        problems.append(f"{where}: got {json.dumps(found)}, wanted {json.dumps(wanted)}")
    return problems


def judge_proxy_health(check: Mapping[str, Any], got: HttpResponse) -> list[str]:
    where = f"{check['path']} with {json.dumps(check['state'])}"
    problems = _judge_response(where, got, check["expect"]["status"], _JSON_HEADERS)
    document = _document(got.body)
    wanted = check["expect"]["body"]
    found = {key: document.get(key) for key in wanted}
    if found != wanted:
        problems.append(f"{where}: got {json.dumps(found)}, wanted {json.dumps(wanted)}")
    missing = [key for key in ("lastUpdated", "currentTime", "healthy", "status") if key not in document]
    if missing:
        problems.append(f"{where}: the body lacks {', '.join(missing)}")
    if ("nodeEligible" in document) != (check["path"] == "/healthz"):
        problems.append(f"{where}: nodeEligible belongs to /healthz only")
    if got.status == 200 and document.get("lastUpdated") != document.get("currentTime"):
        problems.append(f"{where}: got lastUpdated {document.get('lastUpdated')}, wanted the current time")
    for family, status in (document.get("status") or {}).items():
        if not {"lastUpdated", "healthy"} <= set(status):
            problems.append(f"{where}: status of {family} lacks lastUpdated or healthy")
    return problems


def judge_metric(sample: Mapping[str, Any], got: float | None) -> list[str]:
    if got == sample["value"]:
        return []
    labels = ",".join(f'{key}="{value}"' for key, value in sample["labels"].items())
    return [f"metric {sample['name']}{{{labels}}}: got {got}, wanted {sample['value']}"]


def judge_conntrack(expect: Mapping[str, Any], left: set[str]) -> list[str]:
    """left: ids of the entries that are still there."""
    stale = sorted(left & set(expect["removed"]))
    lost = sorted(set(expect["kept"]) - left)
    problems = [f"conntrack: still there {', '.join(stale)}, wanted removed"] if stale else []
    return problems + ([f"conntrack: removed {', '.join(lost)}, wanted kept"] if lost else [])


def find_sample(text: str, name: str, labels: Mapping[str, str]) -> float | None:
    """Return the value of one sample of a Prometheus exposition; None if there is none."""
    for line in text.splitlines():
        series, _, value = line.rpartition(" ")
        given, _, rest = series.partition("{")
        if given != name:
            continue
        pairs = (pair.partition("=") for pair in rest.rstrip("}").split(",") if pair)
        if {key: quoted.strip('"') for key, _, quoted in pairs} == dict(labels):
            return float(value)
    return None


def _judge_response(where: str, got: HttpResponse, status: int, headers: Mapping[str, str]) -> list[str]:
    problems = [f"{where}: got HTTP {got.status}, wanted {status}"] if got.status != status else []
    for name, value in headers.items():
        if got.headers.get(name) != value:
            problems.append(f"{where}: got {name} {got.headers.get(name)!r}, wanted {value!r}")
    return problems


def _document(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
