"""Hollow nodes: machines as the exporter reads them, kubelets that take their time, reports that follow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from burst.nodes import KINDS
from daemons import CRD, assert_eventually, plain
from demo.cluster import EMULATED
from sandbox import machines
from sandbox.apiserver import ApiServer
from sandbox.hollow import LIFETIME, Fleet, Pace, Pause, Reporting, Startup
from sandbox.hollow.fleet import scanned
from topowise.kube.api import Api
from topowise_exporter import machine as hardware
from topowise_exporter.kubelet.state_files import parse_allocated_pods

NRT = "noderesourcetopologies.topology.node.k8s.io"
MACHINES = EMULATED | {name: kind.machine for name, kind in KINDS.items()}


@pytest.mark.parametrize("name", MACHINES)
def test_a_machine_is_the_same_written_and_read_or_made_directly(tmp_path: Path, name: str) -> None:
    sysfs, procfs = machines.write_tree(MACHINES[name], tmp_path)
    assert scanned(MACHINES[name]) == hardware.scan(str(sysfs), str(procfs))


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as api_server:
        api_server.install_crds(CRD)
        yield api_server


@pytest.fixture
async def api(server: ApiServer) -> AsyncIterator[Api]:
    async with Api(plain(server), "test", timeout=5) as client:
        yield client


@pytest.fixture
async def fleet(api: Api) -> AsyncIterator[Fleet]:
    """A node of two NUMA nodes with 8 CPUs, policy single-numa-node, 6 and 8 CPUs allocatable."""
    hollow_fleet = Fleet(api, pace=Pace(stop=(0.1, 0.1)), reporting=Reporting(wait=(0.01, 0.01)))
    kind = KINDS["small-single-pod"]
    hollow_fleet.add("n", kind.machine, kind.config)
    async with hollow_fleet:
        yield hollow_fleet


def make(server: ApiServer, name: str, cpu: str = "2", *, lifetime: float | None = None, init: str = "") -> None:
    def container(called: str, cpus: str) -> dict[str, Any]:
        amounts = {"cpu": cpus, "memory": "1Gi"}
        return {"name": called, "image": "i:1", "resources": {"requests": amounts, "limits": amounts}}

    spec: dict[str, Any] = {"nodeName": "n", "containers": [container("c", cpu)]}
    if init:
        spec["initContainers"] = [container("i", init)]
    annotations = {} if lifetime is None else {LIFETIME: str(lifetime)}
    server.create("pods", {"metadata": {"name": name, "annotations": annotations}, "spec": spec})


def phase(server: ApiServer, name: str) -> str | None:
    statuses = (pod["status"] for pod in server.store.objects("pods") if pod["metadata"]["name"] == name)
    return next((status.get("phase") for status in statuses), None)


def free(server: ApiServer) -> list[int]:
    """CPUs of each zone."""
    (topology,) = server.store.objects(NRT)
    zones = [{row["name"]: int(row["available"]) for row in zone["resources"]} for zone in topology["zones"]]
    return [amounts["cpu"] for amounts in zones]


async def test_what_cannot_be_aligned_is_refused_as_a_kubelet_does(server: ApiServer, fleet: Fleet) -> None:
    make(server, "p", "9")
    await assert_eventually(lambda: phase(server, "p") == "Failed")
    (pod,) = server.store.objects("pods")
    assert pod["status"]["reason"] == "TopologyAffinityError"
    assert pod["status"]["message"].startswith("Pod was rejected: ")
    (refusal,) = fleet.refusals
    assert (refusal.node, refusal.pod.metadata.name) == ("n", "p")
    assert free(server) == [6, 8]


@pytest.fixture
async def slow(api: Api) -> AsyncIterator[Fleet]:
    """The same node; its kubelet takes 50 ms for each checkpoint and keeps house often."""
    pause = (0.05, 0.05)
    pace = Pace(pause=Pause(pause, pause), housekeeping=0.1)
    hollow_fleet = Fleet(api, pace=pace, reporting=Reporting(wait=(0.01, 0.01)))
    kind = KINDS["small-single-pod"]
    hollow_fleet.add("n", kind.machine, kind.config)
    async with hollow_fleet:
        yield hollow_fleet


async def test_a_pod_has_a_directory_from_the_end_of_its_admission_until_its_object_is_gone(
    server: ApiServer, api: Api, slow: Fleet
) -> None:
    directories = slow.nodes["n"].root / "pods"
    make(server, "p", "6", init="6")
    await assert_eventually(lambda: slow.nodes["n"].kubelet.holdings().pods)
    assert not list(directories.iterdir())
    await assert_eventually(lambda: phase(server, "p") == "Running")
    (uid,) = (pod["metadata"]["uid"] for pod in server.store.objects("pods"))
    assert [entry.name for entry in directories.iterdir()] == [uid]
    await api.request("DELETE", "/api/v1/namespaces/default/pods/p")
    await assert_eventually(lambda: not list(directories.iterdir()))
    assert phase(server, "p") is None


async def test_a_pod_is_written_down_as_allocated_when_it_is_whole_and_until_its_object_is_gone(
    server: ApiServer, api: Api, slow: Fleet
) -> None:
    path, node = slow.nodes["n"].root / "allocated_pods_state", slow.nodes["n"].kubelet

    def allocated() -> frozenset[str]:
        return parse_allocated_pods(path.read_bytes(), str(path)) if path.exists() else frozenset()

    make(server, "p", "6", init="6")
    await assert_eventually(lambda: node.holdings().pods)
    assert not allocated()
    await assert_eventually(allocated)
    assert [len(pod.containers) for pod in node.holdings().pods] == [2]
    assert allocated() == {pod["metadata"]["uid"] for pod in server.store.objects("pods")}
    await api.request("DELETE", "/api/v1/namespaces/default/pods/p")
    await assert_eventually(lambda: not allocated())


async def test_nothing_else_happens_while_a_pod_is_admitted(server: ApiServer, api: Api, slow: Fleet) -> None:
    make(server, "old", "2")
    await assert_eventually(lambda: phase(server, "old") == "Running")
    make(server, "new", "6", init="6")
    make(server, "next", "2")
    node = slow.nodes["n"].kubelet
    await assert_eventually(lambda: len(node.holdings().pods) == 2)
    await api.request("DELETE", "/api/v1/namespaces/default/pods/old")
    order: list[tuple[str, ...]] = []

    def is_done() -> bool:
        names = tuple(sorted(pod.name for pod in node.holdings().pods))
        order.extend([names] if [names] != order[-1:] else ())
        return phase(server, "next") == "Running" and phase(server, "old") is None

    await assert_eventually(is_done)
    # The pod that was deleted first outlives the admission in progress.
    assert order[0] == ("new", "old")
    assert order[-1] == ("new", "next")


async def test_a_restarted_node_keeps_its_allocations(server: ApiServer, slow: Fleet) -> None:
    make(server, "p", "6")
    await assert_eventually(lambda: phase(server, "p") == "Running")
    node = slow.nodes["n"]
    before = node.kubelet.holdings()
    restarting = asyncio.create_task(node.restart(Startup(blind=(0.1, 0.1), plugins=(0.1, 0.1))))
    await assert_eventually(lambda: node.kubelet.is_blind)
    assert node.kubelet.holdings().pods == ()
    await restarting
    assert node.kubelet.holdings().pods == before.pods
    assert node.kubelet.holdings().unhealthy
    await assert_eventually(lambda: not node.kubelet.holdings().unhealthy)
    assert node.kubelet.holdings() == before


async def test_a_pod_that_is_deleted_while_its_kubelet_restarts_ends_afterwards(
    server: ApiServer, api: Api, slow: Fleet
) -> None:
    """The next kubelet process removes it; otherwise it would be admitted again, without an owner, for ever."""
    make(server, "p", "6")
    await assert_eventually(lambda: phase(server, "p") == "Running")
    node = slow.nodes["n"]
    restarting = asyncio.create_task(node.restart(Startup(blind=(0.3, 0.3))))
    await assert_eventually(lambda: node.kubelet.is_blind)
    await api.request("DELETE", "/api/v1/namespaces/default/pods/p")
    await asyncio.sleep(0.1)
    assert phase(server, "p") == "Running"
    await restarting
    await assert_eventually(lambda: phase(server, "p") is None)
    await assert_eventually(lambda: node.kubelet.holdings().pods == ())
    await assert_eventually(lambda: not node.lifecycle.is_busy)
