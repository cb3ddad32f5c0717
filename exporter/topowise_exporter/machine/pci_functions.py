"""Reads PCI functions, the bridges above each function, its NUMA node, and the names that plug-ins may use for it.

`numa_node` is the only source of the affinity. -1 is normal (a bus without _PXM, `numa=off`) and means "no affinity",
never node 0. `local_cpulist` is not used: for -1 it names all online CPUs, which may be the CPUs of a single node, and
for a device on a memory-only node it is empty although the node is right. A virtual function has a directory of its own
and links to its physical function by `physfn`. An address may have a domain of more than four digits (VMD). The path to
a function is the target of its link, which is read and never followed: a loop of links has no effect.
Documentation/ABI/testing/sysfs-bus-pci.

A driver's names are links in /sys/class ("mlx5_0", "card1", "nvme0", "ens1f0") whose target path contains the function.
The UUID of an NVIDIA GPU is not in /sys: its driver writes it to /proc/driver/nvidia/gpus/ADDRESS/information. A MIG
device has a UUID that no file has. A plug-in's own numbers (0, 1, 2), and KubeVirt's IOMMU groups, which look like such
numbers, cannot be mapped.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

from topowise import pci
from topowise.errors import ParseError
from topowise_exporter.machine.inventory import PciFunction
from topowise_exporter.machine.sysfs import Tree

ROOT = "bus/pci/devices"

MOST_FUNCTIONS = 1 << 14
"""A large server with a thousand virtual functions has two thousand functions."""
_CLASSES = ("accel", "drm", "infiniband", "net", "nvme")
_GPUS = "driver/nvidia/gpus"
# Question marks stand there until the driver has read the UUID.
_UUID = re.compile(r"^GPU UUID:[ \t]*(GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})$", re.MULTILINE)
MOST_NAMES = 1 << 14
"""Limit for a class: a node has a virtual network device for every pod."""


def read(sysfs: Tree, nodes: Collection[int]) -> tuple[PciFunction, ...]:
    """Returns every function, by address; none on a machine without PCI. A function may name one of `nodes`."""
    addresses = _addresses(sysfs)
    affinities = {address: sysfs.integer(f"{ROOT}/{address}/numa_node") for address in addresses}
    _tell_affinities(sysfs, affinities, nodes)
    paths = _paths(sysfs, addresses)
    return tuple(
        PciFunction(
            address=address,
            numa_node=affinities[address] if affinities[address] in nodes else None,
            class_code=sysfs.text(f"{ROOT}/{address}/class") or "",
            vendor=sysfs.text(f"{ROOT}/{address}/vendor") or "",
            device=sysfs.text(f"{ROOT}/{address}/device") or "",
            driver=_last_part(sysfs.link(f"{ROOT}/{address}/driver")),
            physfn=_last_part(sysfs.link(f"{ROOT}/{address}/physfn")),
            path=paths.get(address, ()),
        )
        for address in addresses
    )


def _addresses(sysfs: Tree) -> list[str]:
    names = sysfs.names(ROOT) or []
    addresses = sorted(filter(pci.is_address, names), key=pci.numbers)
    _tell_first(sysfs, sorted(set(names) - set(addresses)), "no PCI address", "left out")
    if len(addresses) > MOST_FUNCTIONS:
        sysfs.tell(ROOT, f"{len(addresses)} functions, expected at most {MOST_FUNCTIONS}", "the rest is left out")
    return addresses[:MOST_FUNCTIONS]


def _paths(sysfs: Tree, addresses: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Returns the bridges above each function whose link is valid."""
    paths: dict[str, tuple[str, ...]] = {}
    problems: dict[str, str] = {}
    for address in addresses:
        link = sysfs.link(f"{ROOT}/{address}")
        try:
            if link is not None:
                paths[address] = pci.path_of(link, address)
        except ParseError as exc:
            problems[address] = str(exc)
    instead = "the bridges above it are unknown"
    unlinked = [address for address in addresses if address not in paths and address not in problems]
    _tell_first(sysfs, unlinked, "no link to its directory", instead)
    _tell_first(sysfs, list(problems), next(iter(problems.values()), ""), instead)
    return paths


def _tell_first(sysfs: Tree, names: list[str], what: str, instead: str) -> None:
    """Reports a problem of several functions in a single line."""
    if names:
        more = f" (and {len(names) - 1} more like it)" if len(names) > 1 else ""
        sysfs.tell(f"{ROOT}/{ascii(names[0])[1:-1][:100]}", what + more, instead)


def _tell_affinities(sysfs: Tree, affinities: Mapping[str, int | None], nodes: Collection[int]) -> None:
    # Tree.integer has reported an unreadable file already.
    missing = [
        address for address, node in affinities.items() if node is None and not sysfs.has(f"{ROOT}/{address}/numa_node")
    ]
    # A kernel built without NUMA has the file nowhere: report a single line instead of a line per function.
    if missing and len(missing) == len(affinities):
        sysfs.tell(f"{ROOT}/*/numa_node", "missing everywhere", "no function has an affinity")
        return
    for address in missing:
        sysfs.tell(f"{ROOT}/{address}/numa_node", "missing", "the function has no affinity")
    for address, node in affinities.items():
        if node is not None and node >= 0 and node not in nodes:
            sysfs.tell(f"{ROOT}/{address}/numa_node", f"unknown node {node}", "the function has no affinity")


def _last_part(target: str | None) -> str | None:
    return target.rpartition("/")[2] if target else None


def read_names(sysfs: Tree, procfs: Tree) -> tuple[tuple[str, str], ...]:
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
