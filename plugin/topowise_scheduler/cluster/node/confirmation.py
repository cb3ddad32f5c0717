"""Which pods a report includes, so that they need not be booked beside it.

Invariant: a pod is confirmed only if all that it holds is in the report's numbers. In doubt it stays booked beside
them, by which a node looks fuller than it is and never emptier. Nothing here changes a entry, but for what `compare`
notes in it of its own prediction.

- A report of precision "exact" lists each pod's CPUs, memory and devices, so each pod is confirmed for itself.
- A report of counts only tells by its fingerprint which pods are in its numbers: all that we know of, or all but the
  newest few, with or without those that have ended.
- One without a fingerprint includes those whose amounts make up what is in use (included.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from typing import Final

import msgspec

from topowise import fingerprint, pods
from topowise_scheduler.cluster.node.bookings import ENDED_KEPT_S, LATE_S
from topowise_scheduler.cluster.node.history import Ended, Entry
from topowise_scheduler.cluster.node.included import included
from topowise_scheduler.cluster.node.possible_placements import own_amounts
from topowise_scheduler.cluster.pods.records import PodRecord
from topowise_scheduler.device_affinity import observed
from topowise_scheduler.kubelet import Kubelet, Placement
from topowise_scheduler.kubelet.device_table import DeviceTable
from topowise_scheduler.kubelet.masks import mask_of
from topowise_scheduler.kubelet.pod import ContainerView
from topowise_scheduler.report import Placements, PodName, Report

# How many of the newest pods may be missing in the numbers of a counts report, to be found by its fingerprint.
_MAX_MISSING: Final = 16
# And how many that have ended may still be in them, beside all or none.
_MAX_LATELY: Final = 4


class Comparison(msgspec.Struct, frozen=True):
    """Predictions that a report has confirmed: how many lie on the predicted NUMA nodes, and the pods that do not.

    `wishes` are those of all these pods for near devices: whether each is met by what they got, None if that is not
    known, and for people whose and why not.
    """

    hits: int = 0
    misses: tuple[PodName, ...] = ()
    wishes: tuple[tuple[bool | None, PodName, str], ...] = ()
    entries: tuple[Entry, ...] = ()
    """The entries of which the comparison tells something new, with that."""


def shows(report: Report, entry: Entry) -> bool:
    """Whether a report is of a time after the pod's last resize, if there was one."""
    resized = entry.seen.resized
    if resized is None:
        return True
    if report.precision == "exact":
        return resized.held != report.held.get(entry.name)
    return resized.version != report.version


def confirms(report: Report, entry: Entry, ended: Mapping[PodName, Ended], reported_at: float) -> bool:
    """Whether an exact report lists the pod, and lists all of it. `reported_at`: seconds, monotonic.

    Of a name that has ended lately, it may mean the one that ended. A kubelet allocates container by container, and
    lists what it has got to: the pod is believed to hold less than it asks for only once it has been there for long
    (a kubelet whose managers were switched on later), as a report may be on its way for long.
    """
    held = report.held.get(entry.name)
    if held is None:
        return _is_told_by_uid(report, entry)
    if is_old(entry.name, held, ended) or not shows(report, entry):
        return False
    if entry.seen.listed is not None:
        return True
    done = entry.seen.acknowledged
    if done is not None and (entry.seen.was_there or done < reported_at - ENDED_KEPT_S):
        return True
    return is_whole(report, entry)


def _is_told_by_uid(report: Report, entry: Entry) -> bool:
    """Whether an exact report tells what init containers left a pod whose others are given nothing, so that no List has
    it by its name. Which devices that are is the choice of a kubelet or a plug-in, and may be another than predicted.
    """
    left = report.held.get(("", entry.uid), {}).get("")
    if left is None:
        return False
    pod, node = entry.record.view(report.empty), report.empty
    if node.allocates_whole(pod) or any(one.kind != "init" and _wants(one, node) for one in pod.containers):
        return False
    # Memory is given back when they are done, and the free amounts of the report tell of it.
    return all(_has_all(left, one, node, with_memory=False) for one in pod.containers)


def is_old(name: PodName, listed: Placements, ended: Mapping[PodName, Ended]) -> bool:
    """Whether what a report lists under a name may be a pod that has ended."""
    return name in ended and ended[name].may_be(listed)


def is_whole(report: Report, entry: Entry) -> bool:
    """Whether an exact report lists everything that the pod's kubelet gives its app containers: they come last."""
    held, node = report.held[entry.name], report.empty
    if entry.name in report.admitting:
        return False
    pod = entry.record.view(node)
    if node.allocates_whole(pod):
        own = held.get("")
        return (node.cpu is None or not pod.cpus or own is not None) and all(
            one.name in held for one in pod.containers if one.kind == "app" and _wants(one, node)
        )
    return all(
        one.name in held and _has_all(held[one.name], one, node)
        for one in pod.containers
        if one.kind == "app" and _wants(one, node)
    )


