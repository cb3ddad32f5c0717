"""Pods that the kubelet is still admitting: their allocations are incomplete and must not be published.

A kubelet allocates devices, CPUs and memory container by container and writes a checkpoint each time. For milliseconds,
on a busy disk for seconds, List and the state files therefore show a part of the pod. The kubelet writes the pod into
`allocated_pods_state` only after it has admitted the whole pod (allocation manager, from 1.33 on). Once the pod has a
cgroup, the kubelet makes its directory (`pods/<uid>`, makePodDataDirs in syncPod). So a pod is complete if either
existed before the exporter called List. List has names; state files and directories have UIDs. Both are matched by the
resources that the pod holds.

Without such evidence (no access to the directories, no state file for this resource) a pod is complete once its
allocations have not changed for QUIET_S. A complete pod stays complete while its UID is the same: a later change is a
resize, or the kubelet re-reading its state after a restart. No pod is withheld for longer than AT_MOST_S.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final, NamedTuple

from topowise.checkpoints import CpuState, MemoryState
from topowise_exporter.kubelet.allocations import PodAllocation
from topowise_exporter.kubelet.device_checkpoint import DeviceState
from topowise_exporter.kubelet.entry_owners import listed_blocks

QUIET_S: Final = 0.3
"""Without evidence, a pod that has not changed for this time is complete."""
STUCK_S: Final = 5.0
"""A pod that has not changed for this time is published as it is, and named in the attribute `admitting`."""
AT_MOST_S: Final = 15.0
"""The longest time for which a pod is withheld."""

Name = tuple[str, str]
_Entry = tuple[str, str, object]
_NONE: Final[frozenset[str]] = frozenset()


class States(NamedTuple):
    """Contents of the state files; None for a manager that is off or a file that cannot be read."""

    cpu: CpuState | None = None
    memory: MemoryState | None = None
    devices: DeviceState | None = None

    @property
    def holders(self) -> frozenset[str]:
        """UIDs of pods with an entry."""
        return _NONE.union(*(state.holders for state in self if state is not None))


class Sorted(NamedTuple):
    """`pods` are to be published; of these, `admitting` may be incomplete. `withheld` are not published. After `due`
    seconds the result changes without an event. `whole` are UIDs of complete pods, `listed` UIDs of all pods in
    List, as far as the state files show them."""

    pods: tuple[PodAllocation, ...]
    admitting: frozenset[Name] = frozenset()
    withheld: frozenset[Name] = frozenset()
    due: float | None = None
    whole: frozenset[str] = _NONE
    listed: frozenset[str] = _NONE


class _Wait(NamedTuple):
    """A pod that is not known to be complete, as the last sync saw it."""

    pod: PodAllocation
    since: float
    changed: float

    def is_stuck(self, now: float) -> bool:
        return now - self.changed >= STUCK_S or now - self.since >= AT_MOST_S

    def due(self, now: float) -> float:
        """Seconds until the next of the three time limits."""
        times = (self.changed + QUIET_S, self.changed + STUCK_S, self.since + AT_MOST_S)
        return min(at - now for at in times if at > now)


class _Sync(NamedTuple):
    """The inputs of a sync."""

    uids: _Uids
    directories: frozenset[str] | None
    now: float


class Admissions:
    """Sorts pods into complete and incomplete, and remembers the complete pods from sync to sync."""

    def __init__(self) -> None:
        self._whole: dict[PodAllocation, str] = {}
        self._waiting: dict[Name, _Wait] = {}
        self._open: dict[str, float] = {}
        self._closed: frozenset[str] = _NONE
        self._seen: tuple[object, ...] = ()
        self._last = Sorted(())
        self._has_synced = False

    def sort(
        self, pods: tuple[PodAllocation, ...], states: States, directories: frozenset[str] | None, now: float
    ) -> Sorted:
        """Returns which pods to publish. `directories` are UIDs of pods that had a directory, or were in
        `allocated_pods_state`, before List was called; None if the directories cannot be read."""
        seen = (pods, *states, directories)
        is_same = len(seen) == len(self._seen) and all(
            now_seen is before or now_seen == before for now_seen, before in zip(seen, self._seen, strict=True)
        )
        # Withheld pods depend on time, so equal inputs do not mean an equal result.
        if not is_same or self._waiting:
            self._seen = seen
            self._last = self._sorted(pods, _Sync(_Uids(states, directories or _NONE), directories, now))
            self._has_synced = True
        return self._last

    def has_begun(self, states: States, directories: frozenset[str] | None) -> bool:
        """Whether the state files show a UID that `sort` has not seen, without a directory."""
        if directories is None or not self._has_synced:
            return False
        return not states.holders <= self._closed | self._open.keys() | directories

    def _sorted(self, pods: tuple[PodAllocation, ...], sync: _Sync) -> Sorted:
        self._note_open(sync)
        whole = {pod: self._whole[pod] for pod in pods if pod in self._whole}
        sync.uids.take(whole.values())
        for pod, uid in whole.items():
            if uid and uid not in sync.uids.all and sync.uids.should_know(pod):
                # This pod had been matched to the UID of a pod with equal allocations, and that pod has ended.
                whole[pod] = sync.uids.of(pod) or uid
        waiting: dict[Name, _Wait] = {}
        listed = set(whole.values())
        # Pods with more allocations are matched first: a pod with few allocations may be an incomplete replica of the
        # other.
        for pod in sorted((pod for pod in pods if pod not in whole), key=_size, reverse=True):
            wait = self._wait(pod, sync.now)
            uid = sync.uids.of(pod)
            listed.add(uid)
            if self._is_whole(pod, uid, wait, sync):
                whole[pod] = uid
            else:
                waiting[pod.key] = wait
        self._whole, self._waiting = whole, waiting
        stuck = frozenset(name for name, wait in waiting.items() if wait.is_stuck(sync.now))
        withheld = frozenset(waiting) - stuck
        shown = tuple(pod for pod in pods if pod in whole or pod.key in stuck) if withheld else pods
        # Later stages compare by identity: an unchanged tuple means that there is nothing to do.
        shown = self._last.pods if shown == self._last.pods else shown
        due = min((waiting[name].due(sync.now) for name in withheld), default=None)
        return Sorted(shown, stuck, withheld, due, frozenset(whole.values()) - {""}, frozenset(listed) - {""})

    def _wait(self, pod: PodAllocation, now: float) -> _Wait:
        wait = self._waiting.get(pod.key)
        if wait is None:
            return _Wait(pod, now, now)
        return wait if wait.pod == pod else _Wait(pod, wait.since, now)

    def _is_whole(self, pod: PodAllocation, uid: str, wait: _Wait, sync: _Sync) -> bool:
        """Whether the kubelet has completed the pod's allocations, as far as the evidence shows."""
        # The exporter before this one published the pods of its time, complete or not.
        is_quiet = not self._has_synced or sync.now - wait.changed >= QUIET_S
        if not _size(pod):
            # The pod may have no allocation yet. Then a state file entry without a listed pod may be its own.
            return is_quiet and not any(sync.now - since < STUCK_S for since in self._open.values())
        was_whole = {whole_uid for whole, whole_uid in self._whole.items() if whole.key == pod.key}
        if uid:
            return uid in was_whole or (is_quiet if sync.directories is None else uid in sync.directories)
        if sync.directories is not None and sync.uids.should_know(pod):
            # The kubelet has not written its checkpoint yet.
            return False
        return bool(was_whole) or is_quiet

    def _note_open(self, sync: _Sync) -> None:
        """Notes UIDs in the state files without a directory. At the exporter's start such a UID is a dead pod."""
        if sync.directories is None:
            return
        known = sync.uids.all
        self._closed = (self._closed | sync.directories) & known if self._has_synced else known
        self._open = {uid: self._open.get(uid, sync.now) for uid in known - self._closed}


