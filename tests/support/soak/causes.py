"""Finds the cause of a wrong answer that the service could not have avoided; "" if there is no such cause.

The causes follow from the true state of the node, the API server and the service at that moment.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from burst.evidence import Scene
from sandbox.kubescheduler import fit
from sandbox.kubescheduler.cache import PodInfo, Refused
from soak.judgement import FATES, TOO_SLOW
from topowise import pods
from topowise_scheduler.kubelet import Kubelet

if TYPE_CHECKING:
    from soak.world import World

# A kubelet counts them where it looks for the fewest NUMA nodes, and refuses even who asks for 0 of a resource of which
# nothing is healthy. Neither List nor GetAllocatableResources has them.
_UNHEALTHY = "devices that are not healthy count for its kubelet, and no report tells of them"
_TWICE = "its kubelet has given a CPU to two pods, which no report can tell"
_UNREPORTED = "there was no report of its node, and who decided had started after it was deleted"
_SPREAD = "memory over several NUMA nodes is spread otherwise than predicted, and no report has come"
_UNHEARD = "a pod has ended, and the watch has not come"
_UNLISTED = "a pod was deleted while the watch was down, and may be one that the list did not have yet"
_PREFERRED = "a device plugin has chosen devices that it prefers, and others were left for the next container"
_OLD_REPORT = "an old report has pods that ended before the service started"
_DRAWN = "it hangs on which of several devices its kubelet happens to take"
_GIVEN_AGAIN = "its kubelet has restarted and given memory to init containers again, and no report has come since"
# Also where a watch has to be begun again.
_HEARING_S = 3.0
# Of an answer, that hold where nothing moves any more.
_LASTING = (TOO_SLOW, FATES["unlisted"])
# From kube-scheduler's question to its decision.
_DECIDING_S = 0.1
_ENDED = ("Succeeded", "Failed")
# In the history of a node.
_WIDE = re.compile(r" admitted: .*\('[^']+', \(\d+, \d")
_CHANGES = ("admitted:", "started", "ended")


def of_refusal(world: World, seen: Scene) -> str:
    """Returns the cause of a kubelet's refusal."""
    if seen.is_race("default/blind", world.weather.lag):
        return "another scheduler's pod was bound there at the same moment"
    if seen.refusal.pod.metadata.uid in world.referee.unreported:
        return _UNREPORTED
    # A kubelet's restart loses devices for a while; CPUs and memory are in its state files.
    if _needs_devices(seen.refusal.pod) and seen.is_overtaken(world.weather.lag):
        return "its kubelet went down, and nobody could have told in time"
    kubelet = world.fleet.nodes[seen.refusal.node].kubelet
    if is_drawn(kubelet.model, (), seen.refusal.pod):
        return _DRAWN if seen.refusal.pod.metadata.uid in world.referee.told else ""
    if by_devices := of_devices(kubelet.model, kubelet.as_told(), (), seen.refusal.pod):
        return by_devices
    if _has_too_much_room(world, seen):
        return "a pod has given something back since, with which it would have been taken"
    if _is_given_again(world, seen):
        return _GIVEN_AGAIN
    return _OLD_REPORT if _has_unseen_ends(world, seen) else ""


def _needs_devices(pod: pods.Pod) -> bool:
    return any("/" in name for name in pods.needs(pod).requests)


def of_left_out(world: World, info: PodInfo, name: str, refused: Refused | None, judged: str) -> str:
    """Of a pod that waits beside room when nothing moves any more. `judged` is the cause of its last
    answer now."""
    kubelet = world.fleet.nodes[name].kubelet
    if gives_twice(kubelet.model):
        return _TWICE
    if is_drawn(kubelet.model, (), info.pod):
        return _DRAWN
    if refused is not None and refused.plugin == fit.PLUGIN and _counts_otherwise(world, info, name):
        return "kube-scheduler counts what the pods of its node ask for together, and its kubelet what containers do"
    if judged in _LASTING:
        return judged
    requeued = world.replica.requeuer._requeued.get(info.uid)
    if requeued is not None and requeued.not_before > asyncio.get_running_loop().time():
        return "it was requeued in vain, and is left alone for a while"
    return of_devices(kubelet.model, kubelet.as_told(), (), info.pod)


def _counts_otherwise(world: World, info: PodInfo, name: str) -> bool:
    """Returns whether the pod fits by the sums of containers, but not by the sums of pods that kube-scheduler computes.
    A kubelet without the gate PodLevelResources uses the sums of containers."""
    present, node = [*world.scheduler.pods_on(name), info], world.scheduler._cache.get(name)
    allocatable = {} if node is None else node.allocatable

    def fits(*, by_pod: bool) -> bool:
        used: Counter[str] = Counter()
        for member in present:
            used.update(pods.needs(member.pod, pod_level_resources=by_pod).requests)
        return all(amount <= allocatable.get(resource, 0) for resource, amount in used.items() if amount)

    return fits(by_pod=False) and not fits(by_pod=True)


def gives_twice(kubelet: Kubelet) -> bool:
    """Returns whether two pods have the same CPU, or an allocated CPU is free: a kubelet measures a whole socket by the
    average (cpu_packing.py)."""
    if kubelet.cpu is None:
        return False
    taken = 0
    for containers in kubelet.cpu.allocations.values():
        own = 0
        for cpus in containers.values():
            own |= cpus
        if own & (taken | kubelet.cpu.available):
            return True
        taken |= own
    return False


