"""Which CPUs: takeByTopology of the static CPU manager (pkg/kubelet/cm/cpumanager/cpu_assignment.go).

Packed by default (cpu_packing.py), even over NUMA nodes with distribute-cpus-across-numa (cpu_distribution.py).
"""

from __future__ import annotations

from topowise_scheduler.kubelet.configuration import CpuSettings
from topowise_scheduler.kubelet.cpu_distribution import take_distributed
from topowise_scheduler.kubelet.cpu_packing import take_packed
from topowise_scheduler.kubelet.cpu_topology import CpuSet, CpuTopology


def take_by_topology(topology: CpuTopology, available: CpuSet, count: int, options: CpuSettings) -> CpuSet:
    """`count` of the available CPUs under the policy options. Raises Refused."""
    if options.distribute_across_numa:
        group = topology.cpus_per_core if options.full_pcpus_only else 1
        return take_distributed(topology, available, count, group, options.distribute_across_cores)
    return take_packed(
        topology,
        available,
        count,
        spread=options.distribute_across_cores,
        by_uncore=options.align_by_uncore,
    )
