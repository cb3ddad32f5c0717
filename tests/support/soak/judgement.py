"""Whether a "no" was right for all that the service could know, although the node would have taken the pod.

Pure: what was answered, what the service had heard (heard.py), what really was. A cause is never taken from the text of
an answer: it is the fact that the text claims, found in the history, and without which the model of the kubelet admits
the pod. "" is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import msgspec

from refusal_words import refusals
from soak.heard import Known
from soak.worlds import Courses, admits, gives_anything, gives_memory, places, spread, without_memory
from topowise import pods
from topowise.attributes import confirmation
from topowise_scheduler.kubelet import Kubelet, cost
from topowise_scheduler.ledger.gates.node_gates import QUARANTINE_S

Fate = Literal["unheard", "untold", "unbound", "unlisted", "old report", "refused"]

UNCERTAIN = "nobody could know where its newest pods lie, and in one way the pod is refused"
WIDER = (
    "its newest pods lie in one of several ways, none of which was seen to be in the way: all of them at once would be"
)
ANYWHERE = "its newest pods lie in one place for all that was heard, and are taken to lie anywhere"
UNCONFIRMED = "its kubelet has restarted, and its exporter says that the report is the last true one"
QUARANTINED = "its kubelet has refused such a pod, and no report has come since"
TOO_SLOW = "its kubelet would take too long"
ELSEWHERE = "a pod of which no report tells yet lies elsewhere than predicted"
CHANGED = "the node has changed since its last report that was heard"
GROUPS = "its newest pods may tie NUMA nodes together for memory, and are taken to leave none"
HALF = "a report shows a pod half admitted, and its part is counted beside the pod"
ORDER = "events on the node may have come in another order"
DEVICES = "its devices are not those of which a report tells, or others are given than predicted"
_SEVERAL = "several pods are not there that the service must believe there"
FATES: Mapping[Fate, str] = {
    "unheard": "a pod has ended, and the watch has not come",
    "untold": "a pod has ended, and the API server does not know",
    "unbound": "room is kept for a bind that failed, or that was not asked for",
    "unlisted": "a pod was deleted while the watch was down, and may be one that the list did not have yet",
    "old report": "an old report has pods that ended before the service started",
    "refused": "its kubelet is refusing another pod at this moment",
}
_NEVER = (refusals.NEVER, refusals.NEVER_ALLOCATABLE, refusals.NEVER_ENOUGH)
_NATIVE = ("cpu", "memory", "ephemeral-storage")


class Truth(msgspec.Struct, frozen=True):
    """What really was: the kubelet after the pods on their way, the pods that are there or on their way, and the fate
    of other pods. `told` is the same kubelet without the devices that podresources does not list."""

    kubelet: Kubelet
    told: Kubelet
    present: frozenset[str]
    fate: Callable[[str], Fate]
    restarts: tuple[float, ...] = ()
    limit_s: float = 0.0


def judge(pod: pods.Pod, text: str, known: Known, truth: Truth) -> str:
    """Returns the cause of a "no" to a pod that the node would have taken."""
    if known.look is None:
        # Nothing was known of the node, so nothing could be against it.
        return ""
    rule = _RULES.get(text)
    if rule is not None:
        return rule(pod, known, truth)
    if text in _NEVER and admits(known.look.kubelet.emptied(), pod):
        return ""
    courses = Courses(known, pod.metadata.uid)
    reported = courses.told()
    if not admits(reported, pod):
        return _difference(pod, reported, courses, truth)
    if courses.half and not admits(courses.doubled(reported), pod):
        return HALF
    # On its nominated node, a pod gets the reason of the first placement that refuses it.
    cause = _in_some_way(pod, reported, courses)
    is_nominated = any(known_pod.uid == pod.metadata.uid for known_pod in known.pods)
    return cause if is_nominated else ORDER if cause == UNCERTAIN else ""


def _uncertain(pod: pods.Pod, known: Known, truth: Truth) -> str:
    """Returns the cause if the report lacks a part of another pod's allocation, and the kubelet refuses the pod under
    some possible placement of the other pod."""
    courses = Courses(known, pod.metadata.uid)
    reported = courses.told()
    if courses.open and not admits(reported, pod):
        return _difference(pod, reported, courses, truth)
    return _in_some_way(pod, reported, courses)


def _in_some_way(pod: pods.Pod, reported: Kubelet, courses: Courses) -> str:
    newest = [member for member in courses.open if gives_anything(reported, member.pod)]
    if not newest or not gives_anything(reported, pod):
        return ""
    lie: dict[str, set[object]] = {member.uid: {places(reported, member.uid)} for member in newest}
    for world in courses.all():
        if not admits(world, pod):
            return UNCERTAIN
        for uid, ways in lie.items():
            ways.add(places(world, uid))
    everywhere = spread(reported, [member.pod for member in newest])
    if not admits(everywhere, pod):
        return WIDER if any(len(ways) > 1 for ways in lie.values()) else ANYWHERE
    may_tie = reported.settings.topology.policy != "single-numa-node" and any(
        gives_memory(reported, member.pod) for member in newest
    )
    return GROUPS if may_tie and not admits(without_memory(everywhere), pod) else ""


def _unconfirmed(pod: pods.Pod, known: Known, truth: Truth) -> str:
    """Returns the cause if the received object has doubts after a restart, and a kubelet may give the pod the doubtful
    resources. The restarted kubelet may have another configuration, so the present configuration does not matter."""
    if known.report is None or not any(restart <= known.report.at for restart in truth.restarts):
        return ""
    needs = pods.needs(pod)
    resources = {name for container in needs.containers for name in container.limits if name not in _NATIVE}
    devices = {
        doubt.removeprefix(confirmation.DEVICE)
        for doubt in known.report.doubts
        if doubt.startswith(confirmation.DEVICE)
    }
    if devices & resources:
        return UNCONFIRMED
    may_hold = needs.qos == "Guaranteed" or any(
        container.limits.get(name) for container in needs.containers for name in resources
    )
    return UNCONFIRMED if may_hold and not confirmation.of_devices_only(known.report.doubts) else ""


def _quarantined(pod: pods.Pod, known: Known, truth: Truth) -> str:
    """The kubelet has refused such a pod at its first admission, which was heard, and no other object has come since.

    Only kubelets write such a status. The refusal of a pod that had run contradicts no prediction.
    """
    version, requests = "" if known.report is None else known.report.version, pods.needs(pod)
    is_so = any(
        refusal.version == version and known.now - refusal.at <= QUARANTINE_S and pods.needs(refusal.pod) == requests
        for refusal in known.refused
    )
    return QUARANTINED if is_so else ""


def _too_slow(pod: pods.Pod, known: Known, truth: Truth) -> str:
    """Returns whether the kubelet's cost for the pod, on the empty node, exceeds the limit."""
    assert known.look is not None
    empty = known.look.kubelet.emptied()
    view = empty.view(pod.metadata.uid, pods.needs(pod, pod_level_resources=empty.settings.pod_level_resources))
    return TOO_SLOW if truth.limit_s and cost.estimate(empty, view).seconds > truth.limit_s else ""


