"""Short constructors of nodes and pods, and nodes filled with pods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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
from topowise_scheduler.kubelet.pod import PodView

GI = 1 << 30


def node_of(
    *cpus: int, policy: str = "single-numa-node", gpus: Sequence[int] = (), memory: int = 64, **fields: Any
) -> Kubelet:
    """A node by CPUs (a thread per core), GPUs and `memory` GiB per NUMA node. CPU 0 and 1 GiB are reserved."""
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


def pod_of(uid: str, *containers: Mapping[str, Any] | int) -> pods.Pod:
    """A Guaranteed pod with these limits per container; a number means CPUs, with 1 GiB."""
    spec_containers: list[pods.Container] = []
    for number, amounts in enumerate(containers):
        limits: pods.Quantities = {"cpu": str(amounts), "memory": "1Gi"} if isinstance(amounts, int) else dict(amounts)
        spec_containers.append(pods.Container(f"c{number}", pods.Resources(limits=limits)))
    return pods.Pod(pods.Metadata(name=uid, namespace="default", uid=uid), pods.Spec(tuple(spec_containers)))


def filled(node: Kubelet, pods_in_order: Mapping[str, Any]) -> Kubelet:
    """Admits the pods to the node in this order; each admission must succeed."""
    for uid, containers in pods_in_order.items():
        limits = containers if isinstance(containers, tuple) else (containers,)
        assert node.admit(pod_of(uid, *limits)).admitted, uid
    return node


def view_of(node: Kubelet, *containers: Mapping[str, Any] | int, uid: str = "preemptor") -> PodView:
    """Returns the pod as the node sees it."""
    return node.view(uid, pods.needs(pod_of(uid, *containers)))
