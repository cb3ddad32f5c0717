"""What steering costs and saves: the time from the creation of a pod to its bind, and pods that wait for a report.

Real API server and kube-scheduler, the service, and the marker plug-in's process for each node; kubelets are emulated.
The same pods come and end in the same order: without a marker, with a marker alone, and with a required NUMA node. The
test prints a table, of which docs/how-to/steering.md has a copy. It compares placements, never times.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from pathlib import Path
from typing import Final

import msgspec
import pytest

from burst.service import bucket
from daemons import assert_eventually
from lab.results import percentile
from real_cluster import ASSETS, MISSING, PODS, Json
from refusal_words import refusals
from sandbox.controlplane import ControlPlane
from steered_cluster import SteeredCluster, steered
from topowise import pods, steering
from topowise.kube.reflector import EventType, Reflector
from topowise_exporter.steering.labels import RESTART_S

if ASSETS is None:
    pytest.skip(MISSING, allow_module_level=True)
pytestmark = pytest.mark.apiserver

_BURSTS: Final = 12
_BURST: Final = 4
_ROOMY, _FULL = (2,), (6, 7, 8)
# In a full cluster this lets pods wait, and in a roomy cluster the binds of a burst overlap.
_PAUSE_S: Final = 1.0
# The CPUs of a pod, and its kind. Nodes of 60 CPUs in sum have 8 to 12 pods; in a full cluster pods always wait.
_RUNS: Final = (
    ("no marker", _ROOMY),
    ("marker", _ROOMY),
    ("required NUMA node", _ROOMY),
    ("no marker", _FULL),
    ("marker", _FULL),
)


class Watched:
    """Consumer of pods: when each pod was bound, and the pods that have waited for a report."""

    def __init__(self) -> None:
        self.bound: dict[str, float] = {}
        self.uncertain: set[str] = set()

    def replace(self, items: list[pods.Pod]) -> None:
        for item in items:
            self.apply("MODIFIED", item)

    def apply(self, event: EventType, item: pods.Pod) -> None:
        name = item.metadata.name
        if item.spec.nodeName:
            self.bound.setdefault(name, time.monotonic())
        conditions = (item.status.conditions if item.status is not None else None) or ()
        if any(refusals.UNCERTAIN in (condition.message or "") for condition in conditions):
            self.uncertain.add(name)


def document(name: str, kind: str, cpus: int, numa: int) -> Json:
    made = steered(name, cpus, numa if kind == "required NUMA node" else None)
    if kind == "no marker":
        for amounts in made["spec"]["containers"][0]["resources"].values():
            del amounts[steering.RESOURCE]
    return made


async def measured(cluster: SteeredCluster, kind: str, sizes: tuple[int, ...]) -> dict[str, float]:
    """Returns the figures of a kind of pods. Pods come in bursts while earlier pods end."""
    draw, watched, created = random.Random(3), Watched(), dict[str, float]()
    reflector = Reflector(cluster.api, PODS, msgspec.json.Decoder(pods.Pod).decode, watched)
    watch = asyncio.create_task(reflector.run())
    await assert_eventually(lambda: reflector.synced)
    ended: set[str] = set()

    async def end(most: int) -> None:
        """Deletes the pods that were bound first, so that at most this number of bound pods stays."""
        bound = [name for name in watched.bound if name not in ended]
        for name in bound[: max(0, len(bound) - most)]:
            ended.add(name)
            await cluster.delete(name)

    for burst in range(_BURSTS):
        for number in range(_BURST):
            name = f"p{burst}-{number}"
            made = document(name, kind, draw.choice(sizes), draw.choice([0, 1]))
            created[name] = time.monotonic()
            await cluster.create(made)
        await asyncio.sleep(_PAUSE_S)
        await end(2 * _BURST)
    async with asyncio.timeout(300):
        while watched.bound.keys() < created.keys():
            cluster.check()
            await end(_BURST)
            await asyncio.sleep(_PAUSE_S)
    await assert_eventually(lambda: watched.bound.keys() >= created.keys())
    watch.cancel()
    seconds = [watched.bound[name] - since for name, since in created.items()]
    metrics = await cluster.service.metrics(cluster.session)
    count = metrics["steering_label_duration_seconds_count"]
    assert not cluster.refusals
    return {
        "pods": len(created),
        "waited for a report, %": round(100 * len(watched.uncertain) / len(created), 1),
        "labels": count,
        "s to a bind, p50": round(statistics.median(seconds), 2),
        "p99": percentile(seconds, 0.99),
        "s for a label, mean": round(metrics["steering_label_duration_seconds_sum"] / count, 3) if count else 0.0,
        "p50 below": bucket(metrics, "steering_label_duration_seconds", 0.5),
        "p99 below": bucket(metrics, "steering_label_duration_seconds", 0.99),
    }


async def test_what_steering_costs(plane: ControlPlane, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures: dict[str, dict[str, float]] = {}
    for number, (kind, sizes) in enumerate(_RUNS):
        directory = tmp_path / str(number)
        directory.mkdir()
        name = f"{kind}, {'roomy' if sizes is _ROOMY else 'full'}"
        async with SteeredCluster(plane, directory, 2) as cluster:
            # The plug-ins take no requests at first.
            await asyncio.sleep(RESTART_S)
            figures[name] = await measured(cluster, kind, sizes)
        with capsys.disabled():
            print(f"\n  {name}: {figures[name]}")  # noqa: T201
    assert figures["required NUMA node, roomy"]["labels"] >= _BURSTS * _BURST
    assert figures["no marker, roomy"]["labels"] == figures["no marker, full"]["labels"] == 0
