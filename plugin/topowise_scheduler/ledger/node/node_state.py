"""One node: its history, and what follows from that.

Each event makes another history out of the present one; the state of the node is the fold over it (fold.py).

Invariant: two nodes with equal histories have equal states. All other fields are caches of values that follow
from the history, or number its events.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import msgspec

from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.pod import PodView
from topowise_scheduler.ledger.node import confirmation
from topowise_scheduler.ledger.node.confirmation import Comparison
from topowise_scheduler.ledger.node.event_orders import distinct, moved, possible_states
from topowise_scheduler.ledger.node.fold import Course, Fold, confirmed, gives_back, is_bare, lists, may_matter
from topowise_scheduler.ledger.node.history import ENDED_KEPT_S, Ended, Entry, Evidence, FinishedPods, History, Resize
from topowise_scheduler.ledger.node.pod_parts import holds_anything, is_of_any_size, own_amounts
from topowise_scheduler.ledger.node.possible_placements import Possible
from topowise_scheduler.ledger.node.uncertainty import doubts, highest, is_settled
from topowise_scheduler.ledger.pods.pod_states import BookingState
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.report import PageSizes, Placements, PodName, Report, of_node

_replace = msgspec.structs.replace


class _Orders(NamedTuple):
    """The states of the bound pods by all orders of events, None if they are not known, and what they follow from."""

    history: History
    key: tuple[frozenset[str], frozenset[str]]
    states: Sequence[Kubelet] | None


class NodeState:
    """`kubelet` is the present state, None until the node is reported. It is shared: fork it to try pods on it."""

    __slots__ = ("_finished", "_fold", "_judged", "_orders", "_turns", "history", "kubelet")

    def __init__(self) -> None:
        self.history = History()
        self.kubelet: Kubelet | None = None
        self._fold = Fold()
        self._finished = FinishedPods()
        self._turns = 0
        # By UID, what the fold was made of when the pod was found to fit wherever the other pods may lie.
        self._judged: dict[str, Course] = {}
        self._orders: _Orders | None = None

    @property
    def report(self) -> Report | None:
        """Returns the last report."""
        return self.history.report

    def has_coming(self, uid: str) -> bool:
        """Returns whether pods beside this pod are bound without a report, or expected."""
        return any(entry.uid != uid for entry in (*self.history.log, *self.history.expected))

    def is_placed(self, uid: str) -> bool:
        """Returns whether the pod has room on the node."""
        return self.kubelet is not None and uid in self.kubelet.active

    def is_reported(self, uid: str) -> bool:
        """Returns whether the report confirms the pod."""
        entry, report = self.history.settled.get(uid), self.report
        return entry is not None and report is not None and confirmed(entry, report)

    # Events

    def put_report(self, report: Report, now: float) -> Comparison | None:
        """Takes a new report; `now` is in seconds, monotonic. Returns None if the node is as it was: the report differs
        from the last report in its version alone, and no event waits for a report."""
        history, before = self.history, self.history.report
        # A report without a resourceVersion cannot be compared, so it counts as newer.
        is_newer = before is None or not report.version or report.version != before.version
        # A relist brings the same object again.
        reported_at = now if is_newer else history.reported_at
        waits = history.log or history.ended or self._finished.will_change
        if before is not None and not waits and report == _replace(before, version=report.version):
            self.history = _replace(history, report=report, reported_at=reported_at)
            self._fold.renew(report)
            return None
        self.forget_past(now)
        history = _replace(self.history, reported_at=reported_at)
        comparison = Comparison()
        entries = {entry.uid: entry for entry in history.bound()}
        if report.precision == "exact":
            history = _replace(history, ended=_not_included(history, report, before))
            if self.kubelet is not None:
                comparison = confirmation.compare(
                    report, list(entries.values()), self.kubelet, history.ended_by_name, reported_at
                )
                entries.update({entry.uid: entry for entry in comparison.entries})
            settled = self._listed(report, entries, history)
        else:
            # Which pods the numbers include is found anew for each report of amounts.
            history = _replace(history, counted={})
            settled = self._counted(report, entries, history, believes=is_newer)
        history = _replace(history, report=report, finished=self._finished.listed(report))
        self._become(confirmation.with_counted(history.with_bound(entries, settled), report))
        return comparison

    def judge_as(self, kubelet_version: str, page_sizes: PageSizes) -> bool:
        """Takes the Node's kubelet version and hugepage sizes. Returns whether verdicts change by them."""
        before = self.report
        if before is None:
            return False
        report = of_node(before, kubelet_version, page_sizes)
        is_other = report.empty is not before.empty
        if report is not before:
            self._become(_replace(self.history, report=report, finished=self._finished.listed(report)))
        return is_other

    def drop_report(self) -> None:
        """Takes the report away. The pods stay."""
        bound = {entry.uid: entry.seen_as(listed=None) for entry in self.history.bound()}
        self._become(_replace(self.history, report=None, finished=frozenset()).with_bound(bound, {}))

    def put(self, entry: Entry, *, is_news: bool = True) -> bool:
        """Books a pod, or raises the state of its booking. Returns whether the node may be another now.

        `is_news` is False for a pod that was there before us: a report without a fingerprint may include it.
        """
        booked = self.history.entry(entry.uid)
        if booked is not None and booked.state <= entry.state and booked.record.shape != entry.record.shape:
            # The pod was resized on its way here.
            self.drop(entry.uid, None)
            booked = None
        if booked is not None and entry.state <= booked.state:
            # The event is no news: the pod holds what it held.
            return self._update(_replace(booked, record=entry.record.steered_as(booked.record)))
        self._turns += 1
        entry = _replace(entry, turn=self._turns)
        # From now on a pod that was only nominated by kube-scheduler may lie elsewhere than predicted.
        is_foreseen = booked is not None and booked.state is BookingState.RESERVED
        history = self.history.without_entry(entry.uid)
        report = history.report
        settled = {}
        if entry.is_bound and report is not None:
            if report.precision == "exact":
                settled = self._listed(report, {entry.uid: entry}, history)
            elif report.fingerprint or (booked is None and not is_news):
                bound = {pod.uid: pod for pod in (*history.bound(), entry)}
                settled = self._counted(report, bound, history, believes=not report.fingerprint)
        if entry.is_bound:
            # The question is over, and the value keeps a state of the node in memory.
            self._judged.pop(entry.uid, None)
        history = history.with_entry(entry, settled=False).with_settled(settled)
        if report is not None:
            history = confirmation.with_counted(history, report)
        return self._become(history) or not is_foreseen

    def update(self, record: PodRecord, now: float) -> bool:
        """Takes another version of a booked pod. Returns whether that changes the node: the pod was resized, or its
        init containers are done."""
        booked = self.history.entry(record.uid)
        if booked is None:
            return False
        before, entry = booked.record, _replace(booked, record=record.steered_as(booked.record))
        if record.status.acknowledged and booked.seen.acknowledged is None:
            entry = entry.seen_as(acknowledged=now)
        # Other amounts than before: the pod was resized in place (KEP-1287).
        if record.shape != before.shape and record.needs is not None and before.needs is not None:
            return self._resize(_replace(entry, record=record, needs=record.needs), before, now)
        if gives_back(entry) == gives_back(booked):
            self.history = self.history.with_entry(entry, settled=record.uid in self.history.settled)
            return False
        return self._update(entry)

    def _resize(self, entry: Entry, before: PodRecord, now: float) -> bool:
        """Takes other amounts of a pod: it is placed anew, as if it came now, until a report shows the amounts."""
        report, node = self.report, self.kubelet
        if report is None or node is None:
            self._update(entry)
            return False
        if own_amounts(node, entry.record.view(node)) == own_amounts(node, before.view(node)):
            self._update(entry)
            return True
        self._turns += 1
        resized = Resize(now, report.version, report.held.get(entry.name))
        seen = Evidence(now, now, entry.seen.was_there, resized=resized)
        entry = _replace(entry, turn=self._turns, seen=seen)
        self._become(self.history.with_entry(entry, settled=False))
        return True

    def lose_label(self, uid: str) -> bool:
        """The label of a steered pod may have ended before its admission. Returns whether that changes the node."""
        entry = self.history.entry(uid)
        if entry is None or entry.record.steered is None:
            return False
        unsteered = _replace(entry, record=_replace(entry.record, steered=None))
        self._become(self.history.with_entry(unsteered, settled=uid in self.history.settled))
        return True

    def lower(self, uid: str, state: BookingState) -> bool:
        """The pod is less sure to come than it was. Returns whether the pod is here."""
        entry = self.history.entry(uid)
        if entry is None:
            return False
        self._become(self.history.with_entry(_replace(entry, state=state), settled=False))
        return True

    def drop(self, uid: str, ended_at: float | None) -> None:
        """A pod has ended (seconds, monotonic), or is not expected any more (None)."""
        entry = self.history.entry(uid)
        if entry is None:
            return
        self._judged.pop(uid, None)
        history = self.history.without_entry(uid)
        if ended_at is not None and entry.is_bound:
            history = _replace(history, ended=self._ended(entry, ended_at))
        report = history.report
        # Amounts are of several pods, so an end may change which of the other pods the numbers include.
        if report is not None and report.precision == "counts":
            bound = {pod.uid: pod for pod in history.bound()}
            settled = self._counted(report, bound, history, believes=ended_at is not None)
            history = history.with_bound(bound, settled)
        self._become(history)

    def _ended(self, entry: Entry, now: float) -> tuple[Ended, ...]:
        """Returns the ended pods with another one, if the report may not include its end."""
        report, ended = self.report, self.history.ended
        was_listed = entry.seen.listed is not None
        is_unlisted = report is not None and report.precision == "exact" and not lists(report, entry)
        # A kubelet lists active pods only, so that a pod can leave the reports before the API server deletes it.
        if is_unlisted and report is not None and (was_listed or is_bare(entry, report)):
            return ended
        self._turns += 1
        held = None if report is None or not was_listed else report.held.get(entry.name)
        was_predicted = not (was_listed or self.is_reported(entry.uid))
        return (*ended, Ended(now, entry, self._turns, held, was_predicted))

    def finish(self, uid: str, name: PodName, unseen_at: float | None) -> bool:
        """A pod has ended by its own status: what a report lists of the pod is free now. Returns whether that
        changes the node. `unseen_at`: seconds, monotonic, None if the pod was booked until now."""
        self._finished.put(uid, name, unseen_at)
        return self._note_finished()

    def forget_finished(self, uid: str) -> bool:
        """A finished pod was deleted; its kubelet lists it no longer. Returns whether that changes the node."""
        self._finished.drop(uid)
        return self._note_finished()

    def _note_finished(self) -> bool:
        listed = self._finished.listed(self.report)
        return listed != self.history.finished and self._become(_replace(self.history, finished=listed))

    def forget_past(self, now: float) -> bool:
        """Forgets ends and resizes of long ago. Returns whether that changes the node: a report lists a pod still."""
        history, report = self.history, self.report
        ended = tuple([end for end in history.ended if now - end.at < ENDED_KEPT_S])
        bound = {entry.uid: entry for entry in history.bound()}
        unseen = [pod for pod in bound.values() if pod.seen.resized and now - pod.seen.resized.at >= ENDED_KEPT_S]
        self._finished.forget(now)
        if len(ended) == len(history.ended) and not unseen:
            return self._note_finished()
        history = _replace(history, finished=self._finished.listed(report))
        bound.update({entry.uid: entry.seen_as(resized=None) for entry in unseen})
        last_turn = max((end.turn for end in history.ended if now - end.at >= ENDED_KEPT_S), default=0)
        for entry in history.log:
            if entry.turn < last_turn and entry.seen.listed is None and self.is_placed(entry.uid):
                # What the pod was placed beside is forgotten, so where it was placed is remembered.
                bound[entry.uid] = entry.seen_as(listed=self._placements(entry.uid))
        history = _replace(history, ended=ended)
        if report is None:
            self.history = history.with_bound(bound, {})
            return False
        if report.precision == "exact":
            settled = self._listed(report, bound, history)
        else:
            settled = self._counted(report, bound, history, believes=not report.fingerprint)
        return self._become(history.with_bound(bound, settled))

    @property
    def remembers(self) -> bool:
        """Returns whether `forget_past` will have something to do."""
        history = self.history
        if history.ended or self._finished.will_change:
            return True
        return any(entry.seen.resized for entry in (*history.settled.values(), *history.log))

    @property
    def is_empty(self) -> bool:
        """Returns whether nothing is known of the node."""
        history = self.history
        return history.report is None and not (history.count or history.ended or self._finished)

    def note_judged(self, uid: str) -> None:
        """The pod was found to fit before it was booked, and nothing else has changed since."""
        if self.history.entry(uid) is not None:
            self._judged[uid] = self._fold.course

    # What follows from the history

    def is_as_judged(self, uid: str) -> bool:
        """Returns whether an expected pod fits, because it did and the node without the pod is the same since."""
        judged = self._judged.get(uid)
        return judged is not None and self.is_placed(uid) and self._fold.course.is_same_without(uid, judged)

    def without(self, uids: Collection[str]) -> Kubelet | None:
        """Returns a copy of the state in which these pods are gone, and expected pods never came."""
        return self._fold.without(self.history, uids)

    def unlisted(self) -> set[str]:
        """Returns the UIDs of the pods of which the report does not list all that they hold."""
        return {entry.uid for entry in self.history.entries() if not self.is_reported(entry.uid)}

    def uncertain(self, now: float) -> list[PodView]:
        """Returns the pods that may lie elsewhere than predicted, if they lie there at all."""
        possible = self.possible(now)
        return [] if possible is None else [*possible.uncertain, *possible.moved]

    def possible(self, now: float, without: Collection[str] = (), *, is_alone: bool = True) -> Possible | None:
        """Returns the states in which the node may be, None if nobody has reported the node.

        The pods in `without` are gone, and expected pods of them never came. Unless this service `is_alone` in binding
        pods, any pod may have come in between.
        """
        node = self.without(without) if without else self.kubelet
        if node is None:
            return None
        history, predicted = self.history, self.kubelet
        if predicted is None or not (history.log or history.expected):
            return Possible(node)
        opened, settled = doubts(history, predicted, now)
        # Orders are enumerated only if some window is settled; they cost up to 64 admissions.
        bound = self._bound_states(now, without) if settled else ()
        if bound is None:
            opened, bound = [*opened, *settled], ()
        # On a single NUMA node all placements are equal, but the number of CPUs may be unknown.
        matters = holds_anything if len(node.node_ids) > 1 else is_of_any_size
        views = [entry.record.view(node) for entry in opened if entry.uid not in without]
        uncertain = [view for view in views if matters(node, view)]
        states = [self._fold.expecting(state, history, without) for state in bound]
        alternatives = distinct(states, [view.uid for view in uncertain], [node])
        heights = highest(history, [node, *alternatives], now, is_alone=is_alone) if uncertain else {}
        views = [entry.record.view(node) for entry in moved(settled, node, alternatives)]
        return Possible(node, uncertain, heights, alternatives, views)

    def _bound_states(self, now: float, without: Collection[str]) -> Sequence[Kubelet] | None:
        """Returns the states of the bound pods by all orders of events, None if the orders are too many or unknown."""
        settled = frozenset([entry.uid for entry in self.history.log if is_settled(entry, now)])
        key = settled, frozenset([entry.uid for entry in self.history.log if entry.uid in without])
        if self._orders is None or self._orders.history is not self.history or self._orders.key != key:
            base = self._fold.whole_base
            states = None if base is None else possible_states(base, self.history, now, key[1])
            self._orders = _Orders(self.history, key, states)
        return self._orders.states

    # Inside

    def _become(self, history: History) -> bool:
        """Takes another history. Returns whether the state is another."""
        before, self.history = self.kubelet, history
        node = self.kubelet = self._fold.present(history)
        # The orders follow from the history, so none survives it.
        self._orders = None
        return node is not before

    def _update(self, entry: Entry) -> bool:
        return self._become(self.history.with_entry(entry, settled=entry.uid in self.history.settled))

    def _listed(self, report: Report, bound: dict[str, Entry], history: History) -> dict[str, Entry]:
        """Returns the pods that an exact report settles. Writes into `bound` what is known of the other pods."""
        settled: dict[str, Entry] = {}
        ended = history.ended_by_name if any(entry.name in report.held for entry in bound.values()) else {}
        bare = history.settled if history.report is not None and history.report.empty is report.empty else {}
        for uid, entry in bound.items():
            if confirmation.confirms(report, entry, ended, history.reported_at):
                allocated, seen = report.held.get(entry.name) or report.held.get(("", uid), {}), entry.seen
                is_known = seen.listed is allocated and seen.resized is None and seen.compared
                settled[uid] = entry if is_known else entry.seen_as(listed=allocated, resized=None, compared=True)
            elif entry.seen.listed is not None:
                # The pod has ended, or its kubelet has restarted: it keeps its placement until its own event.
                bound[uid] = entry.seen_as(listed=self._placements(uid))
            elif (bare.get(uid) is entry and not lists(report, entry)) or is_bare(entry, report):
                settled[uid] = entry
        return settled

    def _counted(
        self, report: Report, bound: dict[str, Entry], history: History, *, believes: bool
    ) -> dict[str, Entry]:
        """Returns the pods that the numbers of a counts report include.

        Numbers without a fingerprint are added up anew only if something `believes` that they tell something new.
        """
        there = list(bound.values())
        marked = [entry for entry in there if entry.uid in history.settled]
        if report.fingerprint:
            if len(marked) < len(there):
                marked += confirmation.by_fingerprint(
                    report, there, history.settled, history.ended_by_name, history.reported_at
                )
        elif believes:
            positions = confirmation.by_amounts(report, there, history.ended_by_name)
            marked = [entry for position, entry in enumerate(there) if position in positions]
        return {pod.uid: pod if pod.seen.resized is None else pod.seen_as(resized=None) for pod in marked}

    def _placements(self, uid: str) -> Placements:
        """Returns what the pod holds at present, nothing if it has no room."""
        return self.kubelet.placements(uid) if self.kubelet is not None and uid in self.kubelet.active else {}


def _not_included(history: History, report: Report, before: Report | None) -> tuple[Ended, ...]:
    """Returns the ended pods whose end a new exact report may not include.

    A report that lists a pod is from before its end. A report that does not list a pod of the last report is from after
    its end. An end that no report shows is of no matter if no pod of the log may have been placed beside the pod.
    """
    return tuple(
        [
            end
            for end in history.ended
            if lists(report, end.entry)
            or (end.was_predicted and (before is None or not lists(before, end.entry)) and may_matter(end, history))
        ]
    )
