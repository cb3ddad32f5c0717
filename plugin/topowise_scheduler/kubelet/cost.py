"""Estimates how long a kubelet takes to decide a pod on a machine with many NUMA nodes.

The managers try every mask of NUMA nodes. The topology manager tries every combination of a hint per resource:
255^4 with CPUs, memory, hugepages and a device on eight nodes. The model needs no combinations (topology_manager.py),
so it can estimate the kubelet's time beforehand. The times are orders of magnitude: 255^4 combinations were reported to
take 21 minutes (kubernetes#131738), and 2^34 masks not to end (kubernetes#135541).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Final, NamedTuple

from topowise.steering import RESOURCE as MARKER
from topowise_scheduler.kubelet.hints import Hint, Hints
from topowise_scheduler.kubelet.machine import is_memory
from topowise_scheduler.kubelet.masks import by_size
from topowise_scheduler.kubelet.node import Kubelet
from topowise_scheduler.kubelet.pod import ContainerView, PodView

_NANOSECONDS_A_COMBINATION: Final = 300
_NANOSECONDS_A_MASK: Final = 1000


# Up to this number of NUMA nodes every kubelet is quick, unless a pod requests many resources at once.
_QUICK_NODES: Final = 7


class Cost(NamedTuple):
    """What a kubelet tries to decide a pod: masks for hints, and combinations of hints."""

    masks: int = 0
    combinations: int = 0

    @property
    def seconds(self) -> float:
        """Returns the approximate duration."""
        return (self.masks * _NANOSECONDS_A_MASK + self.combinations * _NANOSECONDS_A_COMBINATION) / 1e9


def is_quick(kubelet: Kubelet) -> bool:
    """Returns whether the machine has too few NUMA nodes to need an estimate."""
    return len(kubelet.all_node_ids) <= _QUICK_NODES


def combinations(groups: Iterable[Hints], *, policy: str, nodes: int, beyond: Sequence[int] = ()) -> int:
    """Returns the number of combinations that a merge tries (HintMerger.Merge, iterateAllProviderTopologyHints).

    `nodes` is the number of NUMA nodes in the masks. A NUMA node that is not modelled nearly doubles the hints of a
    resource with masks over all nodes. `beyond` has the number of such nodes per group.
    """
    singles = by_size(nodes)[1]
    counts = []
    for number, group in enumerate(groups):
        if policy == "single-numa-node":
            # filterSingleNumaHints keeps only preferred hints of a single node.
            counts.append((group.preferred & singles).bit_count())
        else:
            # A resource without a hint counts as the hint "impossible".
            counts.append(max(1, group.fits.bit_count() << (beyond[number] if beyond else 0)))
    return prod(counts)


def estimate(kubelet: Kubelet, pod: PodView) -> Cost:
    """Returns the cost of this pod's admission in the current state, nothing with policy none. Changes nothing."""
    trial = kubelet.fork()
    left_out = len(kubelet.all_node_ids) - len(kubelet.node_ids)
    total = Cost()

    def observe(
        node: Kubelet, _container: ContainerView | None, groups: Sequence[tuple[str, Hints]], _hint: Hint
    ) -> None:
        nonlocal total
        beyond = [left_out if _covers_all_nodes(node, name) else 0 for name, _ in groups]
        combinations_of_merge = combinations(
            [hints for _, hints in groups],
            policy=node.settings.topology.policy,
            nodes=len(node.node_ids),
            beyond=beyond,
        )
        total = Cost(
            total.masks + _masks(node, [name for name, _ in groups]), total.combinations + combinations_of_merge
        )

    trial.admit_view(pod, observe)
    return total


def _covers_all_nodes(kubelet: Kubelet, resource: str) -> bool:
    """Returns whether a resource's hints are masks over all NUMA nodes of the machine."""
    if resource == "cpu":
        # generateCPUTopologyHints iterates over NUMA nodes with CPUs only, calculateHints over all nodes.
        return False
    if is_memory(resource):
        return True
    return not kubelet.settings.behaviour.device_hints_are_near_devices


def _masks(kubelet: Kubelet, resources: Sequence[str]) -> int:
    """Returns the number of masks that are tried: once per manager, and once per device resource."""
    all_nodes = len(kubelet.all_node_ids)
    widths = [kubelet.topology.nodes.bit_count()] if "cpu" in resources else []
    if any(map(is_memory, resources)):
        widths.append(all_nodes)
    for name in resources:
        if name != "cpu" and not is_memory(name):
            # The markers of a steered pod are near a single NUMA node, and not in reports.
            nodes_with_devices = 1 if name == MARKER else kubelet.devices.tables[name].nodes.bit_count()
            widths.append(all_nodes if _covers_all_nodes(kubelet, name) else nodes_with_devices)
    return sum((1 << width) - 1 for width in widths)
