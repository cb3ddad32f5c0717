"""Decides whether a kubelet's answers are complete, or whether the kubelet has just started.

A kubelet serves its socket before it has restored its state. For seconds List is empty and nothing is allocatable, as
if the managers were off and the node empty. A device plug-in is unknown until it has registered again. The state files
and the last published object still show the previous state. From a start on, the exporter therefore does not publish
answers that contradict both, until the answers agree once. Each reason has a time limit. If only device plug-ins are
missing, the rest of the answer is complete.

A new socket file marks a start. A kubelet that has run for longer than every limit is trusted, also by an exporter that
has just started itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from topowise.attributes import confirmation
from topowise.kubeletconfig import KubeletConfiguration
from topowise.runtime import clock
from topowise_exporter.kubelet.allocations import Allocatable, Device, PodAllocation
from topowise_exporter.kubelet.podresources import socket_path

MANAGERS_AT_MOST_S: Final = 300.0
"""After this time the configuration that names the manager is not the kubelet's."""
PODS_AT_MOST_S: Final = 60.0
"""After this time an unlisted pod is dead, whatever its directory and the state files show."""
DEVICES_AT_MOST_S: Final = 30.0
"""After this time the resource is published with nothing allocatable."""
GONE_AFTER_S: Final = 300.0
"""The kubelet keeps the resource of a stopped plug-in for this time (endpointStopGracePeriod)."""
STEADY_S: Final = 2.0
"""A kubelet with a changed policy re-allocates the resources of its pods, pod by pod. A List that has not changed for
this time is complete."""


class Before(msgspec.Struct, frozen=True):
    """The previous state of the node: from the last complete sync, or from the object of an earlier exporter."""

    pods: Mapping[tuple[str, str], PodAllocation] = {}
    devices: tuple[Device, ...] = ()
    listed: frozenset[str] = frozenset()
    unlisted: frozenset[str] = frozenset()
    """UIDs of pods in the state files that List rightly does not show."""


class KubeletAnswer(msgspec.Struct, frozen=True):
    """The kubelet's answers and its state files in a sync."""

    config: KubeletConfiguration
    allocatable: Allocatable
    pods: tuple[PodAllocation, ...] = ()
    listed: frozenset[str] = frozenset()
    """UIDs of pods in List, as far as the state files show them."""
    living: frozenset[str] = frozenset()
    """UIDs of pods with a directory that have CPUs or memory in the state files."""
    directories: frozenset[str] = frozenset()
    """UIDs of pods with a directory."""
    with_devices: frozenset[str] = frozenset()
    """UIDs of pods with a directory that have devices in the checkpoint, which keeps ended pods too."""
    registered: frozenset[str] = frozenset()
    """Resources that the device manager's checkpoint lists with devices."""
    has_cpu_manager: bool = True
    has_memory_manager: bool = True
    """False if the manager's state file shows that the manager is off."""
    has_files: bool = True


def incomplete_because(answer: KubeletAnswer, before: Before, age: float, steady: float) -> frozenset[str]:
    """Returns why the answer of a kubelet that started `age` seconds ago is incomplete; empty for a complete answer.
    List has not changed for `steady` seconds."""
    reasons = set()
    if age < MANAGERS_AT_MOST_S:
        if answer.config.cpuManagerPolicy == "static" and answer.has_cpu_manager and not answer.allocatable.cpus:
            reasons.add(confirmation.CPU_MANAGER)
        if (
            answer.config.memoryManagerPolicy == "Static"
            and answer.has_memory_manager
            and not answer.allocatable.memory
        ):
            reasons.add(confirmation.MEMORY_MANAGER)
    if age < PODS_AT_MOST_S and (_unlisted(answer, before) or _is_counting(answer, before, steady)):
        reasons.add(confirmation.PODS)
    if age < DEVICES_AT_MOST_S:
        allocatable = {device.resource for device in answer.allocatable.devices}
        known = answer.registered | {device.resource for device in before.devices}
        reasons.update(confirmation.device(resource) for resource in known - allocatable)
    return frozenset(reasons)


def _unlisted(answer: KubeletAnswer, before: Before) -> frozenset[str]:
    """Live pods that List should show and does not."""
    expected = answer.living | answer.with_devices & before.listed
    names = {pod.key for pod in answer.pods}
    if any(pod.has_resources and pod.key not in names for pod in before.pods.values()):
        # The state files may have been deleted while the pods were running. Then only the directories show these pods
        # until the kubelet has received them again.
        expected |= answer.directories & before.listed
    return expected - answer.listed - before.unlisted


def _is_counting(answer: KubeletAnswer, before: Before, steady: float) -> bool:
    """Whether List may still be incomplete: it is empty, or a pod holds other resources than before."""
    if not answer.pods:
        # Without state files this is the only evidence, and a node hardly ever loses all its pods at once.
        return bool(before.pods) and not answer.has_files and steady < STEADY_S
    if steady >= STEADY_S:
        return False
    return any(before.pods.get(pod.key, pod) != pod for pod in answer.pods)


class KubeletRestarts:
    """Follows a kubelet through its restarts."""

    def __init__(
        self, socket: str, clock: Callable[[], float] = clock.monotonic, wall: Callable[[], float] = clock.wall
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
        """Set by the owner from the last published object."""

    def doubts(self, answer: KubeletAnswer) -> frozenset[str]:
        """Returns why the answer is incomplete; empty from the first complete answer after a start until the next."""
        now = self._clock()
        is_restart = self._note_start(now)
        if self._listed[0] != answer.pods:
            self._listed = answer.pods, now
        if self._is_believed:
            return frozenset()
        reasons = incomplete_because(answer, self.before, now - self._started, now - self._listed[1])
        if self._lists_are_true:
            reasons = frozenset(reason for reason in reasons if confirmation.of_devices_only([reason]))
        # The start may have come between the calls of this reading, after the answer about allocatable resources.
        self._lists_are_true = not is_restart and confirmation.of_devices_only(reasons)
        self._is_believed = not is_restart and not reasons
        return reasons

    def absent(self, answer: KubeletAnswer) -> tuple[Device, ...]:
        """Returns devices of resources that had devices before, have none now, and went less than GONE_AFTER_S ago."""
        now = self._clock()
        allocatable = {device.resource for device in answer.allocatable.devices}
        known = {device.resource for device in self.before.devices}
        self._missing = {resource: self._missing.get(resource, now) for resource in known - allocatable}
        absent = {resource for resource, since in self._missing.items() if now - since < GONE_AFTER_S}
        return tuple(device for device in self.before.devices if device.resource in absent)

    def believe(self, answer: KubeletAnswer, absent: tuple[Device, ...]) -> None:
        """Records a complete answer; the next start is compared with it."""
        pods = {pod.key: pod for pod in answer.pods}
        devices = tuple(sorted({*answer.allocatable.devices, *absent})) if absent else answer.allocatable.devices
        self.before = Before(pods, devices, answer.listed, answer.living - answer.listed)

    def _note_start(self, now: float) -> bool:
        """Returns whether the kubelet has started since the last reading, by the socket file. Its modification time
        dates the first start that is seen."""
        try:
            status = self._socket.stat()
        except OSError:
            return False
        identity = (status.st_dev, status.st_ino, status.st_mtime_ns)
        if identity == self._identity:
            return False
        # If the wall clock was set since, an old kubelet looks young at worst.
        is_first = self._identity is None
        age = max(0.0, self._wall() - status.st_mtime) if is_first else 0.0
        self._identity, self._started = identity, now - age
        self._is_believed = self._lists_are_true = False
        self._listed = self._listed[0], now
        return not is_first
