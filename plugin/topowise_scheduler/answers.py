"""The answers themselves, whatever protocol asked: one pod, some nodes, a verdict and a score for each.

A view over the ledger and the engine without I/O: the gates (cluster/gates) give the verdicts, the strategy the scores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from topowise import pods
from topowise.errors import ParseError
from topowise.runtime.turns import UnpreparedError
from topowise_scheduler import strategies
from topowise_scheduler.cluster.gates.capacity import known_rows
from topowise_scheduler.cluster.gates.gate import FITS, Question
from topowise_scheduler.cluster.gates.gates import Verdicts
from topowise_scheduler.cluster.ledger import Ledger
from topowise_scheduler.cluster.pods.records import PodRecord, Records, annotated
from topowise_scheduler.device_affinity import Judged
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.shape import PodRequests
from topowise_scheduler.strategies import Rated, Strategy, ranks

__all__ = ["Answers", "Question", "Verdicts"]

_MAX_UNKNOWN: Final = 1000
# Of a Node (RFC 1123 subdomain); what is longer is none, and is neither kept nor logged.
_LONGEST_NAME: Final = 253
_NONE: Final = object()
# Twice a raw score is below 2 to this, and a rank below 2 to half of what is left.
_RANK: Final = 24
# Best nodes of which it is looked whether they may refuse the pod by chance.
_MOST_DRAWS: Final = 8
_LAST: Final = 1 << 60

_NO_REQUESTS: Final = PodRequests(pods.Needs((), {}, "BestEffort"))


class Answers:
    """Verdicts and scores. Raises ParseError for a pod whose quantities or annotations cannot be read."""

    def __init__(self, ledger: Ledger, records: Records, strategy: Strategy, *, top_score: int = 10) -> None:
        self._ledger = ledger
        self._gates = ledger.gates
        self.engine = ledger.engine
        self._records = records
        self._strategy = strategy
        self._top_score = top_score
        self.verdict_counts: Counter[str] = Counter()
        """Verdicts by their words; "" for nodes that fit."""
        self._unknown: set[str] = set()

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
            self._ledger.reservations.release(record.uid)
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
        verdicts = self._gates.verdicts(asked)
        for word, times in enumerate([] if asked.is_simulation else np.bincount(verdicts.words).tolist()):
            if times:
                self.verdict_counts[verdicts.texts[word]] += times
        return verdicts

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
        rows = rows[(self.verdicts(asked).outcomes == FITS) & (rows >= 0)]
        levels = np.full(len(rows), _LAST, np.int64)
        found = self.engine.rated(record.requests, rows, strategies.Rater(self._strategy))
        levels[found.at] = (found.ranks << _RANK) - 2 * found.raw - (found.in_cache > 0)
        return rows, levels

    def expect(self, asked: Question, at: int, judged_at: int = -1) -> None:
        """The pod will most likely go to this node of the question, which fitted at `judged_at` (Verdicts)."""
        if not asked.is_simulation and not asked.record.is_too_large:
            self._ledger.reservations.put(asked.record, asked.requests.needs, asked.names[at], judged_at=judged_at)

    def nowhere(self, asked: Question) -> None:
        """The pod fits on none of all nodes."""
        if not asked.is_simulation:
            self._ledger.reservations.note_nowhere(asked.record)

    def fitting(self, record: PodRecord, names: Sequence[str]) -> Iterator[None]:
        """What `fits` would take long for, in steps."""
        return iter(()) if record.requests is None else self.engine.steps(record.requests, self.engine.rows(names))

    def fits(self, record: PodRecord, names: Sequence[str]) -> NDArray[np.bool_]:
        """Whether a pod of the cluster would be let onto each of these nodes now, without a trace."""
        if record.requests is None:
            return np.zeros(len(names), np.bool_)
        return np.equal(self.verdicts_of(record, names).outcomes, FITS)

    def verdicts_of(self, record: PodRecord, names: Sequence[str]) -> Verdicts:
        """The same in words. The pod's quantities must have been readable."""
        assert record.requests is not None
        return self.verdicts(Question(record, record.requests, names, self.engine.rows(names), is_simulation=True))

    def states_for(self, asked: Question, name: str, gone: Collection[str] = ()) -> Iterator[Kubelet]:
        """Copies of a node's states as they are for this pod once these pods are gone (`CapacityGate.states`)."""
        return self._gates.capacity.states(asked.record, name, gone)

    def affinity(self, asked: Question, name: str) -> Judged | None:
        """What a node's devices come to for the wishes of the pod, None if it has none."""
        return self._gates.affinity.of(asked.record, name) if asked.record.wishes else None

    def affinity_refusal(
        self, record: PodRecord, name: str, states: Iterable[Kubelet], guessed: Collection[str] = ()
    ) -> str:
        """Why the devices of a node in these states would not do for the pod, "" if they would."""
        return self._gates.affinity.refusal_in(record, name, states, guessed)

    def may_be_refused(self, record: PodRecord, name: str) -> bool:
        """Whether a node on which the pod fits may refuse it all the same, by its kubelet's own choice of devices."""
        return self._gates.affinity.may_be_refused(record, name)

    def is_in_vain(self, asked: Question, name: str, gone: Collection[str]) -> bool:
        """Whether the devices that are free once these pods are gone would not be as near each other as the pod
        requires."""
        return bool(self._gates.affinity.refusal(asked.record, name, gone))

    def _rate(self, asked: Question, strategy: Strategy) -> Rated:
        known, rater = known_rows(asked.rows), strategies.Rater(strategy)
        ratings = self.engine.rated(asked.requests, asked.rows[known], rater)
        rated = rater.finished(ratings if isinstance(known, slice) else ratings._replace(at=known[ratings.at]))
        if asked.record.wishes:
            grades = [self._gates.affinity.of(asked.record, asked.names[at]).grade for at in rated.at.tolist()]
            rated = rated._replace(ranks=ranks.refined(rated.ranks, np.array(grades, np.int64)))
        if asked.requests.shared_devices:
            best = rated.best(_MOST_DRAWS).tolist()
            sure = [at for at in best if not self.may_be_refused(asked.record, asked.names[at])]
            # Behind the sure ones all others keep their order, those that were not looked at too.
            if 0 < len(sure) < len(best):
                rated = rated._replace(ranks=ranks.first(rated.ranks, np.isin(rated.at, sure)))
        return rated

    def _unknown_among(self, names: Sequence[str], rows: NDArray[np.int32]) -> Sequence[str]:
        """The names that the cluster does not have, each once in the life of the process."""
        if not rows.size or int(rows.min()) >= 0:
            return ()
        found = []
        for name in (names[at] for at in np.flatnonzero(rows < 0).tolist()):
            # Bounded: whoever makes up names must not make us remember all of them.
            is_new = len(name) <= _LONGEST_NAME and name not in self._ledger.reports.nodes and name not in self._unknown
            if is_new and len(self._unknown) < _MAX_UNKNOWN:
                self._unknown.add(name)
                found.append(name)
        return found
