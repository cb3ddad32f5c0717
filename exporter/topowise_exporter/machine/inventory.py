"""What the exporter knows about the hardware, as plain immutable values.

The kernel numbers everything sparsely: node ids have gaps and may be large, `core_id` repeats in every package, the L3
id is neither dense nor always there. So nothing here is an index. Cores and L3 caches are named by their lowest CPU, as
the kubelet names cores (pkg/kubelet/cm/cpumanager/topology, `getUniqueCoreID`), and raw ids are kept beside that name.
What the kernel does not know stays as it prints it: -1 for a package, die or core, `None` where there is no such thing.

All tuples and dicts are in ascending order, so two scans of an unchanged machine are equal and print alike.
"""

from __future__ import annotations

import msgspec


class Access(msgspec.Struct, frozen=True, gc=False):
    """How the nodes nearest to a node's memory reach it, by the firmware's table (ACPI HMAT)."""

    initiators: tuple[int, ...]
    """The nodes from which it is reached best."""
    read_latency_ns: int | None
    read_bandwidth_mib: int | None
    """MiB/s."""


class NumaNode(msgspec.Struct, frozen=True, gc=False):
    """One online NUMA node; without CPUs (CXL, HBM), without memory or without both it is still a node."""

    id: int
    cpus: tuple[int, ...]
    """Online CPUs; a CPU that several nodes list is listed by its owner alone."""
    cpus_present: tuple[int, ...]
    """Online and offline CPUs that are plugged in."""
    memory_bytes: int
    """MemTotal, hugepages included; the kernel image and the firmware have already taken their part."""
    hugepages: dict[int, int]
    """Page size in bytes -> pages (`nr_hugepages`, surplus pages included)."""
    hugepages_free: dict[int, int]
    hugepages_surplus: dict[int, int]
    distances: dict[int, int]
    """Node id -> distance in the unit of the ACPI SLIT (10 is local); empty if the kernel's row is damaged."""
    sockets: tuple[int, ...]
    """Packages of the online CPUs."""
    access: Access | None = None
    """None: the firmware has no such table, or the kernel does not read it."""


class Cpu(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """One online logical CPU (a hardware thread)."""

    id: int
    node: int
    """The NUMA node that owns it, -1 if no node names it."""
    socket: int
    die: int
    core: int
    """The lowest online CPU of the core: unique on the machine."""
    core_id: int
    """The kernel's number: unique in a package (or die) only."""
    threads: tuple[int, ...]
    """The online CPUs of the core, this one included."""
    l3: tuple[int, ...] | None
    """The online CPUs that share its L3 ("uncore") cache; their lowest names the group. None: no L3."""
    l3_id: int | None
    """The id the kernel gives that cache, by the CPU that was asked; None on older kernels."""
    kind: str
    """"core" or "atom" on a hybrid x86 machine, else ""."""


class PciFunction(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """One function on a PCI bus; class, vendor and device are the kernel's hexadecimal text ("0x8086")."""

    address: str
    """domain:bus:device.function; the domain has four or more hexadecimal digits."""
    numa_node: int | None
    """None: no affinity (-1), or the kernel does not say."""
    class_code: str
    vendor: str
    device: str
    driver: str | None
    physfn: str | None
    """Of a virtual function, the physical function's address."""
    virtfns: int
    """Virtual functions enabled on this physical function."""
    path: tuple[str, ...] = ()
    """All that is above it, host bridge first ("pci0000:40", "0000:40:00.0"); empty if that is not known."""

    @property
    def pcie_root(self) -> str | None:
        """The host bridge, "pci0000:40"."""
        return self.path[0] if self.path else None


class Machine(msgspec.Struct, frozen=True):
    """A whole machine; offline CPUs are in the sets only, as the kernel shows no topology for them."""

    nodes: tuple[NumaNode, ...]
    cpus: tuple[Cpu, ...]
    pci: tuple[PciFunction, ...]
    online: tuple[int, ...]
    present: tuple[int, ...]
    possible: tuple[int, ...]
    offline: tuple[int, ...]
    """As the kernel says it: possible but not online, plugged in or not."""
    isolated: tuple[int, ...]
    pci_names: tuple[tuple[str, str], ...] = ()
    """(name, address): what the drivers of PCI functions call them."""
    problems: tuple[str, ...] = ()
    """One line for each thing that was missing or damaged: path, value, and what is done instead."""
