"""The possible states of a node, given a service's knowledge. A refusal is right if a kubelet in a state refuses.

A world is the node at the exporter's last received look, followed by a course of events: pods arrive, start and end.
Each event has a window of time, and each choice of times is a world. Unreceived ends are events too, and so is a
kubelet's choice among devices. Worlds are sampled with a seed from the knowledge, so that equal knowledge gives equal
worlds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from random import Random

import msgspec

from sandbox.kubelet.plugin_sockets import any_of_them
from soak.heard import Known, KnownPod
from topowise import pods
from topowise_scheduler.kubelet import Kubelet, Placement
from topowise_scheduler.kubelet.masks import lowest
from topowise_scheduler.kubelet.pod import PodView

_TRIED = 48
# The merge of a machine with more NUMA nodes takes a hundred times as long.
_WIDE, _TRIED_ON_WIDE = 8, 6
_MOST_UNHEARD = 2

Windows = dict[tuple[str, str], tuple[float, float]]


class Courses:
    """The worlds of a node as it is known. `but` is the uid of the pod in question."""

    def __init__(self, known: Known, but: str) -> None:
        assert known.look is not None
        self._known = known
        self._base = known.look.kubelet
        self._pods = {pod.uid: pod for pod in known.pods if pod.uid != but}
        self._views: dict[str, PodView] = {}
        self._but = but
        # A pod that the service has booked counts with its requests, placed as in the state files.
        booked = sorted(uid for uid in known.look.leftovers if uid in self._pods)
        if booked:
            self._base = self._base.fork()
        for uid in booked:
            self._base.hold(uid, self._view(self._base, uid).requests, self._base.placements(uid))

    @property
    def open(self) -> list[KnownPod]:
        """The pods that the last report does not have completely: their placement is uncertain."""
        assert self._known.look is not None
        whole = self._known.look.whole
        return [pod for pod in self._pods.values() if pod.uid not in whole and pod.gone is None]

    @property
    def half(self) -> list[str]:
        """The pods whose admission was not complete at the look."""
        assert self._known.look is not None
        whole = self._known.look.whole
        return [uid for uid in self._base.active if uid in self._pods and uid not in whole]

    def doubled(self, told: Kubelet) -> Kubelet:
        """Returns the node with the partial allocations of half-admitted pods in addition to their full allocations."""
        copy = told.fork()
        for uid in self.half:
            copy.admit_view(msgspec.structs.replace(self._view(copy, uid), uid=f"{uid} again"))
        return copy

    def told(self, without: Collection[str] = ()) -> Kubelet:
        """Returns the node after the received events in their order, without the pods in `without`."""
        steps = []
        for uid, known_pod in self._pods.items():
            if uid not in self._base.active and uid not in without:
                steps.append((known_pod.since, 0, uid))
            if known_pod.runs is not None:
                steps.append((known_pod.runs, 1, uid))
            if known_pod.gone is not None:
                steps.append((known_pod.gone[1], 2, uid))
        return self._played(steps, without=without)

    def all(self) -> Iterator[Kubelet]:
        """Yields sampled worlds."""
        random = Random(repr(self._known.key))
        unheard = [uid for uid in self._base.active if uid not in self._pods or self._pods[uid].gone is None]
        for number in range(_TRIED if len(self._base.node_ids) <= _WIDE else _TRIED_ON_WIDE):
            yield self._drawn(random, number, unheard)

    def _drawn(self, random: Random, number: int, unheard: list[str]) -> Kubelet:
        """Returns the world of this number: first with early ends, then with late ends, then with random times."""
        known, steps = self._known, []
        removed = self.half if number % 2 else []
        for uid, known_pod in self._pods.items():
            come = known_pod.since
            if uid not in self._base.active or uid in removed:
                # A pod that ran and is not in the report has ended before it, or its kubelet starts anew.
                may_be_gone = known_pod.certainty != "bound" or known_pod.runs is not None
                if may_be_gone and number and random.random() < 0.5:
                    continue
                come = _time(random, known_pod.come, 1.0 if number == 0 else 0.0 if number == 1 else None)
                steps.append((come, 0, uid))
            if known_pod.runs is not None:
                steps.append((max(come, known_pod.runs), 1, uid))
            if known_pod.gone is not None:
                gone = _time(random, known_pod.gone, 0.0 if number == 0 else 1.0 if number == 1 else None)
                steps.append((max(come, gone), 2, uid))
        most = min(len(unheard), random.randint(0, _MOST_UNHEARD) if number > 1 else 0)
        lately = known.now - known.late, known.now
        steps += [(_time(random, lately, None), 2, uid) for uid in random.sample(unheard, most)]
        drawn = any_of_them(f"{number} {known.node}") if number % 3 == 2 else None
        return self._played(steps, without=removed, chooser=drawn)

    def _played(
        self, steps: list[tuple[float, int, str]], *, without: Collection[str] = (), chooser: object = None
    ) -> Kubelet:
        world = self._base.fork()
        world.devices.preferred = {}
        world.devices.chooser = chooser  # type: ignore[assignment]
        for uid in (*without, self._but):
            world.remove(uid)
        # A pod that was heard to run was admitted: what is in its way had ended, and the end is heard later.
        waiting: list[str] = []
        started = set()
        for _, step, uid in sorted(steps):
            if step == 0:
                waiting.append(uid)
            elif step == 1:
                started.add(uid)
                world.start(uid)
            else:
                waiting = [other for other in waiting if other != uid]
                world.remove(uid)
            refused = [other for other in waiting if not world.admit_view(self._view(world, other)).admitted]
            for other in waiting:
                if other in started and other not in refused:
                    world.start(other)
            waiting = [other for other in refused if self._pods[other].runs is not None]
        return world

    def _view(self, kubelet: Kubelet, uid: str) -> PodView:
        if uid not in self._views:
            self._views[uid] = _view(kubelet, self._pods[uid].pod)
        return self._views[uid]


def places(kubelet: Kubelet, uid: str) -> tuple[object, ...]:
    """On which NUMA nodes an active pod has what it holds; () if it is not there."""
    if uid not in kubelet.active:
        return ()
    return tuple((name, *_where(kubelet, placement)) for name, placement in kubelet.placements(uid).items())


def gives_anything(kubelet: Kubelet, pod: pods.Pod) -> bool:
    """Whether the kubelet gives a pod CPUs, memory or devices of its own. No history of the node matters to another."""
    view = _view(kubelet, pod)
    gives_cpus = kubelet.cpu is not None and any(container.cpus for container in view.containers)
    devices = kubelet.devices.tables
    gives_devices = any(container.limits.get(name) for container in view.containers for name in devices)
    return gives_cpus or gives_devices or gives_memory(kubelet, pod)


def gives_memory(kubelet: Kubelet, pod: pods.Pod) -> bool:
    """Returns whether the kubelet's memory manager gives a pod memory."""
    containers = _view(kubelet, pod).containers
    return kubelet.memory is not None and any(any((container.memory or {}).values()) for container in containers)


