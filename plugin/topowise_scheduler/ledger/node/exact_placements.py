"""Where pods may lie if only ends of other pods can have come before their admissions: the model places them.

Invariant: the kubelet is in the state of a copy, but for ends that came later. Such ends only free resources. None
instead of copies means that a search is too long, or that something unknown may have come in between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Final, NamedTuple

from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.pod import PodView, device_requests, finished
from topowise_scheduler.kubelet.trial import trial
from topowise_scheduler.ledger.node.pod_parts import (
    free_of,
    has_choice_of_devices,
    is_wide,
    parts_of,
    position_of,
    takes_the_fullest,
    ways_of_parts,
    with_way,
)


class Effort(NamedTuple):
    """The limits of a search for possible placements: copies of the node that are returned, copies that are made, and
    sets of ended pods that are tried. If a search exceeds its limits, a single copy is worse than all."""

    copies: int
    trials: int
    ends: int = 0

    @property
    def is_exact(self) -> bool:
        """Returns whether the model decides where each pod may lie, and not its amounts alone."""
        return self.ends > 0


FAST: Final = Effort(16, 64)
"""For each change of a node."""
EXACT: Final = Effort(64, 512, 128)
"""For a pod that has to wait otherwise."""


# An admission costs about as much as so many copies.
_COPIES_OF_ADMISSION: Final = 4


def only_ends_moved(node: Kubelet, uncertain: Sequence[PodView], highest: Mapping[str, int]) -> bool:
    """Returns whether the uncertain pods lie where the kubelet puts them after ends of other pods, in some order."""
    last = len(node.node_ids)
    return all(highest.get(pod.uid, last) < last and not has_choice_of_devices(node, pod) for pod in uncertain)


def in_each_order(base: Kubelet, node: Kubelet, pods: Sequence[PodView], effort: Effort) -> list[Kubelet] | None:
    """Returns the distinct copies of the base after pods whose admissions only ends can have preceded, None if they are
    too many.

    In each order each pod lies on the NUMA node that the model gives, beside the pods before it, or on a lower NUMA
    node: ends of other pods leave more room there than the copy has.
    """
    if any(is_wide(part, node) for pod in pods for part in parts_of(node, pod)) or takes_the_fullest(node):
        return None
    kinds: list[list[PodView]] = []
    for pod in pods:
        alike = next((kind for kind in kinds if [*parts_of(node, kind[0])] == [*parts_of(node, pod)]), None)
        kinds.append([pod]) if alike is None else alike.append(pod)
    # By the number of pods of each kind that have come.
    states: dict[tuple[int, ...], dict[object, Kubelet]] = {(0,) * len(kinds): {None: base}}
    trials = 0
    for _ in pods:
        following: dict[tuple[int, ...], dict[object, Kubelet]] = {}
        for come, before in states.items():
            for at, kind in enumerate(kinds):
                if come[at] == len(kind):
                    continue
                after = following.setdefault((*come[:at], come[at] + 1, *come[at + 1 :]), {})
                for state in before.values():
                    parts = [part for part in parts_of(node, kind[0]) if part]
                    ways = ways_of_parts(parts, node, _position_in(state, kind[0]), effort.trials)
                    trials += len(ways) + _COPIES_OF_ADMISSION
                    if not ways or trials > effort.trials:
                        return None
                    for way in ways:
                        copy = with_way(state, node, way)
                        after.setdefault(free_of(copy), copy)
                if len(after) > effort.copies:
                    return None
        states = following
    return [copy.fork() if copy is base else copy for after in states.values() for copy in after.values()]


def after_ends(base: Kubelet, node: Kubelet, pod: PodView, effort: Effort) -> list[Kubelet] | None:
    """Returns copies of the base after a pod whose admission only ends can have preceded, None if they are too many.

    Each set of pods that may have ended is tried. A set does not count if the pod lies where it lies after a part of
    these ends: the other ends may as well come after its admission, and take nothing away.
    """
    ending = [uid for uid in base.active if _holds(base, uid)]
    if 1 << len(ending) > effort.ends or any(_holds_init_memory(base, uid) for uid in ending):
        return None
    if base.memory is not None and base.memory.has_unlisted:
        return None
    # By best-effort the choice of devices may decide the hints of later pods, and the kubelet chooses by chance.
    if node.settings.topology.policy != "none" and any(device_requests(pod, name) for name in node.devices.tables):
        return None
    found: list[tuple[object, frozenset[str], Kubelet]] = []
    for count in range(len(ending) + 1):
        for ended in combinations(ending, count):
            state = base.without(ended)
            state.admit_view(pod)
            gone, place = frozenset(ended), _place_of(state, pod.uid)
            if any(place == known and earlier <= gone for known, earlier, _ in found):
                continue
            state.requested = node.requested.copy()
            found.append((place, gone, state))
            if len(found) > effort.copies:
                return None
    return [state for _, _, state in found]


def _position_in(state: Kubelet, pod: PodView) -> int:
    """Returns the highest position that the model gives a pod in this state, the last position if it refuses the pod or
    later containers compete with earlier containers for a NUMA node."""
    admission, after = trial(state, pod)
    last = len(state.node_ids) - 1
    if not admission.admitted:
        return last
    placements = after.placements(pod.uid)
    if any(container.kind != "init" for container in pod.containers[:-1]):
        return position_of(after, placements)
    positions = [state.node_ids.index(zone) for placed in placements.values() for zone in placed.numa or ()]
    return max(positions, default=last)


def _holds(node: Kubelet, uid: str) -> bool:
    """Returns whether an active pod has CPUs, memory or devices of its own."""
    managers = (node.cpu, node.memory, node.devices)
    return any(manager is not None and manager.allocations.get(uid) for manager in managers)


def _holds_init_memory(node: Kubelet, uid: str) -> bool:
    """Returns whether a pod has memory of init containers, whose release no event reports."""
    view = node.active[uid].pod
    if node.memory is None or view is None:
        return False
    return not node.memory.allocations.get(uid, {}).keys().isdisjoint(finished(view, None))


def _place_of(node: Kubelet, uid: str) -> object:
    """Returns the NUMA nodes on which an active pod has CPUs, memory and devices, None if it was refused."""
    if uid not in node.active:
        return None
    return [
        (
            [(cpus & (placement.cpus or 0)).bit_count() for cpus in node.topology.numa_cpus],
            placement.memory,
            placement.devices,
        )
        for placement in node.placements(uid).values()
    ]
