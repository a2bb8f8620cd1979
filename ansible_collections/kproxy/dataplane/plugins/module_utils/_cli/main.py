# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""kproxyctl: what the node's service proxy does, and why.

Exit codes: 0 all is well; 1 the answer is bad news (not in step, a trace that ends in drop or reject, unknown Service);
2 wrong usage; 3 kproxyd does not answer.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

from ansible_collections.kproxy.dataplane.plugins.module_utils._cli import exit_codes, layout, raw_maps
from ansible_collections.kproxy.dataplane.plugins.module_utils._cli.client import DaemonDown, Refused, ask
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine import ebpf_retirement
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_dataplane import (
    DEFAULT_ROOT,
    NoBpffs,
    Unsupported,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.nft_command import NftCommand, NftError
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.placement import CANARY, WHOLE
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.protocol import NUMBERS

SOCKET = "/run/kproxy/kproxyd.sock"
TABLES = tuple((family, place.table) for place in (WHOLE, CANARY) for family in (4, 6))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        code: int = arguments.run(arguments)
    except DaemonDown as error:
        sys.stderr.write(f"kproxyctl: {error}\n")
        return exit_codes.NO_DAEMON
    except Refused as error:
        sys.stderr.write(f"kproxyctl: {error}\n")
        return exit_codes.PROBLEM
    except BrokenPipeError:
        return exit_codes.OK
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kproxyctl",
        description="Show what this node's service proxy does, and why.",
        epilog="Exit codes: 0 well, 1 bad news (not in step, dropped, unknown), 2 usage, 3 kproxyd does not answer.",
    )
    parser.add_argument("--socket", default=SOCKET, help="kproxyd's socket (default: %(default)s)")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        one = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        one.add_argument("-o", "--output", choices=("text", "json"), default="text", help="default: text")
        one.set_defaults(run=run)
        return one

    command("status", _status, "whether the kernel is in step with the API server, and what needs attention")
    command("services", _services, "every address a client can dial here, and what happens then").add_argument(
        "-n", "--namespace", default="", help="only Services of this namespace"
    )
    backends = command("backends", _backends, "every endpoint that can be reached from here")
    backends.add_argument("service", nargs="?", default="", metavar="[NAMESPACE/]SERVICE")
    backends.add_argument("--raw", action="store_true", help="read the eBPF maps in the kernel, without kproxyd")
    backends.add_argument("--bpf-directory", default=DEFAULT_ROOT, help="where they are pinned (default: %(default)s)")
    command("show", _show, "all about one Service, or without a name the tables in the kernel").add_argument(
        "service", nargs="?", default="", metavar="[NAMESPACE/]SERVICE"
    )
    trace = command("trace", _trace, "what happens to one new connection, without sending it")
    trace.add_argument("--from", dest="source", required=True, metavar="ADDRESS", help="where it comes from")
    trace.add_argument(
        "--to", dest="destination", required=True, metavar="ADDRESS[:PORT[/PROTOCOL]]", help="what it dials"
    )
    trace.add_argument("--port", type=int, default=0, help="the port it dials")
    trace.add_argument("--protocol", default="", help="TCP, UDP, SCTP or ICMP (default: TCP)")
    trace.add_argument("--interface", default="", help="where it enters this node; none if this node sends it")
    command("history", _history, "the latest commits with their causes").add_argument(
        "--last", type=int, default=20, metavar="N", help="how many (default: 20)"
    )
    retiring = command("retire", _retire, "after a switch to nftables: let eBPF finish its connections, then remove it")
    retiring.add_argument("--bpf-directory", default=DEFAULT_ROOT, help="where they are pinned (default: %(default)s)")
    command("verify", _verify, "read the kernel back now, compare it with what should be there and repair it")
    return parser


def _status(arguments: argparse.Namespace) -> int:
    document = ask(arguments.socket, "status")
    _print(arguments, document, layout.status)
    return exit_codes.OK if document["inStep"] and document["healthy"] else exit_codes.PROBLEM


def _services(arguments: argparse.Namespace) -> int:
    _print(arguments, ask(arguments.socket, "services", namespace=arguments.namespace), layout.services)
    return exit_codes.OK


def _backends(arguments: argparse.Namespace) -> int:
    if arguments.raw:
        return _raw_backends(arguments)
    namespace, service = _split(arguments.service)
    _print(arguments, ask(arguments.socket, "backends", namespace=namespace, service=service), layout.backends)
    return exit_codes.OK


