"""Typical servers with GPUs, and requests of pods for the servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kubelets import GI, pod_of
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
    version_of,
)
from topowise_scheduler.report.shape import PodRequests

GPU = "nvidia.com/gpu"


def server_of(
    policy: str = "single-numa-node", *, zones: int = 4, cores: int = 8, version: str = "v1.36.2", **fields: Any
) -> Kubelet:
    """A NUMA node has 8 cores with two threads, 32 GiB and a GPU; a socket has two NUMA nodes."""
    total = zones * cores
    numa = tuple(
        NumaNode(
            id=zone,
            memory=32 * GI,
            cores=tuple(Core(zone // 2, (core, core + total)) for core in range(zone * cores, (zone + 1) * cores)),
            hugepages={2048: 1024},
            distances=tuple(
                10 if zone == column else 12 if zone // 2 == column // 2 else 32 for column in range(zones)
            ),
        )
        for zone in range(zones)
    )
    gpus = DevicePlugin(GPU, tuple(Device(f"gpu{zone}", (zone,)) for zone in range(zones)))
    defaults: dict[str, Any] = {
        "topologyManagerPolicy": policy,
        "cpuManagerPolicy": "static",
        "reservedSystemCPUs": f"0,{total}",
        "memoryManagerPolicy": "Static",
        "reservedMemory": (MemoryReservation(0, {"memory": "1Gi"}),),
        "systemReserved": {"cpu": "2", "memory": "1Gi"},
    }
    config = KubeletConfiguration(**(defaults | fields))
    return Kubelet(Machine(numa=numa, devices=(gpus,)), config, version=version_of(version))


def requests_of(*containers: Mapping[str, Any], init: Sequence[Mapping[str, Any]] = ()) -> PodRequests:
    return PodRequests(pods.needs(pod_of("new", *containers, init=init)))
