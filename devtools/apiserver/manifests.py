"""Manifests from files: the objects a stand-in starts with, or that a tool applies to either control plane."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

SUFFIXES = (".yaml", ".yml", ".json")


def _loader() -> type[Any]:
    # The C loader is ten times faster and a build of PyYAML may lack it.
    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def expand(document: Any) -> Iterator[dict[str, Any]]:
    """Yield the objects of one YAML document; List kinds are unrolled, with kind and version of their items."""
    if not isinstance(document, dict):
        return
    kind = str(document.get("kind", ""))
    if kind.endswith("List") and isinstance(document.get("items"), list):
        for item in document["items"]:
            if kind != "List":
                item.setdefault("kind", kind.removesuffix("List"))
                item.setdefault("apiVersion", document.get("apiVersion"))
            yield from expand(item)
    elif kind:
        yield document


def load(paths: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """Yield the objects of files and folders, in name order."""
    for path in paths:
        if path.is_dir():
            yield from load(sorted(child for child in path.iterdir() if child.suffix in SUFFIXES))
            continue
        content = path.read_bytes()
        documents = [json.loads(content)] if path.suffix == ".json" else yaml.load_all(content, Loader=_loader())
        for document in documents:
            yield from expand(document)
