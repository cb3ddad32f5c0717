"""Volcano's verbs: request bytes in, answer bytes out. No I/O and no await.

Every status except HTTP 200 is an error to Volcano. Without `extender.ignorable` an error of onSessionOpen ends the
session for this plug-in (it registers no function, so pods are placed unchecked), and any other error rejects; with
`extender.ignorable` every error passes. So every call gets 200, and each verb reports errors in its own fields:

| verb                           | malformed, too large, or before the first sync                                     |
|--------------------------------|------------------------------------------------------------------------------------|
| predicate                      | code Error: Volcano skips the node and evicts no pod there                         |
| prioritize                     | no scores and no message; with one, Volcano places the task nowhere in the session |
| allocateFunc                   | a message: Volcano takes the task off the node                                     |
| deallocateFunc                 | a message, which Volcano only logs                                                 |
| preemptable, reclaimable       | rejected: no pod is evicted in vain                                                |
| onSessionOpen, onSessionClose  | cannot fail: their bodies are not used                                             |

The remaining verbs (jobEnqueueable, jobEnqueued, jobReady, queueOverused) concern queues and gangs, which this service
does not know; even a neutral answer would be a vote. They get 404 with the names of the supported verbs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import msgspec
import numpy as np

from topowise import pods
from topowise.bounded import Bounded
from topowise.errors import ParseError
from topowise_scheduler.explain.refusal_texts import TEXTS
from topowise_scheduler.ledger.answers import Question
from topowise_scheduler.ledger.pods.records import PodRecord, Records
from topowise_scheduler.overlay.trial import Trial
from topowise_scheduler.serve.extender.replies import (
    BadRequestError,
    NotReady,
    Reply,
    Verb,
    check_ready,
    warn_of_unknown,
)
from topowise_scheduler.serve.extender.wire import UNREADABLE
from topowise_scheduler.serve.volcano import wire
from topowise_scheduler.serve.volcano.allocations import Allocations, Victims
from topowise_scheduler.serve.volcano.wire import Code, Status, Vote
from topowise_scheduler.verdicts.engine import Outcome
from topowise_scheduler.verdicts.refusals import Refusal
from topowise_scheduler.verdicts.strategies import Strategy

# Volcano decides one task after the other, and workers of its predicate helper ask about the same.
_MAX_POD_BYTES: Final = 16 << 20
# Scores are 0 to 1000: Volcano adds them to those of its plug-ins, whose weights of 1 to 10 are per cent as well.
_WEIGHT: Final = 10
_CODES: Final = {Outcome.UNSCHEDULABLE: Code.UNSCHEDULABLE, Outcome.UNRESOLVABLE: Code.UNRESOLVABLE}
_FITS: Final = Reply(wire.encode(wire.PredicateResponse()))
# Evictions would not help, and by the next session the pods on their way have arrived.
_OVERTAKEN: Final = Reply(wire.encode(wire.PredicateResponse(TEXTS[Refusal.NOT_NOW], Code.ERROR)))

Read = TypeVar("Read")


class _Pods:
    """Records of the pods that were requested last, each with the bytes that it was decoded from."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._records_by_uid: Bounded[str, tuple[bytes, PodRecord]]
        self._records_by_uid = Bounded(_MAX_POD_BYTES, lambda uid, kept: len(uid) + len(kept[0]) + kept[1].size)

    def of(self, task: wire.Task) -> PodRecord:
        """Returns the record of a task's pod without its node. Raises ParseError, and msgspec.DecodeError."""
        raw = bytes(task.Pod)
        cached = self._records_by_uid.get(task.UID)
        if cached is not None and cached[0] == raw:
            return cached[1]
        pod = pods.decode(raw)
        # Volcano writes the node into the pod when it allocates, and does not remove it when it deallocates.
        record = self._records.record(msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, nodeName="")))
        # A record ignores annotations that cannot be read; a scheduler that requests the pod gets the error.
        if record.needs is not None:
            self._records.demands(pod.metadata, record.needs)
        self._records_by_uid.put(task.UID, (raw, record))
        return record


