"""Finds combinations of machine and configuration for which a kubelet panics, hangs, or gives memory that it lacks."""

from __future__ import annotations

from typing import Final, Literal

from topowise_scheduler.kubelet.node import Kubelet

Hazard = Literal["distances", "numa-ids", "page-sizes", "distributed-cpus", "reserved-memory"]
HAZARDS: Final[tuple[Hazard, ...]] = ("distances", "numa-ids", "page-sizes", "distributed-cpus", "reserved-memory")


def hazards(node: Kubelet) -> tuple[Hazard, ...]:
    """Returns the hazards of a node.

    The first three are panics (panics.py), the fourth is a search that may not end. `reserved-memory`: reservedMemory
    exceeds the memory of a NUMA node, and the kubelet gives memory there without a limit (memory_tables.py).
    """
    memory = None if node.memory is None else node.memory.policy
    cpu, behaviour = node.settings.cpu, node.settings.behaviour
    present: dict[Hazard, bool] = {
        "distances": node.topology_manager.unmeasured != 0,
        "numa-ids": node.topology_manager.is_beyond_masks or (memory is not None and memory.is_beyond_masks),
        "page-sizes": memory is not None and bool(memory.lacking),
        "distributed-cpus": cpu is not None
        and cpu.full_pcpus_only
        and cpu.distribute_across_numa
        and not behaviour.remainder_counts_whole_groups,
        "reserved-memory": memory is not None and bool(memory.wrapped),
    }
    return tuple([hazard for hazard in HAZARDS if present[hazard]])
