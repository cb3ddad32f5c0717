"""Places on the PCI buses of a machine, and the distance between two of them.

The kernel's link of a function (/sys/bus/pci/devices/ADDRESS) names everything above it. First comes the host bridge,
which is the root complex as far as software sees it. Then come bridges: a root port, and of each PCIe switch its
upstream port and a downstream port. A virtual function is a sibling of its physical function, below the same bridge.
Intel's VMD adds a host bridge in the middle of a path (pci0000:64, 0000:64:00.5, pci10000:00, 10000:00:02.0): traffic
from below passes the root complex again.

Distances follow from the path and the NUMA nodes of the two functions only, in the terms of `nvidia-smi topo -m`.
NVLink is unknown here: NVIDIA's driver exposes it by its own library only, not in /sys. So two GPUs may be nearer than
their PCI places show. Documentation/ABI/testing/sysfs-bus-pci, hwloc's `Bridge` objects, nvml.h
(nvmlGpuTopologyLevel_t).
"""

from __future__ import annotations

import re
from typing import Final, Literal

import msgspec

from topowise.errors import ParseError

Distance = Literal["PIX", "PXB", "PHB", "NODE", "SYS"]

MOST_STEPS: Final = 32
"""Limit for a path. A switch takes two steps, and few machines have two switches in a row."""
_SWITCH: Final = 2

_ADDRESS: Final = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])")
_HOST_BRIDGE: Final = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")


class Place(msgspec.Struct, frozen=True, gc=False):
    """A function's place: the bridges above it, host bridge first, and its NUMA node, None if the kernel names none."""

    path: tuple[str, ...]
    numa_node: int | None


def is_address(text: str) -> bool:
    """Whether the text is a function's address, domain:bus:device.function, in the kernel's format."""
    return _ADDRESS.fullmatch(text) is not None


def is_host_bridge(text: str) -> bool:
    """Whether the text is a host bridge's name, "pci0000:40"."""
    return _HOST_BRIDGE.fullmatch(text) is not None


def numbers(address: str) -> tuple[int, ...]:
    """Returns domain, bus, device and function as a sort key: domain 10000 follows 0fff. () for other text."""
    match = _ADDRESS.fullmatch(address)
    return tuple(int(group, 16) for group in match.groups()) if match else ()


def path_of(link: str, address: str) -> tuple[str, ...]:
    """Returns the bridges above a function, host bridge first, from the target of its link in /sys.
    "../../../devices/pci0000:40/0000:40:00.0/0000:41:00.0" -> ("pci0000:40", "0000:40:00.0"). Raises ParseError."""
    parts = link.split("/")
    first = next((at for at, part in enumerate(parts) if is_host_bridge(part)), len(parts))
    path = tuple(parts[first:-1])
    if parts[-1] != address or not path:
        raise ParseError("link", link, f"a path by a host bridge (pci0000:00) to {address}")
    check_path(path, address)
    return path


def check_path(path: tuple[str, ...], address: str = "") -> None:
    """Raises ParseError unless `path` can be above a function: a host bridge, then bridges, each once."""
    if len(path) > MOST_STEPS:
        raise ParseError("path", "/".join(path), f"at most {MOST_STEPS} bridges")
    if not path or not is_host_bridge(path[0]) or not all(is_address(step) or is_host_bridge(step) for step in path):
        raise ParseError("path", "/".join(path), "a host bridge (pci0000:00) and addresses (0000:00:1c.0) below it")
    if len({*path, address}) <= len(path):
        raise ParseError("path", "/".join(path), "each bridge once and above the function")


def distance(first: Place, second: Place) -> Distance | None:
    """Returns the distance between two functions of a machine, None if it is unknown.

      PIX   below a common bridge with at most one PCIe switch between them: same link, or same switch;
      PXB   below a common bridge with more than one switch between them: same root port;
      PHB   the nearest common bridge is a host bridge: same root complex;
      NODE  different host bridges of a NUMA node;
      SYS   different NUMA nodes: over the interconnect between processors.

    A switch is two bridges, and the common bridge may be one of these two. So "at most one switch" means: at most two
    bridges are above one of the functions but not above both. The distance is unknown without a path, and for different
    host bridges if the kernel names no NUMA node for one of the functions.
    """
    if not first.path or not second.path:
        return None
    common = _common(first.path, second.path)
    if not common:
        if first.numa_node is None or second.numa_node is None:
            return None
        return "NODE" if first.numa_node == second.numa_node else "SYS"
    if is_host_bridge(first.path[common - 1]):
        return "PHB"
    separate_bridges = len(first.path) + len(second.path) - 2 * common
    return "PIX" if separate_bridges <= _SWITCH else "PXB"


def _common(first: tuple[str, ...], second: tuple[str, ...]) -> int:
    """Returns how many leading steps two paths share."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((at for at, (step, other_step) in pairs if step != other_step), min(len(first), len(second)))
