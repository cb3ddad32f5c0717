"""Pods with claims (DRA) that make way: real API server, kube-scheduler and controllers of claims, and the service.

A pod of a higher priority gets the devices, or the CPUs near the devices, of pods that are evicted.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from claims_cluster import CLAIMS, ClaimsCluster, claimed
from real_cluster import ASSETS, MISSING
from sandbox.controlplane import ControlPlane
from steered_cluster import steered

if ASSETS is None:
    pytest.skip(MISSING, allow_module_level=True)
pytestmark = pytest.mark.apiserver

PREEMPTOR = {"preemptor": {"enabled": True}}


class Preempting(ClaimsCluster):
    """A cluster of one node, and a class of urgent pods."""

    async def begin(self) -> None:
        """Creates the class."""
        urgent = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 9}
        await self.create({**urgent, "metadata": {"name": "urgent"}}, "/apis/scheduling.k8s.io/v1/priorityclasses")

    async def run(self, *documents: dict[str, Any]) -> None:
        """Runs pods one after the other."""
        for document in documents:
            await self.create(document)
            await self.until_bound(document["metadata"]["name"])
        await self.settle(still=0.5)

    async def run_urgent(self, cpus: int) -> None:
        """Runs the pod `urgent` with a device, and waits until nothing changes for longer than a retry takes."""
        await self.create(claimed("urgent", 1, cpus, priorityClassName="urgent"))
        await self.until_bound("urgent")
        await self.settle(still=8.0)

    async def left(self, *names: str) -> set[str]:
        """Returns the names of these pods that are still there."""
        return set(names) & {pod["metadata"]["name"] for pod in await self.pods()}

    async def evictions(self) -> float:
        """Returns how many pods the service has evicted."""
        return (await self.service.metrics(self.session)).get("alignment_evictions_total", 0.0)


async def test_a_pod_gets_the_device_of_a_pod_of_lower_priority(plane: ControlPlane, tmp_path: Path) -> None:
    """Both devices are allocated, so kube-scheduler itself evicts no pod. A third pod waits for a device as well."""
    claims = {"alignment": "require"}
    async with Preempting(plane, tmp_path, 1, devices=(1, 0), claims=claims, more=PREEMPTOR) as cluster:
        await cluster.begin()
        await cluster.run(claimed("low-0", 1, 2), claimed("low-1", 1, 2))
        await cluster.create(claimed("low-2", 1, 2))
        await cluster.settle(still=1.0)
        assert [pod["metadata"]["name"] for pod in await cluster.waiting()] == ["low-2"]
        await cluster.run_urgent(2)
        assert len(await cluster.left("low-0", "low-1")) == 1
        assert (await cluster.alignments())["urgent"].is_aligned
        assert len(json.loads(await cluster.api.request("GET", CLAIMS))["items"]) == 3
        assert await cluster.evictions() == 1
        assert not cluster.refusals


async def test_kube_schedulers_own_preemption_frees_cpus_beside_a_device(plane: ControlPlane, tmp_path: Path) -> None:
    """No CPU is free, so kube-scheduler evicts the youngest pod. Its claim goes with it."""
    async with Preempting(plane, tmp_path, 1, devices=(1, 1), claims={"alignment": "require"}) as cluster:
        await cluster.begin()
        await cluster.run(steered("plain", 14, 0), claimed("low", 1, 16))
        await cluster.run_urgent(9)
        assert await cluster.left("plain", "low") == {"plain"}
        alignments = await cluster.alignments()
        assert (alignments["urgent"].cpus, alignments["urgent"].devices) == ({1}, {1})
        assert len(json.loads(await cluster.api.request("GET", CLAIMS))["items"]) == 1
        assert not cluster.refusals