class Verbs:
    """Every method raises BadRequestError and ParseError. Scores are percentages of `strategy`, times `_WEIGHT`."""

    def __init__(
        self,
        cluster: Trial,
        records: Records,
        allocations: Allocations,
        victims: Victims,
        strategy: Strategy,
        not_ready: NotReady,
    ) -> None:
        self._answers, self._gates = cluster.answers, cluster.ledger.gates
        self._pods = _Pods(records)
        self._allocations = allocations
        self._victims = victims
        self._strategy = strategy
        self._not_ready = not_ready

    def predicate(self, body: bytes) -> Reply:
        """PredicateRequest -> PredicateResponse. Books nothing, and leaves all allocations as they are."""
        check_ready(self._not_ready)
        args = _read(wire.decode_predicate, body)
        record = self._record(args.task)
        question = self._answers.about(record, (args.node.Name,))
        reply = self._predicted(question, args.node.Name)
        return reply._replace(afterwards=lambda _: warn_of_unknown(question)) if question.unknown else reply

    def _predicted(self, question: Question, node: str) -> Reply:
        record, verdicts = question.record, self._answers.verdicts(question)
        outcome = Outcome(int(verdicts.outcomes[0]))
        later = None
        if outcome is Outcome.FITS and self._gates.needs_prebind(record, node):
            return Reply(wire.encode(wire.PredicateResponse(TEXTS[Refusal.NOT_STEERED_BY_BINDER], Code.UNRESOLVABLE)))
        if outcome is not Outcome.UNRESOLVABLE:
            later = self._allocations.fits_later(record, node)
        if later:
            return _FITS
        if later is None and outcome is Outcome.FITS:
            # Volcano binds each pod in a goroutine of its own.
            return _FITS if self._gates.fits_in_any_order(record, node) else _OVERTAKEN
        code = _CODES.get(outcome, Code.UNSCHEDULABLE)
        return Reply(wire.encode(wire.PredicateResponse(TEXTS[verdicts.refusal(0) or Refusal.NOT_NOW], code)))

    def prioritize(self, body: bytes) -> Reply:
        """PrioritizeRequest -> PrioritizeResponse."""
        check_ready(self._not_ready)
        args = _read(wire.decode_prioritize, body)
        names = [node.Name for node in args.nodes or ()]
        question = self._answers.about(self._record(args.task), names)
        scores = _WEIGHT * self._answers.percents(question, self._strategy)
        by_name = dict(zip(names, scores.astype(np.float64).tolist(), strict=True))
        return Reply(wire.encode(wire.PrioritizeResponse(by_name)), lambda _: warn_of_unknown(question))

    def allocate(self, body: bytes) -> Reply:
        """EventHandlerRequest -> EventHandlerResponse: the task is on NodeName, or will be once its victims end."""
        check_ready(self._not_ready)
        task = _read(wire.decode_event, body).task
        if not task.NodeName:
            raise BadRequestError("task has no NodeName, expected the node it was allocated to")
        record = self._record(task)
        problem = self._allocations.allocate(record, task.NodeName, is_pipelined=task.Status == Status.PIPELINED)
        return Reply(wire.encode(wire.EventResponse(problem)))

    def deallocate(self, body: bytes) -> Reply:
        """EventHandlerRequest -> EventHandlerResponse: the task is not on NodeName any more, or is to be evicted."""
        task = _read(wire.decode_event, body).task
        if task.Status == Status.RELEASING:
            self._allocations.evict(task.UID, task.NodeName)
        else:
            self._allocations.give_back(task.UID)
        return Reply(wire.encode(wire.EventResponse()))

    def evictable(self, body: bytes) -> Reply:
        """PreemptableRequest -> PreemptableResponse; the same for reclaimable."""
        check_ready(self._not_ready)
        args = _read(wire.decode_eviction, body)
        record = self._record(args.evictor)
        if record.is_too_large:
            return Reply(wire.encode(_rejected("")))
        offered = [(_read(wire.decode_evictee, raw), raw) for raw in args.evictees or ()]
        candidates: dict[str, list[str]] = {}
        for task, _ in offered:
            candidates.setdefault(task.NodeName, []).append(task.UID)
        vote, chosen = self._victims.choose(record, candidates)
        victims = [raw for task, raw in offered if task.UID in chosen]
        return Reply(wire.encode(wire.EvictionResponse(vote, victims)))

    def _record(self, task: wire.Task) -> PodRecord:
        try:
            record = self._pods.of(task)
        except UNREADABLE as exc:
            raise BadRequestError(f"task.Pod is not a v1.Pod: {exc}") from exc
        if record.needs is None and not record.is_too_large:
            raise ParseError("pod", f"{record.namespace}/{record.name}", str(record.problem))
        return record


def table(verbs: Verbs) -> dict[str, Verb]:
    """Returns the verbs by their configured names, `extender.predicateVerb: predicate` and so on."""
    return {
        "predicate": Verb(_refusing(lambda text: wire.PredicateResponse(text, Code.ERROR)), now=verbs.predicate),
        "prioritize": Verb(_refusing(lambda _: wire.PrioritizeResponse({})), now=verbs.prioritize),
        "allocateFunc": Verb(_refusing(wire.EventResponse), now=verbs.allocate),
        "deallocateFunc": Verb(_refusing(wire.EventResponse), now=verbs.deallocate),
        "preemptable": Verb(_refusing(_rejected), now=verbs.evictable),
        "reclaimable": Verb(_refusing(_rejected), now=verbs.evictable),
        # The body is the whole cluster as JSON: it is read to its end and dropped.
        "onSessionOpen": Verb(_refusing(lambda _: {}), now=_nothing, is_dropped=True),
        "onSessionClose": Verb(_refusing(lambda _: {}), now=_nothing, is_dropped=True),
    }


def _refusing(answer: Callable[[str], object]) -> Callable[[str], Reply]:
    """Returns the refusal of a verb, whose answer `answer` makes from the problem."""
    return lambda problem: Reply(wire.encode(answer(problem)), problem=problem)


def _rejected(_: str) -> wire.EvictionResponse:
    return wire.EvictionResponse(Vote.REJECT, [])


def _nothing(_: bytes) -> Reply:
    return Reply(b"{}")


def _read(decode: Callable[[bytes], Read], body: bytes | msgspec.Raw) -> Read:
    try:
        return decode(body)
    except UNREADABLE as exc:
        raise BadRequestError(f"request is not what Volcano's extender plug-in sends: {exc}") from exc
