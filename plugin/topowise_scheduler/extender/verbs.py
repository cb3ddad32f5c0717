"""The verbs: request bytes in, answer bytes out, and what follows the answer. No I/O and no await but in preempt.

kube-scheduler takes anything but HTTP 200 as a broken connection and an omitted node as refused for ever, so every
question gets an answer that names every node, and what is wrong with a question goes into `Error`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from itertools import compress
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from topowise import pods
from topowise_scheduler.answers import Answers, Question, Verdicts
from topowise_scheduler.engine import Outcome
from topowise_scheduler.extender import binding, explaining, wire
from topowise_scheduler.extender import fitting as fitting_verb
from topowise_scheduler.extender.binding import Binder
from topowise_scheduler.extender.evictions import Evictions
from topowise_scheduler.extender.explaining import Explainer
from topowise_scheduler.extender.fitting import FittingVerb
from topowise_scheduler.extender.names import NameLists, Names
from topowise_scheduler.extender.replies import BadRequestError, NotReady, Observer, Reply, Verb, warn_of_unknown
from topowise_scheduler.extender.shortlist import Shortlist
from topowise_scheduler.preemption import Choice

# kube-scheduler asks for scores within a few milliseconds after the verdicts, or never.
_AHEAD_S: Final = 0.1
_NOBODY: Final = Choice((), 0)


class _ScoredAhead(NamedTuple):
    """The scores for the nodes that the last filter has left, and when they were true."""

    asked: Question
    judged_at: int
    scores: NDArray[np.int64]
    names: Names
    at: float


class _Read(NamedTuple):
    """A request of filter or prioritize: names, or whole Nodes as they came."""

    asked: Question
    names: Names
    nodes: list[msgspec.Raw] | None


class Verbs:
    """filter, prioritize and preempt.

    `observer` is called for every decision. `scores_ahead` is whether scores are computed before they are asked for,
    while kube-scheduler runs its own plug-ins. With a `shortlist` it may hear of some nodes only.
    """

    def __init__(
        self,
        answers: Answers,
        evictions: Evictions,
        not_ready: NotReady,
        *,
        observer: Observer | None = None,
        scores_ahead: bool = True,
        shortlist: Shortlist | None = None,
    ) -> None:
        self._answers = answers
        self._evictions = evictions
        self._not_ready = not_ready
        self._observer = observer
        self._scores_ahead = scores_ahead
        self._shortlist = shortlist
        self._scored: _ScoredAhead | None = None
        self._lists = NameLists(answers.engine)

    def filter(self, body: bytes) -> Reply:
        """ExtenderArgs -> ExtenderFilterResult."""
        self._scored = None
        asked, names, nodes = self._read(body)
        verdicts = self._answers.verdicts(asked, at_once=False)
        few = None if self._shortlist is None else self._shortlist.of(asked, verdicts, body)
        answer, kept = names.answer(verdicts) if few is None else names.shortened(few)
        if nodes is not None:
            answer = wire.encode(
                msgspec.structs.replace(wire.decode_result(answer), NodeNames=None, Nodes=_of(nodes, verdicts))
            )
        return Reply(answer, partial(self._after_filter, asked, verdicts, kept))

    def _after_filter(self, asked: Question, verdicts: Verdicts, kept: Names, seconds: float) -> None:
        if self._observer is not None:
            self._observer.filtered(asked, verdicts, seconds)
        left = msgspec.structs.replace(asked, names=kept.names, rows=kept.rows)
        if asked.is_simulation:
            pass
        elif not kept.names:
            self._answers.nowhere(asked)
        elif len(kept.names) == 1:
            # Nothing is left to score, so nobody will ask.
            self._expect(left, 0, verdicts.judged_at)
        elif self._scores_ahead:
            self._scored = _ScoredAhead(left, verdicts.judged_at, self._answers.scores(left), kept, time.monotonic())
            self._lists.keep(kept)
        self._lists.trim()
        warn_of_unknown(asked)

    def prioritize(self, body: bytes) -> Reply:
        """ExtenderArgs -> HostPriorityList."""
        ahead, self._scored = self._scored, None
        answer = None if ahead is None else self._answer_ahead(body, ahead)
        if ahead is not None and answer is not None:
            return Reply(answer, partial(self._after_prioritize, ahead.asked, ahead.scores, ahead.judged_at))
        asked, names, _ = self._read(body)
        scores = self._answers.scores(asked)
        return Reply(names.scored(scores), partial(self._after_prioritize, asked, scores, -1))

    def _after_prioritize(self, asked: Question, scores: NDArray[np.int64], judged_at: int, seconds: float) -> None:
        if self._observer is not None:
            self._observer.scored(asked, seconds)
        if len(scores):
            self._expect(asked, int(scores.argmax()), judged_at)
        warn_of_unknown(asked)

    async def preempt(self, body: bytes) -> Reply:
        """ExtenderPreemptionArgs -> ExtenderPreemptionResult."""
        self._check_ready()
        try:
            args = wire.decode_preemption(body)
        except wire.UNREADABLE as exc:
            raise BadRequestError(f"request is not ExtenderPreemptionArgs: {exc}") from exc
        if args.NodeNameToMetaVictims is not None:
            proposed = {
                name: _NOBODY
                if victims is None
                else Choice(tuple([pod.UID for pod in victims.Pods or ()]), victims.NumPDBViolations)
                for name, victims in args.NodeNameToMetaVictims.items()
            }
        elif args.NodeNameToVictims is not None:
            proposed = {
                name: _NOBODY
                if victims is None
                else Choice(tuple([pod.metadata.uid for pod in victims.Pods or ()]), victims.NumPDBViolations)
                for name, victims in args.NodeNameToVictims.items()
            }
        else:
            raise BadRequestError(
                "request has neither NodeNameToMetaVictims nor NodeNameToVictims, expected one of them"
            )
        asked = self._answers.question(args.Pod, list(proposed), is_simulation=True)
        # Evictions do not make a pod smaller.
        chosen = {} if asked.record.is_too_large else await self._evictions.choose(asked, proposed)
        victims = {
            name: wire.MetaVictims([wire.MetaPod(uid) for uid in choice.victims], choice.violations)
            for name, choice in chosen.items()
        }
        return Reply(
            wire.encode(wire.ExtenderPreemptionResult(victims)), partial(self._after_preempt, asked, len(victims))
        )

    def _after_preempt(self, asked: Question, nodes: int, _: float) -> None:
        if self._observer is not None:
            self._observer.preempted(asked, nodes)

    def refusing(self, answer: Callable[[str], bytes]) -> Callable[[str], Reply]:
        """How a verb is refused, with this answer to say it."""

        def refuse(problem: str) -> Reply:
            observer = self._observer
            return Reply(answer(problem), None if observer is None else lambda _: observer.failed(problem), problem)

        return refuse

    def _expect(self, asked: Question, at: int, judged_at: int) -> None:
        self._answers.expect(asked, at, judged_at)
        if self._observer is not None:
            self._observer.expected(asked, at)

    def _check_ready(self) -> None:
        problem = self._not_ready()
        if problem is not None:
            raise BadRequestError(f"not ready: {problem}")

    def _answer_ahead(self, body: bytes, ahead: _ScoredAhead) -> bytes | None:
        """The scores made ahead; None if the request is not about the same pod and nodes, or comes too late."""
        if self._not_ready() is not None or time.monotonic() - ahead.at > _AHEAD_S:
            return None
        at = ahead.names.begin_in(body)
        try:
            asked = wire.decode_repeated(body[:at] + b"}" if at else body)
        except wire.UNREADABLE:
            return None
        record, meta = ahead.asked.record, asked.Pod.metadata
        if not record.uid or record.uid != meta.uid or record.version != meta.resourceVersion:
            return None
        if at:
            return ahead.names.scored(ahead.scores)
        by_name = dict(zip(ahead.names.names, ahead.scores.tolist(), strict=True))
        names = asked.NodeNames
        if names is None or len(names) != len(by_name) or by_name.keys() != set(names):
            return None
        return wire.encode([wire.HostPriority(name, by_name[name]) for name in names])

    def _read(self, body: bytes) -> _Read:
        """The request. Raises BadRequestError, and ParseError."""
        self._check_ready()
        try:
            if (parts := self._lists.split(body)) and (pod := _pod_of(parts[0])):
                names = parts[1]
                return _Read(self._answers.question(pod, names.names, rows=names.rows), names, None)
            args = wire.decode_args(body)
            if args.NodeNames is not None:
                names = self._lists.new(args.NodeNames)
                return _Read(self._answers.question(args.Pod, names.names, rows=names.rows), names, None)
            if args.Nodes is None:
                raise BadRequestError("request has neither NodeNames nor Nodes, expected one of them")
            nodes = args.Nodes.items or []
            names = self._lists.new([wire.decode_node_name(raw).metadata.name for raw in nodes])
        except wire.UNREADABLE as exc:
            raise BadRequestError(f"request is not ExtenderArgs: {exc}") from exc
        return _Read(self._answers.question(args.Pod, names.names, rows=names.rows, is_simulation=True), names, nodes)


def _pod_of(head: bytes) -> pods.Pod | None:
    """The pod of an ExtenderArgs whose names were taken off; None if it cannot be read, as the whole cannot then."""
    try:
        return wire.decode_args(head).Pod
    except wire.UNREADABLE:
        return None


def _of(nodes: list[msgspec.Raw], verdicts: Verdicts) -> wire.NodeList:
    """The Nodes on which the pod fits."""
    return wire.NodeList(list(compress(nodes, (verdicts.outcomes == Outcome.FITS).tolist())))


def table(verbs: Verbs, binder: Binder, explainer: Explainer, fitting: FittingVerb) -> dict[str, Verb]:
    """The verbs by the last part of their path."""
    return {
        "filter": Verb(verbs.refusing(_refuse_filter), now=verbs.filter),
        "prioritize": Verb(verbs.refusing(_refuse_prioritize), now=verbs.prioritize),
        "preempt": Verb(verbs.refusing(_refuse_preempt), later=verbs.preempt),
        "bind": Verb(binding.refuse, later=binder.bind),
        "explain": Verb(explaining.refuse, query=explainer.explain),
        "fit-together": Verb(fitting_verb.refuse, later=fitting.answer),
    }


def _refuse_filter(problem: str) -> bytes:
    """The whole call failed; kube-scheduler tries the pod again with a back-off."""
    return wire.encode(wire.ExtenderFilterResult(Error=problem))


def _refuse_prioritize(problem: str) -> bytes:
    """prioritize has no field for an error: an empty list is "no opinion", which kube-scheduler takes as such."""
    del problem
    return b"[]"


def _refuse_preempt(problem: str) -> bytes:
    """preempt has no field for an error: no node is a candidate, so nobody is evicted for nothing."""
    del problem
    return b'{"NodeNameToMetaVictims":{}}'
