"""Which of the listed pods the kubelet is still admitting: they are not to be published in parts.

A kubelet gives a pod devices, CPUs and memory container by container and writes a checkpoint each time, so for some
milliseconds, on a busy disk for seconds, List and the state files show a part of the pod. Only when the whole pod is
admitted it is written down in `allocated_pods_state` (allocation manager, from 1.33 on), and later, once there is a
cgroup, gets its directory (`pods/<uid>`, makePodDataDirs in syncPod). So a pod is whole if either was there before List
was asked. List has names, state files and directories have uids: they are brought together by what
the pod holds.

Where that proves nothing (no directories to look into, no file that could have what the pod holds) a pod is taken to be
whole once its part has not changed for a short time. A pod that was whole stays so as long as its uid is the same: what
changes then is a resize, or the kubelet taking stock of it after a restart. No pod is withheld for long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final, NamedTuple

from topowise_exporter.kubelet.allocations import PodAllocation
from topowise_exporter.kubelet.device_checkpoint import DeviceState
from topowise_exporter.kubelet.entry_owners import listed_blocks
from topowise_exporter.kubelet.state_files import CpuState, MemoryState

QUIET_S: Final = 0.3
"""Without proof, a pod that has not changed for so long is whole."""
STUCK_S: Final = 5.0
"""A pod that has not changed for so long is published as it is, and named."""
AT_MOST_S: Final = 15.0
"""No pod is withheld for longer."""

Name = tuple[str, str]
_Entry = tuple[str, str, object]
_NONE: Final[frozenset[str]] = frozenset()


class States(NamedTuple):
    """What the state files have; None for one that is off or cannot be read."""

    cpu: CpuState | None = None
    memory: MemoryState | None = None
    devices: DeviceState | None = None


class Sorted(NamedTuple):
    """`pods` are to be published, of which `admitting` may not be whole; `withheld` are not. After `due` seconds
    something changes without an event. `whole` are uids of pods that are, `listed` those of all, as the files tell."""

    pods: tuple[PodAllocation, ...]
    admitting: frozenset[Name] = frozenset()
    withheld: frozenset[Name] = frozenset()
    due: float | None = None
    whole: frozenset[str] = _NONE
    listed: frozenset[str] = _NONE


class _Wait(NamedTuple):
    """A pod that is not known to be whole, as it was seen last."""

    pod: PodAllocation
    since: float
    changed: float

    def is_stuck(self, now: float) -> bool:
        return now - self.changed >= STUCK_S or now - self.since >= AT_MOST_S

    def due(self, now: float) -> float:
        """Seconds until time alone decides something."""
        times = (self.changed + QUIET_S, self.changed + STUCK_S, self.since + AT_MOST_S)
        return min(at - now for at in times if at > now)


class _Sync(NamedTuple):
    """What one sync has to go by."""

    uids: _Uids
    directories: frozenset[str] | None
    now: float


class Admissions:
    """Remembers who was whole, from sync to sync."""

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
        """`directories` are uids of pods that had one, or were written down as admitted, before List was asked; None if
        that is not known."""
        seen = (pods, *states, directories)
        is_same = len(seen) == len(self._seen) and all(
            one is other or one == other for one, other in zip(seen, self._seen, strict=True)
        )
        # A pod that waits is judged anew, for the time.
        if not is_same or self._waiting:
            self._seen = seen
            self._last = self._sorted(pods, _Sync(_Uids(states, directories or _NONE), directories, now))
            self._has_synced = True
        return self._last

    def _sorted(self, pods: tuple[PodAllocation, ...], sync: _Sync) -> Sorted:
        self._note_open(sync)
        whole = {pod: self._whole[pod] for pod in pods if pod in self._whole}
        sync.uids.take(whole.values())
        for pod, uid in whole.items():
            if uid and uid not in sync.uids.all and sync.uids.should_know(pod):
                # It was taken for one that held alike, and that has ended.
                whole[pod] = sync.uids.of(pod) or uid
        waiting: dict[Name, _Wait] = {}
        listed = set(whole.values())
        # Of pods that hold alike the one with the most is matched first, as the others may be parts of such a one.
        for pod in sorted((pod for pod in pods if pod not in whole), key=_size, reverse=True):
            wait = self._wait(pod, sync.now)
            uid = sync.uids.of(pod)
            listed.add(uid)
            if self._is_whole(pod, uid, wait, sync):
                whole[pod] = uid
            else:
                waiting[_name(pod)] = wait
        self._whole, self._waiting = whole, waiting
        stuck = frozenset(name for name, wait in waiting.items() if wait.is_stuck(sync.now))
        withheld = frozenset(waiting) - stuck
        shown = tuple(pod for pod in pods if pod in whole or _name(pod) in stuck) if withheld else pods
        # The same pods stay the same object, by which later stages know that there is nothing to do.
        shown = self._last.pods if shown == self._last.pods else shown
        due = min((waiting[name].due(sync.now) for name in withheld), default=None)
        return Sorted(shown, stuck, withheld, due, frozenset(whole.values()) - {""}, frozenset(listed) - {""})

    def _wait(self, pod: PodAllocation, now: float) -> _Wait:
        wait = self._waiting.get(_name(pod))
        if wait is None:
            return _Wait(pod, now, now)
        return wait if wait.pod == pod else _Wait(pod, wait.since, now)

    def _is_whole(self, pod: PodAllocation, uid: str, wait: _Wait, sync: _Sync) -> bool:
        """Whether the kubelet has given the pod all that it will, as far as can be known."""
        # All that is there at our own start was published before, whole or not.
        is_quiet = not self._has_synced or sync.now - wait.changed >= QUIET_S
        if not _size(pod):
            # It may hold nothing yet: then somebody in the state files is just being admitted.
            return is_quiet and not any(sync.now - since < STUCK_S for since in self._open.values())
        was_whole = {held for one, held in self._whole.items() if _name(one) == _name(pod)}
        if uid:
            return uid in was_whole or (is_quiet if sync.directories is None else uid in sync.directories)
        if sync.directories is not None and sync.uids.should_know(pod):
            # Its checkpoint has not been written yet.
            return False
        return bool(was_whole) or is_quiet

    def _note_open(self, sync: _Sync) -> None:
        """Uids that came without a directory. What is so at our own start is dead rather than being admitted."""
        if sync.directories is None:
            return
        known = sync.uids.all
        self._closed = (self._closed | sync.directories) & known if self._has_synced else known
        self._open = {uid: self._open.get(uid, sync.now) for uid in known - self._closed}


class _Uids:
    """Which uid a listed pod has, by the state files."""

    def __init__(self, states: States, living: Collection[str]) -> None:
        """`living` are taken rather than others."""
        self._states = states
        self._living = living
        self._taken: set[str] = set()
        self._by_entry: dict[_Entry, set[str]] | None = None
        self.all = _NONE.union(*(state.holders for state in states if state is not None))

    def take(self, uids: Iterable[str]) -> None:
        """These are somebody else's."""
        self._taken.update(uids)

    def of(self, pod: PodAllocation) -> str:
        """The uid that shares most with the pod, which is nobody else's from now on; "" if none does."""
        if self._by_entry is None:
            self._by_entry = _index(self._states)
        shared = Counter(uid for entry in _listed(pod) for uid in self._by_entry.get(entry, ()))
        free = (uid for uid in shared if uid not in self._taken)
        found = max(free, key=lambda uid: (shared[uid], uid in self._living, uid), default="")
        self._taken.add(found)
        return found

    def should_know(self, pod: PodAllocation) -> bool:
        """Whether the files have something of every pod that holds as this one does."""
        cpu, memory, devices = self._states
        return any(
            (one.cpus and cpu is not None)
            or (one.memory and memory is not None)
            or (one.devices and devices is not None)
            for one in pod.containers
        )


