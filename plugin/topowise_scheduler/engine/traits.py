"""What nodes must have in common to be judged by the same arithmetic."""

from __future__ import annotations

from typing import NamedTuple

from topowise_scheduler.kubelet import Kubelet

Distances = tuple[tuple[int, ...], ...]


class Traits(NamedTuple):
    """The settings of a kubelet that decide how it counts; how much it has is no part of them.

    `distances` ranks masks with prefer-closest-numa-nodes and is None without it. `exact_shares` is the arithmetic of
    KEP-6007 that does not round.
    """

    zones: int
    policy: str
    scope: str
    cpu: bool
    memory: bool
    full_cores: bool
    by_socket: bool
    distributed: bool
    distances: Distances | None
    most_allocated: bool
    exact_shares: bool
    predicates: bool
    pod_level_resources: bool
    pod_level_managers: bool

    @classmethod
    def of(cls, kubelet: Kubelet) -> Traits:
        """Those of a node."""
        settings = kubelet.settings
        topology, cpu = settings.topology, settings.cpu
        ranked = topology.prefer_closest and topology.policy in ("restricted", "best-effort")
        voted = topology.prefer_most_allocated and topology.policy == "single-numa-node"
        return cls(
            len(kubelet.node_ids),
            topology.policy,
            topology.scope,
            cpu is not None,
            kubelet.memory is not None,
            cpu is not None and cpu.full_pcpus_only,
            cpu is not None and cpu.align_by_socket,
            cpu is not None and cpu.distribute_across_numa,
            kubelet.topology_manager.distances if ranked else None,
            voted,
            voted and not kubelet.integer_scores,
            kubelet.predicates,
            settings.pod_level_resources,
            settings.pod_level_resource_managers,
        )