def _wants(container: ContainerView, node: Kubelet) -> bool:
    """Whether its kubelet gives the container anything of its own."""
    return bool(
        (node.cpu is not None and container.cpus)
        or (node.memory is not None and any((container.memory or {}).values()))
        or any(count for name, count in container.limits.items() if name in node.devices.tables)
    )


def _has_all(held: Placement, container: ContainerView, node: Kubelet, *, with_memory: bool = True) -> bool:
    if node.cpu is not None and (held.cpus or 0).bit_count() < container.cpus:
        return False
    if with_memory and node.memory is not None:
        listed = {block.type for block in held.memory}
        if any(amount and name not in listed for name, amount in (container.memory or {}).items()):
            return False
    return all(
        len(held.devices.get(name, ())) >= count
        for name, count in container.limits.items()
        if name in node.devices.tables
    )


def compare(
    report: Report,
    assigned: Sequence[Entry],
    predicted: Kubelet,
    ended: Mapping[PodName, Ended],
    reported_at: float,
) -> Comparison:
    """What an exact report says of pods that were only predicted so far, each judged once, when it is whole.

    A pod of which a part lies elsewhere is placed anew around that part, so its miss is noted in the entry.
    """
    hits = 0
    misses = []
    entries = []
    wishes: list[tuple[bool | None, PodName, str]] = []
    for entry in assigned:
        held = report.held.get(entry.name)
        if held is None or entry.seen.compared or entry.uid not in predicted.active or not shows(report, entry):
            continue
        placements = predicted.placements(entry.uid)
        # Plain init containers are in no report, and "" is the pod itself.
        missed = entry.seen.missed or not all(
            name in placements and _lies_there(placement, placements[name], predicted)
            for name, placement in held.items()
            if name
        )
        if not confirms(report, entry, ended, reported_at):
            if missed and not entry.seen.missed:
                entries.append(entry.seen_as(missed=True))
            continue
        entries.append(entry.seen_as(missed=missed, compared=True))
        wanted = entry.record.wishes
        found = observed(wanted, entry.needs, held, report.places) if wanted else ()
        wishes += [(is_met, entry.name, f"{wish}: {why}") for wish, (is_met, why) in zip(wanted, found, strict=True)]
        if missed:
            misses.append(entry.name)
        else:
            hits += 1
    return Comparison(hits, tuple(misses), tuple(wishes), tuple(entries))


def _lies_there(listed: Placement, predicted: Placement, node: Kubelet) -> bool:
    """Whether what is listed of a container is on the predicted NUMA nodes; what is not listed yet says nothing."""
    return all(
        mine == theirs
        for mine, theirs in zip(_numa_nodes(listed, node), _numa_nodes(predicted, node), strict=True)
        if mine
    ) and all(
        _is_such_a_choice(table, ids, predicted.devices.get(resource, ()), predicted.numa, node)
        for resource, ids in listed.devices.items()
        if ids and (table := node.devices.tables.get(resource)) is not None
    )


def _is_such_a_choice(
    table: DeviceTable, listed: Sequence[str], predicted: Sequence[str], hint: Sequence[int] | None, node: Kubelet
) -> bool:
    """Whether the devices are as good as the predicted ones: near the hint's NUMA nodes if those are.

    Which of several such devices a container gets is its kubelet's (Go's map order) or its plug-in's choice; one of
    them may be near further nodes as well.
    """
    if hint is None or not table.index.keys() >= {*listed, *predicted}:
        return hint is None
    near = table.touching(mask_of(node.node_ids.index(numa) for numa in hint if numa in node.node_ids))
    if not table.select(predicted) & ~near:
        return not table.select(listed) & ~near
    return sorted(_nodes_of(table, one) for one in listed) == sorted(_nodes_of(table, one) for one in predicted)


def counted(report: Report, assigned: Sequence[Entry], ended: Mapping[PodName, Ended]) -> list[Entry]:
    """The assigned pods that the report's kind of fingerprint counts."""
    counts_all = report.fingerprint_method == fingerprint.ALL
    return [
        one
        for one in assigned
        # Of a name that has ended lately, the digest may mean the one that ended.
        if one.name not in ended and (counts_all or is_exclusive(report.empty, one.needs))
    ]


