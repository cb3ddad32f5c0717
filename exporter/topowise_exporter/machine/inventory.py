"""The hardware as plain immutable values.

The kernel's numbers are sparse: node ids have gaps and may be large, `core_id` repeats in every package, the L3 id is
neither dense nor always present. So no number here is an index. Cores and L3 caches are named by their lowest CPU, as
the kubelet names cores (pkg/kubelet/cm/cpumanager/topology, `getUniqueCoreID`), and the kernel's ids are kept beside
that name. A value that the kernel does not know stays as the kernel prints it: -1 for a package, die or core, `None`
where the entity does not exist.

NUMA nodes, cores and memory are those that the kubelet's cAdvisor computes from the same files, also where the hardware
differs (docs/development/machine.md).

All tuples and dicts ascend, so two scans of an unchanged machine are equal and print the same text.
"""

from __future__ import annotations

import msgspec


class Access(msgspec.Struct, frozen=True, gc=False):
    """Access to a node's memory from its nearest nodes, by the firmware's table (ACPI HMAT)."""

    initiators: tuple[int, ...]
    """The nodes with the best access."""
    read_latency_ns: int | None
    read_bandwidth_mib: int | None
    """MiB/s."""


class NumaNode(msgspec.Struct, frozen=True, gc=False):
    """An online NUMA node; a node may lack CPUs (CXL, HBM), memory or both."""

    id: int
    cpus: tuple[int, ...]
    """Online CPUs that the kubelet knows; of a CPU that several nodes list, only its owner has it."""
    memory_bytes: int
    """MemTotal, including hugepages, without the kernel image and memory that the firmware reserves; 0 if unknown."""
    hugepages: dict[int, int]
    """Page size in bytes -> pages (`nr_hugepages`, surplus pages included)."""
    distances: dict[int, int]
    """Node id -> distance in the unit of the ACPI SLIT (10 is local); empty if the row is missing or damaged."""
    sockets: tuple[int, ...]
    """Packages of the online CPUs."""
    access: Access | None = None
    """None: the firmware has no HMAT, or the kernel does not read it."""


class Cpu(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """An online logical CPU (a hardware thread)."""

    id: int
    node: int
    """The NUMA node that owns the CPU, -1 if no node lists it, or if the kubelet does not know the CPU."""
    socket: int
    die: int
    core: int
    """The lowest online CPU of the core: unique on the machine."""
    core_id: int
    """The kernel's number: unique in a package (or die) only."""
    threads: tuple[int, ...]
    """The online CPUs of the kubelet's core, including this CPU."""
    l3: tuple[int, ...] | None
    """The online CPUs that share the CPU's L3 ("uncore") cache; the lowest names the group. None: no L3."""
    l3_id: int | None
    """The kernel's id of that cache, as read from the first CPU of the group; None on older kernels."""
    uncore: int | None
    """The id of the cache by which the kubelet groups CPUs; None where it groups by socket."""
    kind: str
    """"core" or "atom" on a hybrid x86 machine, else ""."""


class PciFunction(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """A function on a PCI bus; class, vendor and device are the kernel's hexadecimal text ("0x8086")."""

    address: str
    """domain:bus:device.function; the domain has four or more hexadecimal digits."""
    numa_node: int | None
    """None: no affinity (-1), or the kernel does not report it."""
    class_code: str = msgspec.field(name="class")
    vendor: str
    device: str
    driver: str | None
    physfn: str | None
    """The physical function's address, for a virtual function."""
    path: tuple[str, ...] = ()
    """The bridges above the function, host bridge first ("pci0000:40", "0000:40:00.0"); empty if unknown."""

    @property
    def pcie_root(self) -> str | None:
        """The host bridge, "pci0000:40"."""
        return self.path[0] if self.path else None


class Machine(msgspec.Struct, frozen=True):
    """A whole machine; offline CPUs are in the sets only, because the kernel shows no topology for them."""

    nodes: tuple[NumaNode, ...]
    cpus: tuple[Cpu, ...]
    pci: tuple[PciFunction, ...]
    online: tuple[int, ...]
    present: tuple[int, ...]
    possible: tuple[int, ...]
    offline: tuple[int, ...]
    """The kernel's list: possible but not online, present or not."""
    isolated: tuple[int, ...]
    memory_bytes: int = 0
    """MemTotal of the machine."""
    pci_names: tuple[tuple[str, str], ...] = ()
    """(name, address): the driver's device name of a PCI function."""
    problems: tuple[str, ...] = ()
    """A line for each missing or damaged file: path, value, and what is used instead."""
