"""A stand-in API server, a kubeconfig for it, and sources that end with the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.api_source import ApiSource
from devtools.apiserver import ApiServer
from tests.api.recorder import Recorder

NODE = "gpu-a"
StartSource = Callable[..., tuple[ApiSource, Recorder]]


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as started:
        yield started


@pytest.fixture
def kubeconfig(server: ApiServer, tmp_path: Path) -> Path:
    path = tmp_path / "kubeconfig"
    path.write_text(server.kubeconfig())
    return path


@pytest.fixture
def start_source() -> Iterator[StartSource]:
    """Start an ApiSource on a kubeconfig; all of them are stopped at the end."""
    sources = []

    def start(path: Path, **options: Any) -> tuple[ApiSource, Recorder]:
        source, recorder = ApiSource(str(path), NODE, **options), Recorder()
        sources.append(source)
        source.start(recorder)
        return source, recorder

    yield start
    for source in sources:
        source.stop()
