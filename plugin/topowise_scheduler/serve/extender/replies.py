"""The reply of a verb: the answer, and the work after the answer is sent.

kube-scheduler waits only for the answer. So a verb only decides, and returns the rest as `afterwards`: the reservation
of the pod, prefetched scores, the dashboard, the log. The transport sends the answer and then calls `afterwards`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from topowise.errors import ParseError, TopowiseError
from topowise.runtime.log import kv
from topowise_scheduler.ledger.answers import Question, Verdicts

log = logging.getLogger(__name__)

NotReady = Callable[[], str | None]
"""Returns why the service is not ready, None once it is."""

Afterwards = Callable[[float], None]
"""Called after the answer is sent, with the seconds that the answer took."""

Query = Mapping[str, Sequence[str]]
"""The parameters of a URL."""


class BadRequestError(TopowiseError):
    """The request is not what the scheduler sends."""


REFUSED_BECAUSE = (BadRequestError, ParseError)
"""Exceptions by which a verb refuses a request."""


class Reply(NamedTuple):
    """An answer; `problem` is the reason of a refusal, "" for any other answer."""

    body: bytes
    afterwards: Afterwards | None = None
    problem: str = ""


class Verb(NamedTuple):
    """The functions that answer a verb and refuse its requests.

    `now` answers without waiting, `later` may wait, `query` also gets the query, and None as body of a GET. With
    `is_dropped` a body of any length is read and discarded: the answer is made from no bytes.
    """

    refuse: Callable[[str], Reply]
    now: Callable[[bytes], Reply] | None = None
    later: Callable[[bytes], Awaitable[Reply]] | None = None
    query: Callable[[bytes | None, Query], Awaitable[Reply]] | None = None
    is_dropped: bool = False


class Observer(Protocol):
    """Keeps the decisions for the dashboard; each method is called after its answer is sent."""

    def filtered(self, question: Question, verdicts: Verdicts, seconds: float) -> None:
        """Nodes were filtered."""

    def scored(self, question: Question, seconds: float) -> None:
        """Nodes were scored."""

    def expected(self, question: Question, at: int) -> None:
        """The pod will most likely go to this node of the question."""

    def preempted(self, question: Question, nodes: int) -> None:
        """Victims were named on so many nodes."""

    def bound(self, pod: str, uid: str, node: str, error: str, seconds: float) -> None:
        """A pod, "namespace/name", was bound, or with an error was not."""

    def failed(self, problem: str) -> None:
        """A request was refused."""


def check_ready(not_ready: NotReady) -> None:
    """Raises BadRequestError until the service is ready."""
    problem = not_ready()
    if problem is not None:
        raise BadRequestError(f"not ready: {problem}")


def refuse(problem: str) -> Reply:
    """Returns an object with the error alone."""
    return Reply(msgspec.json.encode({"error": problem}), problem=problem)


def warn_of_unknown(question: Question) -> None:
    """Log names that the cluster does not have, when they appear for the first time."""
    for node in question.unknown:
        log.warning("Asked about a node that the cluster does not have, letting it pass", extra=kv(node=node))
