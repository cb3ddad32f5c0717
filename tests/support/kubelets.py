"""Builders of machines, kubelets and pods for the tests of the kubelet model."""

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
    version_of,
)
from topowise_scheduler.kubelet.cpu_packing import Packing

GI = 1 << 30
# The static policy without options.
PACKED = Packing(spread=False, core_by_core=False, by_uncore=False, rounds_up=True, tells_amounts=True)


def machine_of(
    *cores_per_node: int,
    threads: int = 2,
    memory: int | Sequence[int] = 8 * GI,
    nodes_per_socket: int = 1,
    distances: Sequence[Sequence[int]] | None = None,
    hugepages: Sequence[Mapping[int, int]] | None = None,
    devices: Mapping[str, Sequence[Device]] | None = None,
    cores_per_uncore: int | None = None,
) -> Machine:
    """NUMA nodes by number of cores. CPU ids as on Linux: all first threads, then all second threads."""
    total = sum(cores_per_node)
    numa = []
    first = 0
    for position, count in enumerate(cores_per_node):
        cores = tuple(
            Core(
                socket=position // nodes_per_socket,
                threads=tuple(core + total * thread for thread in range(threads)),
                uncore=None if cores_per_uncore is None else core // cores_per_uncore,
            )
            for core in range(first, first + count)
        )
        first += count
        numa.append(
            NumaNode(
                id=position,
                memory=memory if isinstance(memory, int) else memory[position],
                cores=cores,
                hugepages=dict(hugepages[position]) if hugepages else {},
                distances=tuple(distances[position]) if distances else None,
            )
        )
    plugins = tuple(DevicePlugin(resource, tuple(listed)) for resource, listed in (devices or {}).items())
    return Machine(numa=tuple(numa), devices=plugins)


def kubelet_of(
    machine: Machine, *, static: bool = True, predicates: bool = False, version: str = "v1.36.2", **fields: Any
) -> Kubelet:
    """A kubelet; by default static CPU and memory managers, CPU 0 and 1 GiB of node 0 reserved."""
    defaults: dict[str, Any] = {"systemReserved": {"cpu": "1", "memory": "1Gi"}}
    if static:
        defaults |= {
            "cpuManagerPolicy": "static",
            "reservedSystemCPUs": "0",
            "memoryManagerPolicy": "Static",
            "reservedMemory": (MemoryReservation(0, {"memory": "1Gi"}),),
        }
    config = KubeletConfiguration(**(defaults | fields))
    return Kubelet(machine, config, version=version_of(version), predicates=predicates)


def pod_of(
    uid: str,
    *containers: Mapping[str, Any],
    init: Sequence[Mapping[str, Any]] = (),
    sidecars: Sequence[Mapping[str, Any]] = (),
    level: Mapping[str, Any] | None = None,
    **spec: Any,
) -> pods.Pod:
    """A pod with containers c0, c1, ... whose limits equal their requests. `init` come before `sidecars`."""

    def container(name: str, limits: Mapping[str, Any], policy: str | None = None) -> pods.Container:
        return pods.Container(name, pods.Resources(limits=dict(limits)), policy)

    return pods.Pod(
        metadata=pods.Metadata(name=uid, namespace="default", uid=uid),
        spec=pods.Spec(
            containers=tuple(container(f"c{number}", limits) for number, limits in enumerate(containers)),
            initContainers=(
                *(container(f"i{number}", limits) for number, limits in enumerate(init)),
                *(container(f"s{number}", limits, "Always") for number, limits in enumerate(sidecars)),
            ),
            resources=None if level is None else pods.Resources(requests=dict(level), limits=dict(level)),
            **spec,
        ),
    )


def state_of(kubelet: Kubelet) -> dict[str, Any]:
    """The mutable state of a kubelet, to compare before and after."""
    values: dict[str, Any] = {"active": set(kubelet.active), "held": dict(kubelet.devices.allocations)}
    values["devices"] = {resource: kubelet.devices.free(resource) for resource in kubelet.devices.tables}
    if kubelet.cpu is not None:
        values["cpu"] = (kubelet.cpu.default, dict(kubelet.cpu.allocations))
    if kubelet.memory is not None:
        tables = kubelet.memory.tables
        values["blocks"] = dict(kubelet.memory.allocations)
        values["assignments"] = list(tables.assignments)
        values["cells"] = list(tables.cells)
        values["memory"] = {name: list(free) for name, free in tables.free.items()}
    return values
