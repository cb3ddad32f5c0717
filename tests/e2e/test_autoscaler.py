"""An autoscaler beside the stock kube-scheduler and the service: does it add the nodes that are needed?

`real` and `emulated`: see autoscalers.py.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from autoscalers import autoscaler, kind
from burst.nodes import KINDS, Kind
from fake_cloud import FakeCloud
from real_cluster import ASSETS, MISSING, PODS, Cluster, pod
from sandbox import machines
from sandbox.controlplane import ControlPlane
from topowise import pods
from topowise_scheduler.controllers.scale_up_demand import PATIENCE_S
from topowise_scheduler.overlay.scale_up.placeholders import LABEL, OUTCOME_ANNOTATION

if ASSETS is None:
    pytest.skip(MISSING, allow_module_level=True)
pytestmark = pytest.mark.apiserver
__all__ = ["kind"]

# Four NUMA nodes of 8 CPUs, of which the system has two. A pod of 5 CPUs leaves 3 of a NUMA node, so a node with four
# such pods has 10 CPUs free in sum, for two further pods, and aligns none.
_SNC = KINDS["snc-restricted"]
KIND = Kind(_SNC.machine, msgspec.structs.replace(_SNC.config, topologyManagerPolicy="single-numa-node"))
_CPU = "5"
_NODES, _PODS = 10, 20
# Seconds without placeholders; 600 for the figure of docs/how-to/autoscaler.md.
_OBSERVED = float(os.environ.get("AUTOSCALER_OBSERVED_SECONDS") or 30)
_RECREATED_S = 10.0
_SYSTEM = "/api/v1/namespaces/kube-system/pods"
_CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"


def per_node(kind: Kind, cluster: Cluster) -> int:
    """How many of the pods an empty node aligns, by its kubelet, one after the other."""
    node = cluster.fleet.add("empty", kind.machine, kind.config)
    del cluster.fleet.nodes["empty"]
    count = 0
    while node.kubelet.would_admit(decoded(f"probe-{count}")).admitted:
        node.kubelet.admit(decoded(f"probe-{count}"))
        count += 1
    return count


def decoded(name: str) -> pods.Pod:
    document = pod(name, _CPU)
    document["metadata"]["uid"] = name
    return pods.decode(json.dumps(document).encode())


class Scene:
    """A full cluster with an autoscaler."""

    def __init__(self, cluster: Cluster, cloud: FakeCloud) -> None:
        self.cluster, self.cloud = cluster, cloud

    async def placeholders(self) -> list[Any]:
        raw = await self.cluster.api.request("GET", _SYSTEM, query={"labelSelector": LABEL})
        return list(json.loads(raw)["items"])

    async def outcomes(self) -> list[str]:
        return sorted(item["metadata"]["annotations"].get(OUTCOME_ANNOTATION, "") for item in await self.placeholders())

    async def until(self, is_done: Callable[[], Awaitable[bool]], limit: float) -> float:
        """Waits until `is_done` returns a true value. Returns the seconds."""
        since = time.monotonic()
        while not await is_done():
            self.cloud.check()
            self.cluster.check()
            assert time.monotonic() - since < limit, (
                await self.cluster.phases(),
                await self.outcomes(),
                self.cloud.added,
            )
            await asyncio.sleep(1.0)
        return time.monotonic() - since


@asynccontextmanager
async def scene(
    kind: str, plane: ControlPlane, directory: Path, new: Kind = KIND, *, requests: bool = True, asks: bool = True
) -> AsyncIterator[Scene]:
    """`requests`: the service requests nodes. `asks`: kube-scheduler asks the service."""
    scale_up = {
        "startupTaint": {"enabled": True},
        "scaleUp": {
            "enabled": True,
            "namespace": "kube-system",
        },
    }
    nodes = [(f"old-{number:02d}", KIND) for number in range(_NODES)]
    settings, extenders = scale_up if requests else {}, None if asks else []
    async with Cluster(plane, directory, nodes, settings=settings, extenders=extenders) as cluster:
        await cluster.create({"metadata": {"name": "topowise-placeholder"}, "value": -5}, _CLASSES)
        async with FakeCloud(cluster.api, cluster.fleet, new, most=_NODES * 3) as cloud:
            for name, _ in nodes:
                await cloud.adopt(name)
            for number in range(4 * _NODES):
                await cluster.create(pod(f"filler-{number}", _CPU))
            await cluster.settle()
            assert set(await cluster.phases()) == {"Running"}
            async with autoscaler(kind, plane, directory, cluster, cloud):
                yield Scene(cluster, cloud)
            await cluster.api.request("DELETE", _SYSTEM, query={"labelSelector": LABEL})


async def test_as_many_nodes_are_added_as_the_pods_need(
    kind: str, plane: ControlPlane, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with scene(kind, plane, tmp_path) as here:
        needed = -(-_PODS // per_node(KIND, here.cluster))
        started = time.monotonic()
        for number in range(_PODS):
            await here.cluster.create(pod(f"wide-{number}", _CPU))
        await asyncio.sleep(PATIENCE_S - 10)
        waiting = (await here.cluster.phases())["waiting"]
        added_before = len(here.cloud.added)

        async def all_run() -> bool:
            return (await here.cluster.phases())["Running"] == 4 * _NODES + _PODS

        await here.until(all_run, 400)
        seconds = time.monotonic() - started

        async def has_ended() -> bool:
            return "" not in await here.outcomes()

        await here.until(has_ended, 60)
        with capsys.disabled():
            sys.stdout.write(
                f"\n  {kind}: without placeholders for {PATIENCE_S - 10:g} s: {added_before} nodes added, {waiting} of "
                f"{_PODS} pods wait; with: {len(here.cloud.added)} nodes added, {needed} needed, {_PODS} pods run "
                f"after {seconds:.0f} s, outcomes {await here.outcomes()}\n"
            )
        assert waiting == _PODS, "they fit by their sums, and no kubelet would align them"
        assert added_before == 0, "the autoscaler sees no reason to add a node"
        assert len(here.cloud.added) == needed
        assert not here.cluster.refusals


async def test_nothing_is_added_after_a_node_that_does_not_help(
    kind: str, plane: ControlPlane, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """New nodes reserve four CPUs of each NUMA node for the system, unlike the reported nodes of their group."""
    by_node: dict[int, list[int]] = {}
    for cpu in machines.layout(KIND.machine):
        by_node.setdefault(cpu.node, []).append(cpu.id)
    first = ",".join(str(cpu) for cpus in by_node.values() for cpu in cpus[:4])
    reserved = msgspec.structs.replace(KIND.config, reservedSystemCPUs=first)
    async with scene(kind, plane, tmp_path, Kind(KIND.machine, reserved)) as here:
        assert per_node(here.cloud.kind, here.cluster) == 0
        for number in range(_PODS):
            await here.cluster.create(pod(f"wide-{number}", _CPU))

        async def is_useless() -> bool:
            return "useless" in await here.outcomes()

        await here.until(is_useless, 300)
        await asyncio.sleep(30)
        with capsys.disabled():
            sys.stdout.write(f"\n  {kind}: {len(here.cloud.added)} node added, outcomes {await here.outcomes()}\n")
        assert len(here.cloud.added) == 1
        assert await here.outcomes() == ["useless"]


@pytest.mark.parametrize("asks", [True, False], ids=["without requests", "without topowise"])
async def test_without_requests_no_node_is_added(
    kind: str, asks: bool, plane: ControlPlane, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Refused pods are created again, as a controller does."""
    async with scene(kind, plane, tmp_path, requests=False, asks=asks) as here:
        for number in range(_PODS):
            await here.cluster.create(pod(f"wide-{number}", _CPU))
        until = time.monotonic() + _OBSERVED
        while time.monotonic() < until:
            await asyncio.sleep(min(_RECREATED_S, _OBSERVED))
            here.cloud.check()
            here.cluster.check()
            for refused in await here.cluster.pods():
                if refused["status"].get("phase") == "Failed":
                    name = refused["metadata"]["name"]
                    query = {"gracePeriodSeconds": "0"}
                    await here.cluster.api.request("DELETE", f"{PODS}/{name}", query=query)
                    await here.cluster.create(pod(name, _CPU))
        await here.cluster.settle()
        phases, refusals = await here.cluster.phases(), len(here.cluster.refusals)
        with capsys.disabled():
            sys.stdout.write(
                f"\n  {kind}, kube-scheduler {'asks' if asks else 'does not ask'} topowise, {_OBSERVED:g} s: "
                f"{len(here.cloud.added)} nodes added, {phases['Running'] - 4 * _NODES} of {_PODS} pods run, "
                f"{refusals} refusals by kubelets\n"
            )
        assert not here.cloud.added
        assert phases["Running"] == 4 * _NODES
        assert bool(refusals) == (not asks)
