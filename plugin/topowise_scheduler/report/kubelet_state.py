"""Builds the kubelet of a report with every reported allocation booked.

numaplacement says the NUMA nodes of pods of a report of counts, container by container. The amounts of such a pod are
taken from its zone's placeholder pod and booked separately, so that the pod can end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice

import msgspec

from topowise import numaplacement
from topowise.errors import ParseError
from topowise.pods import Needs
from topowise_scheduler.kubelet import Kubelet, MemoryBlock, Placement
from topowise_scheduler.kubelet.masks import mask_of, members
from topowise_scheduler.kubelet.pod import ContainerView
from topowise_scheduler.report import exact
from topowise_scheduler.report.nrt_report import PlaceholderPod, Placements, PodName, Report

_NOTHING: Mapping[str, int] = {}


class PlacedPod(msgspec.Struct, frozen=True):
    """A pod on the synthetic machine: its placements, and its requests."""

    requests: Mapping[str, int]
    placements: Placements


def place_pods(
    report: Report, pods: Mapping[str, tuple[PodName, Needs]]
) -> tuple[tuple[PlaceholderPod, ...], dict[str, PlacedPod]]:
    """Returns the remaining placeholder pods, and by UID the pods that numaplacement places.

    `pods` must be all pods whose amounts are in the report. If numaplacement lists other containers, no pod is placed.
    A pod that requests more than its zones have in use stays part of the placeholder pods.
    """
    if report.offsets is None:
        return report.placeholders, {}
    views = {
        uid: [view for view in report.empty.view(uid, needs).containers if _is_listed(report.empty, view)]
        for uid, (_, needs) in pods.items()
    }
    containers = {(*pods[uid][0], view.name): None for uid, views_of_pod in views.items() for view in views_of_pod}
    try:
        # Raises for a different number of containers: then the offsets refer to containers of other pods.
        nodes = numaplacement.resolve(report.offsets, containers)
    except ParseError:
        return report.placeholders, {}
    placeholders = {occupant.placements[""].numa: occupant for occupant in report.placeholders}
    placed_pods = {}
    for uid, views_of_pod in views.items():
        remaining = dict(placeholders)
        placed: dict[str, Placement] = {}
        for view in views_of_pod:
            zone = (nodes[(*pods[uid][0], view.name)],)
            parts = _take(remaining[zone], view, report.empty, zone) if zone in remaining else None
            if parts is None:
                # All or nothing: a pod with an unplaced container stays in the placeholder pods.
                break
            remaining[zone], placed[view.name] = parts
        else:
            if placed:
                placeholders = remaining
                placed_pods[uid] = PlacedPod(pods[uid][1].requests, placed)
    return tuple(placeholders.values()), placed_pods


def _is_listed(node: Kubelet, view: ContainerView) -> bool:
    """Returns whether the exporter lists allocations of the container; podresources lists no plain init containers."""
    asks_cpus = bool(view.cpus) and node.cpu is not None
    asks_memory = any((view.memory or {}).values()) and node.memory is not None
    return view.kind != "init" and (asks_cpus or asks_memory or any(_devices(node, view).values()))


def _devices(node: Kubelet, view: ContainerView) -> dict[str, int]:
    return {name: count for name, count in view.limits.items() if name in node.devices.tables}


def _take(
    occupant: PlaceholderPod, view: ContainerView, node: Kubelet, zone: tuple[int]
) -> tuple[PlaceholderPod, Placement] | None:
    """Returns the remaining placeholder pod and the container's placement, None if the placeholder has too little."""
    available = occupant.placements[""]
    requests = dict(occupant.requests)
    cpus = 0
    if node.cpu is not None and view.cpus:
        # Which CPUs does not matter: all cores of a zone are alike.
        cpus = mask_of(islice(members(available.cpus or 0), view.cpus))
        requests["cpu"] = requests.get("cpu", 0) - 1000 * view.cpus
    blocks = {block.type: block.size for block in available.memory}
    container_blocks: list[MemoryBlock] = []
    requested_memory = (
        {name: size for name, size in (view.memory or {}).items() if size} if node.memory is not None else {}
    )
    for name, size in requested_memory.items():
        blocks[name] = blocks.get(name, 0) - size
        requests[name] = requests.get(name, 0) - size
        container_blocks.append(MemoryBlock(name, zone, size))
    devices = dict(available.devices)
    taken_devices: dict[str, Sequence[str]] = {}
    for name, count in _devices(node, view).items():
        ids = devices.get(name, ())
        taken_devices[name], devices[name] = ids[:count], ids[count:]
        requests[name] = requests.get(name, 0) - count
        if len(taken_devices[name]) < count:
            return None
    # The placeholder pod has less than the container requests: numaplacement and amounts contradict each other.
    if cpus.bit_count() < view.cpus * (node.cpu is not None) or min([0, *blocks.values(), *requests.values()]) < 0:
        return None
    remaining = msgspec.structs.replace(
        available,
        cpus=None if available.cpus is None else available.cpus & ~cpus,
        memory=tuple([MemoryBlock(name, zone, size) for name, size in blocks.items() if size]),
        devices=devices,
    )
    placement = Placement(
        kind=view.kind,
        numa=zone,
        preferred=True,
        cpus=cpus or None,
        memory=tuple(container_blocks),
        devices={name: tuple(ids) for name, ids in taken_devices.items()},
    )
    return msgspec.structs.replace(occupant, requests=requests, placements={"": remaining}), placement


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
    is_whole = before is not None and exact.is_whole(report.free, report.empty)
    kubelet = (before if before is not None and is_whole else report.empty).fork()
    kubelet.hold_exactly(allocations)
    if report.free is not None:
        exact.correct(report.free, kubelet)
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
