"""`./dev demo`: seven nodes serve Kubernetes Services without kube-proxy; proved with packets, left up to look at."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from devtools.bootstrap import ROOT
from devtools.control_plane import ControlPlane, ControlPlaneError
from devtools.demo import cluster, proof, story
from devtools.demo.progress import DemoError, Progress, run_logged, say
from devtools.lab import machines, ssh, workload
from devtools.lab.pods import Pod, add_pods, remove_pods
from devtools.lab.topology import Lab, LabError, Node, nodes

INVENTORY = "ansible_collections/kproxy/dataplane/inventories/lab"
EXAMPLES = ROOT / "examples/services"
IN_STEP_SECONDS = 30.0
EXTRA_POD = Pod("frontend-4", 40)


def main(argv: list[str]) -> int:
    """Run the demo; 0 only if all held."""
    parser = argparse.ArgumentParser(prog="./dev demo", description=__doc__)
    parser.add_argument("--backend", choices=("nftables", "ebpf"), default="nftables", help="dataplane of the nodes")
    arguments = parser.parse_args(argv)
    progress = Progress()
    try:
        Demo(Lab.from_environment(), arguments.backend, progress).run()
    except (DemoError, LabError, ControlPlaneError) as error:
        print(f"\nThe demo did not hold: {error}", file=sys.stderr)
        return 1
    return 0


class Demo:
    """The demo on one lab."""

    def __init__(self, lab: Lab, backend: str, progress: Progress) -> None:
        self.lab = lab
        self.backend = backend
        self.progress = progress
        self.members = nodes()
        self.manifests: list[dict[str, Any]] = workload.load(EXAMPLES)
        self.logs = ROOT / "build/demo"

    def run(self) -> None:
        """Tell the whole story."""
        with self.progress.step("Start seven nodes: cp-1..cp-3 and gpu-a..gpu-d") as found:
            started = machines.up(self.lab, self.members)
            found.append(f"{len(started)} started, {len(self.members) - len(started)} already up")
        with self.progress.step("Start an API server in the lab's fabric") as found:
            plane = cluster.start(self.lab)
            found.append(f"{plane.kind} at {plane.url}")
        with self.progress.step("Create Services, EndpointSlices and the pods behind them") as found:
            found.append(self._populate(plane))
        with self.progress.step("Run site.yml on all nodes") as found:
            found.append(self._site())
        with self.progress.step("Prove it: dial every frontend from pods, nodes and outside") as found:
            found.append(self._prove(self.members))
        self._changes(plane)
        with self.progress.step("Run site.yml again: nothing may change") as found:
            recap = self._site()
            if _changed_hosts(recap):
                raise DemoError(f"the second run changed something: {recap}")
            found.append(recap)
        with self.progress.step("Look for what kube-proxy would leave behind") as found:
            found.append(self._no_kube_chains())
        if self.backend == "ebpf":
            with self.progress.step("Look for Services in nftables: eBPF carries all of these") as found:
                found.append(self._none_in_nftables())
        say(f"\n{self.progress.summary()}\n\n{self._farewell()}")

    def _populate(self, plane: ControlPlane) -> str:
        cluster.write_kubeconfig(self.lab, plane)
        plane.apply(*self.manifests)
        remove_pods(self.lab, Node("gpu-d"), [EXTRA_POD.name])
        count = workload.start(self.lab, self.manifests, self.members)
        services = sum(item["kind"] == "Service" for item in self.manifests)
        return f"{services} Services, {count} pods"

    def _site(self) -> str:
        command = [
            "ansible-playbook",
            "-i",
            INVENTORY,
            "site.yml",
            "-e",
            json.dumps({"kproxy_source": "api", "kproxy_backend": self.backend, "kproxy_serial": "100%"}),
        ]
        environment = {**os.environ, "KPROXY_LAB": self.lab.instance, "ANSIBLE_FORCE_COLOR": "0"}
        output = run_logged(command, self.logs / "site.log", environment, ("TASK",))
        return _recap(output)

    def _prove(self, members: Sequence[Node]) -> str:
        pods = workload.pods_behind(self.manifests)
        clients = {node: found[0].name for node, found in pods.items()}
        wanted = proof.probes(self.manifests, members, clients)
        verdicts = proof.run_probes(self.lab, wanted, proof.pod_names_by_address(self.manifests))
        wrong = [verdict for verdict in verdicts if verdict.wrong]
        if wrong:
            lines = [f"{v.probe.origin} -> {v.probe.key} by {v.probe.gate.name}: {v.wrong}" for v in wrong[:20]]
            raise DemoError("\n".join([f"{len(wrong)} of {len(verdicts)} probes met something else:", *lines]))
        connections = sum(verdict.connections for verdict in verdicts)
        return f"{len(verdicts)} probes, {connections} answered connections, all as the service table says"

    def _changes(self, plane: ControlPlane) -> None:
        gpu_d, some = Node("gpu-d"), [Node("cp-1"), Node("gpu-a"), Node("gpu-d")]
        with self.progress.step("Scale shop/frontend up by a pod on gpu-d") as found:
            add_pods(self.lab, gpu_d, [EXTRA_POD])
            grown = story.scaled_up(self.manifests, "shop", "frontend", gpu_d, EXTRA_POD.name, EXTRA_POD.host)
            found.append(self._apply(plane, lambda: plane.apply(*grown), story.replaced(self.manifests, grown), some))
        with self.progress.step("Drain frontend-1, then end it") as found:
            draining = story.drained(self.manifests, "shop", "frontend", "frontend-1")
            found.append(
                self._apply(plane, lambda: plane.apply(*draining), story.replaced(self.manifests, draining), [])
            )
            # It gets no new connections any more, so its end is nothing to write.
            rest = story.without(self.manifests, "shop", "frontend", "frontend-1")
            plane.apply(*rest)
            self.manifests = story.replaced(self.manifests, rest)
            remove_pods(self.lab, Node("gpu-a"), ["frontend-1"])
            found.append(self._prove(some))
        with self.progress.step("Delete shop/checkout") as found:
            left, gone = story.removed(self.manifests, "shop", "checkout")
            found.append(self._apply(plane, lambda: plane.delete(*gone), left, some))
        with self.progress.step("Put everything back") as found:
            original = workload.load(EXAMPLES)
            workload.start(self.lab, original, self.members)
            found.append(self._apply(plane, lambda: plane.apply(*original), original, some))

    def _apply(
        self, plane: ControlPlane, change: Callable[[], None], manifests: list[dict[str, Any]], prove_on: Sequence[Node]
    ) -> str:
        """Make a change at the API server, wait until every node has it in force, prove it on some nodes."""
        before = self._generations()
        started = time.monotonic()
        change()
        self.manifests = manifests
        self._wait_until_in_step(before)
        seconds = time.monotonic() - started
        proved = f"; {self._prove(prove_on)}" if prove_on else ""
        return f"in force on {len(self.members)} nodes within {seconds:.2f} s{proved}"

    def _wait_until_in_step(self, before: dict[Node, int]) -> None:
        """Wait until each node has committed something new and has nothing left to do."""
        deadline = time.monotonic() + IN_STEP_SECONDS
        while True:
            now = self._generations()
            late = [node.name for node in self.members if now[node] <= before[node]]
            if not late:
                return
            if time.monotonic() > deadline:
                raise DemoError(f"no new generation on {', '.join(late)}: ./dev lab ssh {late[0]} kproxyctl status")

    def _generations(self) -> dict[Node, int]:
        with ThreadPoolExecutor(max_workers=len(self.members)) as pool:
            states = pool.map(self._status, self.members)
            return {node: int(state["generation"]) for node, state in zip(self.members, states, strict=True)}

    def _status(self, node: Node) -> dict[str, Any]:
        state: dict[str, Any] = ssh.execute_json(self.lab, node, ["kproxyctl", "status", "-o", "json"])
        return state

    def _no_kube_chains(self) -> str:
        for node in self.members:
            chains = proof.kube_chains(self.lab, node)
            if chains:
                raise DemoError(f"{node.name} has {', '.join(chains)}")
        return f"0 KUBE- chains on {len(self.members)} nodes"

    def _none_in_nftables(self) -> str:
        for node in self.members:
            services = proof.services_in_nftables(self.lab, node)
            if services:
                raise DemoError(f"{node.name} has {', '.join(services)} in its nftables tables")
        return f"0 Services in nftables on {len(self.members)} nodes"

    def _farewell(self) -> str:
        look = "kproxyctl backends --raw" if self.backend == "ebpf" else "nft list table ip kproxy"
        return "\n".join(
            [
                "The lab is up; look around:",
                "  ./dev lab status",
                "  ./dev lab ssh gpu-a kproxyctl services",
                f"  ./dev lab ssh gpu-a {look}",
                f"  ./dev run ansible-playbook -i {INVENTORY} kproxy.dataplane.verify -e kproxy_source=api "
                "-e verify_report_dir=$PWD/build/report     # then open build/report/index.html",
                "Remove it:",
                "  ./dev lab down",
            ]
        )


def _recap(output: str) -> str:
    """Return the sums of Ansible's recap in one line."""
    sums = {
        key: sum(int(number) for number in re.findall(rf"\b{key}=(\d+)", output)) for key in ("ok", "changed", "failed")
    }
    hosts = len(re.findall(r"\bunreachable=\d+", output))
    return f"{hosts} hosts, " + ", ".join(f"{key}={number}" for key, number in sums.items())


def _changed_hosts(recap: str) -> bool:
    return "changed=0" not in recap