def _view(kubelet: Kubelet, pod: pods.Pod) -> PodView:
    needs = pods.needs(pod, pod_level_resources=kubelet.settings.pod_level_resources)
    return kubelet.view(pod.metadata.uid, needs)


def admits(kubelet: Kubelet, pod: pods.Pod) -> bool:
    """Returns whether the kubelet would take the pod next; no trace is left."""
    return kubelet.fork().admit(pod).admitted


def _where(kubelet: Kubelet, placement: Placement) -> tuple[object, ...]:
    cpus = tuple(numa.id for numa in kubelet.topology.numas if numa.cpus & (placement.cpus or 0))
    memory = tuple((block.type, block.numa, block.size) for block in placement.memory)
    return cpus, memory, tuple(sorted((name, tuple(ids)) for name, ids in _sorted(placement.devices).items()))


def _sorted(devices: Mapping[str, Collection[str]]) -> dict[str, list[str]]:
    return {name: sorted(ids) for name, ids in devices.items()}


def _time(random: Random, window: tuple[float, float], at: float | None) -> float:
    first, last = max(window[0], -1.0), max(*window, -1.0)
    return first + (last - first) * (random.random() if at is None else at)


def spread(kubelet: Kubelet, members: Collection[pods.Pod]) -> Kubelet:
    """A copy of the node in which each of these pods takes, of what is free, what it asks for on each NUMA node."""
    copy = kubelet.fork()
    for pod in members:
        view = _view(kubelet, pod)
        cpus = sum(container.cpus for container in view.containers)
        memory = Counter[str]()
        devices = Counter[str]()
        for container in view.containers:
            memory.update(container.memory or {})
            devices.update({name: count for name, count in container.limits.items() if name in copy.devices.tables})
        for position in range(len(kubelet.node_ids)):
            _take(copy, position, cpus, memory, devices)
    return copy


def _take(copy: Kubelet, position: int, cpus: int, memory: Mapping[str, int], devices: Mapping[str, int]) -> None:
    taken = lowest(copy.cpu.available & copy.topology.numa_cpus[position], cpus) if copy.cpu is not None else 0
    sizes: dict[str, int] = {}
    if copy.memory is not None and copy.memory.tables.cells[position] == 1 << position:
        free = copy.memory.tables.free
        sizes = {name: min(size, max(0, free[name][position])) for name, size in memory.items() if name in free}
    tables = {
        name: lowest(copy.devices.free(name) & copy.devices.tables[name].near[position], count)
        for name, count in devices.items()
    }
    copy.reserve(position, taken, {name: size for name, size in sizes.items() if size}, tables)


def without_memory(kubelet: Kubelet) -> Kubelet:
    """Returns a copy of the node that has no memory to give."""
    copy = kubelet.fork()
    if copy.memory is not None:
        for name, values in copy.memory.tables.free.items():
            copy.memory.tables.free[name] = [0] * len(values)
    return copy
