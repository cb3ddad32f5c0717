"""The last check of an admission: the sums of requests against node allocatable (pkg/kubelet/lifecycle/predicate.go).

It runs after the topology manager has allocated, for pods of every class, and compares with what the other pods
*request*, not with what the managers gave them. Node affinity, taints and ports are the scheduler's business and not
modelled.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from topowise.pods import HUGEPAGES, Amounts
from topowise_scheduler.kubelet.configuration import Settings
from topowise_scheduler.kubelet.machine import Machine

_FIRST = ("cpu", "memory", "ephemeral-storage")

SIDECARS_FORBIDDEN = "InitContainerRestartPolicyForbidden"


class Shortage(NamedTuple):
    """One resource that is not enough (InsufficientResourceError)."""

    resource: str
    requested: int
    used: int
    capacity: int

    @property
    def reason(self) -> str:
        return f"OutOf{self.resource}"

    @property
    def message(self) -> str:
        return (
            f"Node didn't have enough resource: {self.resource}, requested: {self.requested}, "
            f"used: {self.used}, capacity: {self.capacity}"
        )


def node_allocatable(machine: Machine, settings: Settings) -> Amounts:
    """Node allocatable without devices: capacity less what is reserved (cm/node_container_manager_linux.go).

    Memory is less all hugepages of the machine as well. `ephemeral-storage` is left out where the capacity is not
    known.
    """
    hugepages = machine.hugepages()
    capacity = {"cpu": 1000 * machine.cpus(), "memory": machine.memory(), **hugepages}
    if machine.ephemeral_storage is not None:
        capacity["ephemeral-storage"] = machine.ephemeral_storage
    left = {name: max(0, amount - settings.reserved.get(name, 0)) for name, amount in capacity.items()}
    left["memory"] = max(0, left["memory"] - sum(hugepages.values()))
    left["pods"] = settings.max_pods
    return left


def shortages(
    requests: Mapping[str, int],
    used: Mapping[str, int],
    pods: int,
    fixed: Mapping[str, int],
    devices: Mapping[str, int],
    init_requests: Mapping[str, int] = MappingProxyType({}),
) -> list[Shortage]:
    """What is not enough for a pod beside `pods` others that request `used`, in the kubelet's order (fitsRequest).

    `fixed` is `node_allocatable`, `devices` the number per registered resource. A resource the node does not know is
    not checked, except for hugepages: a device whose plugin is not registered does not keep a pod out. Of
    `init_requests` it does (removeMissingExtendedResources, while it looked at app containers only).
    """
    found = []
    if pods + 1 > fixed["pods"]:
        found.append(Shortage("pods", 1, pods, fixed["pods"]))
    scalars = sorted(requests.keys() - _FIRST)
    for name in (*_FIRST, *scalars):
        requested = requests.get(name, 0)
        if requested <= 0:
            continue
        capacity = fixed.get(name)
        if capacity is None:
            capacity = devices.get(name, 0 if name.startswith(HUGEPAGES) else None)
            if capacity is None:
                requested, capacity = init_requests.get(name, 0), 0
                if requested <= 0:
                    continue
        if requested > capacity - used.get(name, 0):
            found.append(Shortage(name, requested, used.get(name, 0), capacity))
    return found
