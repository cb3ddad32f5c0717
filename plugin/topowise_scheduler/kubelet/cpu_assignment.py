"""Chooses CPUs: takeByTopology of the static CPU manager (pkg/kubelet/cm/cpumanager/cpu_assignment.go).

Packed by default (cpu_packing.py); evenly over NUMA nodes with distribute-cpus-across-numa (cpu_distribution.py).
"""

from __future__ import annotations

from topowise_scheduler.kubelet.behaviour import Behaviour
from topowise_scheduler.kubelet.configuration import CpuSettings
from topowise_scheduler.kubelet.cpu_distribution import CpuDistribution
from topowise_scheduler.kubelet.cpu_packing import Packing, take_packed
from topowise_scheduler.kubelet.cpu_topology import CpuSet, CpuTopology


class Assignment:
    """Chooses CPUs on a machine under its policy options."""

    __slots__ = ("_distribution", "_packing", "_topology")

    def __init__(self, topology: CpuTopology, options: CpuSettings, behaviour: Behaviour) -> None:
        self._topology = topology
        self._packing = Packing(
            spread=options.distribute_across_cores,
            core_by_core=behaviour.spread_goes_core_by_core,
            # takeByTopologyNUMADistributed passes preferAlignByUncoreCache=false to the packing.
            by_uncore=options.align_by_uncore and not options.distribute_across_numa,
            rounds_up=behaviour.uncore_rounds_cores_up,
            tells_amounts=behaviour.cpu_refusals_tell_amounts,
        )
        self._distribution: CpuDistribution | None = None
        if options.distribute_across_numa:
            self._distribution = CpuDistribution(
                topology,
                self._packing,
                group=topology.cpus_per_core if options.full_pcpus_only else 1,
                in_one_socket=options.align_by_socket and behaviour.distribution_prefers_one_socket,
                by_hint=behaviour.hint_width_is_least,
                whole_groups=behaviour.remainder_counts_whole_groups,
                copies=behaviour.combinations_are_copied,
            )

    def take(self, available: CpuSet, count: int, width: int = 0) -> CpuSet:
        """Returns `count` of the available CPUs; `width` is the number of NUMA nodes in the hint. Raises Refused."""
        if self._distribution is not None:
            return self._distribution.take(available, count, width)
        return take_packed(self._topology, available, count, self._packing)
