"""Finds the pods that a report includes, so that the pods need not be booked beside the report.

Invariant: a pod is confirmed only if the report's numbers have all that the pod holds. In doubt the pod stays booked
beside the numbers, so that the node looks fuller than it is and never emptier.

- A report of precision "exact" lists CPUs, memory and devices of each pod, so that each pod is confirmed by itself.
- The fingerprint of a report with amounts only identifies the pods in its numbers: all known pods, or all but the
  newest, with or without ended pods.
- A report without a fingerprint includes the pods whose requests add up to what is in use (included.py).

Infers which pods a report accounts for, from used amounts alone.

Invariant: the pods that are returned request no more together than is in use.

Some producers publish no fingerprint: koordlet, whose numbers are totals that include no pod, and RTE and NFD with
fingerprints switched off. The pods are found by addition: the pods on the node without the newest pods, and maybe pods
that ended lately, request what is in use. Of several such sets the smallest set counts: a pod that is booked beside the
numbers can only make the node look fuller than it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from typing import Final

import msgspec

from topowise import fingerprint, pods
from topowise_scheduler.kubelet import Kubelet, Placement
from topowise_scheduler.kubelet.pod import ContainerView
from topowise_scheduler.ledger.node.history import ENDED_KEPT_S, LATE_S, Ended, Entry, History, Precision, precision_of
from topowise_scheduler.ledger.node.pod_parts import own_amounts
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.report import Placements, PodName, Report

Amounts = Mapping[str, int]


def included(in_use: Amounts, there: Sequence[Amounts], ended: Sequence[Amounts]) -> frozenset[int]:
    """Returns the positions in `there`, oldest pod first, of the pods that the numbers include.

    `ended` are pods that ended lately, last end first. Pods without requests are in no number. If no set adds up (RTE
    counts memory of several NUMA nodes on each, pods may be excluded), the oldest pods that fit beside all ended pods
    count.
    """
    rest = Counter({name: amount for name, amount in in_use.items() if amount})
    # Without ended pods first: most reports are younger than every end.
    sets = [_first(Counter(rest), there)]
    for requests in ended:
        if any(requests.values()):
            rest.subtract(requests)
            sets.append(_first(Counter(rest), there))
    adding_up = [positions for positions in sets if positions is not None]
    return min(adding_up, key=len) if adding_up else _within(rest, there)


def _first(rest: Counter[str], there: Sequence[Amounts]) -> frozenset[int] | None:
    """Returns the fewest oldest pods that request exactly these amounts, None if there are no such pods."""
    positions = []
    for position, requests in enumerate(there):
        # All amounts are explained. Newer pods came after the report.
        if not any(rest.values()):
            break
        if any(requests.values()):
            rest.subtract(requests)
            positions.append(position)
    # An amount below 0 stays below 0: more pods only request more.
    return None if any(rest.values()) else frozenset(positions)


def _within(rest: Counter[str], there: Sequence[Amounts]) -> frozenset[int]:
    positions = []
    for position, requests in enumerate(there):
        if any(requests.values()) and all(amount <= rest[name] for name, amount in requests.items() if amount):
            rest.subtract(requests)
            positions.append(position)
    return frozenset(positions)


# How many of the newest pods may be missing in the numbers of a counts report, to be found by its fingerprint.
_MAX_MISSING: Final = 16
# How many ended pods may still be in the numbers, apart from all or none.
_MAX_LATELY: Final = 4


class Comparison(msgspec.Struct, frozen=True):
    """The pods that a report has confirmed, with the precision of their predictions.

    `demands` has each demand of these pods on an option: whether the allocation meets it (None if unknown), the pod,
    and the demand with the reason in words.
    """

    precisions: tuple[tuple[PodName, Precision], ...] = ()
    demands: tuple[tuple[bool | None, PodName, str], ...] = ()
    entries: tuple[Entry, ...] = ()
    """The entries with the precision so far."""


def shows(report: Report, entry: Entry) -> bool:
    """Returns whether a report is newer than the pod's last resize."""
    resized = entry.seen.resized
    if resized is None:
        return True
    if report.precision == "exact":
        return resized.held != report.held.get(entry.name)
    return resized.version != report.version


