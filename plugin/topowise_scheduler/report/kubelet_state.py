"""Builds the kubelet of a report with every reported allocation booked."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from topowise.pods import Needs
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.report import free_resources
from topowise_scheduler.report.nrt_report import Placements, PodName, Report
from topowise_scheduler.report.numaplacement import place_pods

_NOTHING: Mapping[str, int] = {}

RequestsOf = Callable[[PodName], tuple[str, Mapping[str, int]] | None]
"""Returns the UID and effective requests (topowise.pods.needs) of a pod, None for an unknown pod."""


def kubelet_of(
    report: Report,
    requests_of: RequestsOf,
    without: Collection[PodName] = (),
    *,
    pods: Mapping[str, tuple[PodName, Needs]] | None = None,
    before: Kubelet | None = None,
) -> Kubelet:
    """Returns a fork of `report.empty` in which every reported allocation is booked.

    A pod that `requests_of` does not know is booked under `uid_of` its name, without requests. `without` are pods that
    have ended since the report: they are released from the kubelet's own accounting, as the kubelet will do. If a
    finished init container left CPUs, the report lists them under the pod's UID. Such a pod is released completely if
    `requests_of` still knows it; otherwise `without` must have both names.

    A report lists no pods without allocations. For the predicates the caller books such pods itself. A report of counts
    names no pods, so `requests_of` and `without` have no effect, and unavailable amounts stay unavailable until the
    next report. The exception is `pods`: all pods that the amounts include, by UID. They are booked separately if
    numaplacement reports their NUMA nodes.

    `before` is a previous state with the same hardware, devices and settings as `report.empty`. If the report has all
    free resources, only differences from `before` are booked. The result is the same.
    """
    if report.precision == "counts":
        return _with_occupants(report, pods or {})
    allocations: dict[str, tuple[Mapping[str, int], Placements]] = {}
    ended: set[str] = set()
    for name, placements in report.held.items():
        uid, requests = requests_of(name) or (uid_of(name), _NOTHING)
        if name in without:
            ended.add(uid)
        if uid in allocations:
            # Listed under its name and under its UID (CPUs of finished init containers).
            requests, placements = allocations[uid][0] or requests, _merged(allocations[uid][1], placements)
        allocations[uid] = requests, placements
    is_whole = before is not None and free_resources.is_whole(report.free, report.empty)
    kubelet = (before if before is not None and is_whole else report.empty).fork()
    kubelet.hold_exactly(allocations)
    if report.free is not None:
        free_resources.correct(report.free, kubelet)
    for uid in ended:
        # After `correct`, because the kubelet's numbers still include the pod.
        kubelet.remove(uid)
    return kubelet


def _with_occupants(report: Report, pods: Mapping[str, tuple[PodName, Needs]]) -> Kubelet:
    kubelet = report.empty.fork()
    placeholders, placed_pods = place_pods(report, pods)
    for occupant in placeholders:
        kubelet.hold(occupant.uid, occupant.requests, occupant.placements)
    for uid, pod in placed_pods.items():
        kubelet.hold(uid, pod.requests, pod.placements)
    return kubelet


def uid_of(name: PodName) -> str:
    """Returns the UID under which an unknown pod is booked. The name of a pod without a namespace is its UID."""
    namespace, pod = name
    return f"{namespace}/{pod}" if namespace else pod


def _merged(allocations: Placements, left_over: Placements) -> Placements:
    """Merges a pod's allocations under two names: its own, and its UID for CPUs of finished init containers."""
    merged = dict(allocations)
    for name, placement in left_over.items():
        merged[f"{name} (left over)" if name in merged else name] = placement
    return merged
