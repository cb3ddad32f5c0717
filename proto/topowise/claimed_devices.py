"""The NUMA node of a device of a resource claim (DRA), by the attributes of its ResourceSlice and the node's machine.

The first of these sources that leads to a NUMA node of the machine counts: the driver's value, the NUMA node of the
device's PCI function, the NUMA node on which all functions below its PCIe roots agree. The exporter knows the functions
from /sys; the scheduler knows the roots from the NodeResourceTopology (attributes.pcie_roots).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final, Protocol

import msgspec

NUMA_NODE: Final = "resource.kubernetes.io/numaNode"
"""KEP-6072: the device's NUMA node, or a list of nodes of the same socket that begins with the device's node."""
PCI_BUS_ID: Final = "resource.kubernetes.io/pciBusID"
PCIE_ROOT: Final = "resource.kubernetes.io/pcieRoot"

# Attribute names from before the standard name: gpu.amd.com/numaNode and dra.memory/numaNode, dra.cpu/numaNodeID
# (kubernetes-sigs/dra-driver-cpu), and dra.net/numaNode, which dranet and the SR-IOV driver share.
_OWN_NAMES: Final = ("numaNode", "numaNodeID")
_SHARED_NAME: Final = "dra.net/numaNode"


class Attribute(Protocol):
    """An attribute of a device in a ResourceSlice; an attribute has exactly one of these fields or another type."""

    @property
    def integer(self) -> int | None: ...

    @property
    def ints(self) -> tuple[int, ...] | None: ...

    @property
    def string(self) -> str | None: ...

    @property
    def strings(self) -> tuple[str, ...] | None: ...


class Value(msgspec.Struct, frozen=True, gc=False, rename={"integer": "int"}):
    """The types of an attribute that can name a location. Lists are alpha in 1.36 (KEP-5491)."""

    integer: int | None = None
    ints: tuple[int, ...] | None = None
    string: str | None = None
    strings: tuple[str, ...] | None = None


class Located(Protocol):
    """What attributes say about the location of a device."""

    @property
    def numa_node(self) -> int | None: ...

    @property
    def pci_bus_id(self) -> str: ...

    @property
    def pcie_roots(self) -> tuple[str, ...]: ...


class Location(msgspec.Struct, frozen=True, gc=False):
    """See `Located`. The driver's NUMA node need not exist on the machine (-1)."""

    numa_node: int | None = None
    pci_bus_id: str = ""
    pcie_roots: tuple[str, ...] = ()


def location(attributes: Mapping[str, Attribute], driver: str) -> Location:
    """Returns the location in the attributes of a device; a name without domain belongs to the driver's domain."""
    bus, root = attributes.get(PCI_BUS_ID), attributes.get(PCIE_ROOT)
    address = "" if bus is None else (bus.string or "").lower()
    roots = () if root is None else (root.string,) if root.string is not None else root.strings or ()
    return Location(_numa_node(attributes, driver), address, roots)


def _numa_node(attributes: Mapping[str, Attribute], driver: str) -> int | None:
    own = (name for bare in _OWN_NAMES for name in (bare, f"{driver}/{bare}"))
    for name in (NUMA_NODE, *own, _SHARED_NAME):
        attribute = attributes.get(name)
        if attribute is not None:
            number = attribute.integer if attribute.integer is not None else next(iter(attribute.ints or ()), None)
            if number is not None:
                return number
    return None


class NumaNodes:
    """The NUMA nodes of a machine. `function` returns the NUMA node of a PCI function, None if it is not known; `roots`
    has the NUMA nodes that the functions below a PCIe root name."""

    def __init__(
        self, nodes: Collection[int], function: Callable[[str], int | None], roots: Mapping[str, Collection[int]]
    ) -> None:
        self._nodes = frozenset(nodes)
        self._function = function
        self._roots = roots

    def of(self, device: Located) -> int | None:
        """Returns the device's NUMA node, None if it has none or it is unknown."""
        if device.numa_node in self._nodes:
            return device.numa_node
        own = self._function(device.pci_bus_id)
        if own is not None:
            return own
        below = [self._roots.get(root, ()) for root in device.pcie_roots]
        # A device near several roots, such as a CPU, is near a node only if all roots are.
        if below and all(below) and len(near := set[int]().union(*below)) == 1:
            return near.pop()
        return None
