"""Inventories of regular machines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from topowise.kubeletconfig import KubeletConfiguration
from topowise_scheduler.overlay import plan
from topowise_scheduler.overlay.plan import Inventory, NodeType, PlannedNode, Workload

GIB = 1 << 30
GPU = "nvidia.com/gpu"

Site = Callable[..., Inventory]


def configuration(**changed: Any) -> KubeletConfiguration:
    fields = {
        "topologyManagerPolicy": "single-numa-node",
        "cpuManagerPolicy": "static",
        "reservedSystemCPUs": "0,32",
        "evictionHard": {},
        **changed,
    }
    return KubeletConfiguration(**fields)


def node_type(*, numa: int = 2, gpus: int = 4, **changed: Any) -> NodeType:
    devices = {GPU: gpus} if gpus else {}
    machine = plan.regular(sockets=2, numa=numa, cores=32, memory=256 * GIB, devices=devices)
    return NodeType(machine, configuration(**changed))


def workload(name: str, count: int | None = 1, *, gpus: int = 0, cpus: int = 4, memory: str = "8Gi") -> Workload:
    amounts = {"cpu": str(cpus), "memory": memory, **({GPU: str(gpus)} if gpus else {})}
    return Workload(name, plan.pod_of(name, amounts), count)


@pytest.fixture
def site() -> Site:
    def make(nodes: int = 2, **settings: Any) -> Inventory:
        of_all = node_type(**settings)
        return Inventory(tuple(PlannedNode(f"n{number}", of_all) for number in range(1, nodes + 1)))

    return make
