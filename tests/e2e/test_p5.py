"""A small form of the scenario p5, with a real kube-scheduler: 8-GPU machines, churn, joining machines, and owners that
recreate a refused pod. The bench runs the whole day in simulated time."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

from burst.nodes import Kind
from real_cluster import ASSETS, MISSING, SCHEDULER, Cluster
from sandbox.controlplane import ControlPlane
from sandbox.hollow import Reporting
from sandbox.kubelet.devices import GPU, VIRTUAL_FUNCTION
from sandbox.kubelet.lifecycle import LIFETIME
from sandbox.machines import GIB, Machine, Node, gpu, nic
from topowise.kubeletconfig import KubeletConfiguration
from topowise_scheduler.cluster.nodes import STARTUP_TAINT

if ASSETS is None:
    pytest.skip(MISSING, allow_module_level=True)
pytestmark = pytest.mark.apiserver

TAINT = {"key": STARTUP_TAINT, "effect": "NoSchedule"}
SETTINGS = {"startupTaint": {"enabled": True}, "refusedPods": {"delete": True}}
_AT_FIRST, _LATER = 4, 4
_JOBS = 120
_PER_ZONE = 4
_GPUS = (1, 1, 1, 1, 2, 2, 4, 8)
# Target share of GPUs in use or requested while jobs arrive.
_LOAD = 1.2


def kind() -> Kind:
    """Two NUMA nodes, each with 32 CPUs, 4 GPUs and 16 NIC functions; pods request resources in proportion to GPUs."""
    pci = []
    for zone in range(2):
        for number in range(_PER_ZONE):
            bus = 0x20 + 0x40 * zone + 4 * number
            pci += gpu(f"0000:{bus:02x}:00.0", zone, f"0000:{bus - 1:02x}:00.0")
            pci += nic(f"0000:{bus + 2:02x}:00.0", zone, f"0000:{bus + 1:02x}:00.0", virtual_functions=4)
    nodes = tuple(Node(zone, 64 * GIB, socket=zone, cores=16, hugepages={}) for zone in range(2))
    config = KubeletConfiguration(
        topologyManagerPolicy="single-numa-node",
        topologyManagerScope="pod",
        cpuManagerPolicy="static",
        reservedSystemCPUs="0,32",
    )
    return Kind(Machine(nodes, ((10, 21), (21, 10)), pci=tuple(pci)), config)


def pod(name: str, gpus: int, lifetime: float) -> dict[str, Any]:
    amounts = {"cpu": str(7 * gpus), "memory": f"{10 * gpus}Gi", GPU: str(gpus), VIRTUAL_FUNCTION: str(4 * gpus)}
    container = {"name": "c", "image": "none", "resources": {"requests": amounts, "limits": amounts}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "annotations": {LIFETIME: f"{lifetime:.2f}"}},
        "spec": {"schedulerName": SCHEDULER, "containers": [container]},
    }


class Owner:
    """Creates the pods of jobs, and replaces each refused pod, as a ReplicaSet does."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._random = Random(5)
        self._jobs: dict[str, tuple[int, float]] = {}
        self.again: dict[str, int] = {}

    async def make(self, number: int) -> None:
        gpus, lifetime = self._random.choice(_GPUS), self._random.uniform(1.0, 4.0)
        half = min(gpus, 4)
        for part in range(gpus // half):
            await self._create(f"job-{number}-{part}", half, lifetime)

    async def replace_refused(self) -> None:
        """Replaces refused pods until cancelled."""
        seen = 0
        while True:
            for refusal in self._cluster.refusals[seen:]:
                seen += 1
                job = refusal.pod.metadata.name.partition(".")[0]
                self.again[job] = self.again.get(job, 0) + 1
                await self._create(f"{job}.{self.again[job]}", *self._jobs[job])
            await asyncio.sleep(0.1)

    async def wait_for_room(self, machines: int) -> None:
        """Waits until the requested share of GPUs is below the target."""
        while True:
            alive = [pod for pod in await self._cluster.pods() if pod["status"].get("phase") in ("Pending", "Running")]
            gpus = sum(self._jobs[pod["metadata"]["name"].partition(".")[0]][0] for pod in alive)
            if gpus < _LOAD * machines * 2 * _PER_ZONE:
                return
            await asyncio.sleep(0.1)

    async def _create(self, name: str, gpus: int, lifetime: float) -> None:
        self._jobs[name.partition(".")[0]] = gpus, lifetime
        await self._cluster.create(pod(name, gpus, lifetime))


async def test_a_fleet_of_8_gpu_machines(
    plane: ControlPlane, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """kube-scheduler alone runs for comparison; the test only prints its figures."""
    outcomes = {}
    for label, extenders in ("topowise", None), ("kube-scheduler alone", []):
        directory = tmp_path / label.replace(" ", "-")
        directory.mkdir()
        names = [(f"p5-{number}", kind()) for number in range(_AT_FIRST)]
        late = Reporting(wait=(0.5, 1.0), lag=(0.0, 0.05))
        async with Cluster(plane, directory, names, extenders=extenders, reporting=late, settings=SETTINGS) as cluster:
            owner = Owner(cluster)
            replacing = asyncio.create_task(owner.replace_refused())
            there = _AT_FIRST
            for number in range(_JOBS):
                if there < _AT_FIRST + _LATER and number >= (there - _AT_FIRST + 1) * _JOBS // (_LATER + 1):
                    settings = kind()
                    await cluster.fleet.join(f"p5-{there}", settings.machine, settings.config, [TAINT])
                    there += 1
                await owner.wait_for_room(there)
                await owner.make(number)
            await cluster.settle(180.0)
            replacing.cancel()
            outcomes[label] = len(cluster.refusals), max(owner.again.values(), default=0)
            if extenders is None:
                assert not cluster.refusals
                await cluster.assert_all_well()
    with capsys.disabled():
        for label, (refused, most) in outcomes.items():
            sys.stdout.write(f"\n  {label}: {refused} pods refused, {most} of one job at most")
