"""The verbs: request bytes in, answer bytes out, and the work after the answer. No I/O; only preempt awaits.

kube-scheduler takes any status but 200 as a broken connection, and a node that the answer omits as refused for ever and
without a reason. So every answer names every node, and a problem of the request goes into `Error`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import compress
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from topowise import pods
from topowise.runtime import clock
from topowise_scheduler.ledger.answers import Answers, Question, Verdicts
from topowise_scheduler.overlay.preemption import Choice
from topowise_scheduler.overlay.scale_up.template_nodes import TemplateNodes
from topowise_scheduler.serve.extender import binding, replies, wire
from topowise_scheduler.serve.extender.binding import Binder
from topowise_scheduler.serve.extender.evictions import Evictions
from topowise_scheduler.serve.extender.explaining import Explainer
from topowise_scheduler.serve.extender.names import NameLists, Names
from topowise_scheduler.serve.extender.replies import (
    BadRequestError,
    NotReady,
    Observer,
    Reply,
    Verb,
    check_ready,
    warn_of_unknown,
)
from topowise_scheduler.verdicts.engine import Outcome
from topowise_scheduler.verdicts.refusals import Refusal

_NO_VICTIMS: Final = Choice((), 0)
# kube-scheduler asks for scores within a few milliseconds after the verdicts, or never.
_VALID_S: Final = 0.1
# Pods that schedulers decide at the same time, and bytes of their names, each list with its answers.
_MAX_PODS: Final = 4
_MAX_BYTES: Final = 16 << 20


class _Read(NamedTuple):
    """A request of filter or prioritize; `nodes` are the encoded Nodes of a request that has whole Nodes."""

    question: Question
    names: Names
    nodes: list[msgspec.Raw] | None


class Prefetched(NamedTuple):
    """Scores of the nodes that a filter has left; `judged_at` is the ledger's `changes` of its verdicts."""

    question: Question
    judged_at: int
    scores: NDArray[np.int64]
    names: Names

    def answer(self, names: Names) -> bytes | None:
        """The HostPriorityList of these names; None if they are not the names that were scored."""
        if names is self.names:
            return names.scored(self.scores)
        by_name = dict(zip(self.names.names, self.scores.tolist(), strict=True))
        if len(names.names) != len(by_name) or by_name.keys() != set(names.names):
            return None
        return wire.encode([wire.HostPriority(name, by_name[name]) for name in names.names])


class PrefetchedScores:
    """Scores that are computed after a filter, while kube-scheduler runs its own plug-ins, for the prioritize that
    follows: the latest by pod uid, each for one prioritize and for a short time.

    Without a prefetched score prioritize computes the same answer itself, so no call depends on an earlier call.
    """

    def __init__(self, clock: Callable[[], float] = clock.monotonic) -> None:
        self._clock = clock
        self._by_uid: OrderedDict[str, tuple[float, Prefetched]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._by_uid)

    def put(self, scores: Prefetched) -> None:
        """Scores of a pod without a uid are not kept."""
        self.drop(scores.question.record.uid)
        if scores.question.record.uid:
            self._by_uid[scores.question.record.uid] = self._clock() + _VALID_S, scores
        while len(self._by_uid) > _MAX_PODS or sum(entry.names.size for _, entry in self._by_uid.values()) > _MAX_BYTES:
            self._by_uid.popitem(last=False)

    def drop(self, uid: str) -> None:
        """A new filter of the pod has begun."""
        self._by_uid.pop(uid, None)

    def take(self, uid: str, version: str) -> Prefetched | None:
        """The scores of the pod in this resourceVersion, which are removed; None if they are missing or too old."""
        valid_until, scores = self._by_uid.pop(uid, (0.0, None))
        is_valid = (
            scores is not None and scores.question.record.status.version == version and self._clock() <= valid_until
        )
        return scores if is_valid else None


