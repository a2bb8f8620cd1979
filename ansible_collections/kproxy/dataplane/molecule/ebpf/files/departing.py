"""Hold a UDP socket to a Service, take its only endpoint away, and say how the socket ends: departing.py ENDPOINT PORT

Run in the network namespace of a pod. Prints JSON: {"answered": the pod that answered first, "ended": the error}.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
import time
from typing import Any

MANIFEST = "/etc/kproxy/manifests/departing.json"
CLUSTER_IP, PORT = "10.96.1.15", 53
PATIENCE_SECONDS = 30.0


def write(endpoints: list[str], port: int) -> None:
    """Replace the manifest at once."""
    service: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": "shop", "name": "departing"},
        "spec": {"clusterIP": CLUSTER_IP, "ports": [{"name": "dns", "protocol": "UDP", "port": PORT}]},
    }
    endpoint_slice = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"namespace": "shop", "name": "departing-1", "labels": {"kubernetes.io/service-name": "departing"}},
        "addressType": "IPv4",
        "ports": [{"name": "dns", "protocol": "UDP", "port": port}],
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}} for address in endpoints],
    }
    with open(MANIFEST + ".new", "w", encoding="utf-8") as file:
        json.dump({"apiVersion": "v1", "kind": "List", "items": [service, endpoint_slice]}, file)
    os.rename(MANIFEST + ".new", MANIFEST)


def held() -> tuple[socket.socket, str]:
    """Return a socket that an endpoint of the Service has answered on, and who that was."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        client.settimeout(1)
        try:
            client.connect((CLUSTER_IP, PORT))
            client.send(b"who\n")
            return client, json.loads(client.recv(4096))["pod"]
        except OSError:
            client.close()
    sys.exit("the Service never answered")


def main(endpoint: str, port: str) -> None:
    """Print how it went."""
    try:
        write([endpoint], int(port))
        client, answered = held()
        write([], int(port))
        client.settimeout(PATIENCE_SECONDS)
        try:
            client.recv(4096)
            ended = "nothing"
        except TimeoutError:
            ended = "never"
        except OSError as error:
            ended = errno.errorcode[error.errno or 0]
        print(json.dumps({"answered": answered, "ended": ended}))
    finally:
        os.unlink(MANIFEST)


if __name__ == "__main__":
    main(*sys.argv[1:])
