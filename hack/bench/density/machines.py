"""A machine, cut into 1, 2, 4 or 8 NUMA nodes, and its kubelet."""

from __future__ import annotations

from typing import Final

from bench.density.mix import Hardware
from topowise import quantity
from topowise.kubeletconfig import KubeletConfiguration, MemoryReservation
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.overlay import plan

GI: Final = 1 << 30
_SOCKETS: Final = 2


def kubelet(hardware: Hardware, zones: int, policy: str, scope: str) -> Kubelet:
    """Returns the kubelet model of an empty node."""
    return node_type(hardware, zones, policy, scope).kubelet()


def node_type(hardware: Hardware, zones: int, policy: str, scope: str) -> plan.NodeType:
    """Returns the machine, divided into equal NUMA nodes, with a core of NUMA node 0 and 1 GiB of each reserved."""
    machine = plan.regular(
        sockets=_SOCKETS,
        numa=zones,
        cores=hardware.cores,
        memory=quantity.value(hardware.memory),
        devices=hardware.devices,
        pages={1 << 20: hardware.pages},
    )
    configuration = KubeletConfiguration(
        topologyManagerPolicy=policy,
        topologyManagerScope=scope,
        cpuManagerPolicy="static",
        reservedSystemCPUs=f"0,{hardware.cores}",
        memoryManagerPolicy="Static",
        reservedMemory=tuple(MemoryReservation(zone, {"memory": "1Gi"}) for zone in range(zones)),
        systemReserved={"cpu": "2", "memory": f"{zones}Gi"},
        evictionHard={},
    )
    return plan.NodeType(machine, configuration, evidence="runs")
