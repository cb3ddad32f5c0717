"""The preemptor beside the stock kube-scheduler on a real API server: a pod that waits only for alignment runs."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from burst.nodes import KINDS
from real_cluster import ASSETS, MISSING, Cluster, pod
from sandbox.controlplane import ControlPlane

if ASSETS is None:
    pytest.skip(MISSING, allow_module_level=True)
pytestmark = pytest.mark.apiserver

EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"


class WithPreemptor(Cluster):
    """A cluster whose service evicts for pods that have waited for a second."""

    def _settings(self, number: int) -> dict[str, Any]:
        return {**super()._settings(number), "preemptor": {"enabled": True, "patience": "1s"}}


@pytest.fixture
async def cluster(plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Cluster]:
    async with WithPreemptor(plane, tmp_path, [("n0", KINDS["small-single"])]) as cluster:
        yield cluster


async def test_a_lower_priority_pod_is_evicted_and_the_waiting_pod_runs(cluster: Cluster) -> None:
    """6 CPUs are free, 2 and 4 on the two NUMA nodes, so kube-scheduler itself evicts no pod."""
    urgent = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "urgent"}, "value": 9}
    await cluster.create(urgent, "/apis/scheduling.k8s.io/v1/priorityclasses")
    for name in ("first", "second"):
        await cluster.create(pod(name, "4"))
        await cluster.settle()
    await cluster.create(pod("wide", "6", priorityClassName="urgent"))
    # The pod is refused, waits for a second, and its victim ends: some seconds without a change are normal.
    await cluster.settle(still=8.0)
    there = {pod["metadata"]["name"]: pod["status"]["phase"] for pod in await cluster.pods()}
    assert there.pop("wide") == "Running", there
    assert list(there.values()) == ["Running"], "one has gone, and one only"
    assert not cluster.refusals
    events = json.loads(await cluster.api.request("GET", EVENTS))["items"]
    reasons = {event["regarding"]["name"]: event["reason"] for event in events if event.get("action") == "Preempting"}
    (gone,) = {"first", "second"} - there.keys()
    assert reasons == {"wide": "Preempting", gone: "Preempted"}
    metrics = await cluster.service.metrics(cluster.session)
    assert metrics["alignment_evictions_total"] == 1
