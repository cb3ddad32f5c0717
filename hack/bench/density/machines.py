"""A machine, cut into 1, 2, 4 or 8 NUMA nodes, and its kubelet."""

from __future__ import annotations

from typing import Final

from bench.density.mix import Hardware
from topowise import quantity
from topowise.kubeletconfig import KubeletConfiguration, MemoryReservation
from topowise_scheduler.kubelet import Core, Device, DevicePlugin, Kubelet, Machine, NumaNode

GI: Final = 1 << 30
_SOCKETS: Final = 2


def kubelet(hardware: Hardware, zones: int, policy: str, scope: str) -> Kubelet:
    """Returns the kubelet model of an empty node."""
    return Kubelet(machine(hardware, zones), configuration(hardware, zones, policy, scope))


def configuration(hardware: Hardware, zones: int, policy: str, scope: str) -> KubeletConfiguration:
    """Returns a configuration that reserves a core of NUMA node 0, and 1 GiB of every NUMA node."""
    return KubeletConfiguration(
        topologyManagerPolicy=policy,
        topologyManagerScope=scope,
        cpuManagerPolicy="static",
        reservedSystemCPUs=f"0,{hardware.cores}",
        memoryManagerPolicy="Static",
        reservedMemory=tuple(MemoryReservation(zone, {"memory": "1Gi"}) for zone in range(zones)),
        systemReserved={"cpu": "2", "memory": f"{zones}Gi"},
        evictionHard={},
    )


def machine(hardware: Hardware, zones: int) -> Machine:
    """Returns the machine, divided into equal NUMA nodes."""
    cores, pages = hardware.cores // zones, hardware.pages // zones
    memory = quantity.value(hardware.memory) // zones
    numa = tuple(
        NumaNode(
            id=zone,
            memory=memory,
            cores=tuple(
                Core(_socket(zone, zones), (core, core + hardware.cores))
                for core in range(zone * cores, (zone + 1) * cores)
            ),
            hugepages={1 << 20: pages} if pages else {},
            distances=tuple(_distance(zone, neighbour, zones) for neighbour in range(zones)),
        )
        for zone in range(zones)
    )
    devices = tuple(
        DevicePlugin(name, tuple(Device(f"{name}-{number}", (number * zones // count,)) for number in range(count)))
        for name, count in hardware.devices.items()
    )
    return Machine(numa=numa, devices=devices)


def _socket(zone: int, zones: int) -> int:
    return zone * _SOCKETS // zones


def _distance(zone: int, neighbour: int, zones: int) -> int:
    if zone == neighbour:
        return 10
    return 12 if _socket(zone, zones) == _socket(neighbour, zones) else 32
