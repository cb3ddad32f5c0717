"""The state of a node as the fold of the kubelet model over its history.

The base is the last report. Operations follow in the order in which the kubelet sees them: pods that the base does not
have are admitted, pods that ended are removed. Pods that are only expected come last, the surest first.

Invariant: the state is a function of the history. The states between operations are kept, so that an event costs the
operations from its own on, and what is taken out of a history leaves no trace: the states before it are as they were.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import repeat
from operator import is_
from typing import Final, NamedTuple

from topowise import pods
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.trial import is_same_node
from topowise_scheduler.ledger.node.history import EARLY_S, LATE_S, Ended, Entry, History
from topowise_scheduler.ledger.node.pod_parts import holds_own
from topowise_scheduler.ledger.node.same_zones import same_zones
from topowise_scheduler.ledger.pods.pod_states import BookingState
from topowise_scheduler.report import Placements, PodName, Report, kubelet_of

# States are some kilobytes each, and what changes is mostly among the last operations.
_MOST_STATES: Final = 8
_NOTHING: Final[Placements] = {}
_Requests = Mapping[PodName, tuple[str, Mapping[str, int]]]


class Operation(NamedTuple):
    """A step of a fold. Operations with equal keys make the same state of the same state.

    `entry` is the pod that is admitted, kept or expected, None for an end of the pod `uid`. `listed` is what the report
    lists already of a pod that its kubelet is admitting. `is_last`: no init container of the report runs any more.
    """

    key: tuple[object, ...]
    uid: str
    entry: Entry | None = None
    listed: Placements = _NOTHING
    is_last: bool = False

    @property
    def is_nomination(self) -> bool:
        """Returns whether the pod is neither bound nor reserved."""
        return self.entry is not None and self.entry.state is BookingState.NOMINATED

    @property
    def step(self) -> tuple[object, bool]:
        """Returns the key, and whether the pod is taken to lie where it is predicted as it does not come soon."""
        return self.key, self.is_nomination


class State(NamedTuple):
    """The node after an operation, and the bound pods that found no room so far."""

    kubelet: Kubelet
    refused: tuple[Entry, ...] = ()


class _Base(NamedTuple):
    """The node as its report tells it. `parts` are what it was made of, `key` tells whether it is the same."""

    kubelet: Kubelet
    parts: tuple[object, ...]
    log: tuple[tuple[str, ...], int]
    key: tuple[object, ...]
    placed_in_turn: tuple[Entry, ...]


class Course(NamedTuple):
    """What a state is made of. Equal courses make equal states."""

    base: Kubelet | None
    operations: Sequence[Operation]

    def is_same_without(self, uid: str, before: Course) -> bool:
        """Returns whether a state without this pod is as it was. Nominations that came since do not count: they come
        last, and the pod does not heed them."""
        if self is before:
            return True
        steps = [operation.step for operation in before.operations if operation.uid != uid]
        counted = set(steps)
        return self.base is before.base and steps == [
            operation.step
            for operation in self.operations
            if operation.uid != uid and (operation.step in counted or not operation.is_nomination)
        ]


_NO_COURSE: Final = Course(None, ())


class Fold:
    """The states of a node, kept for its next event."""

    __slots__ = ("_base", "_operations", "_states", "course")

    def __init__(self) -> None:
        self._base: _Base | None = None
        self._operations: list[Operation] = []
        # The states after the last operations, None after operations before.
        self._states: list[State | None] = []
        self.course = _NO_COURSE

    def present(self, history: History) -> Kubelet | None:
        """Returns the state of the node, None if it is not reported. The state is shared: fork it to try pods on it."""
        report = history.report
        if report is None:
            self._base, self._operations, self._states, self.course = None, [], [], _NO_COURSE
            return None
        base = self._based(history, report)
        # States were folded over the previous base, so none of them can be reused.
        if self._base is None or base.kubelet is not self._base.kubelet:
            self._operations, self._states = [], []
        self._base = base
        operations = operations_of(history, report, base.placed_in_turn)
        same, state = self._state_before(operations, base)
        states = self._states[:same]
        for operation in operations[same:]:
            state = apply(state, operation)
            states.append(state)
        # Older states are dropped; an event before them folds again from the base.
        first_kept = max(0, len(states) - _MOST_STATES)
        self._operations, self._states = operations, [*repeat(None, first_kept), *states[first_kept:]]
        self.course = Course(base.kubelet, operations)
        return state.kubelet

    def renew(self, report: Report) -> None:
        """Takes a report in place of the last report, which it equals."""
        base = self._base
        if base is not None:
            self._base = base._replace(parts=(report, *base.parts[1:]), key=(id(report), *base.key[1:]))

    def without(self, history: History, uids: Collection[str]) -> Kubelet | None:
        """Returns a copy of the node on which the bound pods of these have ended, and expected pods never came."""
        base = self._base
        if history.report is None or base is None:
            return None
        bound = operations_of(history, history.report, base.placed_in_turn, expected=False)
        ends = [_end(history, uid) for uid in uids if (entry := history.entry(uid)) is not None and entry.is_bound]
        expected = _expected(history, history.report, uids)
        operations = [*bound, *ends, *expected]
        same, kept = self._state_before(operations, base)
        state = kept
        for operation in operations[same:]:
            state = apply(state, operation)
        return state.kubelet.fork() if state.kubelet is kept.kubelet else state.kubelet

    @property
    def whole_base(self) -> Kubelet | None:
        """Returns the node as it was reported, None if a pod of the report may be refused."""
        base = self._base
        return None if base is None or base.placed_in_turn else base.kubelet

    @staticmethod
    def expecting(bound: Kubelet, history: History, without: Collection[str]) -> Kubelet:
        """Returns a copy of a state of the bound pods without some pods, and with the other expected pods."""
        state = State(bound.without(without))
        for operation in () if history.report is None else _expected(history, history.report, without):
            state = apply(state, operation)
        return state.kubelet

    def _state_before(self, operations: Sequence[Operation], base: _Base) -> tuple[int, State]:
        """Returns how many operations need not be applied again, and the state after these."""
        same = 0
        for before, now, state in zip(self._operations, operations, self._states, strict=False):
            if before.key != now.key or not _is_same_admission(before, now, state):
                break
            same += 1
        state = self._states[same - 1] if same else None
        # Before the first state that is kept there is none, so that the fold begins at the base.
        return (same, state) if state is not None else (0, State(base.kubelet))

    def _based(self, history: History, report: Report) -> _Base:
        before = self._base
        # The base lacks what the report lists of the log and of expected pods, and ends of before the log's first pod.
        listed = tuple([entry.uid for entry in (*history.log, *history.expected) if lists(report, entry)])
        first = history.log[0].turn if history.ended and history.log else 0
        parts = (report, history.settled, history.ended, history.finished, history.counted)
        if before is not None and before.log == (listed, first) and all(map(is_, before.parts, parts)):
            return before
        # The ends first: mostly the names that are looked for are theirs.
        there = [*[ended.entry for ended in _later_ends(history, report)], *history.settled.values()]
        gone = _gone(history, report, there)
        held = frozenset([(entry.uid, entry.record.shape) for entry in there])
        is_listed = not any(map(_may_hold_unlisted, there))
        key = (id(report), held, frozenset(gone), tuple(history.counted), is_listed)
        if before is not None and before.key == key:
            return before._replace(parts=parts, log=(listed, first))
        same = before.kubelet if before is not None and is_same_node(before.kubelet, report.empty) else None
        known = _requests_by_name(there, report)
        # With `before` only changed pods are booked; it needs the same hardware and settings.
        kubelet = kubelet_of(report, known.get, without=gone, pods=history.counted, before=same)
        # The numbers include these pods, but they have ended since.
        for uid in history.counted.keys() - history.settled.keys():
            kubelet.remove(uid)
        if is_listed and kubelet.memory is not None and kubelet.active.keys() <= {entry.uid for entry in there}:
            kubelet.memory.drop_unlisted()
        bare = [entry for entry in history.settled.values() if not confirmed(entry, report)]
        for entry in bare:
            kubelet.hold_bare(entry.record.view(kubelet))
        in_turn: tuple[Entry, ...] = ()
        if bare and not kubelet.is_within:
            # Some pod will be refused, and it matters which came last.
            in_turn, kubelet = tuple(bare), kubelet.without([entry.uid for entry in bare])
        return _Base(kubelet, parts, (listed, first), key, in_turn)


def _is_same_admission(before: Operation, now: Operation, state: State | None) -> bool:
    """Returns whether it does not matter that a pod was expected before and is bound now, or the other way round.

    An expected pod that has room leaves the node as a bound pod does. A refusal of a bound pod may leave traces.
    """
    if before.entry is None or now.entry is None or before.entry.is_bound == now.entry.is_bound:
        return True
    return state is not None and now.uid in state.kubelet.active


def confirmed(entry: Entry, report: Report) -> bool:
    """Returns whether a settled pod is one that the report confirms, and not one to which no manager gives anything."""
    return report.precision == "counts" or lists(report, entry)


def lists(report: Report, entry: Entry) -> bool:
    """Returns whether an exact report lists anything of the pod."""
    return entry.name in report.held or ("", entry.uid) in report.held


def is_bare(entry: Entry, report: Report) -> bool:
    """Returns whether no manager gives the pod anything, so that an exact report will never list it."""
    if report.precision != "exact" or lists(report, entry):
        return False
    node, seen = report.empty, entry.record.seen(report.empty)
    return not holds_own(node, seen) and not any(
        name in node.devices.tables for container in seen.containers for name in container.limits
    )


def _gone(history: History, report: Report, there: Iterable[Entry]) -> set[PodName]:
    """Returns the names in the report that are of no pod of the base: of pods that ended before, of the log, and of
    expected pods, whose Binding the service may not have heard of."""
    names = {name for ended in history.ended for name in _names(ended.entry)}
    names.update(history.finished)
    for entry in (*history.log, *history.expected):
        names.update(_names(entry))
    gone = {name for name in names if name in report.held}
    for entry in there:
        if not gone:
            break
        gone.difference_update(_names(entry))
    return gone


def _requests_by_name(there: Iterable[Entry], report: Report) -> _Requests:
    """Returns UID and requests of pods by the names under which a report may list them."""
    requests: dict[PodName, tuple[str, Mapping[str, int]]] = {}
    for entry in there:
        # A kubelet may go by the containers alone (gate PodLevelResources).
        by_pod = entry.needs.pod_level is not None
        asked = entry.record.view(report.empty).requests if by_pod else entry.needs.requests
        requests.update(dict.fromkeys(_names(entry), (entry.uid, asked)))
    return requests


def _names(entry: Entry) -> tuple[PodName, PodName]:
    """Returns the names under which a report may list a pod: by its UID alone if only init containers had anything."""
    return entry.name, ("", entry.uid)


def _later_ends(history: History, report: Report) -> list[Ended]:
    """Returns the ended pods that the base has: the report is of before their ends, and they end as operations.

    Such ends came after the first pod of the log, or after the report itself, which listed the pod as this one does.
    """
    if not history.ended:
        return []
    first = history.log[0].turn if history.log else float("inf")
    if report.precision == "counts":
        return [ended for ended in history.ended if ended.turn > first]
    return [
        ended
        for ended in history.ended
        if (listed := report.held.get(ended.entry.name)) is not None
        and ended.may_be(listed)
        and (ended.held is listed or ended.turn > first)
    ]


def operations_of(
    history: History, report: Report, in_turn: Iterable[Entry] = (), *, expected: bool = True
) -> list[Operation]:
    """Returns what has happened since the report, in turn, and then what is `expected`."""
    bound: list[tuple[int, Operation]] = []
    for entry in (*history.log, *in_turn):
        if entry.seen.listed is not None:
            kind = "keep" if report.precision == "exact" else "stay"
            bound.append((-1, Operation((kind, entry.uid, id(entry.seen.listed)), entry.uid, entry)))
        else:
            bound.append((entry.turn, _place(entry, _listed(history, report, entry))))
    for ended in history.ended:
        entry = ended.entry
        if not lists(report, entry) and ended.was_predicted:
            if not may_matter(ended, history):
                continue
            # The pod came and went without a report. Its admission may have moved pods that came after it.
            bound.append((entry.turn, _place(entry)))
        bound.append((ended.turn, _end(history, entry.uid)))
    # Sorting is stable, so operations of equal turn keep the order of the history.
    bound.sort(key=_position)
    operations = [operation for _, operation in bound]
    return operations + _expected(history, report) if expected else operations


def _expected(history: History, report: Report, without: Collection[str] = ()) -> list[Operation]:
    return [_place(entry, _listed(history, report, entry)) for entry in history.expected if entry.uid not in without]


def may_matter(ended: Ended, history: History) -> bool:
    """Returns whether the report cannot include the end of a pod that no report has listed, or a pod of the log may
    have been admitted beside that pod.

    A report from before the Binding of the pod lacks its traces. So does a report from before the window of its end:
    the kubelet releases a pod at most `LATE_S` before the service hears of the end. A later report has them.
    """
    if history.reported_at <= max(ended.entry.seen.since, ended.at - LATE_S):
        return True
    return any(
        entry.seen.listed is None and entry.turn > ended.entry.turn and entry.seen.since - EARLY_S < ended.at
        for entry in history.log
    )


def _position(turn_and_operation: tuple[int, Operation]) -> int:
    return turn_and_operation[0]


def _place(entry: Entry, listed: Placements = _NOTHING) -> Operation:
    return Operation(
        ("place", entry.uid, entry.record.admission_key, gives_back(entry), id(listed)), entry.uid, entry, listed
    )


def _end(history: History, uid: str) -> Operation:
    is_last = not any(_may_hold_unlisted(entry) for entry in history.settled.values() if entry.uid != uid)
    return Operation(("end", uid, is_last), uid, is_last=is_last)


def _may_hold_unlisted(entry: Entry) -> bool:
    """Returns whether the pod may have memory that its kubelet counts and podresources do not list: blocks of init
    containers that may run, and blocks of size 0."""
    return entry.needs.qos == "Guaranteed" and any(
        (container.kind == "init" and not entry.record.status.runs)
        or (0 in container.requests.values() and any(map(_is_empty_memory, container.requests.items())))
        for container in entry.needs.containers
    )


def _is_empty_memory(amount: tuple[str, int]) -> bool:
    name, size = amount
    return not size and (name == "memory" or name.startswith(pods.HUGEPAGES))


def gives_back(entry: Entry) -> bool:
    """Returns whether init containers of the pod are done, so that what only they had is free."""
    return entry.record.status.runs and any(container.kind == "init" for container in entry.needs.containers)


def _listed(history: History, report: Report, entry: Entry) -> Placements:
    """Returns what an exact report lists of a pod that it does not confirm, as its kubelet is still admitting it."""
    listed = report.held.get(entry.name)
    if listed is None or entry.seen.resized is not None:
        return _NOTHING
    is_old = any(ended.entry.name == entry.name and ended.may_be(listed) for ended in history.ended)
    return _NOTHING if is_old else listed


def apply(state: State, operation: Operation) -> State:
    """Returns the state after an operation."""
    kubelet, refused = state
    entry = operation.entry
    if entry is None:
        left = tuple([pod for pod in refused if pod.uid != operation.uid])
        if operation.uid not in kubelet.active:
            return State(kubelet, left)
        kubelet = kubelet.without((operation.uid,))
        if operation.is_last and kubelet.memory is not None:
            kubelet.memory.drop_unlisted()
        return _retried(kubelet, left)
    kubelet = kubelet.fork()
    if entry.is_bound and entry.seen.listed is not None:
        # No admission: the pod lies where it was listed, or it has ended and its room is taken.
        placements = same_zones(kubelet, entry.seen.listed) if entry.seen.listed else None
        if placements is not None:
            kubelet.hold(entry.uid, entry.record.view(kubelet).requests, placements)
        elif operation.key[0] == "stay" and not admit(kubelet, entry):
            # No report tells of single pods there, so that it has most likely not ended.
            return State(kubelet, (*refused, entry))
        return State(kubelet, refused)
    # An expected pod that no report lists is not known to the kubelet, so a refusal must leave no trace.
    if not entry.is_bound and not operation.listed:
        if kubelet.expect(entry.record.view(kubelet)).admitted:
            _start(kubelet, entry)
        return State(kubelet, refused)
    if not admit(kubelet, entry, operation.listed):
        return State(kubelet, (*refused, entry))
    return _retried(kubelet, refused) if refused and gives_back(entry) else State(kubelet, refused)


def _retried(kubelet: Kubelet, refused: Iterable[Entry]) -> State:
    """Admits pods that found no room: the service often hears of a pod before the end that made room for the pod."""
    return State(kubelet, tuple([entry for entry in refused if not admit(kubelet, entry)]))


def admit(kubelet: Kubelet, entry: Entry, listed: Placements = _NOTHING) -> bool:
    """Returns whether the kubelet admits a bound pod, which changes the state. A refusal leaves traces.

    `listed` is what the report lists of the pod already.
    """
    view = entry.record.view(kubelet)
    if listed:
        # The kubelet goes on with the admission: what is allocated stays, the rest is found beside it.
        kubelet.hold(entry.uid, view.requests, listed)
    if not (listed and kubelet.allocates_whole(view)) and not kubelet.admit_view(view).admitted:
        if not listed:
            return False
        # What is listed is taken, whatever the model says of the rest.
        kubelet.hold(entry.uid, view.requests, listed)
    _start(kubelet, entry)
    return True


def _start(kubelet: Kubelet, entry: Entry) -> None:
    if gives_back(entry):
        kubelet.start(entry.uid)
