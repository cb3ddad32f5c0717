"""The next step for a waiting pod: one line that an operator or time can carry out, tested on the model first."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Final, Literal, get_args

import msgspec

from topowise.placement import GATE
from topowise.pods import ContainerNeeds, Needs, aggregate
from topowise_scheduler.explain.explanation import NodeExplanation, ResourceRoom
from topowise_scheduler.explain.node_verdicts import NodeVerdict
from topowise_scheduler.kubelet.free_amounts import zone_amounts
from topowise_scheduler.ledger.pods.records import PodRecord, placement_group
from topowise_scheduler.overlay.trial import spec_of
from topowise_scheduler.report.shape import PodRequests
from topowise_scheduler.verdicts import kube_scheduler, refusals
from topowise_scheduler.verdicts.kube_scheduler import SILENT, Node, Objection, Spec, Taint
from topowise_scheduler.verdicts.refusals import Reason, Refusal

if TYPE_CHECKING:
    from topowise_scheduler.explain.cluster_view import ClusterView

_MIB: Final = 1 << 20
# Pods whose eviction is tried one by one, each a trial of some 0.2 ms.
_MOST_EVICTED: Final = 32
_MOST_NAMED: Final = 3
_CORDON: Final = "node.kubernetes.io/unschedulable"

Cause = Literal[
    "alignment", "resources", "other pods", "excluded", "unconfirmed", "never", "not examined", "retry", "gated",
    "group", "placed", "unplaced",
]  # fmt: skip
CAUSES: Final[tuple[Cause, ...]] = get_args(Cause)
Way = Literal[
    "use several pods", "correct the pod", "add a node", "see the events", "retry, unreported", "retry",
    "never on a node", "never in sum", "never had", "never aligned", "never", "first report", "report",
    "repair the exporter", "evict", "open and make room", "open", "create the node", "prefer devices",
    "ask for less", "wait for pods", "no single change", "place", "other gates", "group", "bind",
    "other pods", "enable placement",
]  # fmt: skip
"""What to do, or what ends the wait by itself."""


class Change(msgspec.Struct, frozen=True):
    """A change after which a node is not excluded for this reason."""

    kind: Literal["uncordon", "repair", "taint", "select"]
    node: str
    taint: Taint | None = None


class NextStep(msgspec.Struct, frozen=True):
    """`nodes` (the first, with `more_nodes`) and `pods` ("namespace/name") are those of the step.

    `amount` of the resource is requested, or to be requested less ("ask for less"), `largest` is what the largest node
    or NUMA node has: cores, bytes or devices, and in sums of a node thousandths of cores. `details` are the problem of
    the pod, requirements that are not checked, or why a report is unconfirmed. `reason` refuses the node. `ends_in_s`:
    the wait ends by itself.
    """

    way: Way
    nodes: tuple[str, ...] = ()
    pods: tuple[str, ...] = ()
    resource: str = ""
    amount: int = 0
    largest: int = 0
    changes: tuple[Change, ...] = ()
    details: tuple[str, ...] = ()
    reason: Reason = ""
    ends_in_s: float | None = None
    more_nodes: int = 0


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
    view: ClusterView, record: PodRecord, cause: Cause, verdicts: Sequence[NodeVerdict], nearest: Nearest | None
) -> Generator[None, None, NextStep]:
    """Returns the step for a pod with this cause; yields between trials."""
    if record.is_too_large:
        return NextStep("use several pods", details=(str(record.problem),))
    if record.problem is not None:
        return NextStep("correct the pod", details=(str(record.problem),))
    if not verdicts:
        return NextStep("add a node")
    if cause == "placed":
        return NextStep("bind", (record.status.placed_on,))
    if cause == "unplaced":
        return NextStep("enable placement")
    if cause == "gated":
        return NextStep("other gates", details=tuple(gate for gate in record.status.gates if gate != GATE))
    if cause == "group":
        there = view.ledger.placements.members(placement_group(record))
        return NextStep("group", amount=len(there), largest=record.demands.group_size)
    if cause == "not examined":
        return NextStep("see the events", details=view.trial.unexamined(record))
    if cause == "retry":
        return _retry(verdicts, gated=record.status.is_placeable)
    if cause == "never":
        return _never(view, record, verdicts, nearest)
    if cause == "other pods":
        assert nearest is not None and nearest.verdict.objection is not None
        return NextStep("other pods", (nearest.verdict.name,), reason=nearest.verdict.objection.text)
    if cause == "unconfirmed":
        assert nearest is not None
        return _report(view, record, nearest.verdict)
    if cause != "excluded" and nearest is not None:
        evicted = yield from _evictions(view, record, nearest)
        if evicted:
            return evicted
    opened = _opened(view, record, verdicts)
    if opened:
        return opened
    if cause == "excluded" or nearest is None:
        return _excluded(view, record, nearest)
    if nearest.verdict.objection is None and nearest.verdict.gate in refusals.OF_DEVICES:
        return NextStep("prefer devices", (nearest.verdict.name,))
    less = yield from _less(view, record, nearest)
    if less:
        return less
    return (yield from _ends(view, record, nearest))


def _report(view: ClusterView, record: PodRecord, node: NodeVerdict) -> NextStep:
    """Returns what ends a wait for a report."""
    gates, details = view.ledger.gates, view.ledger.gates.unconfirmed.why(node.name)
    way: Way = "report"
    if node.gate is Refusal.NEW_NODE:
        way = "first report"
    elif node.gate is Refusal.EXPORTER_DOWN:
        way = "repair the exporter"
    rest = gates.until(record, node.name, node.gate) - view.ledger.clock()
    ends_in_s = max(1.0, rest) if rest < math.inf else None
    return NextStep(way, (node.name,), details=details, reason=node.gate or "", ends_in_s=ends_in_s)


def _retry(verdicts: Sequence[NodeVerdict], *, gated: bool) -> NextStep:
    fitting = [node.name for node in verdicts if node.verdict == "fits"]
    if fitting or gated:
        return _of_nodes("place" if gated else "retry", fitting or [node.name for node in verdicts if node.takes_pod])
    return _of_nodes("retry, unreported", [node.name for node in verdicts if node.takes_pod])


def _of_nodes(way: Way, names: Sequence[str]) -> NextStep:
    return NextStep(way, tuple(names[:_MOST_NAMED]), more_nodes=max(0, len(names) - _MOST_NAMED))


def _never(view: ClusterView, record: PodRecord, verdicts: Sequence[NodeVerdict], nearest: Nearest | None) -> NextStep:
    """No node can take the pod; names a resource of which every node has too little, if there is one."""
    assert record.needs is not None
    nodes = [node for name in verdicts if (node := view.trial.node(name.name)) is not None]
    if len(nodes) == len(verdicts):
        for resource, amount in record.needs.requests.items():
            largest = max(node.allocatable.get(resource, 0) for node in nodes)
            if largest < amount:
                way: Way = "never in sum" if largest else "never had"
                return NextStep(way, resource=resource, amount=amount, largest=largest)
    for room in () if nearest is None else nearest.rooms:
        largest = max((total for node in verdicts for total in _allocatable(view, node.name, room.resource)), default=0)
        if largest < room.asked and nearest is not None and nearest.explanation.policy == "single-numa-node":
            return NextStep("never aligned", resource=room.resource, amount=room.asked, largest=largest)
    if nearest is None:
        return NextStep("never")
    return NextStep("never on a node", (nearest.verdict.name,), reason=nearest.verdict.reason or "")


def _allocatable(view: ClusterView, name: str, resource: str) -> list[int]:
    node_state = view.ledger.node_states.of(name)
    kubelet = None if node_state is None else node_state.kubelet
    return [] if kubelet is None else [total for _, total in zone_amounts(kubelet, resource)]


def _evictions(view: ClusterView, record: PodRecord, nearest: Nearest) -> Generator[None, None, NextStep | None]:
    """Returns the eviction of pods of lower priority that makes room on the nearest node, None if none does."""
    lower = [pod for pod in nearest.in_the_way if pod.priority < record.priority and pod.status.stage == "assigned"]
    victims = yield from _needed(view, record, nearest.verdict.name, lower)
    return NextStep("evict", (nearest.verdict.name,), _names(victims)) if victims else None


def _ends(view: ClusterView, record: PodRecord, nearest: Nearest) -> Generator[None, None, NextStep]:
    """Returns which pods have to end."""
    name = nearest.verdict.name
    pods = yield from _needed(view, record, name, nearest.in_the_way)
    return NextStep("wait for pods" if pods else "no single change", (name,), _names(pods))


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


def _names(pods: Sequence[PodRecord]) -> tuple[str, ...]:
    return tuple([f"{pod.namespace}/{pod.name}" for pod in pods])


def _opened(view: ClusterView, record: PodRecord, verdicts: Sequence[NodeVerdict]) -> NextStep | None:
    """What opens an excluded node that would take the pod, None if there is no such node."""
    ways = [
        (len(changes), rank, node.name, changes)
        for node in verdicts
        if node.verdict == "excluded" and node.otherwise in ("fits", "not reported")
        for rank, changes in [_way_in(view, record, node.name)]
        if changes
    ]
    if not ways:
        return None
    _, _, name, changes = min(ways, key=itemgetter(0, 1, 2))
    return NextStep("open", (name,), changes=tuple(changes))


def _excluded(view: ClusterView, record: PodRecord, nearest: Nearest | None) -> NextStep:
    if nearest is None:
        return NextStep("add a node")
    name, objection = nearest.verdict.name, nearest.verdict.objection
    _, changes = _way_in(view, record, name)
    if not changes or objection is None:
        return NextStep("create the node", (name,))
    return NextStep("open and make room", (name,), changes=tuple(changes), reason=objection.text)


def _way_in(view: ClusterView, record: PodRecord, name: str) -> tuple[int, list[Change]]:
    """Changes after which the node is not excluded, each tested, with the rank of the greatest change."""
    node, spec = view.trial.node(name), spec_of(record)
    changes: list[Change] = []
    rank = 0
    while node is not None and (exclusion := kube_scheduler.exclusion_of(node, spec)) is not None and len(changes) < 8:
        change, node, spec, greatness = _change(node, spec, exclusion)
        changes.append(change)
        rank = max(rank, greatness)
    return rank, changes


def _change(node: Node, spec: Spec, exclusion: Objection) -> tuple[Change, Node, Spec, int]:
    """A change against an exclusion, the node and the pod after it, and the rank of the change."""
    replace, taint = msgspec.structs.replace, exclusion.taint
    if exclusion.kind == "cordon":
        # The node controller sets the taint with the cordon, and removes both.
        taints = tuple([taint for taint in node.taints if taint.key != _CORDON])
        return Change("uncordon", node.name), replace(node, is_cordoned=False, taints=taints), spec, 0
    if taint is not None and taint.key in SILENT:
        taints = tuple([kept for kept in node.taints if kept.key not in SILENT])
        return Change("repair", node.name), replace(node, is_ready=True, taints=taints), spec, 2
    if taint is not None:
        taints = tuple([kept for kept in node.taints if kept is not taint])
        return Change("taint", node.name, taint), replace(node, taints=taints), spec, 1
    return Change("select", node.name), node, Spec(tolerations=spec.tolerations), 1


def _less(view: ClusterView, record: PodRecord, nearest: Nearest) -> Generator[None, None, NextStep | None]:
    """Returns how much less of a single resource would fit on the nearest node, None if no tried amount does."""
    name = nearest.verdict.name
    for resource, missing, container in _missing(view, record, nearest):
        unit = 1 if resource == "cpu" or "/" in resource else _MIB
        least = -(-missing // unit)
        # The kubelet may give whole cores only, or need more for its other containers.
        for amount in dict.fromkeys((least, least + 1, least + least % 2 + 2, 2 * least)):
            smaller = _smaller(record, container, resource, amount * unit)
            yield None
            if smaller is not None and view.trial.takes_without(smaller, name, ()):
                return NextStep("ask for less", (name,), resource=resource, amount=amount * unit)
    return None


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
    return msgspec.structs.replace(record, requests=PodRequests(smaller, shape=shape))


def _with_less(container: ContainerNeeds, resource: str, amount: int) -> ContainerNeeds:
    def less(amounts: dict[str, int]) -> dict[str, int]:
        return {**amounts, resource: amounts[resource] - amount} if resource in amounts else amounts

    return msgspec.structs.replace(container, requests=less(container.requests), limits=less(container.limits))
