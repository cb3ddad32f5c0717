"""Nodes filled with pods, written as short as the tests read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from topowise import pods
from topowise_scheduler.kubelet import (
    Core,
    Device,
    DevicePlugin,
    Kubelet,
    KubeletConfiguration,
    Machine,
    MemoryReservation,
    NumaNode,
)

GI = 1 << 30

NodeOf = Callable[..., Kubelet]
PodOf = Callable[..., pods.Pod]


def _node(
    *cpus: int, policy: str = "single-numa-node", gpus: Sequence[int] = (), memory: int = 64, **fields: Any
) -> Kubelet:
    """So many CPUs, one thread a core, and GPUs per NUMA node, `memory` GiB each. CPU 0 and 1 GiB are reserved."""
    first = [sum(cpus[:position]) for position in range(len(cpus))]
    numa = tuple(
        NumaNode(
            id=position,
            memory=memory * GI,
            cores=tuple(Core(position, (first[position] + core,)) for core in range(count)),
        )
        for position, count in enumerate(cpus)
    )
    listed = tuple(
        Device(f"gpu-{position}-{number}", (position,))
        for position, count in enumerate(gpus)
        for number in range(count)
    )
    defaults: dict[str, Any] = {
        "systemReserved": {"cpu": "1", "memory": "1Gi"},
        "cpuManagerPolicy": "static",
        "reservedSystemCPUs": "0",
        "memoryManagerPolicy": "Static",
        "reservedMemory": (MemoryReservation(0, {"memory": "1Gi"}),),
        "topologyManagerPolicy": policy,
    }
    machine = Machine(numa=numa, devices=(DevicePlugin("x.io/gpu", listed),) if listed else ())
    return Kubelet(machine, KubeletConfiguration(**(defaults | fields)))


def _pod(uid: str, *containers: Mapping[str, Any] | int) -> pods.Pod:
    """A pod whose containers have these limits, requests too; a number stands for so many CPUs and 1 GiB."""
    listed: list[pods.Container] = []
    for number, given in enumerate(containers):
        limits: pods.Quantities = {"cpu": str(given), "memory": "1Gi"} if isinstance(given, int) else dict(given)
        listed.append(pods.Container(f"c{number}", pods.Resources(limits=limits)))
    return pods.Pod(pods.Metadata(name=uid, namespace="default", uid=uid), pods.Spec(tuple(listed)))


@pytest.fixture(scope="session")
def node_of() -> NodeOf:
    return _node


@pytest.fixture(scope="session")
def pod_of() -> PodOf:
    return _pod


@pytest.fixture(scope="session")
def filled() -> Callable[..., Kubelet]:
    """The node with these pods admitted, in this order; each must be."""

    def fill(node: Kubelet, pods_in_order: Mapping[str, Any]) -> Kubelet:
        for uid, containers in pods_in_order.items():
            given = containers if isinstance(containers, tuple) else (containers,)
            assert node.admit(_pod(uid, *given)).admitted, uid
        return node

    return fill


@pytest.fixture(scope="session")
def view_of() -> Callable[..., Any]:
    def view(node: Kubelet, *containers: Mapping[str, Any] | int, uid: str = "preemptor") -> Any:
        return node.view(uid, pods.needs(_pod(uid, *containers)))

    return view
