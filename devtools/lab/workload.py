"""The pods behind a folder of manifests: every endpoint that names one of the lab's nodes becomes a running pod."""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml

from devtools.lab.pods import Pod, add_pods
from devtools.lab.topology import NODE_NUMBERS, Lab, LabError, Node


def load(folder: Path) -> list[dict[str, Any]]:
    """Return all objects of the YAML files of a folder, in the order of the files' names."""
    documents = (yaml.safe_load_all(path.read_text()) for path in sorted(folder.glob("*.yaml")))
    return [document for stream in documents for document in stream if document]


def pods_behind(objects: Iterable[Mapping[str, Any]]) -> dict[Node, list[Pod]]:
    """Return the pods that EndpointSlices speak of, by node, each with all the ports that any slice gives it.

    Raises:
        LabError: an endpoint's address is outside of its node's pod range.
    """
    ports: dict[tuple[Node, int], set[tuple[str, int]]] = defaultdict(set)
    names: dict[tuple[Node, int], str] = {}
    for item in objects:
        if item["kind"] != "EndpointSlice":
            continue
        opened = {(port.get("protocol", "TCP"), port["port"]) for port in item.get("ports") or []}
        for endpoint in item.get("endpoints") or []:
            if endpoint.get("nodeName") not in NODE_NUMBERS:
                continue
            node = Node(endpoint["nodeName"])
            host = host_number(node, endpoint["addresses"][0])
            names[node, host] = endpoint.get("targetRef", {}).get("name", f"pod-{host}")
            ports[node, host] |= opened
    found: dict[Node, list[Pod]] = defaultdict(list)
    for (node, host), opened in sorted(ports.items(), key=lambda item: (item[0][0].number, item[0][1])):
        found[node].append(Pod(names[node, host], host, tuple(sorted(opened))))
    return dict(found)


def host_number(node: Node, address: str) -> int:
    """Return a pod's number from its address in one of its node's ranges; IPv6 ones are read as they are written."""
    for cidr in (node.pod_cidr_ipv4, node.pod_cidr_ipv6):
        network, parsed = ipaddress.ip_network(cidr), ipaddress.ip_address(address)
        if parsed.version == network.version and parsed in network:
            last = address.rpartition(":" if parsed.version == 6 else ".")[2]
            if last.isdecimal():
                return int(last)
    raise LabError(f"endpoint {address} on {node.name}: not within {node.pod_cidr_ipv4} or {node.pod_cidr_ipv6}")


def start(lab: Lab, objects: Iterable[Mapping[str, Any]], members: Iterable[Node]) -> int:
    """Start the pods on those of their nodes that are members of this lab; returns how many there are."""
    wanted = pods_behind(objects)
    here = {node: wanted[node] for node in members if node in wanted}
    with ThreadPoolExecutor() as pool:
        for done in [pool.submit(add_pods, lab, node, pods) for node, pods in here.items()]:
            done.result()
    return sum(map(len, here.values()))