def confirms(report: Report, entry: Entry, ended: Mapping[PodName, Ended], reported_at: float) -> bool:
    """Returns whether an exact report lists the whole pod. `reported_at`: seconds, monotonic.

    Under the name of a pod that ended lately, the report may list the ended pod. A kubelet allocates container by
    container and lists what is allocated. A pod that was admitted long ago may hold less than it asks for, such as on a
    kubelet whose managers were switched on later.
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
    """Returns whether an exact report lists by UID what init containers left to the pod.

    App containers of such a pod get nothing, so that no List has the pod by its name. The devices may differ from the
    prediction.
    """
    left = report.held.get(("", entry.uid), {}).get("")
    if left is None:
        return False
    pod, node = entry.record.view(report.empty), report.empty
    if node.allocates_whole(pod) or any(
        container.kind != "init" and _wants(container, node) for container in pod.containers
    ):
        return False
    # The kubelet releases memory of init containers, and the free amounts of the report include it.
    return all(_has_all(left, container, node, with_memory=False) for container in pod.containers)


def is_old(name: PodName, listed: Placements, ended: Mapping[PodName, Ended]) -> bool:
    """Returns whether what a report lists under a name may be an ended pod."""
    return name in ended and ended[name].may_be(listed)


def is_whole(report: Report, entry: Entry) -> bool:
    """Returns whether an exact report lists all that the kubelet gives the app containers, which it admits last."""
    held, node = report.held[entry.name], report.empty
    # The exporter saw the kubelet between two allocations of this pod (attributes.confirmation).
    if entry.name in report.admitting:
        return False
    pod = entry.record.view(node)
    if node.allocates_whole(pod):
        # AllocatePod books the CPUs of the pod under the pod itself (KEP-5526), "" in a report.
        own = held.get("")
        return (node.cpu is None or not pod.cpus or own is not None) and all(
            container.name in held
            for container in pod.containers
            if container.kind == "app" and _wants(container, node)
        )
    return all(
        container.name in held and _has_all(held[container.name], container, node)
        for container in pod.containers
        if container.kind == "app" and _wants(container, node)
    )


def _wants(container: ContainerView, node: Kubelet) -> bool:
    """Returns whether the managers give the container anything."""
    return bool(
        (node.cpu is not None and container.cpus)
        or (node.memory is not None and any((container.memory or {}).values()))
        or any(count for name, count in container.limits.items() if name in node.devices.tables)
    )


def _has_all(placement: Placement, container: ContainerView, node: Kubelet, *, with_memory: bool = True) -> bool:
    if node.cpu is not None and (placement.cpus or 0).bit_count() < container.cpus:
        return False
    if with_memory and node.memory is not None:
        listed = {block.type for block in placement.memory}
        if any(amount and name not in listed for name, amount in (container.memory or {}).items()):
            return False
    return all(
        len(placement.devices.get(name, ())) >= count
        for name, count in container.limits.items()
        if name in node.devices.tables
    )


def compare(
    report: Report, assigned: Sequence[Entry], predicted: Kubelet, ended: Mapping[PodName, Ended], reported_at: float
) -> Comparison:
    """Compares an exact report with the predictions of pods, once for each pod, when the report lists the whole pod.

    The rest of a partly listed pod is placed anew around the listed part, so the entry keeps the part's precision.
    """
    precisions = []
    entries = []
    demands: list[tuple[bool | None, PodName, str]] = []
    for entry in assigned:
        held = report.held.get(entry.name)
        if held is None or entry.seen.compared or entry.uid not in predicted.active or not shows(report, entry):
            continue
        placements = predicted.placements(entry.uid)
        # No report has plain init containers, and "" is the pod itself.
        precision = min(
            entry.seen.precision,
            *(
                precision_of(placement, placements[name], predicted) if name in placements else Precision.MISSED
                for name, placement in held.items()
                if name
            ),
        )
        entries.append(entry.seen_as(precision=precision))
        # The rest of the pod is not allocated yet. A later report compares the whole pod.
        if not confirms(report, entry, ended, reported_at):
            continue
        for demand in entry.record.demands.of_options:
            observed = demand.observed(entry.needs, held, report.places)
            demands += [(is_met, entry.name, why) for is_met, why in observed]
        precisions.append((entry.name, precision))
    return Comparison(tuple(precisions), tuple(demands), tuple(entries))


def counted(report: Report, assigned: Sequence[Entry], ended: Mapping[PodName, Ended]) -> list[Entry]:
    """Returns the assigned pods that the report's kind of fingerprint counts."""
    counts_all = report.fingerprint_method == fingerprint.ALL
    return [
        entry
        for entry in assigned
        # The digest may mean an ended pod of the same name.
        if entry.name not in ended and (counts_all or is_exclusive(report.empty, entry.needs))
    ]


