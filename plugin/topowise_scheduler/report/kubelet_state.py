"""The kubelet of a report with everything held."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Set

from topowise.pods import Needs
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.report import free_resources
from topowise_scheduler.report.nrt_report import Placements, PodName, Report
from topowise_scheduler.report.numaplacement import locate

_NOTHING: Mapping[str, int] = {}

RequestsOf = Callable[[PodName], tuple[str, Mapping[str, int]] | None]
"""Uid and effective requests (topowise.pods.needs) of a pod, None for one that is not known."""


def kubelet_of(
    report: Report,
    requests_of: RequestsOf,
    without: Collection[PodName] = (),
    *,
    pods: Mapping[str, tuple[PodName, Needs]] | None = None,
    before: Kubelet | None = None,
    beside: Collection[str] = (),
    news: tuple[Set[PodName], Collection[str]] | None = None,
) -> Kubelet:
    """A fork of `report.empty` in which everything reported is held.

    Pods that `requests_of` does not know are held under `uid_of` their name, without requests. `without` are pods that
    have ended since: they are released from the kubelet's own accounting, as the kubelet will. One whose finished init
    container left CPUs, which are listed by its uid, is released as a whole if `requests_of` still knows it, else both
    its names are needed.

    Pods that hold nothing are in no report; for the predicates to count them the caller holds them itself. Counts name
    no pods, so there both arguments do nothing: what is not available stays so until the next report, except for
    `pods`: all that are in the numbers, by uid, which are held for themselves if numaplacement tells where they lie.

    `before` is the node as it was, if it has the same hardware, devices and settings as `report.empty`: if the report
    tells all that is free, only what has changed costs anything then, and the result is the same, but that the pods
    `beside` are still on it. With `news`, names and uids, all others hold there what the report says already.
    """
    if report.precision == "counts":
        return _of_counts(report, pods or {})
    holders: dict[str, tuple[Mapping[str, int], Placements]] = {}
    ended: set[str] = set()
    names = report.held if news is None else [name for name in report.held if name in news[0]]
    for name in names:
        placements = report.held[name]
        uid, requests = requests_of(name) or (uid_of(name), _NOTHING)
        if name in without:
            ended.add(uid)
        if uid in holders:
            requests, placements = holders[uid][0] or requests, _together(holders[uid][1], placements)
        holders[uid] = requests, placements
    kubelet = (
        report.empty.fork()
        if before is None or not free_resources.is_whole(report.free, report.empty)
        else before.fork()
    )
    among = None if news is None else {*news[1], *map(uid_of, news[0])}
    kubelet.hold_exactly(holders, beside, among)
    if report.free is not None:
        free_resources.keep(report.free, kubelet)
    for uid in ended:
        kubelet.remove(uid)
    return kubelet


def _of_counts(report: Report, pods: Mapping[str, tuple[PodName, Needs]]) -> Kubelet:
    kubelet = report.empty.fork()
    occupants, located = locate(report, pods)
    for occupant in occupants:
        kubelet.hold(occupant.uid, occupant.requests, occupant.placements)
    for uid, pod in located.items():
        kubelet.hold(uid, pod.requests, pod.placements)
    return kubelet


def uid_of(name: PodName) -> str:
    """The uid under which a pod that nobody knows is held; the name of a pod without a namespace is its uid."""
    namespace, pod = name
    return f"{namespace}/{pod}" if namespace else pod


def _together(one: Placements, other: Placements) -> Placements:
    """What one pod holds under two names: as itself, and what finished init containers left it."""
    both = dict(one)
    for name, placement in other.items():
        both[f"{name} (left over)" if name in both else name] = placement
    return both
