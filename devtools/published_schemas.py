"""What others will read what we render: schemas of their configuration, and whether a document is one of theirs.

The schemas are our own, in tests/schemas, written from the published references; each file names its source.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import yaml
from jsonschema import Draft202012Validator

from devtools.bootstrap import ROOT

FOLDER = ROOT / "tests/schemas"

#: The file for each apiVersion; those of kubeadm hold several kinds.
BY_VERSION = {
    "kubeadm.k8s.io/v1beta3": "kubeadm-v1beta3",
    "kubeadm.k8s.io/v1beta4": "kubeadm-v1beta4",
    "kubelet.config.k8s.io/v1beta1": "kubelet-v1beta1",
}


@cache
def load(name: str) -> dict[str, Any]:
    """Return a schema by the name of its file."""
    schema: dict[str, Any] = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    Draft202012Validator.check_schema(schema)
    return schema


def faults(document: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with a document of kubeadm's or kubelet's, one sentence per fault, none if it is right."""
    version, kind = document.get("apiVersion"), document.get("kind")
    name = BY_VERSION.get(str(version))
    if name is None:
        return [f"apiVersion: {version!r} is none of {', '.join(BY_VERSION)}"]
    schema = load(name)
    if schema.get("title") != kind:
        if kind not in schema.get("$defs", {}):
            return [f"kind: there is no {kind} in {version}"]
        schema = {**schema, "$ref": f"#/$defs/{kind}"}
    return faults_by(schema, document)


def faults_of_file(name: str, content: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with a file that has a schema of its own, such as `containerd-v2`."""
    return faults_by(load(name), content)


def faults_by(schema: Mapping[str, Any], content: Mapping[str, Any]) -> list[str]:
    """Return the faults by place, in the order of the places."""
    validator = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    found = sorted(validator.iter_errors(content), key=lambda error: list(map(str, error.absolute_path)))
    return [f"{'.'.join(map(str, error.absolute_path)) or 'document'}: {error.message}" for error in found]
