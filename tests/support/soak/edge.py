"""The edge between kube-scheduler and the service: records requests and answers, and can alter answers.

A test plants a defect of the service with `alter`: a function from each answer to `filter` to the answer that
kube-scheduler gets. The product has no part in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from soak.heard import Heard
from topowise import pods


class Answer(msgspec.Struct, frozen=True):
    """An answer to `filter`: the remaining nodes, and the reasons against other nodes, temporary or permanent."""

    pod: pods.Pod
    kept: tuple[str, ...]
    refused: Mapping[str, str] = {}
    for_ever: Mapping[str, str] = {}


Alter = Callable[[Answer], Answer]


def as_it_is(answer: Answer) -> Answer:
    """Nothing is planted."""
    return answer


class _FilterArgs(msgspec.Struct, frozen=True):
    Pod: pods.Pod


class _FilterResult(msgspec.Struct, frozen=True):
    NodeNames: list[str] | None = None
    FailedNodes: dict[str, str] | None = None
    FailedAndUnresolvableNodes: dict[str, str] | None = None
    Error: str = ""


class _BindArgs(msgspec.Struct, frozen=True):
    PodUID: str
    Node: str


class _BindResult(msgspec.Struct, frozen=True):
    Error: str = ""


class Edge:
    """`answered` is told of each answer as kube-scheduler sees it."""

    def __init__(self, heard: Heard, answered: Callable[[Answer], None], alter: Alter = as_it_is) -> None:
        self._heard = heard
        self._answered = answered
        self._alter = alter

    def asked(self, verb: str, body: bytes) -> None:
        """Before the service has it."""
        if verb == "bind":
            args = msgspec.json.decode(body, type=_BindArgs)
            self._heard.bind_asked(args.PodUID, args.Node)

    def failed(self, verb: str, body: bytes) -> None:
        """No answer has come."""
        if verb == "bind":
            self._heard.bind_answered(msgspec.json.decode(body, type=_BindArgs).PodUID, is_bound=False)

    def answer(self, verb: str, body: bytes, answer: bytes) -> bytes:
        """What kube-scheduler is to see of it."""
        if verb == "bind":
            result = msgspec.json.decode(answer, type=_BindResult)
            uid = msgspec.json.decode(body, type=_BindArgs).PodUID
            self._heard.bind_answered(uid, is_bound=not result.Error)
        return self._filtered(body, answer) if verb == "filter" else answer

    def _filtered(self, body: bytes, answer: bytes) -> bytes:
        result = msgspec.json.decode(answer, type=_FilterResult)
        if result.Error:
            return answer
        pod = msgspec.json.decode(body, type=_FilterArgs).Pod
        fitting = tuple(result.NodeNames or ())
        decision = Answer(pod, fitting, result.FailedNodes or {}, result.FailedAndUnresolvableNodes or {})
        self._heard.answered(pod, frozenset(fitting))
        seen = self._alter(decision)
        self._answered(seen)
        if seen == decision:
            return answer
        return msgspec.json.encode(_FilterResult(list(seen.kept), dict(seen.refused), dict(seen.for_ever)))
