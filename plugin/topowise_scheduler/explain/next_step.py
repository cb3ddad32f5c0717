"""The next step for a waiting pod: one line that an operator or time can carry out, tested on the model first."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from topowise.pods import ContainerNeeds, Needs, aggregate
from topowise_scheduler.explain.explanation import NodeExplanation, ResourceRoom
from topowise_scheduler.explain.node_verdicts import NodeVerdict
from topowise_scheduler.explain.zone_amounts import zone_amounts
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.options.device_affinity import ANNOTATION
from topowise_scheduler.overlay.trial import spec_of
from topowise_scheduler.report.shape import PodRequests
from topowise_scheduler.report.text import first_of, plural, rounded_up, with_unit
from topowise_scheduler.verdicts import kube_scheduler, refusals
from topowise_scheduler.verdicts.kube_scheduler import Node, Spec

if TYPE_CHECKING:
    from topowise_scheduler.explain.cluster_view import ClusterView

_MIB: Final = 1 << 20
# Pods whose eviction is tried one by one, each a trial of some 0.2 ms.
_MOST_EVICTED: Final = 32
_MOST_NAMED: Final = 4
_NOT_READY: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_CORDON: Final = "node.kubernetes.io/unschedulable"


class Nearest(msgspec.Struct, frozen=True):
    """The nearest node. `position` is the index of its nearest NUMA node, None for the whole node."""

    verdict: NodeVerdict
    explanation: NodeExplanation
    position: int | None
    in_the_way: tuple[PodRecord, ...] = ()

    @property
    def numa(self) -> int | None:
        """The ID of the nearest NUMA node."""
        return None if self.position is None else self.rooms[0].zones[self.position].numa

    @property
    def rooms(self) -> Sequence[ResourceRoom]:
        """The requested and free amounts of the decision that refused the pod."""
        return self.explanation.steps[-1].resources if self.explanation.steps else ()

    @property
    def is_short_in_sum(self) -> bool:
        """Whether the NUMA nodes have too little of a resource together."""
        return any(sum(max(0, zone.available) for zone in room.zones) < room.asked for room in self.rooms)


def next_step(
    view: ClusterView, record: PodRecord, cause: str, verdicts: Sequence[NodeVerdict], nearest: Nearest | None
) -> Generator[None, None, str]:
    """Returns the step for a pod with this cause; yields between trials."""
    if record.is_too_large:
        return f"use several pods: expected {record.problem}"
    if record.unreadable:
        return f"correct the pod: {record.unreadable}"
    if not verdicts:
        return "add a node: no node is known"
    if cause == "not examined":
        assert record.constraints is not None
        return f"see the events of the pod: topowise does not check its {', '.join(record.constraints.unexamined)}"
    if cause == "retry":
        return _retry(verdicts)
    if cause == "never":
        return _never(view, record, verdicts, nearest)
    if cause == "unconfirmed":
        assert nearest is not None
        return _report(view, nearest.verdict)
    if cause != "excluded" and nearest is not None:
        evicted = yield from _evictions(view, record, nearest)
        if evicted:
            return evicted
    opened = _opened(view, record, verdicts)
    if opened:
        return opened
    if cause == "excluded" or nearest is None:
        return _excluded(view, record, nearest)
    if nearest.verdict.reason in refusals.OF_DEVICES:
        return f"{ANNOTATION} with prefer instead of require would fit on {nearest.verdict.name}"
    less = yield from _less(view, record, nearest)
    if less:
        return less
    return (yield from _ends(view, record, nearest))


def latest_report(view: ClusterView, record: PodRecord, nearest: Nearest) -> str:
    """Returns the remaining time of a wait that ends by itself: " (expected within 2m)", "" for any other wait."""
    gates, node = view.ledger.gates, nearest.verdict
    rest = gates.until(record, node.name, node.gate) - view.ledger.clock()
    return f" (expected within {rounded_up(max(1.0, rest))})" if rest < math.inf else ""


def _report(view: ClusterView, node: NodeVerdict) -> str:
    """Returns what ends a wait for a report."""
    if node.gate == refusals.NEW_NODE:
        return f"wait: {node.name} has not reported yet"
    text = node.gate.removeprefix(refusals.PREFIX)
    if node.gate == refusals.EXPORTER_DOWN:
        return f"repair the exporter on {node.name}: {text.partition(',')[0]}"
    why = ", ".join(view.ledger.gates.unconfirmed.why(node.name))
    return f"wait: {node.name}: {text}{f' ({why})' if why else ''}"


def _retry(verdicts: Sequence[NodeVerdict]) -> str:
    fitting = [node.name for node in verdicts if node.verdict == "fits"]
    if fitting:
        return f"kube-scheduler retries by itself: the pod fits on {first_of(fitting)}"
    unreported = [node.name for node in verdicts if node.takes_pod]
    return f"kube-scheduler retries by itself: {first_of(unreported)} has no report, which topowise does not refuse"


def _never(view: ClusterView, record: PodRecord, verdicts: Sequence[NodeVerdict], nearest: Nearest | None) -> str:
    """No node can take the pod; names a resource of which every node has too little, if there is one."""
    text = "no node can ever take it"
    assert record.needs is not None
    nodes = [node for name in verdicts if (node := view.trial.node(name.name)) is not None]
    if len(nodes) == len(verdicts):
        for resource, amount in record.needs.requests.items():
            largest = max(node.allocatable.get(resource, 0) for node in nodes)
            if largest < amount:
                has = (
                    f"the largest node has {kube_scheduler.to_text(resource, largest)}" if largest else "no node has it"
                )
                return f"{text}: it asks for {resource} {kube_scheduler.to_text(resource, amount)}, {has}"
    for room in () if nearest is None else nearest.rooms:
        largest = max((total for node in verdicts for total in _allocatable(view, node.name, room.resource)), default=0)
        if largest < room.asked and nearest is not None and nearest.explanation.policy == "single-numa-node":
            asked, has = with_unit(room.resource, room.asked), with_unit(room.resource, largest)
            return f"{text}: {room.resource} {asked} on one NUMA node, the largest has {has}"
    if nearest is None:
        return text
    return f"{text}: on {nearest.verdict.name} {nearest.verdict.reason.removeprefix(refusals.PREFIX)}"


def _allocatable(view: ClusterView, name: str, resource: str) -> list[int]:
    node_state = view.ledger.node_states.of(name)
    kubelet = None if node_state is None else node_state.kubelet
    return [] if kubelet is None else [total for _, total in zone_amounts(kubelet, resource)]


def _evictions(view: ClusterView, record: PodRecord, nearest: Nearest) -> Generator[None, None, str]:
    """Returns the eviction of pods of lower priority that makes room on the nearest node, "" if none does."""
    lower = [pod for pod in nearest.in_the_way if pod.priority < record.priority and pod.stage == "assigned"]
    victims = yield from _needed(view, record, nearest.verdict.name, lower)
    return f"evicting {_names(victims)} would make room on {nearest.verdict.name}" if victims else ""


def _ends(view: ClusterView, record: PodRecord, nearest: Nearest) -> Generator[None, None, str]:
    """Returns which pods have to end."""
    name = nearest.verdict.name
    pods = yield from _needed(view, record, name, nearest.in_the_way)
    if pods:
        return f"wait until {_names(pods)} on {name} {'end' if len(pods) > 1 else 'ends'}, or add a node"
    return f"add a node, or ask for less: {name} comes nearest, and no single change makes room there"


def _needed(
    view: ClusterView, record: PodRecord, name: str, pods: Sequence[PodRecord]
) -> Generator[None, None, Sequence[PodRecord]]:
    """Returns a least set of these pods without which the node takes the pod, none if all of them do not suffice."""
    if not pods or not view.trial.takes_without(record, name, [pod.uid for pod in pods]):
        return ()
    # The most important pods stay first.
    for pod in pods[-_MOST_EVICTED:][::-1]:
        fewer = [kept for kept in pods if kept is not pod]
        if fewer and view.trial.takes_without(record, name, [kept.uid for kept in fewer]):
            pods = fewer
        yield None
    return pods


def _names(pods: Sequence[PodRecord]) -> str:
    return first_of([f"{pod.namespace}/{pod.name}" for pod in pods], _MOST_NAMED)


def _opened(view: ClusterView, record: PodRecord, verdicts: Sequence[NodeVerdict]) -> str:
    """What opens an excluded node that would take the pod, "" if there is no such node."""
    ways = [
        (len(steps), rank, node.name, steps)
        for node in verdicts
        if node.verdict == "excluded" and node.otherwise in ("fits", "not reported")
        for rank, steps in [_way_in(view, record, node.name)]
        if steps
    ]
    return " and ".join(min(ways)[3]) if ways else ""


def _excluded(view: ClusterView, record: PodRecord, nearest: Nearest | None) -> str:
    if nearest is None:
        return "add a node: no node is known"
    _, steps = _way_in(view, record, nearest.verdict.name)
    if not steps:
        return f"create the Node object of {nearest.verdict.name}"
    return f"{' and '.join(steps)}, and make room there: {nearest.explanation.text.partition(';')[0]}"


def _way_in(view: ClusterView, record: PodRecord, name: str) -> tuple[int, list[str]]:
    """Changes after which the node is not excluded, each tested, with the rank of the greatest change."""
    node, spec = view.trial.node(name), spec_of(record)
    steps: list[str] = []
    rank = 0
    while node is not None and (exclusion := kube_scheduler.exclusion_of(node, spec)) is not None and len(steps) < 8:
        change, node, spec, greatness = _change(node, spec, exclusion.text.partition(": ")[2])
        steps.append(change)
        rank = max(rank, greatness)
    return rank, steps


def _change(node: Node, spec: Spec, detail: str) -> tuple[str, Node, Spec, int]:
    """A change against an exclusion, the node and the pod after it, and the rank of the change."""
    replace = msgspec.structs.replace
    if node.is_cordoned and detail == "the node is cordoned":
        # The node controller sets the taint with the cordon, and removes both.
        taints = tuple([taint for taint in node.taints if taint.key != _CORDON])
        return f"uncordon {node.name}", replace(node, is_cordoned=False, taints=taints), spec, 0
    if detail.endswith("the node is not ready"):
        taints = tuple([taint for taint in node.taints if taint.key not in _NOT_READY])
        return f"repair {node.name}: it is not ready", replace(node, is_ready=True, taints=taints), spec, 2
    taint = next((taint for taint in node.taints if str(taint) == detail), None)
    if taint is not None:
        taints = tuple([kept for kept in node.taints if kept is not taint])
        return f"remove the taint {taint} from {node.name}, or tolerate it", replace(node, taints=taints), spec, 1
    return (
        f"change what the pod requires of nodes so that it selects {node.name}",
        node,
        Spec(tolerations=spec.tolerations),
        1,
    )


def _less(view: ClusterView, record: PodRecord, nearest: Nearest) -> Generator[None, None, str]:
    """Returns how much less of a single resource would fit on the nearest node, "" if no tried amount does."""
    name = nearest.verdict.name
    for resource, missing, container in _missing(view, record, nearest):
        unit = 1 if resource == "cpu" or "/" in resource else _MIB
        least = -(-missing // unit)
        # The kubelet may give whole cores only, or need more for its other containers.
        for amount in dict.fromkeys((least, least + 1, least + least % 2 + 2, 2 * least)):
            smaller = _smaller(record, container, resource, amount * unit)
            yield None
            if smaller is not None and view.trial.takes_without(smaller, name, ()):
                words = (
                    plural(amount, "CPU")
                    if resource == "cpu"
                    else f"{resource} {amount if unit == 1 else f'{amount}Mi'}"
                )
                return f"{words} less would fit on {name}"
    return ""


def _missing(view: ClusterView, record: PodRecord, nearest: Nearest) -> Iterator[tuple[str, int, str]]:
    """Yields a resource, the missing amount (cores, bytes, devices) and the container that asks for it."""
    assert record.needs is not None
    if nearest.position is not None:
        container = nearest.explanation.steps[-1].container
        for room in nearest.rooms:
            zone = room.zones[nearest.position]
            if not zone.fits and zone.available < room.asked:
                yield room.resource, room.asked - max(0, zone.available), container
        return
    node = view.trial.node(nearest.verdict.name)
    used = view.trial.used(record, nearest.verdict.name)
    for resource, amount in record.needs.requests.items():
        missing = 0 if node is None else amount - (node.allocatable.get(resource, 0) - used.get(resource, 0))
        if missing > 0:
            yield resource, -(-missing // 1000) if resource == "cpu" else missing, ""


def _smaller(record: PodRecord, container: str, resource: str, amount: int) -> PodRecord | None:
    """The pod with so much less of a resource in one container, None if no container has more than that.

    "" is the container with the largest request.
    """
    needs = record.needs
    if needs is None or needs.pod_level is not None:
        return None
    by = amount * 1000 if resource == "cpu" else amount
    asking = [part for part in needs.containers if container in ("", part.name)]
    largest = max(asking, key=lambda part: part.requests.get(resource, 0), default=None)
    if largest is None or largest.requests.get(resource, 0) <= by:
        return None
    containers = tuple([_with_less(part, resource, by) if part is largest else part for part in needs.containers])
    before = aggregate(needs.containers, [part.requests for part in needs.containers])
    after = aggregate(containers, [part.requests for part in containers])
    # Overhead of the pod stays.
    requests = {name: total - before.get(name, 0) + after.get(name, 0) for name, total in needs.requests.items()}
    smaller = Needs(containers, requests, needs.qos)
    # A shape of its own: gates keep what they find by shape.
    shape = record.shape + f"-{container}-{resource}-{amount}".encode()
    return msgspec.structs.replace(record, requests=PodRequests(smaller, shape=shape), shape=shape)


def _with_less(container: ContainerNeeds, resource: str, amount: int) -> ContainerNeeds:
    def less(amounts: dict[str, int]) -> dict[str, int]:
        return {**amounts, resource: amounts[resource] - amount} if resource in amounts else amounts

    return msgspec.structs.replace(container, requests=less(container.requests), limits=less(container.limits))
