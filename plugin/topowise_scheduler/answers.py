"""The answers themselves, whatever protocol asked: one pod, some nodes, a verdict and a score for each.

A view over the ledger and the engine without I/O. Most nodes are answered from the engine's arrays; a node whose state
is another for this very pod (it is nominated there, or a lesser pod is) is asked of the one-node model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from topowise import pods
from topowise.errors import ParseError
from topowise.runtime.turns import UnpreparedError
from topowise_scheduler import refusals, strategies
from topowise_scheduler.cluster.gates.affinities import Affinities
from topowise_scheduler.cluster.ledger import Ledger
from topowise_scheduler.cluster.pods.records import PodRecord, Records, annotated
from topowise_scheduler.device_affinity import Judged
from topowise_scheduler.engine import Outcome
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.shape import PodRequests
from topowise_scheduler.strategies import Rated, Strategy, ranks

_MAX_UNKNOWN: Final = 1000
# Of a Node (RFC 1123 subdomain); what is longer is none, and is neither kept nor logged.
_LONGEST_NAME: Final = 253
# Verdicts of nodes without lesser nominated pods that are remembered, and the bytes of the shapes they are of.
_MAX_APART: Final = 1 << 14
_MAX_APART_BYTES: Final = 16 << 20
_FITS: Final = int(Outcome.FITS)
_NONE: Final = object()
# What a number of Engine.reasons takes.
_REASON_BITS: Final = 4
# Twice a raw score is below 2 to this, and a rank below 2 to half of what is left.
_RANK: Final = 24
_FEW: Final = 64
# Best nodes of which it is looked whether they may refuse the pod by chance.
_MOST_DRAWS: Final = 8
_LAST: Final = 1 << 60

_ALL: Final = slice(None)
_NO_REQUESTS: Final = PodRequests(pods.Needs((), {}, "BestEffort"))

Subset = NDArray[np.intp] | slice


class Question(msgspec.Struct, frozen=True):
    """One pod and the nodes that are asked about; `rows` are the engine's, -1 for a node nobody has reported.

    A simulation leaves no trace: it reserves nothing. A pod that is too large has empty `requests`, and fits nowhere.
    """

    record: PodRecord
    requests: PodRequests
    names: Sequence[str]
    rows: NDArray[np.int32]
    is_simulation: bool
    unknown: Sequence[str] = ()
    """Names that the cluster does not have and that nobody has asked about before; for the log, after the answer."""


class Verdicts(msgspec.Struct, frozen=True):
    """Per node of the question: the outcome, and the index of the words for it in `texts`.

    `judged_at` is what the ledger's `changes` counted then.
    """

    outcomes: NDArray[np.int8]
    words: NDArray[np.int16]
    texts: Sequence[str]
    judged_at: int

    def text(self, index: int) -> str:
        """Why the node is refused, "" if it is not."""
        return self.texts[int(self.words[index])]


class _Texts:
    """Refusals by number; there are a few dozen, so they are only ever added."""

    def __init__(self) -> None:
        self.texts = [""]
        self._numbers = {"": 0}

    def number(self, text: str) -> int:
        found = self._numbers.get(text)
        if found is None:
            found = self._numbers[text] = len(self.texts)
            self.texts.append(text)
        return found


class Answers:
    """Verdicts and scores. Raises ParseError for a pod whose quantities or annotations cannot be read."""

    def __init__(self, ledger: Ledger, records: Records, strategy: Strategy, *, top_score: int = 10) -> None:
        self._ledger = ledger
        self._node_states = ledger.node_states
        self.engine = ledger.engine
        self._records = records
        self._strategy = strategy
        self._top_score = top_score
        self._texts = _Texts()
        # By outcome and reason, the number of the words for them.
        self._words: NDArray[np.int16] = np.zeros(len(Outcome) << _REASON_BITS, np.int16)
        for refused in (Outcome.UNSCHEDULABLE, Outcome.UNRESOLVABLE):
            for number, reason in enumerate(self.engine.reasons):
                text = refusals.of(reason, ever=refused is Outcome.UNRESOLVABLE)
                self._words[(refused << _REASON_BITS) + number] = self._texts.number(text)
        self.verdict_counts: Counter[str] = Counter()
        """Verdicts by their words; "" for nodes that fit."""
        self._unknown: set[str] = set()
        self._apart: dict[tuple[str, bytes, frozenset[str]], tuple[int, str | None]] = {}
        self._apart_bytes = 0
        self._affinities = Affinities(ledger)

    def question(
        self, pod: pods.Pod, names: Sequence[str], *, rows: NDArray[np.int32] | None = None, is_simulation: bool = False
    ) -> Question:
        """The question as the engine understands it; `rows` if they are known (Engine.rows). Raises ParseError."""
        record = self._records.record(pod)
        if record.requests is None and not record.is_too_large:
            raise ParseError("pod", f"{record.namespace}/{record.name}", record.problem)
        # A record takes annotations that cannot be read for none; who asks about the pod gets the error.
        requests = record.requests or _NO_REQUESTS
        annotated(pod.metadata.annotations, requests.needs)
        if not is_simulation:
            # kube-scheduler decides one pod after the other: asking again means that the last answer came to nothing.
            self._ledger.unreserve(record.uid)
            if record.uid:
                self._ledger.remember(record)
        if rows is None:
            rows = self.engine.rows(names)
        unknown = () if is_simulation else self._unknown_among(names, rows)
        return Question(record, requests, names, rows, is_simulation, unknown)

    def about(self, record: PodRecord, names: Sequence[str]) -> Question:
        """The question of a caller who says itself when a pod is booked: it leaves all reservations as they are."""
        rows = self.engine.rows(names)
        return Question(record, record.requests or _NO_REQUESTS, names, rows, False, self._unknown_among(names, rows))

    def steps(self, asked: Question) -> Iterator[None]:
        """What `verdicts` would take long for, in steps of some milliseconds: a pod of many containers that is new to
        thousands of nodes. None if it takes not long."""
        return self.engine.steps(asked.requests, asked.rows)

    def renewed(self, asked: Question) -> Question:
        """The question once its `steps` are done: nodes may have come and gone in between, and rows are others'."""
        return msgspec.structs.replace(asked, rows=self.engine.rows(asked.names))

    def verdicts(self, asked: Question, *, at_once: bool = True) -> Verdicts:
        """Per node. A node nobody has reported fits: we know nothing against it.

        Not `at_once` raises UnpreparedError if it would take long.
        """
        if not at_once:
            steps = self.steps(asked)
            if next(steps, _NONE) is None:
                raise UnpreparedError(steps)
        count = len(asked.names)
        outcomes = np.full(count, _FITS, np.int8)
        words = np.zeros(count, np.int16)
        if asked.record.is_too_large:
            outcomes[:], words[:] = Outcome.UNRESOLVABLE, self._texts.number(refusals.TOO_LARGE)
            return self._counted(asked, outcomes, words)
        own = self._own_nodes(asked)
        # The node of a nominated pod is asked about alone, and is another one for it than for all others.
        if count > 1 or not own:
            self._judge(asked, outcomes, words)
        self._judge_apart(asked, own, outcomes, words)
        self._close(asked, outcomes, words)
        self._apply_policy(asked, outcomes, words)
        self._apply_wishes(asked, outcomes, words)
        return self._counted(asked, outcomes, words)

    def _counted(self, asked: Question, outcomes: NDArray[np.int8], words: NDArray[np.int16]) -> Verdicts:
        for word, times in enumerate([] if asked.is_simulation else np.bincount(words).tolist()):
            if times:
                self.verdict_counts[self._texts.texts[word]] += times
        return Verdicts(outcomes, words, self._texts.texts, self._node_states.changes)

    def scores(self, asked: Question) -> NDArray[np.int64]:
        """Per node, 0 to the top score. A node that nobody has reported or that does not fit has 0, and then one that
        is known to fit has more."""
        found = np.zeros(len(asked.names), np.int64)
        if asked.record.is_too_large:
            return found
        rated = self._rate(asked, self._strategy)
        reported = int((asked.rows >= 0).sum())
        # Nobody has an opinion about nodes of which nothing is known if the pod asks for nothing that they might align.
        more_below = reported < found.size and asked.requests.can_be_aligned
        found[rated.at] = rated.levels(self._top_score, low=int(rated.at.size < reported), more_below=more_below)
        return found

    def best(self, asked: Question, among: NDArray[np.intp], most: int) -> NDArray[np.intp]:
        """At most so many of these nodes of the question, best first; those that nobody has reported are none."""
        left = msgspec.structs.replace(asked, names=[asked.names[at] for at in among.tolist()], rows=asked.rows[among])
        return among[self._rate(left, self._strategy).best(most)]

    def percents(self, asked: Question, strategy: Strategy) -> NDArray[np.int64]:
        """Per node, 0 to 100 by a strategy, truncated; a node nobody has reported, or that does not fit, has 0."""
        found = np.zeros(len(asked.names), np.int64)
        if asked.record.is_too_large:
            return found
        rated = self._rate(asked, strategy)
        found[rated.at] = rated.percents()
        return found

    def levels(self, record: PodRecord, names: Sequence[str]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The rows of the reported nodes on which a pod of the cluster would be let now, and a number for each: the
        least is of the best. Where it fits only if a lesser nominated pod does not come it is the greatest."""
        assert record.requests is not None
        rows = self.engine.rows(names)
        asked = Question(record, record.requests, names, rows, is_simulation=True)
        rows = rows[(self.verdicts(asked).outcomes == _FITS) & (rows >= 0)]
        levels = np.full(len(rows), _LAST, np.int64)
        found = self.engine.rated(record.requests, rows, strategies.Rater(self._strategy))
        levels[found.at] = (found.ranks << _RANK) - 2 * found.raw - (found.in_cache > 0)
        return rows, levels

    def expect(self, asked: Question, at: int, judged_at: int = -1) -> None:
        """The pod will most likely go to this node of the question, which fitted at `judged_at` (Verdicts)."""
        if not asked.is_simulation and not asked.record.is_too_large:
            self._ledger.reserve(asked.record, asked.requests.needs, asked.names[at], judged_at=judged_at)

    def nowhere(self, asked: Question) -> None:
        """The pod fits on none of all nodes."""
        if not asked.is_simulation:
            self._ledger.nowhere(asked.record)

    def fitting(self, record: PodRecord, names: Sequence[str]) -> Iterator[None]:
        """What `fits` would take long for, in steps."""
        return iter(()) if record.requests is None else self.engine.steps(record.requests, self.engine.rows(names))

    def fits(self, record: PodRecord, names: Sequence[str]) -> NDArray[np.bool_]:
        """Whether a pod of the cluster would be let onto each of these nodes now, without a trace."""
        if record.requests is None:
            return np.zeros(len(names), np.bool_)
        return np.equal(self.verdicts_of(record, names).outcomes, _FITS)

    def verdicts_of(self, record: PodRecord, names: Sequence[str]) -> Verdicts:
        """The same in words. The pod's quantities must have been readable."""
        assert record.requests is not None
        return self.verdicts(Question(record, record.requests, names, self.engine.rows(names), is_simulation=True))

    def states_for(self, asked: Question, name: str, gone: Collection[str] = ()) -> Iterator[Kubelet]:
        """Copies of a node's state as it is for this pod (NodeStates.states), once these pods are gone; none if nobody
        has reported the node."""
        record = asked.record
        others = self._ledger.disregarded(record.uid, record.priority, name)
        return self._node_states.states(name, {record.uid, *others, *gone})

    def affinity(self, asked: Question, name: str) -> Judged | None:
        """What a node's devices come to for the wishes of the pod, None if it has none."""
        return self._affinities.of(asked.record, name) if asked.record.wishes else None

    def affinity_refusal(
        self, record: PodRecord, name: str, states: Iterable[Kubelet], guessed: Collection[str] = ()
    ) -> str:
        """Why the devices of a node in these states would not do for the pod, "" if they would (Ledger.affinity)."""
        if not record.wishes:
            return ""
        return self._ledger.affinity_refusal(self._ledger.affinity(record, name, states, guessed))

    def may_be_refused(self, record: PodRecord, name: str) -> bool:
        """Whether a node on which the pod fits may refuse it all the same, by its kubelet's own choice of devices."""
        return self._affinities.may_be_refused(record, name)

    def is_in_vain(self, asked: Question, name: str, gone: Collection[str]) -> bool:
        """Whether the devices that are free once these pods are gone would not be as near each other as the pod
        requires."""
        return bool(self.affinity_refusal(asked.record, name, self.states_for(asked, name, gone)))

    def _rate(self, asked: Question, strategy: Strategy) -> Rated:
        known, rater = _known(asked.rows), strategies.Rater(strategy)
        ratings = self.engine.rated(asked.requests, asked.rows[known], rater)
        rated = rater.finished(ratings if isinstance(known, slice) else ratings._replace(at=known[ratings.at]))
        if asked.record.wishes:
            grades = [self._affinities.of(asked.record, asked.names[at]).grade for at in rated.at.tolist()]
            rated = rated._replace(ranks=ranks.refined(rated.ranks, np.array(grades, np.int64)))
        if asked.requests.shared_devices:
            best = rated.best(_MOST_DRAWS).tolist()
            sure = [at for at in best if not self.may_be_refused(asked.record, asked.names[at])]
            # Behind the sure ones all others keep their order, those that were not looked at too.
            if 0 < len(sure) < len(best):
                rated = rated._replace(ranks=ranks.first(rated.ranks, np.isin(rated.at, sure)))
        return rated

    def _judge(self, asked: Question, outcomes: NDArray[np.int8], words: NDArray[np.int16]) -> None:
        """Reported nodes by the engine, in one go with the other possible placements of those on which pods may lie
        elsewhere."""
        known: Subset = _known(asked.rows)
        rows = asked.rows[known]
        if not len(rows):
            return
        possible = self._node_states.possible
        others, owners = possible.all() if len(rows) > _FEW else possible.of(rows.tolist())
        if len(rows) < len(others) // 4:
            is_asked = np.isin(owners, rows)
            others, owners = others[is_asked], owners[is_asked]
        count = len(rows)
        outcome, reason = self.engine.verdicts(asked.requests, np.concatenate([rows, others]) if len(others) else rows)
        mine = outcome[:count]
        found = self._words.take((mine.astype(np.intp) << _REASON_BITS) + reason[:count])
        tight = owners[outcome[count:] != _FITS]
        if len(tight):
            is_tight = np.zeros(int(max(tight.max(), rows.max())) + 1, np.bool_)
            is_tight[tight] = True
            refused = is_tight[rows] & (mine == _FITS)
            mine[refused], found[refused] = Outcome.UNSCHEDULABLE, self._texts.number(refusals.UNCERTAIN)
        outcomes[known], words[known] = mine, found

    def _own_nodes(self, asked: Question) -> Mapping[str, Set[str]]:
        """Nodes that are asked of the one-node model without some pods: those of the pod itself, and one that is asked
        about alone, as kube-scheduler does for a nominated pod, if there are lesser pods."""
        uid, priority, names = asked.record.uid, asked.record.priority, asked.names
        if len(names) > 1:
            return self._ledger.own_nodes(uid, priority)
        found = {name: self._ledger.disregarded(uid, priority, name) for name in names}
        return {name: others for name, others in found.items() if others}

    def _judge_apart(
        self, asked: Question, own: Mapping[str, Set[str]], outcomes: NDArray[np.int8], words: NDArray[np.int16]
    ) -> None:
        """Nodes whose state for this pod is another than the engine has for all: without lesser pods in rows of their
        own, and without the pod itself, on a node or two, by the one-node model."""
        if len(asked.names) > 1:
            self._judge_without_lesser(asked, outcomes, words)
        for name, others in own.items():
            if name in asked.names and (why := self._reason_apart(asked.record, name, others)) is not None:
                at = asked.names.index(name)
                # Others can be evicted, as far as this pod is concerned; whether that helps is preemption's question.
                outcomes[at] = Outcome.UNSCHEDULABLE if why else Outcome.FITS
                words[at] = self._texts.number(refusals.of(why, ever=False))

    def _judge_without_lesser(self, asked: Question, outcomes: NDArray[np.int8], words: NDArray[np.int16]) -> None:
        apart = self._ledger.apart(asked.record.priority)
        if apart is None:
            return
        outcome, reason = self.engine.verdicts(asked.requests, apart.rows)
        of_nodes = np.full(int(max(apart.owners.max(initial=0), asked.rows.max(initial=0))) + 2, -1, np.int16)
        of_nodes[apart.owners[apart.at]] = 0
        # The first of a node's states that refuses the pod says why, so it is written last.
        refused = np.flatnonzero(outcome != _FITS)[::-1]
        by_reason = self._words[Outcome.UNSCHEDULABLE << _REASON_BITS :]
        of_nodes[apart.owners[apart.at[refused]]] = by_reason[reason[refused]]
        # A row of -1 finds the end, which is nobody's.
        found = of_nodes[asked.rows]
        # Those that are nominated can be evicted, as far as this pod is concerned.
        outcomes[found == 0], outcomes[found > 0] = Outcome.FITS, Outcome.UNSCHEDULABLE
        words[found >= 0] = found[found >= 0]

    def _reason_apart(self, record: PodRecord, name: str, others: Set[str]) -> str | None:
        """Why the kubelet would refuse the pod if these were not there, "" if it would not; None for no report."""
        key = (name, record.shape, frozenset(others))
        changed_at, reason = self._apart.get(key, (-1, None))
        if changed_at != self._node_states.changed_at(name) and self._ledger.is_as_judged(record.uid, name):
            return ""
        if changed_at != self._node_states.changed_at(name):
            self._apart_bytes += len(record.shape)
            if len(self._apart) >= _MAX_APART or self._apart_bytes > _MAX_APART_BYTES:
                self._apart.clear()
                self._apart_bytes = 0
            admissions = [state.admit_view(record.view(state)) for state in self._node_states.states(name, others)]
            reason = next((one.reason for one in admissions if not one.admitted), "") if admissions else None
            self._apart[key] = self._node_states.changed_at(name), reason
        return reason

    def _close(self, asked: Question, outcomes: NDArray[np.int8], words: NDArray[np.int16]) -> None:
        """Nodes that take no such pod whatever room they have."""
        quarantined = self._ledger.quarantined(asked.record.shape)
        closed = [(self.engine.rows(list(quarantined)), refusals.QUARANTINED)] if quarantined else []
        closed += [(rows, refusals.UNCONFIRMED) for rows in self._ledger.unconfirmed.closed(asked.record)]
        if (slow := self._ledger.slow_admissions.closed(asked.record)).size:
            closed.append((slow, refusals.TOO_SLOW))
        for rows, text in closed:
            at = np.isin(asked.rows, rows[rows >= 0])
            outcomes[at], words[at] = Outcome.UNRESOLVABLE, self._texts.number(text)

    def _apply_policy(self, asked: Question, outcomes: NDArray[np.int8], words: NDArray[np.int16]) -> None:
        """Nodes whose Topology Manager cannot give what the pod's annotations ask for."""
        for accepted, refusal in asked.record.demand.rules():
            suits = np.zeros(len(asked.names), np.bool_)
            known = asked.rows >= 0
            suits[known] = np.isin(self.engine.policies[asked.rows[known]], accepted)
            outcomes[~suits] = Outcome.UNRESOLVABLE
            words[~suits] = self._texts.number(refusal)

    def _apply_wishes(self, asked: Question, outcomes: NDArray[np.int8], words: NDArray[np.int16]) -> None:
        """Nodes whose devices are not known to be as near each other as the pod requires. Fewer pods there need not
        make it any better, so nobody is to be evicted for it."""
        if not any(wish.strength == "require" for wish in asked.record.wishes):
            return
        for at in np.flatnonzero(outcomes == _FITS).tolist():
            text = self._ledger.affinity_refusal(self._affinities.of(asked.record, asked.names[at]))
            if text:
                outcomes[at], words[at] = Outcome.UNRESOLVABLE, self._texts.number(text)

    def _unknown_among(self, names: Sequence[str], rows: NDArray[np.int32]) -> Sequence[str]:
        """The names that the cluster does not have, each once in the life of the process."""
        if not rows.size or int(rows.min()) >= 0:
            return ()
        found = []
        for name in (names[at] for at in np.flatnonzero(rows < 0).tolist()):
            # Bounded: whoever makes up names must not make us remember all of them.
            is_new = len(name) <= _LONGEST_NAME and name not in self._ledger.known and name not in self._unknown
            if is_new and len(self._unknown) < _MAX_UNKNOWN:
                self._unknown.add(name)
                found.append(name)
        return found


def _known(rows: NDArray[np.int32]) -> Subset:
    """The indices of rows that have a node."""
    return _ALL if not rows.size or int(rows.min()) >= 0 else np.flatnonzero(rows >= 0)
