"""Reads further names of PCI functions: names from their drivers, by which device plug-ins may identify them.

A driver's names are links in /sys/class ("mlx5_0", "card1", "nvme0", "ens1f0") whose target path contains the function.
The UUID of an NVIDIA GPU is not in /sys: its driver writes it to /proc/driver/nvidia/gpus/ADDRESS/information. A MIG
device has a UUID that no file has. A plug-in's own numbers (0, 1, 2), and KubeVirt's IOMMU groups, which look like such
numbers, cannot be mapped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from topowise import pci
from topowise_exporter.machine.sysfs import Tree

_CLASSES = ("accel", "drm", "infiniband", "net", "nvme")
_GPUS = "driver/nvidia/gpus"
# Question marks stand there until the driver has read the UUID.
_UUID = re.compile(r"^GPU UUID:[ \t]*(GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})$", re.MULTILINE)

MOST_NAMES = 1 << 14
"""Limit for a class: a node has a virtual network device for every pod."""


def read(sysfs: Tree, procfs: Tree) -> tuple[tuple[str, str], ...]:
    """Returns (name, address) sorted; a name of several functions is left out."""
    address_of_name: dict[str, str] = {}
    shared: set[str] = set()
    for name, address in (*_of_classes(sysfs), *_of_gpus(procfs)):
        if address_of_name.setdefault(name, address) != address:
            shared.add(name)
    return tuple(sorted((name, address) for name, address in address_of_name.items() if name not in shared))


def _of_classes(sysfs: Tree) -> Iterator[tuple[str, str]]:
    for folder in _CLASSES:
        names = sysfs.names(f"class/{folder}") or []
        if len(names) > MOST_NAMES:
            sysfs.tell(f"class/{folder}", f"{len(names)} names, expected at most {MOST_NAMES}", "no name is used")
            continue
        for name in names:
            # The last function in the path: a port of a switch is above it, a virtio or nvme device may be below.
            parts = (sysfs.link(f"class/{folder}/{name}") or "").split("/")
            address = next(filter(pci.is_address, reversed(parts)), None)
            if address is not None and name.isascii() and name.isprintable():
                yield name, address


def _of_gpus(procfs: Tree) -> Iterator[tuple[str, str]]:
    for address in sorted(procfs.names(_GPUS) or ())[:MOST_NAMES]:
        match = _UUID.search(procfs.text(f"{_GPUS}/{address}/information") or "")
        if match is not None and pci.is_address(address):
            yield match[1], address
