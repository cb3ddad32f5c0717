"""The memory manager: memory and hugepages of Guaranteed pods (pkg/kubelet/cm/memorymanager/policy_static.go).

A node has single-node allocations or belongs to a *group* of nodes, never both; `cells` names the group. The rules
have gaps: a narrower hint may select a grouped node, and a release returns memory to the lowest node first, whichever
node provided it. The model keeps the consequences: even a refused pod can leave a group's tables changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import chain
from typing import NamedTuple

from topowise.pods import Amounts
from topowise_scheduler.kubelet import panics
from topowise_scheduler.kubelet.hints import EMPTY_POOL, IMPOSSIBLE, Hint, Hints, ProviderHints, Refused
from topowise_scheduler.kubelet.masks import Mask, MaskSet, by_size, masks_in, members, reaching
from topowise_scheduler.kubelet.memory_tables import MemoryPolicy, MemoryTables
from topowise_scheduler.kubelet.pod import NOT_WHOLE, ContainerView, PodView
from topowise_scheduler.kubelet.shared_allocations import with_container

NO_DEFAULT = "[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available"
NO_DEFAULT_PREFERRED = "[memorymanager] failed to find the default preferred hint"
NO_EXTENSION = "[memorymanager] failed to find NUMA nodes to extend the current topology hint"
NO_EXTENSION_PREFERRED = "[memorymanager] failed to find the extended preferred hint"
VIOLATES_GROUP = "[memorymanager] preferred hint violates NUMA node allocation"


class Block(NamedTuple):
    """Memory of a type on the nodes of a mask (state.Block)."""

    type: str
    mask: Mask
    size: int


Blocks = tuple[Block, ...]


class MemoryManager:
    """The state of policy Static: the tables per node, and the blocks of every container by pod UID and name."""

    __slots__ = ("_reusable", "allocations", "bubbles", "policy", "tables")

    def __init__(self, policy: MemoryPolicy) -> None:
        self.policy = policy
        self.tables = MemoryTables(policy)
        self.allocations: dict[str, dict[str, Blocks]] = {}
        self.bubbles: dict[str, Blocks] = {}
        self._reusable: dict[Mask, Amounts] = {}

    def fork(self) -> MemoryManager:
        """Returns an independent copy of the state."""
        copy = MemoryManager.__new__(MemoryManager)
        copy.policy = self.policy
        copy.tables = self.tables.fork()
        copy.allocations = self.allocations.copy()
        copy.bubbles = self.bubbles.copy()
        copy._reusable = {}
        return copy

    def begin(self) -> None:
        """Starts an admission: nothing can be reused yet (initContainersReusableMemory)."""
        self._reusable = {}

    def hints(self, pod: PodView, container: ContainerView) -> ProviderHints:
        """Returns the hints for a container (GetTopologyHints)."""
        if not pod.pinned or container.memory is None:
            return {}
        blocks = self.allocations.get(pod.uid, {}).get(container.name)
        if blocks is not None:
            return _hints_again(blocks, container.memory)
        return self._hints(container.memory)

    def pod_hints(self, pod: PodView) -> ProviderHints:
        """Returns the hints for the pod as a whole (GetPodTopologyHints)."""
        if not pod.pinned or not pod.memory:
            return {}
        if pod.by_pod_level and _empty_pool(pod, pod.memory):
            # An empty list of hints for each type, as upstream returns.
            return dict.fromkeys(pod.memory, IMPOSSIBLE)
        by_container = self.allocations.get(pod.uid, {})
        for container in pod.containers:
            if container.name in by_container:
                # Upstream compares the first container's blocks with the request of the whole pod.
                return _hints_again(by_container[container.name], pod.memory)
        return self._hints(pod.memory)

    def allocate(self, pod: PodView, container: ContainerView, hint: Hint) -> None:
        """Allocates for a container. Raises Refused."""
        if not pod.pinned:
            return
        by_container = self.allocations.get(pod.uid, {})
        blocks = by_container.get(container.name)
        if blocks is None:
            if container.memory is None:
                raise Refused(NOT_WHOLE)
            mask = self._settle(container.memory, hint)
            blocks = tuple([Block(name, mask, size) for name, size in container.memory.items()])
            reusable = self._reusable.get(mask, {})
            for name, mask, size in blocks:
                # Also for size 0: updateMachineState counts the assignment and sets the group in any case.
                self.tables.take(name, mask, max(0, size - reusable.get(name, 0)))
            self._update_reusable(container, blocks)
            self.allocations[pod.uid] = with_container(
                _shrunk(pod, container, by_container, blocks) if by_container else None, container.name, blocks
            )
        else:
            self._update_reusable(container, blocks)

    def allocate_pod(self, pod: PodView, hint: Hint) -> None:
        """AllocatePod (KEP-5526): books the pod's total; the containers' blocks are shares of it. Raises Refused."""
        if not pod.pinned or pod.memory is None:
            return
        problem = _empty_pool(pod, pod.memory)
        if problem:
            raise Refused(problem, EMPTY_POOL)
        if any(container.memory is None for container in pod.containers):
            raise Refused(NOT_WHOLE)
        mask = self._settle(pod.memory, hint)
        self.bubbles[pod.uid] = tuple(Block(name, mask, size) for name, size in pod.memory.items())
        for name, size in pod.memory.items():
            self.tables.take(name, mask, size)
        self.allocations[pod.uid] = _dealt(pod, pod.memory, mask)

    def remove(self, uid: str, names: Iterable[str]) -> None:
        """Releases the memory of these containers of a pod (RemoveContainer)."""
        for name in names:
            if name in self.allocations.get(uid, ()):
                self._remove(uid, name)

    def hold(self, uid: str, container: str, blocks: Blocks) -> None:
        """Books blocks that a container is known to have."""
        for name, mask, size in blocks:
            self.tables.take(name, mask, size)
        self.allocations[uid] = with_container(self.allocations.get(uid), container, blocks)

    def release(self, uid: str) -> None:
        """Releases all memory of the pod (RemoveContainer, for each of its containers)."""
        # Sorted, because the order of releases decides which node gets memory back.
        self.remove(uid, sorted(self.allocations.get(uid, ())))

    @property
    def has_unlisted(self) -> bool:
        """Returns whether a NUMA node has more assignments than known containers have blocks there.

        The kubelet counts the blocks of init containers, and its podresources do not list these blocks. Nothing tells
        which pod has them.
        """
        return any(count > listed for count, listed in zip(self.tables.assignments, self._listed(), strict=True))

    def drop_unlisted(self) -> None:
        """Releases what no known container has. The init containers of all pods must have ended.

        Memory of a group is not released: the blocks do not tell how much of it is on which NUMA node.
        """
        tables, listed = self.tables, self._listed()
        for position, count in enumerate(tables.assignments):
            if count <= listed[position] or (listed[position] and tables.cells[position] != 1 << position):
                continue
            tables.assignments[position] = listed[position]
            tables.cells[position] = 1 << position
            for name, values in tables.free.items():
                has = sum(block.size for block in self._blocks() if block.type == name and block.mask == 1 << position)
                values[position] = self.policy.allocatable[name][position] - has

    def _blocks(self) -> Iterable[Block]:
        return (
            block for by_container in self.allocations.values() for block in chain.from_iterable(by_container.values())
        )

    def _listed(self) -> list[int]:
        """Returns by position how many blocks of known containers are on a NUMA node."""
        counts = Counter(position for block in self._blocks() for position in members(block.mask))
        return [counts[position] for position in range(self.policy.count)]

    def _remove(self, uid: str, name: str) -> None:
        by_container = dict(self.allocations.get(uid, {}))
        blocks = by_container.pop(name, ())
        if by_container:
            self.allocations[uid] = by_container
        else:
            self.allocations.pop(uid, None)
        if uid in self.bubbles:
            # Only the last container releases pod-level memory.
            blocks = () if by_container else self.bubbles.pop(uid)
        for block in blocks:
            self.tables.give(*block)

    def _hints(self, requested: Amounts) -> ProviderHints:
        # calculateHints: a common list for all types; no fitting mask means "don't care" (an empty map upstream).
        fits = self._fitting(requested)
        if not fits:
            return {}
        # isHintPreferred: the size of the smallest mask that could have the request if its nodes were empty.
        preferred = fits & by_size(self.policy.count)[self.policy.smallest_mask(requested)]
        return dict.fromkeys(requested, Hints(fits, preferred))

    def _fitting(self, requested: Amounts) -> MaskSet:
        """Returns the masks with enough free memory of all types. Raises Refused where the kubelet would panic."""
        if self.policy.is_beyond_masks:
            raise panics.beyond_masks(self.policy.all_ids)
        # Without types upstream builds no hints.
        if not requested:
            return 0
        fits = allowed = self.tables.allowed()
        for name, size in requested.items():
            fits &= reaching(self.tables.free_of(name), size)
        for mask, reusable in self._reusable.items():
            # getPodReusableMemory: reusable memory counts on exactly its mask, and never beyond allocatable memory.
            needed = {name: size - reusable.get(name, 0) for name, size in requested.items()}
            possible = allowed >> mask & 1 and self.policy.is_large_enough(mask, requested)
            if possible and self.tables.has_free(mask, needed):
                fits |= 1 << mask
        return fits

    def _settle(self, requested: Amounts, hint: Hint) -> Mask:
        """Returns the nodes to allocate on: the stored or the default hint, extended if it has too little memory."""
        mask = hint.mask
        preferred = hint.preferred
        if mask is None:
            # getDefaultHint: no affinity from the topology manager.
            mask, is_preferred = self._best(requested, 0, NO_DEFAULT)
            # Upstream refuses to replace a preferred hint by a hint that is not preferred.
            if preferred and not is_preferred:
                raise Refused(NO_DEFAULT_PREFERRED)
            preferred = is_preferred
        # extendTopologyManagerHint: the merged hint can be narrower than the memory manager's own hint.
        if not self.tables.has_free(mask, requested):
            mask, is_preferred = self._best(requested, mask, NO_EXTENSION)
            if preferred and not is_preferred:
                raise Refused(NO_EXTENSION_PREFERRED)
        if self.policy.behaviour.memory_groups_are_checked and not self.tables.respects_groups(mask):
            raise Refused(VIOLATES_GROUP)
        return mask

    def _best(self, requested: Amounts, within: Mask, problem: str) -> tuple[Mask, bool]:
        # findBestHint for "memory" among masks that contain `within`: preferred masks first, then narrower masks.
        fits = self._fitting(requested)
        if "memory" not in requested:
            raise Refused(problem)
        size = self.policy.smallest_mask(requested)
        candidates = [mask for mask in masks_in(fits) if mask & within == within]
        if not candidates:
            raise Refused(problem)
        best = min(candidates, key=lambda mask: (mask.bit_count() != size, mask.bit_count(), mask))
        return best, best.bit_count() == size

    def _update_reusable(self, container: ContainerView, blocks: Blocks) -> None:
        # updatePodReusableMemory: later containers reuse an init container's memory; other containers consume it.
        reusable = {mask: dict(amounts) for mask, amounts in self._reusable.items()}
        for name, mask, size in blocks:
            amounts = reusable.setdefault(mask, {})
            if container.kind == "init":
                amounts[name] = max(amounts.get(name, 0), size)
            else:
                amounts[name] = max(0, amounts.get(name, 0) - size)
        self._reusable = reusable


def _shrunk(
    pod: PodView, container: ContainerView, by_container: dict[str, Blocks], blocks: Blocks
) -> dict[str, Blocks]:
    """Returns the blocks of earlier init containers, less the memory that `container` reuses."""
    # updateInitContainersMemoryBlocks.
    shrunk = dict(by_container)
    reused = {(name, mask): size for name, mask, size in blocks}
    for earlier in pod.containers:
        if earlier is container or earlier.kind == "app":
            # Init containers precede all app containers.
            break
        if earlier.kind != "init" or earlier.name not in shrunk:
            continue
        changed = []
        for name, mask, size in shrunk[earlier.name]:
            taken = min(size, reused.get((name, mask), 0))
            if taken:
                reused[name, mask] -= taken
            # A block may shrink to size 0, and still counts as an assignment.
            changed.append(Block(name, mask, size - taken))
        shrunk[earlier.name] = tuple(changed)
    return shrunk


def _hints_again(blocks: Blocks, requested: Amounts) -> ProviderHints:
    # regenerateHints, after a restart of the kubelet; a changed request gets "don't care".
    if {block.type: block.size for block in blocks} != requested or len(blocks) != len(requested):
        return {}
    return {block.type: Hints(1 << block.mask, 1 << block.mask) for block in blocks}


def _dealt(pod: PodView, total: Amounts, mask: Mask) -> dict[str, Blocks]:
    """Returns the blocks of each container of a pod with pod-level resources."""
    sidecars: Amounts = {}
    pool = dict(total)
    by_container: dict[str, Blocks | None] = {}
    for container in pod.containers:
        amounts = container.memory or {}
        if container.kind == "init" and not amounts:
            # An init container without own memory may use all memory but the sidecars'.
            amounts = {name: size - sidecars.get(name, 0) for name, size in total.items()}
        by_container[container.name] = _blocks(amounts, mask) if amounts else None
        if container.kind == "init":
            continue
        for name, size in amounts.items():
            pool[name] = pool.get(name, 0) - size
            if container.kind == "sidecar":
                sidecars[name] = sidecars.get(name, 0) + size
    # All containers without own memory show the same rest of the pod's memory.
    shared = _blocks(pool, mask)
    return {name: shared if blocks is None else blocks for name, blocks in by_container.items()}


def _blocks(amounts: Amounts, mask: Mask) -> Blocks:
    return tuple(Block(name, mask, size) for name, size in amounts.items() if size > 0)


def _empty_pool(pod: PodView, total: Amounts) -> str:
    """Returns why a container in the pod's shared memory would get none, "" otherwise (validatePodScopeResources)."""
    exclusive: Amounts = {}
    shared = False
    for container in pod.containers:
        amounts = container.memory or {}
        if container.kind == "init":
            if not amounts:
                for name, size in total.items():
                    if exclusive.get(name, 0) >= size:
                        return f"pod rejected, pod has shared init containers but no {name} available for them"
        elif amounts:
            for name, size in amounts.items():
                exclusive[name] = exclusive.get(name, 0) + size
        else:
            shared = True
    for name, size in total.items():
        if shared and exclusive.get(name, 0) >= size:
            return (
                f"pod rejected, sum of exclusive container {name} requests equals pod budget, "
                "leaving no memory for shared containers"
            )
    return ""
