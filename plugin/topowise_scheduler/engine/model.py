"""The decisions that counts do not tell: they are asked of the model of the one node."""

from __future__ import annotations

from typing import NamedTuple

from topowise_scheduler.engine.decisions import NUMBER_OF, OUT_OF, SHORT
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.cpu_manager import CpuManager
from topowise_scheduler.kubelet.memory_manager import MemoryManager
from topowise_scheduler.kubelet.pod import PodView


class Answer(NamedTuple):
    """`reason` and `resource` as in decisions.py, 0 and "" where the pod fits; the masks of its containers."""

    fits: bool
    reason: int
    resource: str
    masks: list[int]


def ask(kubelet: Kubelet, view: PodView) -> Answer:
    """What the kubelet would do with the pod now; it does not change."""
    trial = kubelet.fork()
    admission = trial.admit_view(view)
    if admission.admitted:
        hints = trial.active[view.uid].hints
        return Answer(True, 0, "", [hints[container.name].mask or 0 for container in view.containers])
    if admission.shortages:
        return Answer(False, SHORT, admission.reason.removeprefix(OUT_OF), [])
    return Answer(False, NUMBER_OF[admission.reason], "", [])


def emptied(kubelet: Kubelet) -> Kubelet:
    """The same node with no pods on it."""
    copy = kubelet.fork()
    copy.devices.allocated = dict.fromkeys(copy.devices.tables, 0)
    copy.devices.held = {}
    copy.cpu = None if copy.cpu is None else CpuManager(copy.cpu.policy)
    copy.memory = None if copy.memory is None else MemoryManager(copy.memory.policy)
    copy.active = {}
    copy._used = {}
    return copy
