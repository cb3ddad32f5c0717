"""The verbs: request bytes in, answer bytes out. No I/O, no await, no logging.

kube-scheduler takes anything but HTTP 200 as a broken connection and an omitted node as refused for ever, so every
question gets an answer that names every node, and what is wrong with a question goes into `Error`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import compress
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from topowise.errors import ParseError, TopowiseError
from topowise_scheduler.answers import Answers, Question, by_name
from topowise_scheduler.engine import Outcome
from topowise_scheduler.extender import wire
from topowise_scheduler.extender.evictions import Evictions
from topowise_scheduler.preemption import Choice


class BadRequestError(TopowiseError):
    """The request is not what kube-scheduler sends."""


Expectation = tuple[Question, int]
"""A question, and the place of the node in it that looked best."""

NotReady = Callable[[], str | None]
"""Why no answer can be given yet, None once it can."""


# kube-scheduler asks for scores within a few milliseconds after the verdicts, or never.
_PREPARED_S: Final = 0.1


class _Prepared(NamedTuple):
    """The scores for the nodes that the last filter has left, and when they were true."""

    asked: Question
    scores: NDArray[np.int64]
    by_name: dict[str, int]
    at: float


class Verbs:
    """filter, prioritize and preempt. What an answer leads to (`settle`, `prepare`) is done after it has been sent.

    `prepares` is whether scores are computed before they are asked for, while kube-scheduler runs its own plug-ins.
    """

    def __init__(self, answers: Answers, evictions: Evictions, not_ready: NotReady, *, prepares: bool = True) -> None:
        self._answers = answers
        self._evictions = evictions
        self._not_ready = not_ready
        self._prepares = prepares
        self._expected: Expectation | None = None
        self._unscored: Question | None = None
        self._prepared: _Prepared | None = None

    def filter(self, body: bytes) -> bytes:
        """ExtenderArgs -> ExtenderFilterResult."""
        args, asked = self._read(body)
        names = asked.names
        asked = msgspec.structs.replace(asked, judged_at=self._answers.moment)
        verdicts = self._answers.verdicts(asked)
        fitting = verdicts.outcomes == Outcome.FITS
        kept: list[str] | None = None
        nodes: wire.NodeList | None = None
        if args.NodeNames is None and args.Nodes is not None:
            nodes = wire.NodeList(list(compress(args.Nodes.items or (), fitting.tolist())))
        else:
            kept = list(names) if fitting.all() else list(compress(names, fitting.tolist()))
            self._unscored = self._prepared = None
            if len(kept) == 1:
                # Nothing is left to score, so nobody will ask.
                self._expected = asked, int(fitting.argmax())
            elif kept and self._prepares:
                self._unscored = msgspec.structs.replace(asked, names=kept, rows=asked.rows[fitting])
        return wire.encode(
            wire.ExtenderFilterResult(
                Nodes=nodes,
                NodeNames=kept,
                FailedNodes=by_name(names, verdicts, Outcome.UNSCHEDULABLE),
                FailedAndUnresolvableNodes=by_name(names, verdicts, Outcome.UNRESOLVABLE),
            )
        )

    def prioritize(self, body: bytes) -> bytes:
        """ExtenderArgs -> HostPriorityList."""
        prepared, self._prepared = self._prepared, None
        names = None if prepared is None else self._names_of(body, prepared)
        if prepared is not None and names is not None:
            self._expected = prepared.asked, int(prepared.scores.argmax())
            return wire.encode(list(map(wire.HostPriority, names, map(prepared.by_name.__getitem__, names))))
        _, asked = self._read(body)
        scores = self._answers.scores(asked)
        if len(asked.names):
            self._expected = asked, int(scores.argmax())
        return wire.encode(list(map(wire.HostPriority, asked.names, scores.tolist())))

    async def preempt(self, body: bytes) -> bytes:
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
        return wire.encode(
            wire.ExtenderPreemptionResult(
                {
                    name: wire.MetaVictims([wire.MetaPod(uid) for uid in choice.victims], choice.violations)
                    for name, choice in chosen.items()
                }
            )
        )

    def expected(self) -> Expectation | None:
        """Where the pod of the last answer will most likely go; to be taken at once and settled later."""
        expected, self._expected = self._expected, None
        return expected

    def settle(self, expected: Expectation) -> None:
        """Book the pod where it is expected."""
        self._answers.expect(*expected)

    def prepare(self) -> None:
        """Score the nodes that the last filter has left, if that is still to be done."""
        asked, self._unscored = self._unscored, None
        if asked is not None:
            scores = self._answers.scores(asked)
            by_name = dict(zip(asked.names, scores.tolist(), strict=True))
            self._prepared = _Prepared(asked, scores, by_name, time.monotonic())

    def take_strangers(self) -> list[str]:
        """Names of nodes that callers asked about and the cluster does not have, each once."""
        return self._answers.take_strangers()

    def _check_ready(self) -> None:
        problem = self._not_ready()
        if problem is not None:
            raise BadRequestError(f"not ready: {problem}")

    def _names_of(self, body: bytes, prepared: _Prepared) -> list[str] | None:
        """The names in a request of prioritize; None if it is not about the same pod and nodes, or comes too late."""
        if self._not_ready() is not None or time.monotonic() - prepared.at > _PREPARED_S:
            return None
        try:
            asked = wire.decode_repeated(body)
        except _UNREADABLE:
            return None
        record, meta = prepared.asked.record, asked.Pod.metadata
        if not record.uid or record.uid != meta.uid or record.version != meta.resourceVersion:
            return None
        names = asked.NodeNames
        is_same = names is not None and len(names) == len(prepared.by_name) and prepared.by_name.keys() >= set(names)
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


def refuse_filter(problem: str) -> bytes:
    """The whole call failed; kube-scheduler tries the pod again with a back-off."""
    return wire.encode(wire.ExtenderFilterResult(Error=problem))


def refuse_prioritize(problem: str) -> bytes:
    """prioritize has no field for an error: an empty list is "no opinion", which kube-scheduler takes as such."""
    del problem
    return b"[]"


def refuse_preempt(problem: str) -> bytes:
    """preempt has no field for an error: no node is a candidate, so nobody is evicted for nothing."""
    del problem
    return b'{"NodeNameToMetaVictims":{}}'


_NOBODY = Choice((), 0)
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
REFUSED_BECAUSE = (BadRequestError, ParseError)
