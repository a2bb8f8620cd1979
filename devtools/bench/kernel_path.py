"""The kernel path by itself, a process of its own: `python3 -m devtools.bench.kernel_path SERVICES ENDPOINTS BACKEND`.

Needs the standard library alone, so that it runs on the interpreter that nodes have. Prints one JSON object.
"""

from __future__ import annotations

import gc
import json
import sys
import time

from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.backend import Backend
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.engine import Engine
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.nftables_backend import NftablesBackend
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.config import ProxyConfig
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.parse import Upsert, parse
from devtools.bench import ebpf_backend, objects

CHANGES = 200


def main(services: int, endpoints: int, backend: str) -> dict[str, float | None]:
    """Return seconds of a cold start and of each of many single changes, from objects to acknowledged commit.

    cold_cpu_s is the processor's time in the process and the kernel on its behalf, which what else the machine does
    hardly touches; fill_s is the part of a cold start that fills the maps of the eBPF backend.
    """
    changes = [Upsert(obj) for manifest in objects.cluster(services, endpoints) if (obj := parse(manifest))]
    # What is measured is the proxy's work, not the collector's walks over the objects of this benchmark.
    gc.collect()
    gc.freeze()
    gc.disable()
    config = ProxyConfig.from_mapping({"nodeName": objects.NODE_NAME, "clusterCIDR": objects.CLUSTER_CIDR})
    engine = Engine(config, _backend(backend, config))
    started, used = time.monotonic(), time.process_time()
    engine.apply(changes)
    engine.sync()
    cold, cold_cpu = time.monotonic() - started, time.process_time() - used
    fill = ebpf_backend.fill_seconds(engine.backend)
    seconds = []
    for turn in range(CHANGES):
        manifest = objects.endpointslice(services // 2, endpoints, extra=1 - turn % 2)
        started = time.monotonic()
        obj = parse(manifest)
        engine.apply([Upsert(obj)] if obj is not None else [])
        engine.sync()
        seconds.append(time.monotonic() - started)
    engine.backend.remove()
    ordered = sorted(seconds[1:])
    return {
        "cold_s": round(cold, 3),
        "cold_cpu_s": round(cold_cpu, 3),
        "fill_s": fill,
        "change_p50_ms": round(ordered[len(ordered) // 2] * 1000, 2),
    }


def _backend(name: str, config: ProxyConfig) -> Backend:
    if name == "ebpf":
        return ebpf_backend.make(config)
    return NftablesBackend(config.families)


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])))
