# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Files and folders of manifests, in JSON or YAML.

YAML is parsed on the controller, where PyYAML always is; a node needs PyYAML only if it reads YAML itself.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

from ansible_collections.kproxy.dataplane.plugins.module_utils._sources.errors import SourceError

#: A YAML document may stand for this many nodes, plus so many for each one written in it.
_ALIAS_NODES, _ALIAS_FACTOR = 10000, 10
_OPEN = -1
_MAX_WORDS = 80

try:
    import yaml
except ImportError:
    HAS_YAML = False
else:
    HAS_YAML = True

    class _Loader(yaml.SafeLoader):
        """Leaves times as the strings they are in Kubernetes objects (`creationTimestamp` need not be quoted)."""

        has_aliases = False

        def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
            """Compose a node; note whether any is an alias."""
            self.has_aliases = self.has_aliases or self.check_event(yaml.AliasEvent)
            return super().compose_node(parent, index)

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            """Construct a mapping; a key that is there twice is a mistake of which YAML keeps silent."""
            seen: set[str] = set()
            for key, _value in node.value if isinstance(node, yaml.MappingNode) else ():
                if isinstance(key, yaml.ScalarNode):
                    if key.value in seen:
                        problem = f"the key {key.value!r} is there twice"
                        raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                    seen.add(key.value)
            return super().construct_mapping(node, deep=deep)

        yaml_implicit_resolvers = {
            first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
            for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

    # Nodes refer to one another by identity; a text of some kilobytes can stand for more nodes than any memory holds.
    def _refuse_alias_bomb(root: yaml.Node) -> None:
        """Refuse a document whose aliases lead back into themselves or make it far larger than what is written."""
        sizes: dict[int, int] = {}
        limit = _ALIAS_NODES

        def size(node: yaml.Node) -> int:
            nonlocal limit
            key = id(node)
            known = sizes.get(key)
            if known is None:
                limit += _ALIAS_FACTOR
                sizes[key] = _OPEN
                known = 1
                if isinstance(node, yaml.SequenceNode):
                    known += sum(size(item) for item in node.value)
                elif isinstance(node, yaml.MappingNode):
                    known += sum(size(name) + size(value) for name, value in node.value)
                sizes[key] = known
            elif known == _OPEN:
                raise yaml.composer.ComposerError(None, None, "an alias refers to what it is part of", node.start_mark)
            return known

        if size(root) > limit:
            problem = "aliases make the document far larger than it is written"
            raise yaml.composer.ComposerError(None, None, problem, root.start_mark)

    def _construct(loader: _Loader, root: yaml.Node) -> Any:
        try:
            return loader.construct_document(root)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            # PyYAML lets through what a value that is none of its type (`!!int ""`) does to its own code.
            problem = f"a value is not of its type ({type(error).__name__}: {str(error)[:_MAX_WORDS]})"
            raise yaml.constructor.ConstructorError(None, None, problem, root.start_mark) from error

    def _load(text: str) -> Iterator[Any]:
        loader = _Loader(text)
        try:
            while loader.check_node():
                node = loader.get_node()
                if node is None:
                    raise AssertionError("check_node() said that there is one")
                if loader.has_aliases:
                    _refuse_alias_bomb(node)
                yield _construct(loader, node)
        finally:
            loader.dispose()


SUFFIXES = (".json", ".yaml", ".yml")


def read_manifests(path: str) -> list[Any]:
    """Return every document of a file, or of the manifests directly inside a folder in the order of their names.

    Raises:
        SourceError: the path cannot be read, holds no manifest, or a file is not what its suffix says. Nothing is
            returned then: such a file might hold anything, and acting without it would remove what it declares.
    """
    documents: list[Any] = []
    for name in manifest_files(path):
        if name != path and not os.path.isfile(name):
            raise SourceError(f"manifest {name} is no regular file or leads nowhere")
        try:
            with open(name, "rb") as stream:
                content = stream.read()
        except OSError as error:
            raise SourceError(f"cannot read manifest {name}: {error}") from error
        documents.extend(parse_bytes(name, content))
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


def parse_bytes(name: str, content: bytes) -> list[Any]:
    """Return the documents of one manifest. Raises SourceError, also for bytes that are not UTF-8."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        byte = "%#04x" % content[error.start]
        raise SourceError(
            f"manifest {name} is not UTF-8 (line {line}, byte {byte}): save it in the encoding UTF-8"
        ) from None
    return parse_text(name, text)


def parse_text(name: str, text: str) -> list[Any]:
    """Return the documents of one manifest; empty ones are left out.

    Raises:
        SourceError: the text is not JSON or YAML, or is YAML and this Python has no PyYAML.
    """
    text = text[1:] if text.startswith("\ufeff") else text
    # JSON first: it is what every Python can read, and a .yaml file may well hold it.
    try:
        return [json.loads(text, object_pairs_hook=_object)] if text.strip() else []
    except _Twice as error:
        raise SourceError(f"manifest {name}: {error}") from None
    except (ValueError, RecursionError) as error:
        if name.endswith(".json"):
            raise SourceError(f"manifest {name} is not JSON: {error}") from error
    if not HAS_YAML:
        raise SourceError(
            f"manifest {name} is YAML and the Python on this machine has no PyYAML: install python3-yaml, "
            "write the manifest in JSON, or let the controller read it (remote_src=false)"
        )
    try:
        return [document for document in _load(text) if document is not None]
    except (yaml.YAMLError, RecursionError) as error:
        raise SourceError(f"manifest {name} is not YAML: {_place(error)}") from error


class _Twice(Exception):
    """A key is there twice in one JSON object."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        keys = [key for key, _value in pairs]
        twice = next(key for number, key in enumerate(keys) if key in keys[:number])
        raise _Twice(f"the key {twice!r} is there twice in one object")
    return made


def _place(error: Exception) -> str:
    """Say in one line where the YAML went wrong."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or next(iter(str(error).splitlines()), type(error).__name__)
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}" if mark else str(problem)
