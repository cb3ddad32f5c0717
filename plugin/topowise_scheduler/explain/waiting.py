"""Why a pod waits: a cause, the nearest node and NUMA node, the pods in the way there, and the next step.

Every screen, event and metric about a waiting pod shows a `WaitingPod`, so that no two of them disagree.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Generator, Hashable, Iterator, Sequence
from typing import Final

import msgspec

from topowise_scheduler.explain.cluster_view import ClusterView
from topowise_scheduler.explain.explanation import NodeExplanation, nearness
from topowise_scheduler.explain.next_step import Cause, Nearest, NextStep, next_step
from topowise_scheduler.explain.node_verdicts import NodeVerdict
from topowise_scheduler.kubelet.allocated_nodes import allocated_nodes
from topowise_scheduler.ledger.pods.records import PodRecord, placement_group
from topowise_scheduler.verdicts import refusals
from topowise_scheduler.verdicts.refusals import Reason, Refusal

# Nodes that are explained, a quarter of a millisecond each.
_MOST_EXPLAINED: Final = 16
_EXAMPLES: Final = 3
# Nodes between two steps.
_STEP: Final = 64
_MOST_BYTES: Final = 8 << 20
# A remaining time is rounded up to as much.
_KEPT_S: Final = 10.0


class WaitingPod(msgspec.Struct, frozen=True, rename="camel"):
    """The answer for all pods of a class (PodRecord.pod_class).

    `counts` has the nodes by verdict, `reasons` the refusing nodes by reason, `examples` some names of each reason, of
    nodes that take the pod under "". `nearest` is "" if no node can ever take the pod; `numa` is None unless the pod
    lacks something on that NUMA node. `in_the_way` are the pods ("namespace/name") with allocations there, pods of
    lower priority first; `lower_priority` is their number. `unexamined` are requirements that are not checked.
    """

    cause: Cause
    step: NextStep
    counts: dict[str, int]
    reasons: dict[Reason, int]
    examples: dict[Reason, tuple[str, ...]]
    nearest: str = ""
    numa: int | None = None
    lack: str = ""
    in_the_way: tuple[str, ...] = ()
    lower_priority: int = 0
    unexamined: tuple[str, ...] = ()

    @property
    def fits(self) -> int:
        """The number of nodes that take the pod now."""
        return self.counts.get("fits", 0) + self.counts.get("not reported", 0)

    @property
    def lacks_only_alignment(self) -> bool:
        """Whether a node has enough in sum, and no node aligns the pod: autoscalers see no reason to add a node."""
        refused = [reason for reason in self.reasons if isinstance(reason, Refusal)]
        is_too_wide = self.cause == "never" and any(reason is not Refusal.UNREADABLE for reason in refused)
        return self.cause == "alignment" or is_too_wide

    @property
    def topic(self) -> tuple[object, ...]:
        """What a message about the pod says first, without what time alone changes."""
        step = msgspec.structs.replace(self.step, ends_in_s=None)
        in_the_way = self.in_the_way[:_EXAMPLES], len(self.in_the_way)
        return self.nearest, self.lack, in_the_way, self.lower_priority, step


def waiting_pod(view: ClusterView, record: PodRecord) -> WaitingPod:
    """The view of a pending pod."""
    return next(pod for pod in looking(view, record) if pod is not None)


def looking(view: ClusterView, record: PodRecord) -> Iterator[WaitingPod | None]:
    """`waiting_pod` in steps of a few milliseconds; a step without a result yields None. Kept until a node changes,
    or until a remaining time in it does."""
    gates = record.status.gates, record.status.placed_on, placement_group(record), view.ledger.placements.arrivals
    # Labels decide which pods repel the pod.
    between = _labels_between_pods(view, record)
    key, stamp, now = (record.pod_class, gates, between), view.trial.changes, view.ledger.clock()
    kept = view.waiting.get(key)
    if kept is not None and kept[0] == stamp and now < kept[1]:
        yield kept[2]
        return
    names = view.trial.names
    yield from view.steps(record, names)
    verdicts: list[NodeVerdict] = []
    for verdict in view.verdicts(record, names):
        verdicts.append(verdict)
        if not len(verdicts) % _STEP:
            yield None
    pod = yield from _look(view, record, verdicts)
    view.waiting.put(key, (stamp, math.inf if pod.step.ends_in_s is None else now + _KEPT_S, pod))
    yield pod


def _labels_between_pods(view: ClusterView, record: PodRecord) -> Hashable:
    """What other pods see of the pod, None if that makes no difference."""
    index, request = view.ledger.inter_pod, view.trial.request(record)
    if index is None or request is None or not (request.is_constrained or index.terms_against(request)):
        return None
    return request.namespace, tuple(sorted(request.labels.items()))


def _look(view: ClusterView, record: PodRecord, verdicts: Sequence[NodeVerdict]) -> Generator[None, None, WaitingPod]:
    candidates = _candidates(verdicts)
    nearest = yield from _nearest(view, record, candidates)
    unexamined = view.trial.unexamined(record)
    cause = _of_gates(view, record) or _cause(verdicts, nearest, unexamined)
    examples: dict[Reason, list[str]] = {}
    for node in verdicts:
        names = examples.setdefault(node.reason or "", [])
        if len(names) < _EXAMPLES:
            names.append(node.name)
    step = yield from next_step(view, record, cause, verdicts, nearest)
    return WaitingPod(
        cause=cause,
        step=step,
        counts=dict(Counter(node.verdict for node in verdicts)),
        reasons=dict(Counter(node.reason for node in verdicts if node.reason)),
        examples={reason: tuple(names) for reason, names in examples.items()},
        nearest="" if nearest is None or cause == "never" else nearest.verdict.name,
        numa=None if nearest is None or cause == "never" else nearest.numa,
        lack="" if nearest is None else nearest.explanation.text,
        in_the_way=() if nearest is None else tuple(f"{pod.namespace}/{pod.name}" for pod in nearest.in_the_way),
        lower_priority=0 if nearest is None else sum(pod.priority < record.priority for pod in nearest.in_the_way),
        unexamined=unexamined,
    )


def _of_gates(view: ClusterView, record: PodRecord) -> Cause | None:
    """What keeps the pod from being placed or bound whatever room there is, None for nothing of the kind."""
    if record.status.placed_on:
        return "placed"
    if record.status.gates and not record.status.is_placeable:
        return "gated"
    if record.status.is_placeable and not record.status.waits:
        return "unplaced"
    group, placements = placement_group(record), view.ledger.placements
    if not record.status.is_placeable or not group or placements.begun(group):
        return None
    there = len(placements.members(group)) + placements.ended(group)
    return "group" if there < record.demands.group_size else None


def _cause(verdicts: Sequence[NodeVerdict], nearest: Nearest | None, unexamined: Sequence[str]) -> Cause:
    """The cause that ends first decides: the causes are tried from the least to the most obstinate."""
    if any(node.takes_pod for node in verdicts):
        return "not examined" if unexamined else "retry"
    obstacles = {node.obstacle for node in verdicts if node.verdict == "not now"}
    if "unconfirmed" in obstacles:
        return "unconfirmed"
    if any(node.obstacle == "other pods" for node in verdicts):
        return "other pods"
    if "alignment" in obstacles:
        # The kubelet's reason does not say whether the free amounts would suffice together.
        is_short = nearest is not None and nearest.is_short_in_sum
        return "resources" if is_short else "alignment"
    if "resources" in obstacles:
        return "resources"
    return "excluded" if any(node.otherwise != "never" for node in verdicts) else "never"


def _candidates(verdicts: Sequence[NodeVerdict]) -> list[NodeVerdict]:
    """The nodes among which the nearest is searched; excluded nodes only if all others can never take the pod."""
    not_now = [node for node in verdicts if node.verdict == "not now"]
    unconfirmed = [node for node in not_now if node.obstacle == "unconfirmed"]
    beside = [node for node in verdicts if node.obstacle == "other pods"]
    unaligned = [node for node in not_now if node.obstacle == "alignment"]
    if nodes := unconfirmed or beside or unaligned:
        return nodes
    excluded = [node for node in verdicts if node.verdict == "excluded" and node.otherwise != "never"]
    return not_now or excluded or [node for node in verdicts if node.otherwise == "never"]


def _nearest(
    view: ClusterView, record: PodRecord, nodes: Sequence[NodeVerdict]
) -> Generator[None, None, Nearest | None]:
    """The nearest of these nodes and its nearest NUMA node, None without nodes."""
    if len(nodes) > _MOST_EXPLAINED:
        measures = []
        for node in nodes:
            measures.append((_shortage(view, record, node.name), node.name))
            if not len(measures) % _STEP:
                yield None
        nearest_names = {name for _, name in sorted(measures)[:_MOST_EXPLAINED]}
        nodes = [node for node in nodes if node.name in nearest_names]
    best: tuple[tuple[bool, bool, float], Nearest] | None = None
    for node in nodes:
        explanation = view.explain(record, node)
        yield None
        for near, at in _zones(node, explanation):
            nearest = Nearest(node, explanation, at)
            if best is None or (nearest.is_short_in_sum, *near) < best[0]:
                best = (nearest.is_short_in_sum, *near), nearest
    if best is None:
        return None
    nearest = best[1]
    if nearest.verdict.obstacle not in ("alignment", "resources"):
        return nearest
    holders = sorted(
        _holders(view, record, nearest.verdict.name, nearest.position),
        key=lambda pod: (pod.priority, pod.namespace, pod.name),
    )
    return msgspec.structs.replace(nearest, in_the_way=tuple(holders))


def _zones(node: NodeVerdict, explanation: NodeExplanation) -> Iterator[tuple[tuple[bool, float], int | None]]:
    """How near each NUMA node is; None stands for the node as a whole."""
    step = explanation.steps[-1] if explanation.steps else None
    # Without a NUMA node that lacks anything, the refusal is one of the node as a whole.
    is_refused = step is not None and any(not zone.fits for room in step.resources for zone in room.zones)
    is_refused = is_refused and refusals.of(explanation.reason, ever=False) not in (None, Refusal.OUT_OF)
    if step is None or not is_refused or (node.objection is not None and node.verdict != "excluded"):
        yield (False, 0.0 if node.otherwise == "fits" or node.obstacle == "unconfirmed" else 1.0), None
        return
    for at in range(len(step.resources[0].zones)):
        yield nearness(step, at), at


def _shortage(view: ClusterView, record: PodRecord, name: str) -> float:
    """A cheap measure of what the best NUMA node lacks, in shares of the request."""
    node_state = view.ledger.node_states.of(name)
    if node_state is None or node_state.kubelet is None or record.needs is None:
        return float("inf")
    requests = record.needs.requests.items()
    asked = {resource: amount // 1000 if resource == "cpu" else amount for resource, amount in requests}
    return min(
        sum(max(0, amount - free[name]) / amount for name, amount in asked.items() if name in free and amount)
        for free in view.free_amounts(name, node_state.kubelet)
    )


def _holders(view: ClusterView, record: PodRecord, name: str, at: int | None) -> Iterator[PodRecord]:
    """The other pods with an allocation on the NUMA node, on the whole node for None.

    Hints are not known of pods in a report, so allocations are read.
    """
    node_state = view.ledger.node_states.of(name)
    state = None if node_state is None else node_state.kubelet
    for entry in () if node_state is None else node_state.history.entries():
        if entry.uid == record.uid:
            continue
        is_there = at is None
        if at is not None and state is not None and entry.uid in state.active:
            is_there = any(places.mask >> at & 1 for places in allocated_nodes(state, entry.uid).values())
        if is_there:
            yield entry.record
