"""The machine as the kernel describes it: NUMA nodes, CPUs, memory, hugepages and PCI functions."""

from topowise_exporter.machine.inventory import Access, Cpu, Machine, NumaNode, PciFunction
from topowise_exporter.machine.scan import as_json, read_boot_id, scan

__all__ = ["Access", "Cpu", "Machine", "NumaNode", "PciFunction", "as_json", "read_boot_id", "scan"]
