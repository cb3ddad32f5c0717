"""Decides which gated pod is placed next, and on which node.

Pods are taken in the order of kube-scheduler's queue, each with all earlier decisions booked, by the same gates, model
and scores as in an answer to kube-scheduler. A pod that fits nowhere waits, and pods behind it do not wait for it.

A group is placed when all of its pods wait, and only as a whole: it is tried on an overlay of the cluster, so that
nobody waits for half of a group that never comes. Of a group of which some pods are placed already, as after a change
of the leader, each further pod is placed alone. A group that has waited for long keeps later pods from what it needs,
for a while, once: otherwise small pods would take every gap that it could use.

Invariant: every decision that is returned is booked in the ledger. A class of pods that fits nowhere is looked at
again only once a node may have more room.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from itertools import islice
from typing import Final, Literal, NamedTuple

import numpy as np

from topowise.bounded import Bounded
from topowise_scheduler.controllers.placement.board import Board, aversion
from topowise_scheduler.controllers.placement.refused_nodes import RefusedNodes
from topowise_scheduler.ledger.gates.gate import FITS, Question
from topowise_scheduler.ledger.pods.placements import Placement, Turn
from topowise_scheduler.ledger.pods.records import PodRecord, placement_group
from topowise_scheduler.overlay.candidates import Candidates
from topowise_scheduler.overlay.overlay import Overlay
from topowise_scheduler.overlay.overlay import Placement as Placed
from topowise_scheduler.overlay.trial import Trial
from topowise_scheduler.verdicts.inter_pod import Request
from topowise_scheduler.verdicts.policy_annotations import Demand

Form = Literal["required", "nominated"]

# The most pods that are placed and not bound: kube-scheduler binds as many in some seconds, and what is placed later
# is placed with more knowledge.
_MOST_AHEAD: Final = 1000
# A pod that is not bound for so long counts as left behind. While others are bound, it is no concern of theirs;
# otherwise kube-scheduler may be down, and only a few pods are placed to find out.
_LEFT_BEHIND_S: Final = 60.0
_FEW_AHEAD: Final = 16
_MAX_BOARDS: Final = 64
# Bytes of the board keys, which tenants write; a board itself takes less than a megabyte.
_BOARD_KEY_BYTES: Final = 16 << 20
_MAX_VAIN_BYTES: Final = 4 << 20
_KEY_BYTES: Final = 512
# Of the best nodes, those that are tried if the order of the pods on their way there matters.
_MOST_TRIED: Final = 16
# In place of the changes of other pods, for a pod that they do not concern.
_NO_OTHERS: Final = -1
# A group that has waited for so long keeps later pods of no higher priority waiting, and for so long at the most.
_HUNGRY_S: Final = 300.0
_PATIENT_S: Final = 900.0
# Nodes of these labels belong to an autoscaler, which cannot move pods that require one node.
AUTOSCALED: Final = (
    "karpenter.sh/nodepool",
    "eks.amazonaws.com/nodegroup",
    "cloud.google.com/gke-nodepool",
    "kubernetes.azure.com/agentpool",
    "cluster.x-k8s.io/cluster-name",
)


class Write(NamedTuple):
    """A placement to write to a pod, in the version of its record. `node` is "" if kube-scheduler is to choose it.
    `decision` is the same for all pods of a group that were placed together."""

    record: PodRecord
    node: str
    form: Form
    decision: str = ""


class Decisions:
    """`form`: how kube-scheduler learns the node, where the node allows both. `ahead`: the most pods that are placed
    and not bound. `clock` gives seconds, monotonic. Not thread-safe."""

    def __init__(
        self, cluster: Trial, clock: Callable[[], float], *, form: Form = "required", ahead: int = _MOST_AHEAD
    ) -> None:
        self._cluster = cluster
        self._ledger = cluster.ledger
        self._clock = clock
        self._form = form
        self._ahead = ahead
        self._boards: Bounded[tuple[bytes, int, Demand, bytes], Board]
        self._boards = Bounded(_BOARD_KEY_BYTES, lambda key, _: len(key[-1]), _MAX_BOARDS)
        # By class of pods that fit nowhere: what `_news` was then.
        self._in_vain: Bounded[Hashable, tuple[int, ...]] = Bounded(_MAX_VAIN_BYTES, lambda *_: _KEY_BYTES)
        self._seen: tuple[int, ...] = ()
        self._names: tuple[int, tuple[str, ...]] = -1, ()
        # By group: since when it is complete and fits nowhere (seconds, monotonic).
        self._hungry: dict[str, float] = {}
        # Whether a hungry group keeps others waiting, which time alone ends.
        self._is_holding = False
        self._refused = RefusedNodes(cluster)

    def steps(self) -> Generator[None, None, list[Write]]:
        """Decides about the next pod, or the next group, and returns what to write; nothing if there is nothing to do
        now. Yields between steps of some milliseconds."""
        if not self._may_place():
            return []
        # Until something changes, there is nothing to look at: most calls end here.
        seen = (*self._news(others=self._others()), self._ledger.placements.arrivals)
        if seen == self._seen:
            return []
        while (due := self._next()) is not None:
            _, key, record = due
            group = placement_group(record)
            if group:
                writes = yield from self._place_group(group)
            else:
                writes = yield from self._place(record)
            if writes:
                return writes
            if not group and self._is_constrained(record) and self._ledger.placements.set_apart(record):
                # It is of a class with fewer pods now: pods with other labels may fit.
                continue
            others = self._others() if group or self._minds_others(record) else _NO_OTHERS
            self._in_vain.put(key, self._news(group, others))
        self._seen = () if self._is_holding else seen
        return []

    def lost(self) -> Iterator[Placement]:
        """Yields the placed pods that kube-scheduler cannot bind to the only node that they may go to. To be called
        every second."""
        lost = [
            placement
            for placement in self._ledger.placements.placed()
            if placement.is_seen and placement.record.status.tried and not placement.record.status.nominated
        ]
        if self._refused.watch(lost, self._clock()):
            self._in_vain.clear()
            self._seen = ()
        yield from lost

    # Which pod

    def _news(self, group: str = "", others: int = _NO_OTHERS) -> tuple[int, ...]:
        """What differs once a node may take a pod that it has refused, or once a group has more pods. `others`: of a
        pod that minds others `_others`, as any pod or claim that comes may let it onto a node."""
        ledger = self._ledger
        members = ledger.placements.arrivals if group else 0
        nodes = ledger.node_states.improvements, self._cluster.nodes.changes, ledger.engine.membership
        return (*nodes, ledger.acknowledged, members, others)

    def _others(self) -> int:
        """Counts the pods that have come, gone or changed, for constraints between pods, and the news of options."""
        index = self._ledger.inter_pod
        return (0 if index is None else index.changes) + sum([option.news for option in self._ledger.gates.options])

    def _minds_others(self, record: PodRecord) -> bool:
        return bool(record.claims) or self._is_constrained(record)

    def _is_in_vain(self, key: Hashable, record: PodRecord) -> bool:
        before = self._in_vain.get(key)
        if before is None:
            return False
        others = _NO_OTHERS if before[-1] == _NO_OTHERS else self._others()
        return before == self._news(placement_group(record), others)

    def _may_place(self) -> bool:
        placements, since = self._ledger.placements, self._clock() - _LEFT_BEHIND_S
        if not placements.gated_count:
            return False
        left_behind = 0
        for placement in placements.placed():
            if placement.since > since:
                break
            left_behind += 1
        is_stalled = left_behind and placements.bound_at <= since
        return placements.placed_count - left_behind < (min(_FEW_AHEAD, self._ahead) if is_stalled else self._ahead)

    def _next(self) -> tuple[Turn, Hashable, PodRecord] | None:
        due = [head for head in self._ledger.placements.heads() if not self._is_in_vain(head[1], head[2])]
        first = min(due, key=lambda head: head[0], default=None)
        self._is_holding = first is not None and self._is_held_back(first[0], placement_group(first[2]))
        return None if self._is_holding else first

    def _is_held_back(self, turn: Turn, group: str) -> bool:
        """Returns whether the pod has to wait for a group that was there before and has waited for long."""
        now = self._clock()
        for hungry, since in list(self._hungry.items()):
            members = self._ledger.placements.members(hungry)
            if not self._is_complete(hungry, members):
                del self._hungry[hungry]
            elif hungry != group and _HUNGRY_S < now - since <= _PATIENT_S:
                first = members[0]
                if (-first.priority, first.status.started) <= turn[:2]:
                    return True
        return False

    # A pod

    def _place(self, record: PodRecord) -> Generator[None, None, list[Write]]:
        constraints = record.constraints
        if record.requests is None or constraints is None or not (record.requests.can_be_aligned or record.claims):
            # No kubelet aligns anything for it and it has no devices to allocate, or nobody can say what it needs.
            return [self._booked(record, "")]
        if self._ledger.gates.waits(record):
            return []
        node = yield from self._best(record)
        return [self._booked(record, node)] if node else []

    def _best(self, record: PodRecord) -> Generator[None, None, str]:
        """Returns the best node that takes the pod, "" without one."""
        assert record.requests is not None
        refused = self._refused.of(record, self._clock())
        if self._is_plain(record) and not self._is_constrained(record):
            board = self._board(record)
            yield from board.refresh()
            tried = islice((name for name in board.best() if name not in refused), _MOST_TRIED)
            node = next((name for name in tried if self._in_any_order(record, name)), "")
        else:
            yield from self._ledger.engine.steps(record.requests, self._ledger.engine.rows(self._reported))
            node = self._best_by_question(record)
        return node or self._unreported(record)

    def _is_plain(self, record: PodRecord) -> bool:
        """Returns whether the pod's class says everything about it, and no option has a say in the scores."""
        if record.status.nominated:
            # Its own nomination counts against all other pods.
            return False
        has_options = record.demands.of_options or record.claims
        return not has_options and record.requests is not None and not record.requests.shared_devices

    def _best_by_question(self, record: PodRecord) -> str:
        assert record.requests is not None and record.constraints is not None
        cluster, names = self._cluster, self._reported
        question = Question(record, record.requests, names, self._ledger.engine.rows(names), is_simulation=True)
        taking = (cluster.answers.verdicts(question).outcomes == FITS) & (question.rows >= 0)
        request = self._request(record)
        if request is not None and self._ledger.inter_pod is not None:
            taking &= self._ledger.inter_pod.verdicts(request, names).passes
        if refused := self._refused.of(record, self._clock()):
            taking &= np.array([name not in refused for name in names])
        fits = np.flatnonzero(taking)
        rated = cluster.answers.best(question, fits, len(names)).tolist()
        # Nodes where the pod itself is nominated, or a pod of a lower priority, have no score.
        unrated = sorted(set(fits.tolist()).difference(rated), key=lambda at: names[at] != record.status.nominated)
        best: tuple[int, str] | None = None
        for at in (*rated, *unrated):
            against = aversion(cluster, record, record.constraints, names[at])
            if against is None or (best is not None and against >= best[0]):
                continue
            if self._ledger.gates.shortage(record, names[at]):
                continue
            if self._in_any_order(record, names[at]):
                best = against, names[at]
            if best is not None and not best[0]:
                break
        return "" if best is None else best[1]

    def _in_any_order(self, record: PodRecord, name: str) -> bool:
        """Returns whether a node admits the pod and all pods on their way there in whatever order they come: the writes
        of two placements, and kube-scheduler's binds, may overtake each other."""
        node_state = self._ledger.node_states.of(name)
        is_alone = node_state is None or not node_state.has_coming(record.uid)
        return is_alone or self._ledger.gates.fits_in_any_order(record, name)

    def _unreported(self, record: PodRecord) -> str:
        """Returns a node without a report on which the pod would fit by sums, "" without one: nothing is known against
        it, as in an answer to kube-scheduler."""
        assert record.constraints is not None
        cluster, ledger = self._cluster, self._ledger
        names = [name for name in cluster.nodes if not cluster.precision(name)]
        request, refused = self._request(record), self._refused.of(record, self._clock())
        if names and request is not None and ledger.inter_pod is not None:
            names = ledger.inter_pod.verdicts(request, names).allowed()
        takers = (
            name
            for name in names
            if name not in refused
            and aversion(cluster, record, record.constraints, name) is not None
            and not ledger.gates.all(record, name)
            and not ledger.gates.shortage(record, name)
        )
        return next(takers, "")

    @property
    def _reported(self) -> tuple[str, ...]:
        """The reported nodes. The same tuple until a node comes or goes: who knows it needs no search for its rows."""
        membership = self._ledger.engine.membership
        if self._names[0] != membership:
            self._names = membership, tuple(self._ledger.node_states.reported())
        return self._names[1]

    def _board(self, record: PodRecord) -> Board:
        constraints = record.constraints
        assert constraints is not None
        key = record.shape, record.priority, record.demands.policy, constraints.key
        return self._boards.once(key, lambda: Board(self._cluster, record, constraints))

    def _booked(self, record: PodRecord, node: str, decision: str = "") -> Write:
        """Books the pod on the node."""
        form: Form = "nominated" if node and self._needs_a_way_out(record, node) else self._form
        self._ledger.place(record, node)
        return Write(record, node, form, decision)

    def _needs_a_way_out(self, record: PodRecord, node: str) -> bool:
        """Returns whether kube-scheduler must be free to choose another node: it may refuse this one for what is not
        examined here, or because it sees only this node; or an autoscaler has to move the pod later."""
        index, request = self._ledger.inter_pod, self._request(record)
        if record.constraints is None:
            return True
        unexamined: Sequence[str] = record.constraints.unexamined if index is None else ()
        if index is not None and request is not None:
            if not index.verdicts(request, [node], as_only=True).passes.all():
                return True
            unexamined = [item.kind for item in index.unexamined(request)]
        gates = self._ledger.gates
        if gates.unexamined(unexamined) or not all(option.knows(record, node) for option in gates.options_for(record)):
            return True
        labels = {} if (of := self._cluster.nodes.get(node)) is None else of.labels
        return any(label in labels for label in AUTOSCALED)

    def _request(self, record: PodRecord) -> Request | None:
        """Returns what the pod requires of other pods."""
        index = self._ledger.inter_pod
        return None if index is None else index.request_of(record.uid)

    def _is_constrained(self, record: PodRecord) -> bool:
        """Returns whether other pods decide which nodes kube-scheduler lets the pod onto."""
        index, request = self._ledger.inter_pod, self._request(record)
        if index is None or request is None:
            return False
        return request.is_constrained or bool(index.terms_against(request))

    # A group

    def _place_group(self, group: str) -> Generator[None, None, list[Write]]:
        members = self._ledger.placements.members(group)
        begun = self._ledger.placements.begun(group)
        if begun:
            # Half of it is placed: the others wait for nobody.
            for record in members:
                writes = yield from self._place(record)
                if writes:
                    return writes
            return []
        if not self._is_complete(group, members):
            return []
        places = yield from self._group_places(members)
        if places is None:
            self._hungry.setdefault(group, self._clock())
            return []
        self._hungry.pop(group, None)
        decision = secrets.token_hex(4)
        writes = []
        for record, node in places:
            gates = self._ledger.gates
            if node and (gates.at_bind(record, node) or gates.shortage(record, node)):
                # The cluster has changed between two steps: all of it again, and nothing stays booked.
                for write in writes:
                    self._ledger.retract(write.record.uid)
                return []
            writes.append(self._booked(record, node, decision))
        return writes

    def _is_complete(self, group: str, members: Sequence[PodRecord]) -> bool:
        """Returns whether all pods of the group wait. Pods that have ended count: those that were placed before a
        change of the leader may have done their work before the others are placed."""
        return bool(members) and len(members) + self._ledger.placements.ended(group) >= members[0].demands.group_size

    def _group_places(self, members: Sequence[PodRecord]) -> Generator[None, None, list[tuple[PodRecord, str]] | None]:
        """Returns the node of each pod, None if they do not fit together."""
        overlay, names = Overlay(self._cluster), self._reported
        index = self._ledger.inter_pod
        others = None if index is None else index.trial()
        candidates: dict[Hashable, Candidates] = {}
        places = []
        for record in members:
            if record.requests is None or not (record.requests.can_be_aligned or record.claims):
                places.append((record, ""))
                continue
            if self._ledger.gates.waits(record):
                return None
            request, among, key = self._request(record), names, record.pod_class
            refused = self._refused.of(record, self._clock())
            if others and request and (request.is_constrained or others.terms_against(request)):
                # What other pods require changes with each pod of the group.
                among, key = tuple(others.verdicts(request, names).allowed()), record.uid
            if refused:
                among, key = tuple([name for name in among if name not in refused]), record.uid
            if key not in candidates:
                rows = self._ledger.engine.rows(among)
                yield from self._ledger.engine.steps(record.requests, rows)
                question = Question(record, record.requests, among, rows, is_simulation=True)
                candidates[key] = Candidates(self._cluster, question)
            placed = yield from candidates[key].placing(overlay, record)
            if not isinstance(placed, Placed):
                return None
            overlay = placed.overlay
            if others and request:
                others.place(request, placed.node)
            places.append((record, placed.node))
            yield
        return places
