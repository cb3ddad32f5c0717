"""The verbs: request bytes in, answer bytes out, and what follows the answer. No I/O and no await but in preempt.

kube-scheduler takes anything but HTTP 200 as a broken connection and an omitted node as refused for ever, so every
question gets an answer that names every node, and what is wrong with a question goes into `Error`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import compress
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from topowise_scheduler.answers import Answers, Question, Verdicts, by_name
from topowise_scheduler.engine import Outcome
from topowise_scheduler.extender import binding, explaining, wire
from topowise_scheduler.extender import fitting as fitting_verb
from topowise_scheduler.extender.binding import Binder
from topowise_scheduler.extender.evictions import Evictions
from topowise_scheduler.extender.explaining import Explainer
from topowise_scheduler.extender.fitting import FittingVerb
from topowise_scheduler.extender.replies import BadRequestError, NotReady, Observer, Reply, Verb, warn_of_unknown
from topowise_scheduler.preemption import Choice

# kube-scheduler asks for scores within a few milliseconds after the verdicts, or never.
_AHEAD_S: Final = 0.1
_NOBODY: Final = Choice((), 0)
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class _ScoredAhead(NamedTuple):
    """The scores for the nodes that the last filter has left, and when they were true."""

    asked: Question
    judged_at: int
    scores: NDArray[np.int64]
    by_name: dict[str, int]
    at: float


class Verbs:
    """filter, prioritize and preempt.

    `observer` is called for every decision. `scores_ahead` is whether scores are computed before they are asked for,
    while kube-scheduler runs its own plug-ins.
    """

    def __init__(
        self,
        answers: Answers,
        evictions: Evictions,
        not_ready: NotReady,
        *,
        observer: Observer | None = None,
        scores_ahead: bool = True,
    ) -> None:
        self._answers = answers
        self._evictions = evictions
        self._not_ready = not_ready
        self._observer = observer
        self._scores_ahead = scores_ahead
        self._scored: _ScoredAhead | None = None

    def filter(self, body: bytes) -> Reply:
        """ExtenderArgs -> ExtenderFilterResult."""
        self._scored = None
        args, asked = self._read(body)
        names = asked.names
        verdicts = self._answers.verdicts(asked, at_once=False)
        fitting = verdicts.outcomes == Outcome.FITS
        kept: list[str] | None = None
        nodes: wire.NodeList | None = None
        if args.NodeNames is None and args.Nodes is not None:
            nodes = wire.NodeList(list(compress(args.Nodes.items or (), fitting.tolist())))
        else:
            kept = list(names) if fitting.all() else list(compress(names, fitting.tolist()))
        result = wire.ExtenderFilterResult(
            Nodes=nodes,
            NodeNames=kept,
            FailedNodes=by_name(names, verdicts, Outcome.UNSCHEDULABLE),
            FailedAndUnresolvableNodes=by_name(names, verdicts, Outcome.UNRESOLVABLE),
        )
        return Reply(wire.encode(result), partial(self._after_filter, asked, verdicts, fitting, kept or ()))

    def _after_filter(
        self, asked: Question, verdicts: Verdicts, fitting: NDArray[np.bool_], kept: Sequence[str], seconds: float
    ) -> None:
        if self._observer is not None:
            self._observer.filtered(asked, verdicts, seconds)
        if len(kept) == 1:
            # Nothing is left to score, so nobody will ask.
            self._expect(asked, int(fitting.argmax()), verdicts.judged_at)
        elif kept and self._scores_ahead:
            left = msgspec.structs.replace(asked, names=kept, rows=asked.rows[fitting])
            scores = self._answers.scores(left)
            by_name = dict(zip(kept, scores.tolist(), strict=True))
            self._scored = _ScoredAhead(left, verdicts.judged_at, scores, by_name, time.monotonic())
        warn_of_unknown(asked)

    def prioritize(self, body: bytes) -> Reply:
        """ExtenderArgs -> HostPriorityList."""
        ahead, self._scored = self._scored, None
        names = None if ahead is None else self._names_of(body, ahead)
        if ahead is not None and names is not None:
            answer = wire.encode(list(map(wire.HostPriority, names, map(ahead.by_name.__getitem__, names))))
            return Reply(answer, partial(self._after_prioritize, ahead.asked, ahead.scores, ahead.judged_at))
        _, asked = self._read(body)
        scores = self._answers.scores(asked)
        answer = wire.encode(list(map(wire.HostPriority, asked.names, scores.tolist())))
        return Reply(answer, partial(self._after_prioritize, asked, scores, -1))

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
        except _UNREADABLE as exc:
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
        chosen = await self._evictions.choose(asked, proposed)
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

    def _names_of(self, body: bytes, ahead: _ScoredAhead) -> list[str] | None:
        """The names in a request of prioritize; None if it is not about the same pod and nodes, or comes too late."""
        if self._not_ready() is not None or time.monotonic() - ahead.at > _AHEAD_S:
            return None
        try:
            asked = wire.decode_repeated(body)
        except _UNREADABLE:
            return None
        record, meta = ahead.asked.record, asked.Pod.metadata
        if not record.uid or record.uid != meta.uid or record.version != meta.resourceVersion:
            return None
        names = asked.NodeNames
        is_same = names is not None and len(names) == len(ahead.by_name) and ahead.by_name.keys() >= set(names)
        return names if is_same else None

    def _read(self, body: bytes) -> tuple[wire.ExtenderArgs, Question]:
        """The request, and the question in it. Raises BadRequestError, and ParseError."""
        self._check_ready()
        try:
            args = wire.decode_args(body)
            if args.NodeNames is not None:
                return args, self._answers.question(args.Pod, args.NodeNames)
            if args.Nodes is None:
                raise BadRequestError("request has neither NodeNames nor Nodes, expected one of them")
            names = [wire.decode_node_name(raw).metadata.name for raw in args.Nodes.items or ()]
        except _UNREADABLE as exc:
            raise BadRequestError(f"request is not ExtenderArgs: {exc}") from exc
        return args, self._answers.question(args.Pod, names, is_simulation=True)


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
