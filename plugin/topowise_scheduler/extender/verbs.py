"""The verbs: request bytes in, answer bytes out. No I/O, no await, no logging.

kube-scheduler takes anything but HTTP 200 as a broken connection and an omitted node as refused for ever, so every
question gets an answer that names every node, and what is wrong with a question goes into `Error`.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from topowise.errors import ParseError, TopowiseError
from topowise_scheduler.answers import Answers
from topowise_scheduler.engine.verdict import Outcome
from topowise_scheduler.extender import wire


class BadRequestError(TopowiseError):
    """The request is not what kube-scheduler sends."""


class Verbs:
    """`not_ready` says why no answer can be given yet, None once it can."""

    def __init__(self, answers: Answers, not_ready: Callable[[], str | None]) -> None:
        self._answers = answers
        self._not_ready = not_ready

    def filter(self, body: bytes) -> bytes:
        """ExtenderArgs -> ExtenderFilterResult."""
        args, names = self._read(body)
        fits: list[str] = []
        failed: dict[str, str] = {}
        unresolvable: dict[str, str] = {}
        for name, verdict in self._answers.verdicts(args.Pod, names).items():
            if verdict.outcome is Outcome.FITS:
                fits.append(name)
            elif verdict.outcome is Outcome.UNSCHEDULABLE:
                failed[name] = verdict.reason
            else:
                unresolvable[name] = verdict.reason
        if args.NodeNames is None and args.Nodes is not None:
            kept = set(fits)
            nodes = [raw for raw, name in zip(args.Nodes.items or (), names, strict=True) if name in kept]
            result = wire.ExtenderFilterResult(
                Nodes=wire.NodeList(nodes), FailedNodes=failed, FailedAndUnresolvableNodes=unresolvable
            )
        else:
            result = wire.ExtenderFilterResult(
                NodeNames=fits, FailedNodes=failed, FailedAndUnresolvableNodes=unresolvable
            )
        return wire.encode(result)

    def prioritize(self, body: bytes) -> bytes:
        """ExtenderArgs -> HostPriorityList."""
        args, names = self._read(body)
        scores = self._answers.scores(args.Pod, names)
        return wire.encode(list(map(wire.HostPriority, scores.keys(), scores.values())))

    def explain(self, body: bytes) -> bytes:
        """ExtenderArgs -> what would be answered on each node, and why in words; ours, for people."""
        args, names = self._read(body)
        verdicts = self._answers.verdicts(args.Pod, names)
        scores = self._answers.scores(args.Pod, names)
        words = self._answers.explanations(args.Pod, names)
        return wire.encode(
            [
                wire.NodeExplanation(name, verdict.fits, scores[name], verdict.reason, words[name])
                for name, verdict in verdicts.items()
            ]
        )

    def take_notes(self) -> list[str]:
        """Names of nodes that callers asked about and the cluster does not have, each once."""
        return self._answers.take_strangers()

    def _read(self, body: bytes) -> tuple[wire.ExtenderArgs, list[str]]:
        """The request and the names of its nodes, in order. Raises BadRequestError."""
        problem = self._not_ready()
        if problem is not None:
            raise BadRequestError(f"not ready: {problem}")
        try:
            args = wire.decode_args(body)
            if args.NodeNames is not None:
                return args, args.NodeNames
            if args.Nodes is None:
                raise BadRequestError("request has neither NodeNames nor Nodes, expected one of them")
            return args, [wire.decode_node_name(raw).metadata.name for raw in args.Nodes.items or ()]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            raise BadRequestError(f"request is not ExtenderArgs: {exc}") from exc


def refuse_filter(problem: str) -> bytes:
    """The whole call failed; kube-scheduler tries the pod again with a back-off."""
    return wire.encode(wire.ExtenderFilterResult(Error=problem))


def refuse_prioritize(problem: str) -> bytes:
    """prioritize has no field for an error: an empty list is "no opinion", which kube-scheduler takes as such."""
    del problem
    return b"[]"


def refuse_explain(problem: str) -> bytes:
    """Ours: an object instead of the list."""
    return wire.encode({"Error": problem})


REFUSED_BECAUSE = (BadRequestError, ParseError)