class Verbs:
    """filter, prioritize and preempt.

    `observer` is called for every decision. With `scores_ahead`, scores are computed after a filter, while
    kube-scheduler runs its own plug-ins. `templates` answers about whole Nodes that the cluster does not have.
    """

    def __init__(
        self,
        answers: Answers,
        evictions: Evictions,
        not_ready: NotReady,
        *,
        observer: Observer | None = None,
        scores_ahead: bool = True,
        templates: TemplateNodes | None = None,
    ) -> None:
        self._answers = answers
        self._evictions = evictions
        self._not_ready = not_ready
        self._observer = observer
        self._scores_ahead = scores_ahead
        self._templates = templates
        self._prefetched = PrefetchedScores()
        self._lists = NameLists(answers.engine)

    def filter(self, body: bytes) -> Reply:
        """ExtenderArgs -> ExtenderFilterResult."""
        question, names, nodes = self._read(body)
        self._prefetched.drop(question.record.uid)
        verdicts = self._answers.verdicts(question, at_once=False)
        named = self._best_alone(question, verdicts) if question.record.group else verdicts
        answer, fitting, _ = names.answer(named)
        if nodes is not None:
            answer = wire.encode(
                msgspec.structs.replace(wire.decode_result(answer), NodeNames=None, Nodes=_of(nodes, named))
            )
        return Reply(answer, partial(self._after_filter, question, verdicts, fitting))

    def _best_alone(self, question: Question, verdicts: Verdicts) -> Verdicts:
        """Of a gang's member only the best node fits: kube-scheduler decides the next member with this member placed in
        its own memory, and does not report the node. Without a choice, the ledger knows the node."""
        fitting = np.flatnonzero(verdicts.outcomes == Outcome.FITS)
        if question.is_simulation or not question.requests.can_be_aligned or fitting.size < 2:
            return verdicts
        best = self._answers.best(question, fitting, 1)
        if not best.size:
            return verdicts
        others = fitting[fitting != best[0]]
        outcomes, refusals = verdicts.outcomes.copy(), verdicts.refusals.copy()
        outcomes[others], refusals[others] = Outcome.UNRESOLVABLE, Refusal.BETTER_NODE
        return Verdicts(outcomes, refusals, verdicts.judged_at)

    def _after_filter(self, question: Question, verdicts: Verdicts, fitting: Names, seconds: float) -> None:
        if self._observer is not None:
            self._observer.filtered(question, verdicts, seconds)
        remaining = msgspec.structs.replace(question, names=fitting.names, rows=fitting.rows)
        if question.is_simulation:
            pass
        elif not fitting.names:
            self._answers.nowhere(question)
        elif len(fitting.names) == 1:
            # kube-scheduler does not request the score of a single node.
            self._expect(remaining, 0, verdicts.judged_at)
        elif self._scores_ahead:
            scores = self._answers.scores(remaining)
            self._prefetched.put(Prefetched(remaining, verdicts.judged_at, scores, fitting))
            self._lists.keep(fitting)
        self._lists.trim()
        warn_of_unknown(question)

    def prioritize(self, body: bytes) -> Reply:
        """ExtenderArgs -> HostPriorityList."""
        prefetched = self._prefetched_answer(body)
        if prefetched is not None:
            return prefetched
        question, names, _ = self._read(body)
        scores = self._answers.scores(question)
        return Reply(names.scored(scores), partial(self._after_prioritize, question, scores, -1))

    def _after_prioritize(self, question: Question, scores: NDArray[np.int64], judged_at: int, seconds: float) -> None:
        if self._observer is not None:
            self._observer.scored(question, seconds)
        if len(scores):
            self._expect(question, int(scores.argmax()), judged_at)
        warn_of_unknown(question)

    async def preempt(self, body: bytes) -> Reply:
        """ExtenderPreemptionArgs -> ExtenderPreemptionResult."""
        check_ready(self._not_ready)
        try:
            args = wire.decode_preemption(body)
        except wire.UNREADABLE as exc:
            raise BadRequestError(f"request is not ExtenderPreemptionArgs: {exc}") from exc
        if args.NodeNameToMetaVictims is not None:
            proposed = {name: _proposed(victims) for name, victims in args.NodeNameToMetaVictims.items()}
        elif args.NodeNameToVictims is not None:
            proposed = {name: _proposed(victims) for name, victims in args.NodeNameToVictims.items()}
        else:
            raise BadRequestError(
                "request has neither NodeNameToMetaVictims nor NodeNameToVictims, expected one of them"
            )
        question = self._answers.question(args.Pod, list(proposed), is_simulation=True)
        # No eviction makes a pod smaller.
        chosen = {} if question.record.is_too_large else await self._evictions.choose(question, proposed)
        victims = {
            name: wire.MetaVictims([wire.MetaPod(uid) for uid in choice.victims], choice.violations)
            for name, choice in chosen.items()
        }
        return Reply(
            wire.encode(wire.ExtenderPreemptionResult(victims)), partial(self._after_preempt, question, len(victims))
        )

    def _after_preempt(self, question: Question, nodes: int, _: float) -> None:
        if self._observer is not None:
            self._observer.preempted(question, nodes)

    def refusing(self, answer: Callable[[str], bytes]) -> Callable[[str], Reply]:
        """The refusal of a verb, whose body `answer` makes from the problem."""

        def refuse(problem: str) -> Reply:
            observer = self._observer
            return Reply(answer(problem), None if observer is None else lambda _: observer.failed(problem), problem)

        return refuse

    def _expect(self, question: Question, at: int, judged_at: int) -> None:
        self._answers.expect(question, at, judged_at)
        if self._observer is not None:
            self._observer.expected(question, at)

    def _prefetched_answer(self, body: bytes) -> Reply | None:
        """The reply from prefetched scores; None if there are none for this pod and these nodes."""
        if not self._prefetched or self._not_ready() is not None:
            return None
        parts = self._lists.split(body)
        try:
            repeated = wire.decode_repeated(parts[0] if parts else body)
        except wire.UNREADABLE:
            return None
        metadata = repeated.Pod.metadata
        prefetched = self._prefetched.take(metadata.uid, metadata.resourceVersion)
        if prefetched is None:
            return None
        names = parts[1] if parts else self._lists.new(repeated.NodeNames or [])
        answer = prefetched.answer(names)
        if answer is None:
            return None
        question, judged_at, scores, _ = prefetched
        return Reply(answer, partial(self._after_prioritize, question, scores, judged_at))

    def _read(self, body: bytes) -> _Read:
        """The request. Raises BadRequestError, and ParseError."""
        check_ready(self._not_ready)
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
            question = self._answers.question(args.Pod, names.names, rows=names.rows, is_simulation=True)
            if self._templates is not None:
                question = self._templates.with_templates(question, nodes)
        except wire.UNREADABLE as exc:
            raise BadRequestError(f"request is not ExtenderArgs: {exc}") from exc
        return _Read(question, names, nodes)