def _has_too_much_room(world: World, seen: Scene) -> bool:
    """Returns whether the kubelet would have admitted the pod if no other pod or init container had ended after the
    service's last knowledge: an init container on another NUMA node ties later containers to that NUMA node."""
    node, pod, heard = world.fleet.nodes[seen.refusal.node], seen.refusal.pod, world.weather.lag + _DECIDING_S
    decided = seen.times().get(seen.pod, {}).get("decided", seen.refusal.at)
    there = [sent.pod for sent in world.scheduler.pods_on(seen.refusal.node) if node.kubelet.runs(sent.uid)]
    before = [state for moment, state in world.referee.before_releases[seen.refusal.node] if moment >= decided - heard]
    return any(takes_beside(state, [beside for beside in there if beside != pod], pod) for state in before)


def _has_unseen_ends(world: World, seen: Scene) -> bool:
    """Returns whether the service would have predicted the refusal if it had known the ends before its start: an init
    container on another NUMA node ties later containers to that NUMA node."""
    name, pod = seen.refusal.node, seen.refusal.pod
    state, history = world.replica.service.ledger.node_states.of(name), world.fleet.nodes[name].lifecycle.history
    if state is None or state.kubelet is None:
        return False
    looked, known = _looked(world, name), state.kubelet.fork()
    ended = [
        active_uid
        for active_uid in known.active
        if ended_unseen(world.referee.names.get(active_uid, active_uid), history, looked, world.replica.began)
    ]
    for uid in (*ended, pod.metadata.uid):
        known.remove(uid)
    return bool(ended) and not known.admit(pod).admitted


def takes_beside(before: Kubelet, there: Iterable[pods.Pod], pod: pods.Pod) -> bool:
    """Returns whether a node in an earlier state admits the pods that arrived since, and after them this pod."""
    trial = before.fork()
    come = [arrival for arrival in there if arrival.metadata.uid not in before.active]
    return all(trial.admit(arrival).admitted for arrival in (*come, pod))


def of_devices(truth: Kubelet, reported_kubelet: Kubelet, coming: Sequence[pods.Pod], pod: pods.Pod) -> str:
    """Returns the cause if devices explain the decision: the node would decide otherwise, after the `coming` pods, with
    its reported devices only, or with plug-ins that prefer the first free devices, or both."""

    def takes(node: Kubelet, *, has_preferences: bool) -> bool:
        trial = node.fork()
        if not has_preferences:
            trial.devices.preferred = {}
        for arrival in coming:
            trial.admit(arrival)
        return trial.admit(pod).admitted

    taken = takes(truth, has_preferences=True)
    if takes(reported_kubelet, has_preferences=True) != taken:
        return _UNHEALTHY
    if takes(truth, has_preferences=False) != taken:
        return _PREFERRED
    return _UNHEALTHY if takes(reported_kubelet, has_preferences=False) != taken else ""


def is_drawn(truth: Kubelet, coming: Sequence[pods.Pod], pod: pods.Pod) -> bool:
    """Returns whether a node would decide otherwise if the pod and the `coming` pods got the devices that the model
    chooses."""
    drawn, plain = truth.fork(), truth.fork()
    plain.devices.chooser = None
    for arrival in coming:
        drawn.admit(arrival)
        plain.admit(arrival)
    return drawn.admit(pod).admitted != plain.admit(pod).admitted


def _is_given_again(world: World, seen: Scene) -> bool:
    """Returns whether the kubelet would have admitted the pod without its restart since the exporter's last look."""
    restart = max((moment for moment, event in seen.history if event == "kubelet restarts"), default=0.0)
    if restart < seen.looked_at:
        return False
    since = {event.split()[0] for moment, event in seen.history if moment > restart and " admitted: " in event}
    node = world.fleet.nodes[seen.refusal.node].kubelet.model
    return takes_once_started(
        node, [uid for uid in node.active if world.referee.names.get(uid) not in since], seen.refusal.pod
    )


def takes_once_started(node: Kubelet, before: Iterable[str], pod: pods.Pod) -> bool:
    """Returns whether a node admits the pod if the init containers of the pods `before` (uids) have no allocations."""
    trial = node.fork()
    for uid in before:
        trial.start(uid)
    return trial.admit(pod).admitted


def _looked(world: World, name: str) -> float:
    """Returns the time of the exporter's look behind the report that the service has."""
    state, reports = world.replica.service.ledger.node_states.of(name), list(world.fleet.nodes[name].reporter.reports)
    is_heard = state is None or state.report is None or state.report.version == reported(world).get(name)
    # Reports of the last seconds may or may not have reached the service.
    come = asyncio.get_running_loop().time() - (0.0 if is_heard else world.weather.lag + _HEARING_S)
    return max((looked for looked, written in reports if written <= come), default=0.0)


def reported(world: World) -> dict[str, str]:
    """Returns the version of each node's object, by name of node."""
    objects = world.server.store.objects("noderesourcetopologies.topology.node.k8s.io")
    return {document["metadata"]["name"]: document["metadata"]["resourceVersion"] for document in objects}


def ended_unseen(name: str, history: Iterable[tuple[float, str]], looked: float, began: float) -> bool:
    """Whether a pod (namespace/name) ended, or was not admitted again, after its node was `looked` at for the last
    report, and before the service `began`, which was told neither of the pod nor of its end."""
    ends = f"{name} ended", f"{name} not admitted again"
    ended = max((moment for moment, event in history if event.startswith(ends)), default=-1.0)
    return looked <= ended <= began
