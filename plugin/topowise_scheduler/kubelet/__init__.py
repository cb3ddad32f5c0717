"""Predicts what a node's kubelet will do with a pod: decision, reason, NUMA nodes, CPUs, memory and devices.

Each module has the name of the kubelet's part: topology_manager, cpu_manager (with cpu_topology, cpu_packing,
cpu_distribution), memory_manager, device_manager, predicates. New readers start at node.py, a node with its pods, and
scopes.py, the order in which the kubelet asks its managers. Everything is a function of values: no I/O, no clock, no
randomness. Where the kubelet takes any device of a set, the model takes the lowest id.

Kubelet versions differ in data only: behaviour.py. Recorded decisions of each version's own code check the model
(tests/unit/scheduler/kubelet/test_recorded_decisions.py, test_recorded_versions.py).
"""

from topowise.kubeletconfig import KubeletConfiguration, MemoryReservation
from topowise_scheduler.kubelet.configuration import KubeletStartError
from topowise_scheduler.kubelet.hints import Admission, MemoryBlock, Placement, Rejection
from topowise_scheduler.kubelet.machine import Core, Device, DevicePlugin, Machine, NumaNode
from topowise_scheduler.kubelet.node import Kubelet
from topowise_scheduler.kubelet.versions import KubeletVersion, version_of

__all__ = [
    "Admission",
    "Core",
    "Device",
    "DevicePlugin",
    "Kubelet",
    "KubeletConfiguration",
    "KubeletStartError",
    "KubeletVersion",
    "Machine",
    "MemoryBlock",
    "MemoryReservation",
    "NumaNode",
    "Placement",
    "Rejection",
    "version_of",
]
