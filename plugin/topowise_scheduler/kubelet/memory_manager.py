"""The memory manager: memory and hugepages of Guaranteed pods (pkg/kubelet/cm/memorymanager/policy_static.go).

A node is used by single-node allocations or by one *group* of nodes, never by both; `cells` names the group. The
rules have gaps (a narrower hint may land on a grouped node, release gives back to the lowest node first whoever took
it where), and what follows from them is the kubelet's behaviour, so it is kept: even a refused pod can leave a
group's tables changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from topowise.pods import Amounts
from topowise_scheduler.kubelet import panics
from topowise_scheduler.kubelet.hints import EMPTY_POOL, IMPOSSIBLE, Hint, Hints, ProviderHints, Refused
from topowise_scheduler.kubelet.masks import Mask, MaskSet, by_size, masks_in, reaching
from topowise_scheduler.kubelet.memory_tables import MemoryPolicy, MemoryTables
from topowise_scheduler.kubelet.pod import NOT_WHOLE, ContainerView, PodView
from topowise_scheduler.kubelet.shared_allocations import with_container

NO_DEFAULT = "[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available"
NO_DEFAULT_PREFERRED = "[memorymanager] failed to find the default preferred hint"
NO_EXTENSION = "[memorymanager] failed to find NUMA nodes to extend the current topology hint"
NO_EXTENSION_PREFERRED = "[memorymanager] failed to find the extended preferred hint"
VIOLATES_GROUP = "[memorymanager] preferred hint violates NUMA node allocation"


class Block(NamedTuple):
    """Memory of one type on the nodes of a mask (state.Block)."""

    type: str
    mask: Mask
    size: int


Blocks = tuple[Block, ...]


class MemoryManager:
    """The state of policy Static: the tables per node, and the blocks of every container by pod uid and name."""

    __slots__ = ("_reusable", "allocations", "bubbles", "policy", "tables")

    def __init__(self, policy: MemoryPolicy) -> None:
        self.policy = policy
        self.tables = MemoryTables(policy)
        self.allocations: dict[str, dict[str, Blocks]] = {}
        self.bubbles: dict[str, Blocks] = {}
        self._reusable: dict[Mask, Amounts] = {}

    def fork(self) -> MemoryManager:
        """An independent copy of the state."""
        copy = MemoryManager.__new__(MemoryManager)
        copy.policy = self.policy
        copy.tables = self.tables.fork()
        copy.allocations = self.allocations.copy()
        copy.bubbles = self.bubbles.copy()
        copy._reusable = {}
        return copy

    def begin(self) -> None:
        """A new admission begins: nothing is left for reuse yet (initContainersReusableMemory)."""
        self._reusable = {}

    def hints(self, pod: PodView, container: ContainerView) -> ProviderHints:
        """GetTopologyHints."""
        if not pod.pinned or container.memory is None:
            return {}
        held = self.allocations.get(pod.uid, {}).get(container.name)
        if held is not None:
            return _hints_again(held, container.memory)
        return self._hints(container.memory)

    def pod_hints(self, pod: PodView) -> ProviderHints:
        """GetPodTopologyHints."""
        if not pod.pinned or not pod.memory:
            return {}
        if pod.by_pod_level and _empty_pool(pod, pod.memory):
            return dict.fromkeys(pod.memory, IMPOSSIBLE)
        mine = self.allocations.get(pod.uid, {})
        for container in pod.containers:
            if container.name in mine:
                # The blocks of the first container that has any are compared with the request of the whole pod.
                return _hints_again(mine[container.name], pod.memory)
        return self._hints(pod.memory)

    def allocate(self, pod: PodView, container: ContainerView, hint: Hint) -> None:
        """Allocate for one container. Raises Refused."""
        if not pod.pinned:
            return
        mine = self.allocations.get(pod.uid, {})
        blocks = mine.get(container.name)
        if blocks is None:
            if container.memory is None:
                raise Refused(NOT_WHOLE)
            mask = self._settle(container.memory, hint)
            blocks = tuple([Block(name, mask, size) for name, size in container.memory.items()])
            reusable = self._reusable.get(mask, {})
            for name, mask, size in blocks:
                self.tables.take(name, mask, max(0, size - reusable.get(name, 0)))
            self._update_reusable(container, blocks)
            self.allocations[pod.uid] = with_container(
                _shrunk(pod, container, mine, blocks) if mine else None, container.name, blocks
            )
        else:
            self._update_reusable(container, blocks)

    def allocate_pod(self, pod: PodView, hint: Hint) -> None:
        """AllocatePod (KEP-5526): the total is booked, the containers' blocks only show shares. Raises Refused."""
        if not pod.pinned or pod.memory is None or pod.uid in self.bubbles:
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
        """Give back what these containers of a pod have (RemoveContainer)."""
        for name in names:
            if name in self.allocations.get(uid, ()):
                self._remove(uid, name)

    def hold(self, uid: str, container: str, blocks: Blocks) -> None:
        """Book blocks that a container is known to have."""
        for name, mask, size in blocks:
            self.tables.take(name, mask, size)
        self.allocations[uid] = with_container(self.allocations.get(uid), container, blocks)

    def release(self, uid: str) -> None:
        """Give back all the pod has (RemoveContainer, for each of its containers)."""
        self.remove(uid, sorted(self.allocations.get(uid, ())))

    def _remove(self, uid: str, name: str) -> None:
        mine = dict(self.allocations.get(uid, {}))
        blocks = mine.pop(name, ())
        if mine:
            self.allocations[uid] = mine
        else:
            self.allocations.pop(uid, None)
        if uid in self.bubbles:
            # Nothing is given back before the last container of the pod is gone.
            blocks = () if mine else self.bubbles.pop(uid)
        for block in blocks:
            self.tables.give(*block)

    def _hints(self, requested: Amounts) -> ProviderHints:
        """calculateHints: one list for every type; if nothing fits there are none, which means "don't care"."""
        fits = self._fitting(requested)
        if not fits:
            return {}
        preferred = fits & by_size(self.policy.count)[self.policy.smallest_mask(requested)]
        return dict.fromkeys(requested, Hints(fits, preferred))

    def _fitting(self, requested: Amounts) -> MaskSet:
        """The masks with enough free memory of all types. Raises Refused where the kubelet would panic."""
        if self.policy.is_beyond_masks:
            raise panics.beyond_masks(self.policy.all_ids)
        if not requested:
            return 0
        fits = allowed = self.tables.allowed()
        for name, size in requested.items():
            fits &= reaching(self.tables.free_of(name), size)
        for mask, more in self._reusable.items():
            # What can be reused counts on its very mask only, and never makes up for what the nodes do not have at all.
            needed = {name: size - more.get(name, 0) for name, size in requested.items()}
            possible = allowed >> mask & 1 and self.policy.is_large_enough(mask, requested)
            if possible and self.tables.has_free(mask, needed):
                fits |= 1 << mask
        return fits

    def _settle(self, requested: Amounts, hint: Hint) -> Mask:
        """The nodes to allocate on: the stored hint or the default one, widened if there is too little free."""
        mask = hint.mask
        preferred = hint.preferred
        if mask is None:
            mask, found_preferred = self._best(requested, 0, NO_DEFAULT)
            if preferred and not found_preferred:
                raise Refused(NO_DEFAULT_PREFERRED)
            preferred = found_preferred
        if not self.tables.has_free(mask, requested):
            mask, found_preferred = self._best(requested, mask, NO_EXTENSION)
            if preferred and not found_preferred:
                raise Refused(NO_EXTENSION_PREFERRED)
        if self.policy.behaviour.memory_groups_are_checked and not self.tables.respects_groups(mask):
            raise Refused(VIOLATES_GROUP)
        return mask

    def _best(self, requested: Amounts, within: Mask, problem: str) -> tuple[Mask, bool]:
        """findBestHint for "memory" among masks that contain `within`: preferred first, then the narrower."""
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
        """updatePodReusableMemory: an init container's memory is for those after it, what others take is gone."""
        reusable = {mask: dict(amounts) for mask, amounts in self._reusable.items()}
        for name, mask, size in blocks:
            amounts = reusable.setdefault(mask, {})
            if container.kind == "init":
                amounts[name] = max(amounts.get(name, 0), size)
            else:
                amounts[name] = max(0, amounts.get(name, 0) - size)
        self._reusable = reusable


