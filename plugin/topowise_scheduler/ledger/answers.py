"""The answers themselves, whatever protocol question: one pod, some nodes, a verdict and a score for each.

A view over the ledger and the engine without I/O: the gates (cluster/gates) give the verdicts, the strategy the scores.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from topowise import pods
from topowise.errors import ParseError
from topowise.runtime.event_loop import UnpreparedError
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.ledger.gates.capacity import known_rows
from topowise_scheduler.ledger.gates.gate import FITS, Question
from topowise_scheduler.ledger.gates.gates import Verdicts
from topowise_scheduler.ledger.gates.option import ChangedNode
from topowise_scheduler.ledger.ledger import Ledger
from topowise_scheduler.ledger.pods.records import PodRecord, Records
from topowise_scheduler.report.shape import PodRequests
from topowise_scheduler.verdicts import strategies
from topowise_scheduler.verdicts.engine import Engine, Ratings
from topowise_scheduler.verdicts.refusals import Refusal
from topowise_scheduler.verdicts.strategies import Rated, Strategy

__all__ = ["Answers", "Looks", "Question", "Verdicts", "part"]

_MAX_UNKNOWN: Final = 1000
# Of the name of a Node (RFC 1123 subdomain): a longer name is neither remembered nor logged.
_LONGEST_NAME: Final = 253
_NONE: Final = object()
# Twice a raw score is below 2 to the power of this, and a rank below 2 to half of the remaining bits.
_RANK: Final = 24
_LAST: Final = 1 << 60

_AS_IN_CLUSTER: Final[Mapping[str, ChangedNode]] = {}
_NO_REQUESTS: Final = PodRequests(pods.Needs((), {}, "BestEffort"))


class Looks(NamedTuple):
    """What the order of nodes needs to know beside their ratings: the nodes, by name, that are not as in the cluster,
    and which nodes, by index in the question, have an L3 cache for the pod (Engine.confirm_caches)."""

    changed: Mapping[str, ChangedNode]
    confirm_caches: Callable[[NDArray[np.intp]], NDArray[np.bool_]]


class Answers:
    """Verdicts and scores. Raises ParseError for a pod whose quantities or annotations cannot be read."""

    def __init__(self, ledger: Ledger, records: Records, strategy: Strategy, *, top_score: int = 10) -> None:
        self._ledger = ledger
        self._gates = ledger.gates
        self.engine = ledger.engine
        self._records = records
        self._strategy = strategy
        self._top_score = top_score
        self.verdict_counts: NDArray[np.int64] = np.zeros(len(Refusal) + 1, np.int64)
        """Number of verdicts by `Refusal`, of nodes that fit at 0."""
        self._unknown: set[str] = set()

    def question(
        self, pod: pods.Pod, names: Sequence[str], *, rows: NDArray[np.int32] | None = None, is_simulation: bool = False
    ) -> Question:
        """Returns the question in the engine's terms; `rows` if they are known (Engine.rows). Raises ParseError."""
        record = self.record(pod)
        # A record ignores annotations that cannot be read; the caller of a question gets the error.
        requests = record.requests or _NO_REQUESTS
        if record.problem is not None:
            self._records.demands(pod.metadata, requests.needs)
        if not is_simulation:
            # kube-scheduler decides pods in turn: a second question means that the last answer was not used.
            self._ledger.reservations.release(record.uid)
            if record.uid:
                self._ledger.remember(record)
        if rows is None:
            rows = self.engine.rows(names)
        unknown = () if is_simulation else self._unknown_among(names, rows)
        return Question(record, requests, names, rows, is_simulation, unknown=unknown)

    def record(self, pod: pods.Pod) -> PodRecord:
        """Returns the record of a pod, whose annotations may be unreadable. Raises ParseError for other amounts."""
        record = self._records.record(pod)
        if record.requests is None and not record.is_too_large:
            raise ParseError("pod", f"{record.namespace}/{record.name}", str(record.problem))
        return record

    def about(self, record: PodRecord, names: Sequence[str]) -> Question:
        """Returns the question of a caller that reserves nodes itself: all reservations stay."""
        rows = self.engine.rows(names)
        return Question(
            record, record.requests or _NO_REQUESTS, names, rows, False, unknown=self._unknown_among(names, rows)
        )

    def steps(self, question: Question) -> Iterator[None]:
        """Yields between steps of some milliseconds that `verdicts` would otherwise take at once: a pod of many
        containers that is new to thousands of nodes. Yields nothing if `verdicts` is quick."""
        return self.engine.steps(question.requests, question.rows)

    def renewed(self, question: Question) -> Question:
        """Returns the question with the engine's present rows: nodes may have come and gone during its `steps`."""
        return msgspec.structs.replace(question, rows=self.engine.rows(question.names))

    def verdicts(self, question: Question, *, at_once: bool = True) -> Verdicts:
        """Returns a verdict per node. A node without a report fits: nothing is known against it.

        Raises UnpreparedError if it would take long and not `at_once`.
        """
        if not at_once:
            steps = self.steps(question)
            if next(steps, _NONE) is None:
                raise UnpreparedError(steps)
        verdicts = self._gates.verdicts(question)
        if not question.is_simulation:
            self.verdict_counts += np.bincount(verdicts.refusals, minlength=len(Refusal) + 1)
        return verdicts

    def scores(self, question: Question) -> NDArray[np.int64]:
        """Returns a score per node (nodes,), 0 to the top score: 0 for a node without a report and for a node that does
        not fit; then a node that is known to fit has more. A node that does not exist yet has 1 if its group fits."""
        scores = np.zeros(len(question.names), np.int64)
        if question.record.is_too_large:
            return scores
        rated = self._rate(question, self._strategy)
        reported = int((question.rows >= 0).sum())
        # A node without a report is not worse if the pod asks for nothing that a kubelet aligns.
        more_below = reported < scores.size and question.requests.can_be_aligned
        scores[rated.at] = rated.levels(self._top_score, low=int(rated.at.size < reported), more_below=more_below)
        for at, refusal in question.templates.items():
            scores[at] = 0 if refusal else 1
        return scores

    def best(self, question: Question, among: NDArray[np.intp], most: int) -> NDArray[np.intp]:
        """Returns at most `most` of the nodes `among` (indices), best first, without nodes that have no report."""
        return among[self._rate(part(question, among), self._strategy).best(most)]

    def percents(self, question: Question, strategy: Strategy) -> NDArray[np.int64]:
        """Returns 0 to 100 per node (nodes,) by a strategy, truncated; 0 if it does not fit or has no report."""
        scores = np.zeros(len(question.names), np.int64)
        if question.record.is_too_large:
            return scores
        rated = self._rate(question, strategy)
        scores[rated.at] = rated.percents()
        return scores

    def levels(self, record: PodRecord, names: Sequence[str]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Returns the rows of the reported nodes that take a pod of the cluster now, and a level for each row: the
        lowest level is the best. It is the greatest where a nominated pod of a lower priority is in the way.
        """
        assert record.requests is not None
        rows = self.engine.rows(names)
        question = Question(record, record.requests, names, rows, is_simulation=True)
        rows = rows[(self.verdicts(question).outcomes == FITS) & (rows >= 0)]
        levels = np.full(len(rows), _LAST, np.int64)
        rated = self.engine.rated(record.requests, rows, strategies.Rater(self._strategy))
        levels[rated.at] = (rated.ranks << _RANK) - 2 * rated.raw - (rated.in_cache > 0)
        return rows, levels

    def expect(self, question: Question, at: int, judged_at: int = -1) -> None:
        """Reserves for the pod the node at this index, which fitted at `judged_at` (Verdicts)."""
        if not question.is_simulation and not question.record.is_too_large:
            self._ledger.reservations.put(
                question.record, question.requests.needs, question.names[at], judged_at=judged_at
            )

    def nowhere(self, question: Question) -> None:
        """Notes that the pod fits on no node."""
        if not question.is_simulation:
            self._ledger.reservations.note_nowhere(question.record)

    def fitting(self, record: PodRecord, names: Sequence[str]) -> Iterator[None]:
        """Yields between the steps that `fits` would take long for."""
        return iter(()) if record.requests is None else self.engine.steps(record.requests, self.engine.rows(names))

    def fits(self, record: PodRecord, names: Sequence[str]) -> NDArray[np.bool_]:
        """Returns whether each of these nodes would take a pod of the cluster now (nodes,), without a trace."""
        if record.requests is None:
            return np.zeros(len(names), np.bool_)
        return np.equal(self.verdicts_of(record, names).outcomes, FITS)

    def verdicts_of(self, record: PodRecord, names: Sequence[str]) -> Verdicts:
        """Returns the verdicts of `fits`. The pod's quantities must be readable."""
        assert record.requests is not None
        return self.verdicts(Question(record, record.requests, names, self.engine.rows(names), is_simulation=True))

    def states_for(self, question: Question, name: str) -> Iterator[Kubelet]:
        """Yields copies of a node's states for this pod (`CapacityGate.states`)."""
        return self._gates.capacity.states(question.record, name)

    def is_certain(self, record: PodRecord, name: str, leaving: Collection[str] = ()) -> bool:
        """Returns whether it is known what the options have for the pod on a node once the pods `leaving` have left."""
        return all(option.is_certain(record, name, leaving) for option in self._gates.options_for(record))

    def may_be_refused(self, record: PodRecord, name: str) -> bool:
        """Returns whether a node on which the pod fits may still refuse it, by its kubelet's own choice of devices."""
        return any(option.may_be_refused(record, name) for option in self._gates.options_for(record))

    def takes_without(self, record: PodRecord, name: str, gone: Collection[str]) -> bool:
        """Returns whether all gates let the pod on a node, and an option lacks nothing for it, without the pods `gone`
        (UIDs)."""
        return self._gates.shortage(record, name, gone) is None and self._gates.all(record, name, gone) is None

    def accepts(
        self, record: PodRecord, name: str, leaving: Collection[str] = ()
    ) -> Callable[[Collection[str]], bool] | None:
        """Returns what of `takes_without` its kubelet does not decide, for further pods (UIDs) than those `leaving`:
        what the options say. None if that does not depend on evictions."""
        if not self._gates.depends_on_evictions(record):
            return None
        options = self._gates.options_for(record)

        def accept(gone: Collection[str]) -> bool:
            gone = {*leaving, *gone}
            refusals = (option.refusal(record, name, gone) for option in options)
            return self._gates.shortage(record, name, gone) is None and not any(refusals)

        return accept

    def ratings(self, question: Question, strategy: Strategy | None = None) -> Ratings:
        """Returns the ratings of the nodes on which the pod fits, of each by that node alone."""
        known, rater = known_rows(question.rows), strategies.Rater(strategy or self._strategy)
        ratings = self.engine.rated(question.requests, question.rows[known], rater)
        if not isinstance(known, slice):
            ratings = ratings._replace(at=known[ratings.at])
        return self._graded(question, ratings, _AS_IN_CLUSTER)

    def rating_of(self, question: Question, engine: Engine, name: str, at: int, looks: Looks) -> Ratings:
        """Returns the rating of a node that has this name in another engine: empty if the pod does not fit there."""
        found = engine.rated(question.requests, engine.rows([name]), strategies.Rater(self._strategy))
        return self._graded(question, found._replace(at=np.full(found.at.size, at)), looks.changed)

    def in_order(self, question: Question, ratings: Ratings, looks: Looks, strategy: Strategy | None = None) -> Rated:
        """Returns the rated nodes in the order that depends on all of them."""
        rated = strategies.Rater(strategy or self._strategy).finished(ratings)
        for option in self._gates.options_for(question.record):
            rated = option.in_order(question, rated, looks.changed)
        undecided = rated.undecided_by_cache()
        if undecided.size and rated.in_one_cache is not None:
            rated.in_one_cache[undecided] = looks.confirm_caches(rated.at[undecided])
        return rated

    def _graded(self, question: Question, ratings: Ratings, changed: Mapping[str, ChangedNode]) -> Ratings:
        """Returns ratings whose ranks consider what the options know of each node."""
        for option in self._gates.options_for(question.record):
            ratings = option.graded(question, ratings, changed)
        return ratings

    def _rate(self, question: Question, strategy: Strategy) -> Rated:
        looks = Looks(_AS_IN_CLUSTER, lambda at: self.engine.confirm_caches(question.requests, question.rows[at]))
        return self.in_order(question, self.ratings(question, strategy), looks, strategy)

    def _unknown_among(self, names: Sequence[str], rows: NDArray[np.int32]) -> Sequence[str]:
        """Returns the names that the cluster does not have, each name once in the life of the process."""
        if not rows.size or int(rows.min()) >= 0:
            return ()
        unknown = []
        for name in (names[at] for at in np.flatnonzero(rows < 0).tolist()):
            # Bounded: a caller that makes up names must not fill the memory.
            is_new = len(name) <= _LONGEST_NAME and name not in self._ledger.reports.nodes and name not in self._unknown
            if is_new and len(self._unknown) < _MAX_UNKNOWN:
                self._unknown.add(name)
                unknown.append(name)
        return unknown


def part(question: Question, at: NDArray[np.intp]) -> Question:
    """Returns the question about some of its nodes (indices)."""
    return msgspec.structs.replace(
        question, names=[question.names[index] for index in at.tolist()], rows=question.rows[at]
    )
