"""Servers with the load of a productive cluster, made by admissions of the kubelet model.

A hundred distinct servers serve under many names, so that a cluster takes seconds to make.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from random import Random
from typing import Final, NamedTuple

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
from topowise_scheduler.kubelet.versions import NEWEST_RECORDED, KubeletVersion

GI: Final = 1 << 30
ZONES: Final = 8
GPU, NIC = "nvidia.com/gpu", "intel.com/e810_vf"

Limits = dict[str, str | int | float | None]


class Kind(NamedTuple):
    """A model of server: cores and GiB a NUMA node, GPUs and virtual functions a NUMA node."""

    cores: int
    memory: int
    gpus: int
    functions: int


KINDS = (Kind(8, 64, 1, 4), Kind(16, 128, 1, 8), Kind(12, 96, 2, 4), Kind(16, 64, 0, 8))


def loaded(
    rng: Random, policy: str, kind: Kind, zones: int = ZONES, version: KubeletVersion = NEWEST_RECORDED
) -> Kubelet:
    """Returns a server filled with random pods, of which a quarter has ended."""
    total = zones * kind.cores
    numa = tuple(
        NumaNode(
            id=zone,
            memory=kind.memory * GI,
            cores=tuple(
                Core(zone // 4, (core, core + total)) for core in range(zone * kind.cores, (zone + 1) * kind.cores)
            ),
            hugepages={2048: 2048},
            distances=tuple(
                10 if zone == neighbour else 12 if zone // 4 == neighbour // 4 else 32 for neighbour in range(zones)
            ),
        )
        for zone in range(zones)
    )
    machine = Machine(numa=numa, devices=tuple(_devices(kind, zones)))
    reserved = tuple(MemoryReservation(zone, {"memory": "1Gi"}) for zone in range(zones))
    configuration = KubeletConfiguration(
        topologyManagerPolicy=policy,
        cpuManagerPolicy="static",
        reservedSystemCPUs=f"0,{total}",
        memoryManagerPolicy="Static",
        reservedMemory=reserved,
        systemReserved={"cpu": "2", "memory": f"{zones}Gi"},
    )
    kubelet = Kubelet(machine, configuration, version=version)
    names: Iterator[int] = itertools.count()
    refused = 0
    while refused < rng.choice((2, 6, 12)):
        uid = f"p{next(names)}"
        refused += not kubelet.admit(_resident(rng, uid)).admitted
    for uid in list(kubelet.active):
        if rng.random() < 0.25:
            kubelet.remove(uid)
    return kubelet


def pod(uid: str, *containers: Limits, init: int = 0) -> pods.Pod:
    """Containers with these limits; the first `init` of them are init containers."""
    listed = [pods.Container(f"c{number}", pods.Resources(limits=limits)) for number, limits in enumerate(containers)]
    return pods.Pod(
        pods.Metadata(uid=uid), pods.Spec(containers=tuple(listed[init:]), initContainers=tuple(listed[:init]))
    )


def _devices(kind: Kind, zones: int) -> Iterator[DevicePlugin]:
    for resource, count in ((GPU, kind.gpus), (NIC, kind.functions)):
        devices = [Device(f"{resource}-{zone}-{number}", (zone,)) for zone in range(zones) for number in range(count)]
        yield DevicePlugin(resource, tuple(devices))


def _resident(rng: Random, uid: str) -> pods.Pod:
    limits: Limits = {
        "cpu": rng.choice(("1", "2", "4", "4", "6", "8", "12")),
        "memory": rng.choice(("2Gi", "8Gi", "16Gi", "30Gi")),
    }
    for name, share in (("hugepages-2Mi", 0.2), (GPU, 0.3), (NIC, 0.4)):
        if rng.random() < share:
            limits[name] = "1Gi" if name == "hugepages-2Mi" else "1"
    return pod(uid, limits)
