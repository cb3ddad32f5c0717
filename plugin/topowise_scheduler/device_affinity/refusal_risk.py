"""Whether a kubelet with room for a pod may refuse it all the same, by its own choice of devices.

Of devices that will all do the kubelet takes any, in the order of a hash table. Where some of them are near more NUMA
nodes than others, or lie on several that are taken together, one container of a pod may so be given what the next one
would need. Under the policies that refuse, with hints for each container, that is a TopologyAffinityError which nothing
foretells. The node still fits, for where no other does the pod would wait for ever; sure ones only come first.

Invariant: True is said only of a choice with which the model refuses the pod. What it costs is bounded by a few
admissions, so with very many choices one may be overlooked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from topowise_scheduler.device_affinity.choices import Choices, Seen
from topowise_scheduler.device_affinity.preferred_allocation import Rule
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.pod import PodView

# Admissions that are tried for one answer, about a tenth of a millisecond each on two NUMA nodes.
_MOST_RUNS: Final = 8


def may_refuse(node: Kubelet, pod: PodView, shared: frozenset[str], rules: Mapping[str, Rule]) -> bool:
    """`node` is a state in which the pod fits, and is left as it is; `shared` the resources that more than one
    container of the pod asks for (PodRequests.shared_devices)."""
    if not _may_matter(node, pod, shared):
        return False
    return any(way is None for way in Choices(node, pod, frozenset(), Seen({}, {}, rules), most_runs=_MOST_RUNS))


def _may_matter(node: Kubelet, pod: PodView, shared: frozenset[str]) -> bool:
    """Whether the devices that a hint allows need not all be near the same NUMA nodes."""
    settings = node.settings.topology
    if settings.policy not in ("restricted", "single-numa-node") or settings.scope != "container":
        return False
    for resource in shared & node.devices.tables.keys():
        table = node.devices.tables[resource]
        if not table.has_topology:
            continue
        counts = [one.limits.get(resource, 0) for one in pod.containers]
        # A hint of `restricted` has several nodes only where a request is larger than what is near any one.
        several = settings.policy == "restricted" and any(count and table.smallest_mask(count) > 1 for count in counts)
        # The only NUMA node is no affinity at all, under which devices without one are taken too.
        without = settings.policy == "single-numa-node" and len(node.node_ids) == 1
        if several or not table.of_one_node or (without and table.healthy & ~table.with_nodes):
            return True
    return False