def by_fingerprint(
    report: Report,
    assigned: Sequence[Entry],
    settled: Container[str],
    ended: Mapping[PodName, Ended],
    reported_at: float,
) -> list[Entry]:
    """The pods that the numbers include and that are not marked so yet; none if the fingerprint is of no set we know.

    `reported_at` is when the report came: seconds, monotonic.
    """
    candidates = counted(report, assigned, ended)
    latest = latest_first(ended)
    lately = [latest[:many] for many in (*range(min(len(latest), _MAX_LATELY)), len(latest))]
    for missing in range(min(len(candidates), _MAX_MISSING) + 1):
        names = [entry.name for entry in candidates[: len(candidates) - missing]]
        if not any(report.fingerprint == fingerprint.of([*names, *some]) for some in lately):
            continue
        newest = {entry.uid for entry in candidates[len(candidates) - missing :]}
        listed = [one for one in assigned if one.uid not in newest and one.uid not in settled and one.name not in ended]
        return [
            one
            for one in _with_room(report, [one for one in assigned if one.uid in settled], listed, reported_at)
            if shows(report, one)
        ]
    return []


def by_amounts(report: Report, assigned: Sequence[Entry], ended: Mapping[PodName, Ended]) -> frozenset[int]:
    """Positions of the assigned pods that the numbers of a report without a fingerprint can include; of nobody else."""
    return included(
        _in_use(report),
        [_own(report, one.record) for one in assigned],
        [_own(report, ended[name].record) for name in latest_first(ended)],
    )


def latest_first(ended: Mapping[PodName, Ended]) -> list[PodName]:
    """Names of pods that have ended, the last first."""
    return sorted(ended, key=lambda name: ended[name].at, reverse=True)


def _with_room(report: Report, settled: Sequence[Entry], listed: list[Entry], reported_at: float) -> list[Entry]:
    """The pods of a fingerprint without the newest, if the numbers have no room for them.

    A kubelet lists a pod before all of it has been allocated, and NFD looks as soon as its CPUs are. Pods that have
    been there for long may hold less than they ask for, as their containers may have ended.
    """
    rest = _in_use(report)
    for entry in settled:
        rest.subtract(_own(report, entry.record))
    asked: Counter[str] = Counter()
    for entry in listed:
        asked.update(_own(report, entry.record))
    if all(amount <= rest[name] for name, amount in asked.items()):
        return listed
    return [one for one in listed if not _is_newly_there(one, reported_at)]


def _is_newly_there(entry: Entry, reported_at: float) -> bool:
    done = entry.seen.acknowledged
    return not entry.seen.was_there and (done is None or done >= reported_at - LATE_S)


def _in_use(report: Report) -> Counter[str]:
    """What a counts report says is not available, in units of requests."""
    total: Counter[str] = Counter()
    for occupant in report.occupants:
        total.update(occupant.requests)
    return total


def _own(report: Report, record: PodRecord) -> dict[str, int]:
    """What the pod takes of the numbers of this report."""
    return own_amounts(report.empty, record.view(report.empty))


def _numa_nodes(placement: Placement, node: Kubelet) -> list[object]:
    """The NUMA nodes of a container's CPUs and of its memory."""
    cpus = [numa.id for numa in node.topology.numas if numa.cpus & (placement.cpus or 0)]
    memory = {block.type: block.numa for block in placement.memory if block.size}
    return [cpus, memory]


def _nodes_of(table: DeviceTable, device: str) -> tuple[int, ...]:
    number = table.index.get(device)
    if number is None:
        return ()
    return tuple(position for position, near in enumerate(table.near) if near >> number & 1)


def is_exclusive(node: Kubelet, needs: pods.Needs) -> bool:
    """Whether fingerprint method `with-exclusive-resources` counts the pod; plain init containers do not matter.

    RTE counts what the kubelet lists. scheduler-plugins (pkg/noderesourcetopology/resourcerequests, AreExclusiveForPod)
    go by the pod alone, and so never agree with it on a node whose manager of CPUs or memory is off.
    """
    guaranteed = needs.qos == "Guaranteed"
    return any(
        _is_exclusive_amount(node, resource, amount, guaranteed=guaranteed)
        for container in needs.containers
        if container.kind != "init"
        for resource, amount in {**container.limits, **container.requests}.items()
        if amount > 0
    )


def _is_exclusive_amount(node: Kubelet, resource: str, amount: int, *, guaranteed: bool) -> bool:
    if resource == "cpu":
        return guaranteed and amount % 1000 == 0 and node.cpu is not None
    if resource == "memory" or resource.startswith(pods.HUGEPAGES):
        return guaranteed and node.memory is not None
    # Devices without a NUMA node are in no zone.
    table = node.devices.tables.get(resource)
    return table is not None and table.nodes != 0
