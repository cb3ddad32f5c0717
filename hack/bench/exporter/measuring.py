"""What is measured of the process, in order."""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Final

import msgspec
import psutil

from bench import usage
from bench.exporter.arrivals import Arrivals
from bench.exporter.kubelet import Kubelet
from bench.exporter.processes import NODE, api_server, exporter
from bench.figures import Figure, spread
from sandbox.kubelet import podresources
from topowise import nrt
from topowise.kube.api import APPLY_PATCH, Api
from topowise.kube.reflector import Reflector

PODS: Final = 20
IDLE_S: Final = float(os.environ.get("BENCH_IDLE_S", "15"))


async def measure() -> list[Figure]:
    """Returns all figures of the exporter."""
    with tempfile.TemporaryDirectory(prefix="topowise-bench-") as directory:
        root = Path(directory)
        kubelet = Kubelet(root / "kubelet", pods=250)
        server = await podresources.start(root / "kubelet/pod-resources/kubelet.sock", kubelet.holdings)
        try:
            async with api_server(root) as api:
                arrivals = Arrivals()
                watch = asyncio.create_task(Reflector(api, nrt.PATH, nrt.decode, arrivals).run())
                try:
                    return await _measure(root, kubelet, api, arrivals)
                finally:
                    watch.cancel()
                    await asyncio.gather(watch, return_exceptions=True)
        finally:
            await server.stop(None)


async def _measure(root: Path, kubelet: Kubelet, api: Api, arrivals: Arrivals) -> list[Figure]:
    await api.request("POST", "/api/v1/nodes", body=msgspec.json.encode({"metadata": {"name": NODE}}))
    async with exporter(root) as process:
        started = time.perf_counter()
        first = await arrivals.next(started)
        await asyncio.sleep(1)
        writes = await _write_times(api, arrivals)
        own = statistics.median(writes)
        # The object as the benchmark left it is not what the exporter wrote; let it find out by a change.
        admissions = await _admissions(kubelet, arrivals)
        figures = [Figure("start to first publish", round(first, 3), "s", on_wall=True)]
        figures += [Figure("the API server's own write and watch, p50", round(own * 1e3, 2), "ms")]
        figures += spread("admission to API server, beyond that", [(x - own) * 1e3 for x in admissions], "ms")
        return figures + await _idle(process, api)


async def _idle(process: psutil.Process, api: Api) -> list[Figure]:
    before = (await _version(api), usage.cpu_seconds(process.pid))
    started = time.perf_counter()
    await asyncio.sleep(IDLE_S)
    took = time.perf_counter() - started
    after = (await _version(api), usage.cpu_seconds(process.pid))
    share = (after[1] - before[1]) / took
    return [
        Figure(f"writes in {IDLE_S:g} idle seconds", 0 if after[0] == before[0] else 1, "writes"),
        Figure("CPU while idle, a sync a second", round(100 * share, 2), "% of a core"),
        Figure("resident memory", round(process.memory_info().rss / (1 << 20), 1), "MiB"),
    ]


async def _admissions(kubelet: Kubelet, arrivals: Arrivals) -> list[float]:
    times = []
    for number in range(PODS):
        # A pause beyond the rate limit of syncs, as between admissions on a real node.
        await asyncio.sleep(0.15)
        since = kubelet.admit(f"new-{number}", number % 8)
        times.append(await arrivals.next(since))
        kubelet.release(f"new-{number}")
        # What the release leaves is published with the next sync and is not measured here.
        await asyncio.sleep(1.1)
    return times


async def _write_times(api: Api, arrivals: Arrivals) -> list[float]:
    """Returns the seconds of request, write and watch event, for applies of the same object with new annotations."""
    path = f"{nrt.PATH}/{NODE}"
    report = msgspec.json.decode(await api.request("GET", path))
    times = []
    for number in range(30):
        body = {
            "apiVersion": nrt.API_VERSION,
            "kind": nrt.KIND,
            "metadata": {"name": NODE, "annotations": {"bench": str(number)}},
            "zones": report["zones"],
            "attributes": report["attributes"],
        }
        since = time.perf_counter()
        query = {"fieldManager": "topowise-exporter", "force": "true"}
        await api.request("PATCH", path, query=query, body=msgspec.json.encode(body), content_type=APPLY_PATCH)
        times.append(await arrivals.next(since))
    return times


async def _version(api: Api) -> str:
    report = msgspec.json.decode(await api.request("GET", f"{nrt.PATH}/{NODE}"))
    return str(report["metadata"]["resourceVersion"])