def _pod_of(head: bytes) -> pods.Pod | None:
    """The pod of an ExtenderArgs without its names; None if it cannot be decoded."""
    try:
        return wire.decode_args(head).Pod
    except wire.UNREADABLE:
        return None


def _proposed(victims: wire.MetaVictims | wire.Victims | None) -> Choice:
    """kube-scheduler's victims on a node; Go sends null for none."""
    if victims is None:
        return _NO_VICTIMS
    pods = victims.Pods or ()
    uids = [pod.UID if isinstance(pod, wire.MetaPod) else pod.metadata.uid for pod in pods]
    return Choice(tuple(uids), victims.NumPDBViolations)


def _of(nodes: list[msgspec.Raw], verdicts: Verdicts) -> wire.NodeList:
    """The Nodes on which the pod fits."""
    return wire.NodeList(list(compress(nodes, (verdicts.outcomes == Outcome.FITS).tolist())))


def table(
    verbs: Verbs, binder: Binder, explainer: Explainer, fit_together: Callable[[bytes], Awaitable[Reply]]
) -> dict[str, Verb]:
    """The verbs by the last part of their path."""
    # After an `Error` kube-scheduler tries the pod again with a back-off. The answers to prioritize and preempt have no
    # such field: an empty list is "no opinion", and without a candidate node kube-scheduler evicts no pod.
    refuse_filter = verbs.refusing(lambda problem: wire.encode(wire.ExtenderFilterResult(Error=problem)))
    refuse_preempt = verbs.refusing(lambda _: wire.encode(wire.ExtenderPreemptionResult()))
    return {
        "filter": Verb(refuse_filter, now=verbs.filter),
        "prioritize": Verb(verbs.refusing(lambda _: b"[]"), now=verbs.prioritize),
        "preempt": Verb(refuse_preempt, later=verbs.preempt),
        "bind": Verb(binding.refuse, later=binder.bind),
        "explain": Verb(replies.refuse, query=explainer.explain),
        "fit-together": Verb(replies.refuse, later=fit_together),
    }
