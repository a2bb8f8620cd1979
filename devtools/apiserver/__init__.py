"""A stand-in Kubernetes API server for tests, demos and benchmarks: list, watch and write, and misbehaviour on order.

It speaks what a service proxy and this project's tools speak: chunked lists with expiring continue tokens, watches with
bookmarks and resume, 410 in both forms, client certificates and bearer tokens. `devtools.control_plane` starts the real
thing instead where it is available; both have the same interface there.
"""

from __future__ import annotations

from devtools.apiserver.server import ApiServer, RequestRecord

__all__ = ["ApiServer", "RequestRecord"]
