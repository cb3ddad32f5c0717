"""Nodes whose GPUs ("g") and NICs ("n") are at PCIe switches."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from sandbox.exported import exported
from scheduling import machine
from topowise import nrt
from topowise.attributes import PCI, pci_devices
from topowise.attributes.pci_devices import Located
from topowise.kubeletconfig import KubeletConfiguration
from topowise.pci import Place
from topowise_scheduler.kubelet import Device, DevicePlugin, Kubelet, Machine, Placement

GPU, NIC = "nvidia.com/gpu", "rdma/hca"


def hardware(devices: Mapping[str, int]) -> Machine:
    """Returns a machine with these devices by NUMA node."""
    plugins = tuple(
        DevicePlugin(resource, tuple(Device(name, (numa,)) for name, numa in devices.items() if name[0] == letter))
        for resource, letter in ((GPU, "g"), (NIC, "n"))
    )
    return msgspec.structs.replace(machine(), devices=plugins)


def published(
    kubelet: Kubelet,
    config: KubeletConfiguration,
    devices: Mapping[str, int],
    switches: Mapping[str, int],
    name: str = "n1",
    version: str = "1",
) -> nrt.NodeResourceTopology:
    """Returns what the exporter publishes of a node. Without `switches` it has no PCI attributes."""
    report = exported(hardware(devices), config, kubelet, lambda uid: ("default", uid[4:]))
    located = {
        device: Located(f"0000:{number:02x}:00.0", Place(("pci0000:00", f"0000:00:{switch:02x}.0"), devices[device]))
        for number, (device, switch) in enumerate(switches.items(), 1)
    }
    pci = (nrt.Attribute(PCI, pci_devices.write(located).text),) if switches else ()
    metadata = msgspec.structs.replace(report.metadata, name=name, resourceVersion=version)
    return msgspec.structs.replace(report, metadata=metadata, attributes=(*(report.attributes or ()), *pci))


def hold(kubelet: Kubelet, uid: str, numa: int, **devices: tuple[str, ...]) -> Kubelet:
    """Gives a pod these `gpus` and `nics`. Returns the kubelet."""
    named = {GPU if kind == "gpus" else NIC: names for kind, names in devices.items()}
    kubelet.hold(uid, {}, {"c": Placement("app", (numa,), True, None, (), named)})
    return kubelet
