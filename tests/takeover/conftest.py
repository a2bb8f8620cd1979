"""A cluster that kube-proxy serves, behind an API server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from devtools.control_plane import ControlPlane, StandIn
from tests.takeover.cluster import Cluster

CASES = Path(__file__).parents[1] / "cases"


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with StandIn() as made:
        yield made


@pytest.fixture
def cluster(plane: ControlPlane, tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(plane, tmp_path)
    running = CASES / "19-kube-proxy-still-running"
    objects = [yaml.safe_load((running / "daemonset.yaml").read_text())]
    objects[0]["spec"]["template"]["spec"]["affinity"] = {}
    objects[0]["spec"]["template"]["spec"]["volumes"] = [{"name": "c", "configMap": {"name": "kube-proxy"}}]
    objects += yaml.safe_load_all((running / "nodes.yaml").read_text())
    config = (CASES / "30-kube-proxy-config-carried-over" / "kube-proxy-config.yaml").read_text()
    metadata = {"name": "kube-proxy", "namespace": "kube-system"}
    objects.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"config.conf": config}})
    stored = CASES / "20-kubeadm-upgrade-brings-it-back" / "kubeadm-config-cm.yaml"
    objects.append(yaml.safe_load(stored.read_text()))
    made.admin.apply(*objects)
    yield made
    made.admin.delete(*objects)
