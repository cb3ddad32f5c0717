"""The last check of an admission: the sums of requests against node allocatable (pkg/kubelet/lifecycle/predicate.go).

It runs after the topology manager has allocated, for pods of every QoS class. It counts what the other pods *request*,
not what the managers allocated. The scheduler checks node affinity, taints and ports, so they are not modelled.
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
# lifecycle/features_linux.go, the check after the predicates.
LACKS_GATE = "PodLevelResourcesNotSupported"
LACKS_GATE_MESSAGE = "PodLevelResources feature gate is disabled"


class Shortage(NamedTuple):
    """An insufficient resource (InsufficientResourceError)."""

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
    """Returns node allocatable without devices: capacity less reservations (cm/node_container_manager_linux.go).

    Memory also excludes all hugepages of the machine. `ephemeral-storage` is left out if its capacity is unknown.
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
    """Returns the insufficient resources for a pod beside `pods` pods that request `used`, in fitsRequest's order.

    `fixed` is `node_allocatable`, `devices` the number per registered resource. A resource that the node does not know
    is not checked, except hugepages: an unregistered device plugin refuses no pod. It does refuse a pod for
    `init_requests` (removeMissingExtendedResources, while it read app containers only).
    """
    missing = []
    if pods + 1 > fixed["pods"]:
        missing.append(Shortage("pods", 1, pods, fixed["pods"]))
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
            missing.append(Shortage(name, requested, used.get(name, 0), capacity))
    return missing
