"""Whether what a kubelet answers is the truth yet.

A kubelet that has just started serves its socket before it knows anything: for seconds List is empty and nothing is
allocatable, as if the managers were off and the node empty, and a device plug-in is unknown to it until it has
registered again. All the while the state files and the last object have what was there. So from its start until its
answers agree with these once, they are not published; each reason for that has its end. Where only device plug-ins are
missing, all but these agrees.

A start is seen by the socket, which a kubelet makes anew. One that has been up for longer than any of the waits is
believed, also by an exporter that has just started itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from topowise.attributes import confirmation
from topowise.kubeletconfig import KubeletConfiguration
from topowise_exporter.kubelet.allocations import Allocatable, Device, PodAllocation
from topowise_exporter.kubelet.podresources import socket_path

MANAGERS_AT_MOST_S: Final = 300.0
"""After that a configuration that names a manager is not the kubelet's."""
PODS_AT_MOST_S: Final = 60.0
"""After that a pod that is not listed is dead, whatever its directory and the state files say."""
DEVICES_AT_MOST_S: Final = 30.0
"""After that the resource is published with none allocatable."""
GONE_AFTER_S: Final = 300.0
"""The kubelet itself keeps a resource so long for a plug-in that went (endpointStopGracePeriod)."""
STEADY_S: Final = 2.0
"""A kubelet with another policy gives its pods anew what they hold, one after the other."""


class Before(msgspec.Struct, frozen=True):
    """What is known to have been there: by the last true sync, or by the object of an earlier exporter."""

    pods: Mapping[tuple[str, str], PodAllocation] = {}
    devices: tuple[Device, ...] = ()
    listed: frozenset[str] = frozenset()
    unlisted: frozenset[str] = frozenset()
    """Uids of pods in the state files that List does not show although nothing is wrong."""


class Answer(msgspec.Struct, frozen=True):
    """What the kubelet says now, and the files beside it."""

    config: KubeletConfiguration
    allocatable: Allocatable
    pods: tuple[PodAllocation, ...] = ()
    listed: frozenset[str] = frozenset()
    """Uids of pods in List, as far as the files tell."""
    living: frozenset[str] = frozenset()
    """Uids of pods with a directory that hold CPUs or memory by the state files."""
    with_devices: frozenset[str] = frozenset()
    """The same of devices; that file keeps pods that have ended."""
    registered: frozenset[str] = frozenset()
    """Resources of the device manager's checkpoint."""
    has_cpu_manager: bool = True
    has_memory_manager: bool = True
    """False if the manager's state file says that it is off."""
    has_files: bool = True


def why_not(said: Answer, before: Before, age: float, steady: float) -> frozenset[str]:
    """Reasons for which a kubelet that started `age` seconds ago does not tell the truth yet; its List has not changed
    for `steady` seconds."""
    reasons = set()
    if age < MANAGERS_AT_MOST_S:
        if said.config.cpuManagerPolicy == "static" and said.has_cpu_manager and not said.allocatable.cpus:
            reasons.add(confirmation.CPU_MANAGER)
        if said.config.memoryManagerPolicy == "Static" and said.has_memory_manager and not said.allocatable.memory:
            reasons.add(confirmation.MEMORY_MANAGER)
    if age < PODS_AT_MOST_S and (_unlisted(said, before) or _is_counting(said, before, steady)):
        reasons.add(confirmation.PODS)
    if age < DEVICES_AT_MOST_S:
        there = {device.resource for device in said.allocatable.devices}
        known = said.registered | {device.resource for device in before.devices}
        reasons.update(confirmation.device(resource) for resource in known - there)
    return frozenset(reasons)


def _unlisted(said: Answer, before: Before) -> frozenset[str]:
    """Pods that live and should be in List."""
    return (said.living | said.with_devices & before.listed) - said.listed - before.unlisted


def _is_counting(said: Answer, before: Before, steady: float) -> bool:
    """Whether List may be on its way: it has nobody yet, or a pod that held something else before."""
    if not said.pods:
        # Without the files nothing else tells whether that is so, and a node hardly ever loses all its pods.
        return bool(before.pods) and not said.has_files and steady < STEADY_S
    if steady >= STEADY_S:
        return False
    return any((was := before.pods.get((pod.namespace, pod.name))) is not None and was != pod for pod in said.pods)


class Kubelet:
    """Follows one kubelet from start to start."""

    def __init__(
        self, socket: str, clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time
    ) -> None:
        self._socket = Path(socket_path(socket))
        self._clock = clock
        self._wall = wall
        self._identity: tuple[int, ...] | None = None
        self._started = 0.0
        self._listed: tuple[tuple[PodAllocation, ...], float] = (), 0.0
        self._missing: dict[str, float] = {}
        self._is_believed = self._lists_are_true = False
        self.before = Before()
        """To be set from the last object by whoever starts."""

    def doubts(self, said: Answer) -> frozenset[str]:
        """Why the answer is not the truth yet; empty if it is, until the next start."""
        now = self._clock()
        self._note_start(now)
        if self._listed[0] is not said.pods and self._listed[0] != said.pods:
            self._listed = said.pods, now
        if self._is_believed:
            return frozenset()
        reasons = why_not(said, self.before, now - self._started, now - self._listed[1])
        if self._lists_are_true:
            reasons = frozenset(reason for reason in reasons if confirmation.of_devices_only([reason]))
        self._lists_are_true = confirmation.of_devices_only(reasons)
        self._is_believed = not reasons
        return reasons

    def absent(self, said: Answer) -> tuple[Device, ...]:
        """Devices that were there before, of resources that have none now and are not gone for good."""
        now = self._clock()
        there = {device.resource for device in said.allocatable.devices}
        known = {device.resource for device in self.before.devices}
        self._missing = {resource: self._missing.get(resource, now) for resource in known - there}
        kept = {resource for resource, since in self._missing.items() if now - since < GONE_AFTER_S}
        return tuple(device for device in self.before.devices if device.resource in kept)

    def believe(self, said: Answer, absent: tuple[Device, ...]) -> None:
        """The answer is the truth: the next start is compared with it."""
        pods = {(pod.namespace, pod.name): pod for pod in said.pods}
        devices = tuple(sorted({*said.allocatable.devices, *absent})) if absent else said.allocatable.devices
        self.before = Before(pods, devices, said.listed, said.living - said.listed)

    def _note_start(self, now: float) -> None:
        """A change of the socket is a start; how long ago the first was, its file tells."""
        try:
            status = self._socket.stat()
        except OSError:
            return
        identity = (status.st_dev, status.st_ino, status.st_mtime_ns)
        if identity == self._identity:
            return
        # A clock that was set in between makes an old kubelet young at worst.
        age = max(0.0, self._wall() - status.st_mtime) if self._identity is None else 0.0
        self._identity, self._started = identity, now - age
        self._is_believed = self._lists_are_true = False
        self._listed = self._listed[0], now