class _Uids:
    """Finds the UID of a listed pod in the state files."""

    def __init__(self, states: States, living: Collection[str]) -> None:
        """`living` are preferred to other UIDs."""
        self._states = states
        self._living = living
        self._taken: set[str] = set()
        self._by_entry: dict[_Entry, set[str]] | None = None
        self.all = states.holders

    def take(self, uids: Iterable[str]) -> None:
        """Excludes UIDs that other pods have."""
        self._taken.update(uids)

    def of(self, pod: PodAllocation) -> str:
        """Returns the UID with the most entries in common with the pod, and excludes it for other pods; "" if there is
        none."""
        if self._by_entry is None:
            self._by_entry = _index(self._states)
        shared = Counter(uid for entry in _listed(pod) for uid in self._by_entry.get(entry, ()))
        free = (uid for uid in shared if uid not in self._taken)
        best = max(free, key=lambda uid: (shared[uid], uid in self._living, uid), default="")
        self._taken.add(best)
        return best

    def should_know(self, pod: PodAllocation) -> bool:
        """Whether the state files must have an entry for a pod with these resources."""
        cpu, memory, devices = self._states
        return any(
            (container.cpus and cpu is not None)
            or (container.memory and memory is not None)
            or (container.devices and devices is not None)
            for container in pod.containers
        )


def _index(states: States) -> dict[_Entry, set[str]]:
    index: dict[_Entry, set[str]] = {}
    for kind, state in zip(States._fields, states, strict=True):
        for uid, containers in state.holders.items() if state is not None else ():
            for container, held_entry in containers.items():
                for entry in _entries(kind, container, held_entry):
                    index.setdefault(entry, set()).add(uid)
    return index


def _entries(kind: str, container: str, allocation: Any) -> Iterator[_Entry]:
    """Yields the entries of a container. Devices count by resource and id only: a plug-in may change their NUMA nodes
    while the pod runs."""
    if kind != "devices":
        yield kind, container, listed_blocks(allocation) if kind == "memory" else allocation
        return
    ids: dict[str, set[str]] = {}
    for device in allocation:
        ids.setdefault(device.resource, set()).add(device.id)
    for resource, device_ids in ids.items():
        yield kind, container, (resource, frozenset(device_ids))


def _listed(pod: PodAllocation) -> Iterator[_Entry]:
    for container in pod.containers:
        for kind, allocation in zip(States._fields, (container.cpus, container.memory, container.devices), strict=True):
            if allocation:
                yield from _entries(kind, container.name, allocation)


def _size(pod: PodAllocation) -> int:
    """Number of allocations that a state file could show; 0 for a pod without any."""
    return sum(
        bool(container.cpus) + bool(container.memory) + bool(container.devices) for container in pod.containers
    ) + bool(pod.own_cpus or pod.own_memory)
