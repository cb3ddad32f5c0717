"""The states in which a node may be while the placement of its newest pods is not known.

Between the decision of this service and the admission by the kubelet a pod may end, and the kubelet knows of the end
before the API server does. Then a pod may lie on another NUMA node than predicted, and the kubelet may refuse the next
pod. A new pod therefore only fits if it fits in every *possible placement*: each way in which uncertain pods may lie on
the NUMA nodes that could take them. The number of CPUs of such a pod may be unknown too: an app container takes CPUs of
init containers and other free CPUs alike (allocateCPUs).

Invariant: if the kubelet would refuse a pod in any way in which the uncertain pods may lie, it would refuse the pod in
a copy. If the copies are too many, a single copy is worse than all: each uncertain pod holds what it could hold on
every NUMA node at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, combinations, islice, product
from math import prod
from typing import Final, NamedTuple

from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.masks import Mask, mask_of
from topowise_scheduler.kubelet.pod import PodView
from topowise_scheduler.ledger.node.exact_placements import FAST, Effort, after_ends, in_each_order, only_ends_moved
from topowise_scheduler.ledger.node.pod_parts import (
    ZONES_DECIDE,
    Part,
    Way,
    free_of,
    has_choice_of_devices,
    has_wide_memory,
    is_possible,
    is_wide,
    lie_each_for_itself,
    parts_of,
    reserve,
    takes_the_fullest,
    together,
    ways_of_parts,
    with_way,
)

_ANYWHERE: Final[Mapping[str, int]] = {}


class Possible(NamedTuple):
    """The states in which a node may be: `node` is predicted, and `alternatives` are states by other orders of events.

    `uncertain` pods may lie on any NUMA node in each of these, and `highest` says how high. `moved` are pods that lie
    elsewhere in an alternative.
    """

    node: Kubelet
    uncertain: Sequence[PodView] = ()
    highest: Mapping[str, int] = _ANYWHERE
    alternatives: Sequence[Kubelet] = ()
    moved: Sequence[PodView] = ()

    @property
    def is_sure(self) -> bool:
        """Returns whether the node is as predicted."""
        return not (self.uncertain or self.alternatives)

    @property
    def doubted(self) -> tuple[frozenset[str], int]:
        """Returns the UIDs of the pods that may lie anywhere, and the number of other states."""
        return frozenset([pod.uid for pod in self.uncertain]), len(self.alternatives)

    def states(self, effort: Effort = FAST) -> list[Kubelet]:
        """Returns copies of the node in every state but the predicted state."""
        if not self.alternatives:
            return possible_placements(self.node, self.uncertain, self.highest, effort)
        if not self.uncertain:
            return [state.fork() for state in self.alternatives]
        states = (self.node, *self.alternatives)
        ways = [possible_placements(state, self.uncertain, self.highest, effort) for state in states]
        if sum(map(len, ways)) > effort.copies:
            ways = [
                possible_placements(state, self.uncertain, self.highest, effort._replace(copies=1)) for state in states
            ]
        return list(chain.from_iterable(ways))


def possible_placements(
    node: Kubelet, uncertain: Sequence[PodView], highest: Mapping[str, int] = _ANYWHERE, effort: Effort = FAST
) -> list[Kubelet]:
    """Returns copies of the node for the ways in which the uncertain pods may lie. Requests are equal in all copies.

    `highest` is the highest position by UID if only ends can have come in between, the number of positions if the
    prediction bounds no position. Alike pods then lie there or lower: the kubelet takes the lowest NUMA node that suits
    (of equally narrow hints the hint with the lower bits: topologymanager/policy.go, compareHints), and after an end
    more NUMA nodes suit, never fewer.
    """
    if not uncertain:
        return []
    base = node.without([pod.uid for pod in uncertain])
    is_grouped = _may_lie_in_groups(node, uncertain, highest)
    copies = None
    if effort.is_exact and only_ends_moved(node, uncertain, highest):
        if node.settings.topology.policy in ZONES_DECIDE:
            copies = in_each_order(base, node, uncertain, effort)
        elif len(uncertain) == 1:
            copies = after_ends(base, node, uncertain[0], effort)
    # By best-effort memory follows hints that are not preferred to any NUMA nodes.
    is_best_effort = node.settings.topology.policy == "best-effort"
    is_unknown = is_grouped and is_best_effort and not _lie_singly(node, uncertain, highest)
    if copies is None and not is_unknown:
        choices = _choices(node, uncertain, highest, effort)
        copies = None if choices is None else _copies(base, node, choices, effort)
    if copies is not None:
        return copies
    worst = _at_worst(node, uncertain)
    return [_without_memory(worst) if is_grouped else worst]


def _copies(base: Kubelet, node: Kubelet, choices: Iterable[Sequence[Way]], effort: Effort) -> list[Kubelet] | None:
    """Returns the distinct copies of the base for all combinations of the choices, None if they are too many.

    Pods of the same size on each other's NUMA nodes leave equal copies, and so do NUMA nodes without free resources.
    """
    copies, trials = [base.fork()], 0
    for ways in choices:
        following: dict[object, Kubelet] = {}
        trials += len(copies) * len(ways)
        if trials > effort.trials:
            return None
        for before, way in product(copies, ways):
            copy = with_way(before, node, way)
            following.setdefault(free_of(copy), copy)
            if len(following) > effort.copies:
                return None
        copies = list(following.values())
    return copies


def _choices(
    node: Kubelet, uncertain: Sequence[PodView], highest: Mapping[str, int], effort: Effort
) -> list[Sequence[Way]] | None:
    """Returns for each part of the pods, or pod of parts that depend on each other, where it may lie; None if that is
    not known."""
    parts_by_pod = [[part for part in parts_of(node, pod) if part] for pod in uncertain]
    only_ends = (
        all(pod.uid in highest for pod in uncertain)
        and all(_had_its_wish(node, pod) for pod in uncertain)
        and all(parts == parts_by_pod[0] for parts in parts_by_pod[1:])
    )
    # Ends may also leave a NUMA node the fullest on which other pods have something.
    fuller = _in_use(node.without([pod.uid for pod in uncertain])) if only_ends and takes_the_fullest(node) else 0
    choices: list[Sequence[Way]] = []
    for pod, parts in zip(uncertain, parts_by_pod, strict=True):
        if has_choice_of_devices(node, pod):
            return None
        if not lie_each_for_itself(parts):
            ways = ways_of_parts(parts, node, len(node.node_ids) - 1, effort.trials)
            if not ways:
                return None
            choices.append(ways)
            continue
        # After ends alone the pod lies on the predicted NUMA node or on a lower NUMA node.
        count = highest[pod.uid] + 1 if only_ends else len(node.node_ids)
        for part in parts:
            masks = [
                1 << position
                for position in range(len(node.node_ids))
                if (position < count or fuller >> position & 1) and is_possible(part, node, position)
            ]
            if is_wide(part, node):
                is_bounded = only_ends and len(parts) == 1 and highest[pod.uid] < len(node.node_ids)
                masks = _wide_masks(part, node, pod if is_bounded else None)
                if not masks:
                    return None
            if not part.has_place:
                del masks[1:]
            # Nothing for a part that fits nowhere on the empty node: its pod was refused.
            choices.append([((mask, part),) for mask in masks] or [()])
    # Where zones do not decide, memory of unlike pods may also lie over several NUMA nodes. Many pods are most likely
    # to find no single NUMA node.
    is_narrow = only_ends or node.settings.topology.policy in ZONES_DECIDE
    return choices if is_narrow or prod(map(len, choices)) <= FAST.copies else None


def _in_use(node: Kubelet) -> Mask:
    """Returns the NUMA nodes on which pods have CPUs or memory of their own."""
    positions = range(len(node.node_ids))
    mask = mask_of([at for at in positions if node.cpu is not None and node.cpu.exclusive_cpus(at)[0]])
    tables = None if node.memory is None else node.memory.tables
    return mask | mask_of([at for at in positions if tables is not None and tables.assignments[at]])


def _wide_masks(part: Part, node: Kubelet, predicted: PodView | None) -> list[Mask]:
    """Returns the NUMA nodes together that may have a wide part, none if they are too many.

    `predicted` is the pod of the part if only ends can have come in between. The kubelet prefers few NUMA nodes, then
    low positions, and an end takes no choice away: a preferred hint is of CPUs, devices and memory alike. By policy
    none a pod may also lie on more NUMA nodes than necessary.
    """
    count = len(node.node_ids)
    size = next(size for size in range(2, count + 1) if any(_masks_of_size(part, node, size)))
    blocks = {} if node.memory is None or predicted is None else node.memory.allocations.get(predicted.uid, {})
    # A single part has one mask.
    last = next((block.mask for of_container in blocks.values() for block in of_container), 0)
    is_bounded = last.bit_count() == size and not node.settings.topology.prefer_closest
    sizes = [size] if is_bounded or node.settings.topology.policy != "none" else range(size, count + 1)
    masks = (mask for size in sizes for mask in _masks_of_size(part, node, size) if not is_bounded or mask <= last)
    few = list(islice(masks, FAST.copies + 1))
    return few if len(few) <= FAST.copies else []


def _masks_of_size(part: Part, node: Kubelet, size: int) -> Iterator[Mask]:
    for positions in combinations(range(len(node.node_ids)), size):
        if is_possible(part, node, *positions):
            yield mask_of(positions)


def _may_lie_in_groups(node: Kubelet, uncertain: Sequence[PodView], highest: Mapping[str, int]) -> bool:
    """Returns whether memory of these pods may lie over several NUMA nodes, or beside such memory.

    The NUMA nodes may differ from the prediction. The kubelet refuses a container that gets some of both ("violates
    NUMA node allocation") or finds nothing beside its hint.
    """
    policy = node.settings.topology.policy
    if node.memory is None or policy == "single-numa-node":
        return False
    are_wide = any(_may_be_wide(node, pod, only_ends=pod.uid in highest) for pod in uncertain)
    if not are_wide and policy != "best-effort":
        return False
    base = node.without([pod.uid for pod in uncertain])
    assert base.memory is not None
    tables = base.memory.tables
    return any(cells.bit_count() > 1 for cells in tables.cells) or (are_wide and tables.assignments.count(0) > 1)


def _may_be_wide(node: Kubelet, pod: PodView, *, only_ends: bool) -> bool:
    """Returns whether the pod's memory may lie over several NUMA nodes. By best-effort the memory follows CPUs and
    devices; but a pod that fits on a single NUMA node also fits there after ends of other pods (`only_ends`)."""
    if has_wide_memory(node, pod.uid):
        return True
    amounts = (
        [pod.memory] if node.settings.topology.scope == "pod" else [container.memory for container in pod.containers]
    )
    # Memory over several NUMA nodes forms a group, which later pods cannot share (memorymanager/policy_static.go).
    if any(is_wide(Part(0, amount, {}), node) for amount in amounts if amount):
        return True
    if node.settings.topology.policy != "best-effort":
        return False
    return any(amounts) and not (only_ends and _had_its_wish(node, pod))


def _lie_singly(node: Kubelet, uncertain: Sequence[PodView], highest: Mapping[str, int]) -> bool:
    """Returns whether each pod lies on a single NUMA node, whatever pods have ended before.

    Alike pods leave a NUMA node for each of them: an end takes none away, and each pod takes one.
    """
    return (
        all(pod.containers == uncertain[0].containers for pod in uncertain)
        and (len(uncertain[0].containers) == 1 or node.settings.topology.scope == "pod")
        and only_ends_moved(node, uncertain, highest)
        and not any(_may_be_wide(node, pod, only_ends=True) for pod in uncertain)
    )


def _had_its_wish(node: Kubelet, pod: PodView) -> bool:
    """Returns whether the pod has a preferred hint, as every pod has that other policies admit. Best-effort may later
    find a preferred hint on a higher NUMA node."""
    if node.settings.topology.policy != "best-effort":
        return True
    return pod.uid in node.active and all(placement.preferred for placement in node.placements(pod.uid).values())


def _without_memory(node: Kubelet) -> Kubelet:
    """Returns the node without free memory."""
    assert node.memory is not None
    for name, values in node.memory.tables.free.items():
        node.memory.tables.free[name] = [0] * len(values)
    return node


def _at_worst(node: Kubelet, uncertain: Iterable[PodView]) -> Kubelet:
    """Returns a copy of the node in which each of these pods also holds what it might hold elsewhere."""
    copy = node.fork()
    for pod in uncertain:
        parts = [part for part in parts_of(node, pod) if part]
        predicted = tuple(node.placements(pod.uid).values()) if pod.uid in node.active else ()
        anywhere = sum(part.from_anywhere for part in parts)
        if anywhere:
            reserve(copy, node, 0, Part(0, {}, {}, from_anywhere=anywhere), predicted)
        # Every NUMA node at once is more than the pod can have, so this state refuses at least as much.
        for position in range(len(node.node_ids)):
            part = together(parts, node, position)
            if part:
                reserve(copy, node, position, part, predicted)
    return copy
