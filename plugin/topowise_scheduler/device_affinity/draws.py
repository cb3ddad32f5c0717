"""Whether a kubelet with room for a pod may refuse it all the same, by its own choice of devices.

Of devices that will all do the kubelet takes any, in the order of a hash table. Where some of them are near more NUMA
nodes than others, or lie on several that are taken together, one container of a pod may so be given what the next one
would need. Under the policies that refuse, with hints for each container, that is a TopologyAffinityError which nothing
foretells. The node still fits, for on a machine where no other does the pod would wait for ever; it only comes last.

Invariant: False is said only if the model, with each choice in turn, admits the pod in all states that are asked about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from topowise_scheduler.device_affinity.choices import Choices, Seen
from topowise_scheduler.device_affinity.plugins import Rule
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.pod import PodView


def may_refuse(
    states: Iterable[Kubelet], view: Callable[[Kubelet], PodView], shared: frozenset[str], rules: Mapping[str, Rule]
) -> bool:
    """`states` are what the node may be, each of which fits and is left as it is; `shared` the resources that more than
    one container of the pod asks for (PodRequests.shared_devices)."""
    for state in states:
        pod = view(state)
        if not _may_matter(state, pod, shared):
            continue
        choices = Choices(state, pod, frozenset(), Seen({}, {}, rules))
        if any(way is None for way in choices) or not choices.is_complete:
            return True
    return False


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
        if several or not table.of_one_node:
            return True
    return False
