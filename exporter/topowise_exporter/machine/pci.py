"""PCI functions and the NUMA node each one hangs on.

`numa_node` is the kernel's word and the only source: -1 is normal (a bus without _PXM, `numa=off`) and means "no
affinity", never node 0. Nothing is derived from `local_cpulist`: for -1 it names all online CPUs, which may happen to
be those of one node, and for a device on a memory-only node it is empty although the node is right.
A virtual function has its own directory and points at its physical function by `physfn`; an address may have a domain
of more than four digits (VMD). Documentation/ABI/testing/sysfs-bus-pci.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping

from topowise_exporter.machine.model import PciFunction
from topowise_exporter.machine.sysfs import Tree

ROOT = "bus/pci/devices"

_ADDRESS = re.compile(r"([0-9a-f]{4,}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])")
_HOST_BRIDGE = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}")


def read(sysfs: Tree, nodes: Collection[int]) -> tuple[PciFunction, ...]:
    """Every function, by address; none on a machine without PCI. `nodes` are the ids a function may name."""
    addresses = sorted(filter(_ADDRESS.fullmatch, sysfs.names(ROOT) or ()), key=_numbers)
    affinities = {address: sysfs.integer(f"{ROOT}/{address}/numa_node") for address in addresses}
    _tell_affinities(sysfs, affinities, nodes)
    physfns = {address: _last_part(sysfs.link(f"{ROOT}/{address}/physfn")) for address in addresses}
    virtfns = Counter(physfn for physfn in physfns.values() if physfn is not None)
    return tuple(
        _read_function(
            sysfs,
            address,
            numa_node=affinities[address] if affinities[address] in nodes else None,
            physfn=physfns[address],
            virtfns=virtfns[address],
        )
        for address in addresses
    )


def _read_function(
    sysfs: Tree, address: str, *, numa_node: int | None, physfn: str | None, virtfns: int
) -> PciFunction:
    folder = f"{ROOT}/{address}"
    pcie_root, root_port = _place(sysfs.link(folder), address)
    return PciFunction(
        address=address,
        numa_node=numa_node,
        class_code=sysfs.text(f"{folder}/class") or "",
        vendor=sysfs.text(f"{folder}/vendor") or "",
        device=sysfs.text(f"{folder}/device") or "",
        driver=_last_part(sysfs.link(f"{folder}/driver")),
        physfn=physfn,
        virtfns=virtfns,
        pcie_root=pcie_root,
        root_port=root_port,
    )


def _tell_affinities(sysfs: Tree, affinities: Mapping[str, int | None], nodes: Collection[int]) -> None:
    # An unreadable one has been told by the reader.
    missing = [
        address for address, node in affinities.items() if node is None and not sysfs.has(f"{ROOT}/{address}/numa_node")
    ]
    # A kernel built without NUMA has the file nowhere: one line, not one for each function.
    if missing and len(missing) == len(affinities):
        sysfs.tell(f"{ROOT}/*/numa_node", "missing everywhere", "no function has an affinity")
        return
    for address in missing:
        sysfs.tell(f"{ROOT}/{address}/numa_node", "missing", "the function has no affinity")
    for address, node in affinities.items():
        if node is not None and node >= 0 and node not in nodes:
            sysfs.tell(f"{ROOT}/{address}/numa_node", f"unknown node {node}", "the function has no affinity")


def _place(target: str | None, address: str) -> tuple[str | None, str | None]:
    """Host bridge and root port in "../../../devices/pci0000:40/0000:40:00.0/0000:41:00.0"."""
    parts = target.split("/") if target else []
    pcie_root = next((part for part in parts if _HOST_BRIDGE.fullmatch(part)), None)
    bridge = next((part for part in parts if _ADDRESS.fullmatch(part)), None)
    return pcie_root, None if bridge == address else bridge


def _last_part(target: str | None) -> str | None:
    return target.rpartition("/")[2] if target else None


def _numbers(address: str) -> tuple[int, ...]:
    """Domain, bus, device and function: domain 10000 comes after 0fff."""
    match = _ADDRESS.fullmatch(address)
    return tuple(int(group, 16) for group in match.groups()) if match else ()