def _raw_backends(arguments: argparse.Namespace) -> int:
    if arguments.service:
        sys.stderr.write("kproxyctl: the eBPF maps hold numbers and no names: leave the Service out with --raw\n")
        return exit_codes.USAGE
    try:
        found = raw_maps.read(arguments.bpf_directory)
    except (OSError, NoBpffs, Unsupported) as error:
        sys.stderr.write(f"kproxyctl: the eBPF maps cannot be read: {error}\n")
        return exit_codes.PROBLEM
    if found is None:
        sys.stderr.write(f"kproxyctl: no eBPF maps are pinned under {arguments.bpf_directory}\n")
        return exit_codes.PROBLEM
    _print(arguments, found, layout.raw_backends)
    return exit_codes.OK


def _show(arguments: argparse.Namespace) -> int:
    if not arguments.service:
        return _show_kernel(arguments)
    namespace, service = _split(arguments.service)
    try:
        document = ask(arguments.socket, "show", namespace=namespace, service=service)
    except DaemonDown as error:
        sys.stderr.write(f"kproxyctl: {error}\nThese are the tables in the kernel:\n")
        _show_kernel(arguments)
        return exit_codes.NO_DAEMON
    _print(arguments, document, layout.show)
    return exit_codes.OK


def _show_kernel(arguments: argparse.Namespace) -> int:
    """Print our tables as nft lists them; needs no daemon."""
    nft = NftCommand()
    as_json = arguments.output == "json"
    try:
        listings = [nft.list_table(family, table, terse=False, json=as_json) for family, table in TABLES]
    except NftError as error:
        sys.stderr.write(f"kproxyctl: the kernel cannot be read: {error}\n")
        return exit_codes.PROBLEM
    found = [listing for listing in listings if listing is not None]
    if found and as_json:
        rows = [row for listing in found for row in json.loads(listing)["nftables"]]
        sys.stdout.write(json.dumps({"nftables": rows}) + "\n")
    elif found:
        sys.stdout.write("".join(found))
    else:
        sys.stderr.write(
            "kproxyctl: the kernel holds no nftables table of ours: nothing is programmed, or eBPF carries all of it\n"
        )
    return exit_codes.OK if found else exit_codes.PROBLEM


def _trace(arguments: argparse.Namespace) -> int:
    destination, port, protocol = _dialled(arguments.destination)
    document = ask(
        arguments.socket,
        "trace",
        port=arguments.port or port,
        protocol=arguments.protocol or protocol,
        interface=arguments.interface,
        **{"from": arguments.source.strip("[]"), "to": destination},
    )
    _print(arguments, document, layout.trace)
    return exit_codes.PROBLEM if document["verdict"] in ("drop", "reject") else exit_codes.OK


def _history(arguments: argparse.Namespace) -> int:
    _print(arguments, ask(arguments.socket, "history", last=arguments.last), layout.history)
    return exit_codes.OK


def _verify(arguments: argparse.Namespace) -> int:
    document = ask(arguments.socket, "verify")
    _print(arguments, document, layout.verify)
    return exit_codes.OK if document["agrees"] else exit_codes.PROBLEM


def _retire(arguments: argparse.Namespace) -> int:
    """Wait until the last connection that the programs translate has ended; needs root, and kproxyd on nftables."""
    mode = ask(arguments.socket, "status")["mode"]
    if mode != "nftables":
        sys.stderr.write(f"kproxyctl: kproxyd serves by {mode}: switch it to nftables first\n")
        return exit_codes.PROBLEM
    try:
        ended = ebpf_retirement.retire(arguments.bpf_directory)
    except (OSError, NoBpffs, Unsupported) as error:
        sys.stderr.write(f"kproxyctl: the eBPF programs stay attached: {error}\n")
        return exit_codes.PROBLEM
    _print(arguments, {"directory": arguments.bpf_directory, "ended": ended}, layout.retirement)
    return exit_codes.OK


def _split(name: str) -> tuple[str, str]:
    """Return namespace and name; a bare name is of namespace default, as with kubectl."""
    if not name:
        return "", ""
    namespace, slash, service = name.partition("/")
    return (namespace, service) if slash else ("default", namespace)


def _dialled(text: str) -> tuple[str, int, str]:
    """Return address, port and protocol of what `kproxyctl services` writes as ADDRESS:PORT/PROTOCOL; 0 is no port."""
    rest, slash, protocol = text.rpartition("/")
    if not slash or protocol.upper() not in NUMBERS:
        rest, protocol = text, "TCP"
    host, colon, port = rest.rpartition(":")
    if colon and port.isdigit() and (":" not in host or host.endswith("]")):
        return host.strip("[]"), int(port), protocol
    return rest.strip("[]"), 0, protocol


def _print(arguments: argparse.Namespace, document: Any, lay_out: Callable[[Any], list[str]]) -> None:
    if arguments.output == "json":
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        sys.stdout.write("\n".join(lay_out(document)) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
