"""Finds combinations of machine and configuration for which a pod can make the kubelet panic or search forever."""

from __future__ import annotations

from typing import Final, Literal

from topowise_scheduler.kubelet.node import Kubelet

Hazard = Literal["distances", "numa-ids", "page-sizes", "distributed-cpus"]
HAZARDS: Final[tuple[Hazard, ...]] = ("distances", "numa-ids", "page-sizes", "distributed-cpus")


def hazards(node: Kubelet) -> tuple[Hazard, ...]:
    """Returns the hazards of a node: the first three are panics (panics.py), the last is a search that may not end."""
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
    }
    return tuple([hazard for hazard in HAZARDS if present[hazard]])
