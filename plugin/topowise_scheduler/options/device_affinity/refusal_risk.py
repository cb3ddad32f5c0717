"""Whether a kubelet with free resources for a pod may refuse the pod all the same, because of its choice of devices.

Among devices that satisfy the hint the kubelet takes any, in the order of a Go map. If some of them are near more NUMA
nodes than the rest, or a hint has several NUMA nodes, a container may get the devices that the next container
needs. Under the policies that refuse, with hints per container, the next container then fails with
TopologyAffinityError. The node still fits, because a pod without another node would wait for ever; nodes without this
risk only rank first.

Invariant: True only if the model refuses the pod under a possible choice. A few admissions are tried, so with
many choices a refusal can be overlooked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.pod import PodView
from topowise_scheduler.options.device_affinity.choices import Choices, KnownDevices
from topowise_scheduler.options.device_affinity.preferred_allocation import Rule

# Admissions per answer. Each takes about 0.1 ms on two NUMA nodes.
_MOST_RUNS: Final = 8


def may_refuse(node: Kubelet, pod: PodView, shared: frozenset[str], rules: Mapping[str, Rule]) -> bool:
    """Whether `node`, a state in which the pod fits, may refuse the pod. The state does not change.

    `shared` are the resources that several containers of the pod request (PodRequests.shared_devices).
    """
    if not _choice_matters(node, pod, shared):
        return False
    choices = Choices(node, pod, frozenset(), KnownDevices({}, {}, rules), most_runs=_MOST_RUNS)
    return any(allocation is None for allocation in choices)


def _choice_matters(node: Kubelet, pod: PodView, shared: frozenset[str]) -> bool:
    """Whether the devices that a hint allows can be near different NUMA nodes."""
    settings = node.settings.topology
    if settings.policy not in ("restricted", "single-numa-node") or settings.scope != "container":
        return False
    for resource in shared & node.devices.tables.keys():
        table = node.devices.tables[resource]
        if not table.has_topology:
            continue
        counts = [container.limits.get(resource, 0) for container in pod.containers]
        # A hint of `restricted` has several nodes only if a request exceeds the devices of every single node.
        is_wide = settings.policy == "restricted" and any(count and table.smallest_mask(count) > 1 for count in counts)
        # On a single NUMA node there is no affinity, so devices without a NUMA node are taken too.
        is_mixed = settings.policy == "single-numa-node" and len(node.node_ids) == 1
        if is_wide or not table.of_one_node or (is_mixed and table.healthy & ~table.with_nodes):
            return True
    return False