def with_counted(history: History, report: Report) -> History:
    """Returns the history with the pods that the numbers of a counts report are of, if it tells where they lie."""
    if report.offsets is None or not report.fingerprint or history.counted:
        return history
    entries = counted(report, history.bound(), history.ended_by_name)
    if report.fingerprint != fingerprint.of([entry.name for entry in entries]):
        return history
    by_uid = {entry.uid: (entry.name, entry.needs) for entry in entries}
    return msgspec.structs.replace(history, counted=by_uid)


def by_fingerprint(
    report: Report,
    assigned: Sequence[Entry],
    settled: Container[str],
    ended: Mapping[PodName, Ended],
    reported_at: float,
) -> list[Entry]:
    """Returns the pods that the numbers include and that are not `settled`.

    There are none if the fingerprint matches no known set of pods. `reported_at` is when the report came: seconds,
    monotonic.
    """
    candidates = counted(report, assigned, ended)
    latest = latest_first(ended)
    lately = [latest[:many] for many in (*range(min(len(latest), _MAX_LATELY)), len(latest))]
    # The newest pods are missing first: exporters list what the kubelet has admitted so far.
    for missing in range(min(len(candidates), _MAX_MISSING) + 1):
        names = [entry.name for entry in candidates[: len(candidates) - missing]]
        if not any(report.fingerprint == fingerprint.of([*names, *gone]) for gone in lately):
            continue
        newest = {entry.uid for entry in candidates[len(candidates) - missing :]}
        known = [entry for entry in assigned if entry.uid in settled]
        listed = [
            entry
            for entry in assigned
            if entry.uid not in newest and entry.uid not in settled and entry.name not in ended
        ]
        return [entry for entry in _with_room(report, known, listed, reported_at) if shows(report, entry)]
    return []


def by_amounts(report: Report, assigned: Sequence[Entry], ended: Mapping[PodName, Ended]) -> frozenset[int]:
    """Returns the positions of the assigned pods that the numbers of a report without a fingerprint can include."""
    return included(
        _in_use(report),
        [_own(report, entry.record) for entry in assigned],
        [_own(report, ended[name].record) for name in latest_first(ended)],
    )


def latest_first(ended: Mapping[PodName, Ended]) -> list[PodName]:
    """Returns the names of ended pods, last end first."""
    return sorted(ended, key=lambda name: ended[name].at, reverse=True)


def _with_room(report: Report, settled: Sequence[Entry], listed: list[Entry], reported_at: float) -> list[Entry]:
    """Returns the pods of a fingerprint, without the newest pods if the numbers are too small for them.

    A kubelet lists a pod before the whole pod is allocated, and NFD looks as soon as CPUs are allocated. Pods that were
    admitted long ago may hold less than they ask for, as their containers may have ended.
    """
    # In units of requests: milli-CPU, bytes, devices.
    rest = _in_use(report)
    for entry in settled:
        rest.subtract(_own(report, entry.record))
    requests: Counter[str] = Counter()
    for entry in listed:
        requests.update(_own(report, entry.record))
    if all(amount <= rest[name] for name, amount in requests.items()):
        return listed
    return [entry for entry in listed if not _is_newly_there(entry, reported_at)]


def _is_newly_there(entry: Entry, reported_at: float) -> bool:
    done = entry.seen.acknowledged
    return not entry.seen.was_there and (done is None or done >= reported_at - LATE_S)


def _in_use(report: Report) -> Counter[str]:
    """Returns what a report of amounts says is not available, in units of requests."""
    total: Counter[str] = Counter()
    for occupant in report.placeholders:
        total.update(occupant.requests)
    return total


def _own(report: Report, record: PodRecord) -> dict[str, int]:
    """Returns what the pod takes of the numbers of this report."""
    return own_amounts(report.empty, record.view(report.empty))


def is_exclusive(node: Kubelet, needs: pods.Needs) -> bool:
    """Returns whether fingerprint method `with-exclusive-resources` counts the pod, plain init containers left out.

    RTE counts what the kubelet lists. scheduler-plugins (pkg/noderesourcetopology/resourcerequests, AreExclusiveForPod)
    go by the pod alone, and so never agree with RTE on a node whose CPU or memory manager is off.
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
    return table is not None and table.with_nodes != 0
