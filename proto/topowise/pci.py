"""Places on the PCI buses of one machine, and how far two of them are apart.

The kernel's link of a function (/sys/bus/pci/devices/ADDRESS) names everything above it: the host bridge, which is the
root complex as far as software sees it, then bridges: a root port, and of each PCIe switch its upstream and one of its
downstream ports. A virtual function lies beside its physical one, below the same bridge. Intel's VMD puts a host bridge
of its own in the middle of a path (pci0000:64, 0000:64:00.5, pci10000:00, 10000:00:02.0): what is below goes through
the root complex again.

Distances are told by this alone and by the NUMA nodes of the two functions, in the words of `nvidia-smi topo -m`. Of
NVLink nothing is known here: NVIDIA's driver shows it by its own library only, not in /sys, so two GPUs may be nearer
than their PCI places say.
Documentation/ABI/testing/sysfs-bus-pci, hwloc's `Bridge` objects, nvml.h (nvmlGpuTopologyLevel_t).
"""

from __future__ import annotations

import re
from typing import Final, Literal

import msgspec

from topowise.errors import ParseError

Distance = Literal["PIX", "PXB", "PHB", "NODE", "SYS"]

MOST_STEPS: Final = 32
"""Of a path. A switch takes two, and few machines have two switches in a row."""
_SWITCH: Final = 2

_ADDRESS: Final = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])")
_HOST_BRIDGE: Final = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")


class Place(msgspec.Struct, frozen=True, gc=False):
    """Where a function is: all that is above it, host bridge first, and its NUMA node, None if the kernel has none."""

    path: tuple[str, ...]
    numa_node: int | None


def is_address(text: str) -> bool:
    """Whether it is a function's address, domain:bus:device.function, as the kernel writes it."""
    return _ADDRESS.fullmatch(text) is not None


def is_host_bridge(text: str) -> bool:
    """Whether it is a host bridge's name, "pci0000:40"."""
    return _HOST_BRIDGE.fullmatch(text) is not None


def numbers(address: str) -> tuple[int, ...]:
    """Domain, bus, device and function, to sort by: domain 10000 comes after 0fff. () for what is no address."""
    match = _ADDRESS.fullmatch(address)
    return tuple(int(group, 16) for group in match.groups()) if match else ()


def path_of(link: str, address: str) -> tuple[str, ...]:
    """All that is above a function, host bridge first, from where its link in /sys leads.

    "../../../devices/pci0000:40/0000:40:00.0/0000:41:00.0" -> ("pci0000:40", "0000:40:00.0"). Raises ParseError.
    """
    parts = link.split("/")
    first = next((at for at, part in enumerate(parts) if is_host_bridge(part)), len(parts))
    path = tuple(parts[first:-1])
    if parts[-1] != address or not path:
        raise ParseError("link", link, f"a path by a host bridge (pci0000:00) to {address}")
    check_path(path, address)
    return path


def check_path(path: tuple[str, ...], address: str = "") -> None:
    """Raises ParseError unless `path` could be above a function: a host bridge, then more and addresses, each once."""
    if len(path) > MOST_STEPS:
        raise ParseError("path", "/".join(path), f"at most {MOST_STEPS} bridges")
    if not path or not is_host_bridge(path[0]) or not all(is_address(one) or is_host_bridge(one) for one in path):
        raise ParseError("path", "/".join(path), "a host bridge (pci0000:00) and addresses (0000:00:1c.0) below it")
    if len({*path, address}) <= len(path):
        raise ParseError("path", "/".join(path), "each bridge once and above the function")


def distance(one: Place, other: Place) -> Distance | None:
    """How far two functions of a machine are apart, None if that is not known.

    PIX   below one bridge with at most one PCIe switch between them: same link, or same switch;
    PXB   below one bridge with more than one switch between them: same root port;
    PHB   the nearest thing above both is a host bridge: same root complex;
    NODE  different host bridges of one NUMA node;
    SYS   different NUMA nodes: over the interconnect between processors.

    A switch between two functions is two bridges, one of which may be the one above both, so "at most one" is: no more
    than two bridges are above the one or the other but not above both. Not known is what has no path, and different
    host bridges where the kernel names no NUMA node for one of the two.
    """
    if not one.path or not other.path:
        return None
    common = _common(one.path, other.path)
    if not common:
        if one.numa_node is None or other.numa_node is None:
            return None
        return "NODE" if one.numa_node == other.numa_node else "SYS"
    if is_host_bridge(one.path[common - 1]):
        return "PHB"
    apart = len(one.path) + len(other.path) - 2 * common
    return "PIX" if apart <= _SWITCH else "PXB"


def _common(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    """How many steps two paths have in common."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (mine, yours) in pairs if mine != yours), min(len(one), len(other)))
