"""Pods with claims (DRA) that make way: real API server, kube-scheduler and controllers of claims, and the service.

A pod of a higher priority gets the devices, or the CPUs near the devices, of pods that are evicted.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from claims_cluster import CLAIMS, ClaimsCluster, claimed
from real_cluster import ASSETS, MISSING
from sandbox.controller_manager import ControllerManager
from sandbox.controlplane import ControlPlane
from steered_cluster import steered

if ASSETS is None:
    pytest.skip(MISSING, allow_module_level=True)
pytestmark = pytest.mark.apiserver

EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
REPLICA_SETS = "/apis/apps/v1/namespaces/default/replicasets"
HOSTNAME = "kubernetes.io/hostname"
PREEMPTOR = {"preemptor": {"enabled": True, "patience": "1s"}}


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


class Defragmenting(Preempting):
    """A cluster whose service keeps 14 CPUs of a NUMA node free."""

    async def _end(self, controllers: ControllerManager) -> None:
        await self.api.request("DELETE", REPLICA_SETS, query={"propagationPolicy": "Background"})
        await super()._end(controllers)

    async def replica(self, label: str) -> dict[str, Any]:
        """Returns the running pod of a ReplicaSet, once there is no other pod of it."""
        async with asyncio.timeout(180):
            while True:
                self.check()
                pods = [pod for pod in await self.pods() if (pod["metadata"].get("labels") or {}).get("app") == label]
                if [pod["status"].get("phase") for pod in pods] == ["Running"]:
                    return dict(pods[0])
                await asyncio.sleep(0.2)


async def test_a_pod_is_moved_to_new_devices(plane: ControlPlane, tmp_path: Path) -> None:
    """NUMA node 0 of n0 would have 14 CPUs without the pod of the ReplicaSet, and that of n1 has room for the pod. Both
    NUMA nodes 1 are full."""
    more = {"defragmenter": {"enabled": True, "shapes": [{"cpu": 14, "memory": "1Gi", "count": 1}]}}
    claims = {"alignment": "require"}
    async with Defragmenting(plane, tmp_path, 2, devices=(0, 0), claims=claims, more=more) as cluster:
        await cluster.run(*(steered(f"full-{name}", 16, 1, nodeSelector={HOSTNAME: name}) for name in ("n0", "n1")))
        await cluster.run(steered("full", 14, 0, nodeSelector={HOSTNAME: "n1"}))
        template = claimed("mover", 1, 4)
        labels = {"app": "mover"}
        spec = {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": template["spec"]},
        }
        metadata = {"name": "mover", "namespace": "default"}
        await cluster.create(
            {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": metadata, "spec": spec}, REPLICA_SETS
        )
        before = await cluster.replica("mover")
        assert before["spec"]["nodeName"] == "n0"
        # From here on 6 CPUs are free on NUMA node 0 of n1.
        await cluster.delete("full")
        await cluster.run(steered("fixed", 8, 0, nodeSelector={HOSTNAME: "n1"}))
        async with asyncio.timeout(180):
            while (after := await cluster.replica("mover"))["metadata"]["uid"] == before["metadata"]["uid"]:
                await asyncio.sleep(0.5)
        assert after["spec"]["nodeName"] == "n1"
        await cluster.settle(still=5.0)
        alignments = await cluster.alignments()
        assert [(at.cpus, at.devices) for at in alignments.values()] == [({0}, {0})]
        assert len(json.loads(await cluster.api.request("GET", CLAIMS))["items"]) == 1
        await cluster.run(steered("wide", 14, 0))
        metrics = await cluster.service.metrics(cluster.session)
        assert metrics["defragmentation_evictions_total"] == 1
        assert not cluster.refusals
