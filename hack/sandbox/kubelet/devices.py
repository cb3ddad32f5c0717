"""Device plugins for the PCI functions of a machine, as the usual plugins would advertise them."""

from __future__ import annotations

from topowise_exporter.machine import Machine, PciFunction
from topowise_scheduler.kubelet.machine import Device, DevicePlugin

GPU = "nvidia.com/gpu"
VIRTUAL_FUNCTION = "intel.com/e810_vf"


def plugins(machine: Machine) -> tuple[DevicePlugin, ...]:
    """GPUs by NVIDIA's plugin, virtual functions of NICs by the SR-IOV network device plugin."""
    found: dict[str, list[Device]] = {}
    for function in machine.pci:
        resource = _resource(function)
        if resource:
            numa = None if function.numa_node is None else (function.numa_node,)
            found.setdefault(resource, []).append(Device(function.address, numa))
    return tuple(DevicePlugin(resource, tuple(devices)) for resource, devices in sorted(found.items()))


def _resource(function: PciFunction) -> str | None:
    if function.class_code.startswith("0x0302"):
        return GPU
    if function.physfn is not None:
        return VIRTUAL_FUNCTION
    return None