_RULES: Mapping[str, Callable[[pods.Pod, Known, Truth], str]] = {
    refusals.UNCERTAIN: _uncertain,
    refusals.UNCONFIRMED: _unconfirmed,
    refusals.QUARANTINED: _quarantined,
    refusals.TOO_SLOW: _too_slow,
}


def _difference(pod: pods.Pod, reported: Kubelet, courses: Courses, truth: Truth) -> str:
    """By what the node differs from what was told of it, so that it takes the pod."""
    gone = reported.active.keys() - truth.present - {pod.metadata.uid}
    by_fate: dict[Fate, set[str]] = {}
    for uid in gone:
        by_fate.setdefault(truth.fate(uid), set()).add(uid)
    for fate in FATES:
        if fate in by_fate and _admits_without(courses, by_fate[fate], pod):
            return FATES[fate]
    if len(by_fate) > 1 and _admits_without(courses, gone, pod):
        return _SEVERAL
    if any(places(reported, member.uid) != places(truth.kubelet, member.uid) for member in courses.open):
        return ELSEWHERE
    return CHANGED if admits(truth.told, pod) else DEVICES


def _admits_without(courses: Courses, uids: Iterable[str], pod: pods.Pod) -> bool:
    return admits(courses.told(without=frozenset(uids)), pod)
