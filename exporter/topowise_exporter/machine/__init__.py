"""The machine as its kernel describes it: NUMA nodes, CPUs, memory, hugepages and PCI functions."""

from topowise_exporter.machine.model import Access, Cpu, Machine, NumaNode, PciFunction
from topowise_exporter.machine.report import report
from topowise_exporter.machine.scan import read_boot_id, scan

__all__ = ["Access", "Cpu", "Machine", "NumaNode", "PciFunction", "read_boot_id", "report", "scan"]