def _index(states: States) -> dict[_Entry, set[str]]:
    found: dict[_Entry, set[str]] = {}
    for kind, state in zip(States._fields, states, strict=True):
        for uid, containers in state.holders.items() if state is not None else ():
            for container, held in containers.items():
                for entry in _entries(kind, container, held):
                    found.setdefault(entry, set()).add(uid)
    return found


def _entries(kind: str, container: str, held: Any) -> Iterator[_Entry]:
    """Devices by resource, as they are given; how a plug-in places them may change while a pod has them."""
    if kind != "devices":
        yield kind, container, listed_blocks(held) if kind == "memory" else held
        return
    ids: dict[str, set[str]] = {}
    for device in held:
        ids.setdefault(device.resource, set()).add(device.id)
    for resource, mine in ids.items():
        yield kind, container, (resource, frozenset(mine))


def _listed(pod: PodAllocation) -> Iterator[_Entry]:
    for one in pod.containers:
        for kind, held in zip(States._fields, (one.cpus, one.memory, one.devices), strict=True):
            if held:
                yield from _entries(kind, one.name, held)


def _size(pod: PodAllocation) -> int:
    """0 for a pod that holds nothing that a state file could have."""
    return sum(bool(one.cpus) + bool(one.memory) + bool(one.devices) for one in pod.containers) + bool(
        pod.own_cpus or pod.own_memory
    )


def _name(pod: PodAllocation) -> Name:
    return pod.namespace, pod.name
