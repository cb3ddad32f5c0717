"""Kubernetes' own gangs beside the service: kube-scheduler 1.36 decides all pods of a group in the same cycle."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from burst.nodes import KINDS
from daemons import assert_eventually
from real_cluster import ASSETS, MISSING, PODS, Cluster, control_plane, pod
from sandbox.controlplane import ControlPlane
from topowise.errors import ApiError

if ASSETS is None:
    pytest.skip(MISSING, allow_module_level=True)
pytestmark = pytest.mark.apiserver

GROUPS = "/apis/scheduling.k8s.io/v1alpha2/namespaces/default/podgroups"
SIZE = 16


class WithGroups(Cluster):
    """A cluster that deletes its pod groups at its end."""

    cleared = (*Cluster.cleared, GROUPS)


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with control_plane(gates=["GenericWorkload", "GangScheduling"], apis=["scheduling.k8s.io/v1alpha2"]) as running:
        yield running


@pytest.fixture
async def cluster(plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Cluster]:
    """Eight nodes: each NUMA node fits a single wide pod."""
    nodes = [(f"n{number}", KINDS["small-single"]) for number in range(SIZE // 2)]
    async with WithGroups(plane, tmp_path, nodes) as cluster:
        try:
            await cluster.api.request("GET", GROUPS)
        except ApiError:
            pytest.skip("this API server has no scheduling.k8s.io/v1alpha2")
        yield cluster


async def gang(cluster: Cluster, name: str, cpu: str) -> None:
    """A group of wide pods; either all pods run or none."""
    group = {
        "apiVersion": "scheduling.k8s.io/v1alpha2",
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": SIZE}}},
    }
    await cluster.create(group, GROUPS)
    members = (pod(f"{name}-{number}", cpu, schedulingGroup={"podGroupName": name}) for number in range(SIZE))
    await asyncio.gather(*map(cluster.create, members))


async def running(cluster: Cluster) -> Counter[str]:
    """Running pods by group; a pod without a group counts under its own name."""
    return Counter(
        (pod["spec"].get("schedulingGroup") or {"podGroupName": pod["metadata"]["name"]})["podGroupName"]
        for pod in await cluster.pods()
        if pod["status"]["phase"] == "Running"
    )


async def nothing_reserved(cluster: Cluster) -> bool:
    return (await cluster.service.metrics(cluster.session))["open_reservations"] == 0


async def test_a_gang_of_wide_pods_runs_as_a_whole(cluster: Cluster) -> None:
    await gang(cluster, "wide", "6")
    await assert_eventually(lambda: runs(cluster, "wide", SIZE), within=60.0)
    assert not cluster.refusals
    await assert_eventually(lambda: nothing_reserved(cluster), within=1.0)


async def test_a_gang_that_does_not_fit_reserves_nothing_and_blocks_no_pod(cluster: Cluster) -> None:
    """Beside "small" its node has 4 and 8 free CPUs, so only a single pod of the gang fits.

    kube-scheduler retries the gang without a pause, and other pods in between.
    """
    await cluster.create(pod("small", "2"))
    await assert_eventually(lambda: runs(cluster, "small"))
    await gang(cluster, "tight", "6")
    await until_asked(cluster, 2 * SIZE)
    assert await running(cluster) == {"small": 1}
    await cluster.create(pod("other", "6"))
    await assert_eventually(lambda: runs(cluster, "other"), within=10.0)
    await cluster.api.request("DELETE", f"{PODS}/other")
    await cluster.api.request("DELETE", f"{PODS}/small")
    await assert_eventually(lambda: runs(cluster, "tight", SIZE), within=60.0)
    assert not cluster.refusals
    await assert_eventually(lambda: nothing_reserved(cluster), within=1.0)


async def until_asked(cluster: Cluster, calls: int) -> None:
    """Waits until kube-scheduler has sent `calls` filter requests."""

    async def is_asked() -> bool:
        metrics = await cluster.service.metrics(cluster.session)
        return metrics.get('extender_request_duration_seconds_count{verb="filter"}', 0.0) >= calls

    await assert_eventually(is_asked, within=30.0)


async def runs(cluster: Cluster, name: str, count: int = 1) -> bool:
    return (await running(cluster))[name] == count