def _shrunk(pod: PodView, container: ContainerView, mine: dict[str, Blocks], blocks: Blocks) -> dict[str, Blocks]:
    """The blocks of earlier init containers, less what `container` took over (updateInitContainersMemoryBlocks)."""
    shrunk = dict(mine)
    left = {(name, mask): size for name, mask, size in blocks}
    for earlier in pod.containers:
        if earlier is container or earlier.kind == "app":
            # Init containers come before all app containers.
            break
        if earlier.kind != "init" or earlier.name not in shrunk:
            continue
        changed = []
        for name, mask, size in shrunk[earlier.name]:
            given = min(size, left.get((name, mask), 0))
            if given:
                left[name, mask] -= given
            changed.append(Block(name, mask, size - given))
        shrunk[earlier.name] = tuple(changed)
    return shrunk


def _hints_again(held: Blocks, requested: Amounts) -> ProviderHints:
    """regenerateHints, after a restart of the kubelet; a container whose request changed gets "don't care"."""
    if {block.type: block.size for block in held} != requested or len(held) != len(requested):
        return {}
    return {block.type: Hints(1 << block.mask, 1 << block.mask) for block in held}


def _dealt(pod: PodView, total: Amounts, mask: Mask) -> dict[str, Blocks]:
    """The blocks each container of a pod with pod-level resources shows."""
    sidecars: Amounts = {}
    pool = dict(total)
    dealt: dict[str, Blocks | None] = {}
    for container in pod.containers:
        amounts = container.memory or {}
        if container.kind == "init" and not amounts:
            amounts = {name: size - sidecars.get(name, 0) for name, size in total.items()}
        dealt[container.name] = _blocks(amounts, mask) if amounts else None
        if container.kind == "init":
            continue
        for name, size in amounts.items():
            pool[name] = pool.get(name, 0) - size
            if container.kind == "sidecar":
                sidecars[name] = sidecars.get(name, 0) + size
    shared = _blocks(pool, mask)
    return {name: shared if blocks is None else blocks for name, blocks in dealt.items()}


def _blocks(amounts: Amounts, mask: Mask) -> Blocks:
    return tuple(Block(name, mask, size) for name, size in amounts.items() if size > 0)


def _empty_pool(pod: PodView, total: Amounts) -> str:
    """Why a container that shares the pod's memory would get none, "" if all get some (validatePodScopeResources)."""
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
