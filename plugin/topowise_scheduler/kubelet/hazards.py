"""Finds machines and configurations for which a kubelet panics, searches forever, or gives resources twice."""

from __future__ import annotations

from typing import Final, Literal, get_args

from topowise_scheduler.kubelet.node import Kubelet

Hazard = Literal["distances", "numa-ids", "page-sizes", "distributed-cpus", "shared-cpus", "reserved-memory"]
HAZARDS: Final[tuple[Hazard, ...]] = get_args(Hazard)


def hazards(node: Kubelet, *, knows_cores: bool = True) -> tuple[Hazard, ...]:
    """Returns the hazards of a node: three panics (panics.py), a search that may not end, and resources given twice.

    "shared-cpus": a core or a socket has more CPUs than the machine's average. The kubelet takes it as a whole if as
    many of its CPUs as the average are free, with its busy and reserved CPUs (takeFullCores, takeFullSockets). Reports
    of amounts do not tell the cores and sockets.
    "reserved-memory": reservedMemory exceeds the memory of a NUMA node, and the kubelet gives memory there without a
    limit (memory_tables.py).
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
        "shared-cpus": knows_cores and cpu is not None and not node.topology.is_even,
        "reserved-memory": memory is not None and bool(memory.wrapped),
    }
    return tuple([hazard for hazard in HAZARDS if present[hazard]])
