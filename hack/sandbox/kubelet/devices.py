"""Device plugins for the PCI functions of a machine, as the usual plugins would advertise them, and which of their
devices a kubelet takes where any will do."""

from __future__ import annotations

from random import Random

from topowise_exporter.machine import Machine, PciFunction
from topowise_scheduler.kubelet.device_manager import Choice, Chooser
from topowise_scheduler.kubelet.device_table import DeviceSet
from topowise_scheduler.kubelet.machine import Device, DevicePlugin
from topowise_scheduler.kubelet.masks import mask_of, members

GPU = "nvidia.com/gpu"
VIRTUAL_FUNCTION = "intel.com/e810_vf"


def plugins(machine: Machine) -> tuple[DevicePlugin, ...]:
    """GPUs by NVIDIA's plugin, virtual functions of NICs by the SR-IOV network device plugin."""
    by_resource: dict[str, list[Device]] = {}
    for function in machine.pci:
        resource = _resource(function)
        if resource:
            numa = None if function.numa_node is None else (function.numa_node,)
            by_resource.setdefault(resource, []).append(Device(function.address, numa))
    return tuple(DevicePlugin(resource, tuple(devices)) for resource, devices in sorted(by_resource.items()))


def any_of_them(seed: str) -> Chooser:
    """Returns a chooser that picks devices in arbitrary order, like a hash table; equal choices get equal devices."""

    def choose(choice: Choice) -> DeviceSet:
        order = Random(f"{seed} {choice.container} {choice.resource} {choice.among} {choice.taken}")
        return mask_of(order.sample(list(members(choice.among)), choice.number))

    return choose


def _resource(function: PciFunction) -> str | None:
    if function.class_code.startswith("0x0302"):
        return GPU
    if function.physfn is not None:
        return VIRTUAL_FUNCTION
    return None
