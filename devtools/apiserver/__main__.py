"""Run the stand-in API server as a process: `python -m devtools.apiserver --data DIR [MANIFEST...]`."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from devtools.apiserver.auth import ADMIN_GROUP, KUBE_PROXY, User
from devtools.apiserver.manifests import load
from devtools.apiserver.server import DEFAULT_SERVICE_CIDRS, ApiServer


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m devtools.apiserver", description=__doc__)
    parser.add_argument("manifests", nargs="*", type=Path, help="files or folders of objects to start with")
    parser.add_argument("--data", type=Path, required=True, help="folder for certificates and kubeconfigs")
    parser.add_argument("--bind", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=0, help="port; 0 picks a free one")
    parser.add_argument("--host", action="append", default=[], help="further name or address in the certificate")
    parser.add_argument("--network-namespace", help="listen inside /run/netns/NAME")
    parser.add_argument("--service-cidr", action="append", help="service range, once per family")
    parser.add_argument("--bookmark-seconds", type=float, default=60.0, help="time between bookmarks")
    parser.add_argument("--absent-group", action="append", default=[], help="an API group to answer 404 for")
    parser.add_argument("--admin-token", help="bearer token of an administrator")
    parser.add_argument("--proxy-token", help=f"bearer token of {KUBE_PROXY}")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; print one JSON line with url, kubeconfigs and CA when ready."""
    options = parse_arguments(arguments)
    tokens = {}
    if options.admin_token:
        tokens[options.admin_token] = User("admin", frozenset({ADMIN_GROUP}))
    if options.proxy_token:
        tokens[options.proxy_token] = User(KUBE_PROXY)
    # Blocked before any thread starts, so that every thread leaves them to sigwait below.
    signals = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    server = ApiServer(
        options.data,
        listen=[(options.bind, options.port)],
        network_namespace=options.network_namespace,
        service_cidrs=options.service_cidr or DEFAULT_SERVICE_CIDRS,
        tokens=tokens,
        bookmark_seconds=options.bookmark_seconds,
        absent_groups=options.absent_group,
        hosts=options.host,
    )
    # Before it listens: whoever is told that it is ready must not find it without its objects.
    for manifest in load(options.manifests):
        server.api.apply(manifest)
    with server:
        ready = {"url": server.url, "ca": str(options.data / "pki" / "ca.crt")}
        for user in ("admin", KUBE_PROXY):
            path = options.data / f"{user.rpartition(':')[2]}.kubeconfig"
            path.touch(mode=0o600)
            path.write_text(server.kubeconfig(user))
            ready[f"{path.stem}_kubeconfig"] = str(path)
        print(json.dumps(ready), flush=True)
        signal.sigwait(signals)
    return 0


if __name__ == "__main__":
    sys.exit(main())
