# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Files and folders of manifests, in JSON or YAML.

YAML is parsed on the controller, where PyYAML always is; a node needs PyYAML only if it reads YAML itself.
"""

from __future__ import annotations

import json
import os
from typing import Any

from ansible_collections.kproxy.dataplane.plugins.module_utils._sources.errors import SourceError

try:
    import yaml
except ImportError:
    HAS_YAML = False
else:
    HAS_YAML = True

    class _Loader(yaml.SafeLoader):
        """Leaves times as the strings they are in Kubernetes objects (`creationTimestamp` need not be quoted)."""

        yaml_implicit_resolvers = {
            first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
            for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }


SUFFIXES = (".json", ".yaml", ".yml")


def read_manifests(path: str) -> list[Any]:
    """Return every document of a file, or of the manifests directly inside a folder in the order of their names.

    Raises:
        SourceError: the path cannot be read, holds no manifest, or a file is not what its suffix says. Nothing is
            returned then: such a file might hold anything, and acting without it would remove what it declares.
    """
    documents: list[Any] = []
    for name in manifest_files(path):
        try:
            with open(name, encoding="utf-8") as stream:
                text = stream.read()
        except (OSError, UnicodeDecodeError) as error:
            raise SourceError(f"cannot read manifest {name}: {error}") from error
        documents.extend(parse_text(name, text))
    return documents


def manifest_files(path: str) -> list[str]:
    """Return the files that stand for ``path``. Raises SourceError if there are none."""
    if os.path.isdir(path):
        names = sorted(name for name in os.listdir(path) if name.endswith(SUFFIXES) and not name.startswith("."))
        if not names:
            raise SourceError(
                f"folder {path} holds no manifest ({', '.join('*' + suffix for suffix in SUFFIXES)}); "
                "to remove everything use state=absent"
            )
        return [os.path.join(path, name) for name in names]
    if not os.path.exists(path):
        raise SourceError(f"manifest {path} does not exist")
    return [path]


def parse_text(name: str, text: str) -> list[Any]:
    """Return the documents of one manifest; empty ones are left out.

    Raises:
        SourceError: the text is not JSON or YAML, or is YAML and this Python has no PyYAML.
    """
    # JSON first: it is what every Python can read, and a .yaml file may well hold it.
    try:
        return [json.loads(text)] if text.strip() else []
    except (ValueError, RecursionError) as error:
        if name.endswith(".json"):
            raise SourceError(f"manifest {name} is not JSON: {error}") from error
    if not HAS_YAML:
        raise SourceError(
            f"manifest {name} is YAML and the Python on this machine has no PyYAML: install python3-yaml, "
            "write the manifest in JSON, or let the controller read it (remote_src=false)"
        )
    try:
        return [document for document in yaml.load_all(text, Loader=_Loader) if document is not None]
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SourceError(f"manifest {name} is not YAML: {_place(error)}") from error


def _place(error: Exception) -> str:
    """Say in one line where the YAML went wrong."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}" if mark else str(problem)
