"""What a verb gives: the answer, and what follows once it was sent.

kube-scheduler waits for the answer and for nothing else. So a verb only decides, and hands over as `afterwards` what is
to be done then: booking the pod, computing scores ahead, telling the dashboard, the log. The transport sends the one,
runs the other, and knows nothing of either.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from topowise.errors import ParseError, TopowiseError
from topowise.runtime.log import kv
from topowise_scheduler.answers import Question, Verdicts

log = logging.getLogger(__name__)

NotReady = Callable[[], str | None]
"""Why no answer can be given yet, None once it can."""

Afterwards = Callable[[float], None]
"""To be called once the answer was sent, with the seconds that making it took."""

Query = Mapping[str, Sequence[str]]
"""The parameters of a URL."""


class BadRequestError(TopowiseError):
    """The request is not what the scheduler sends."""


REFUSED_BECAUSE = (BadRequestError, ParseError)
"""What a verb raises for a request that it refuses."""


class Reply(NamedTuple):
    """An answer; `problem` says why it is a refusal, "" if it is none."""

    body: bytes
    afterwards: Afterwards | None = None
    problem: str = ""


class Verb(NamedTuple):
    """How a verb is answered and how it is refused.

    `now` answers at once, `later` after waiting for others, `query` like it from the body of a POST or None of a GET.
    A body that `is_dropped` is read to its end, of any length, and never kept: the answer is made from no bytes.
    """

    refuse: Callable[[str], Reply]
    now: Callable[[bytes], Reply] | None = None
    later: Callable[[bytes], Awaitable[Reply]] | None = None
    query: Callable[[bytes | None, Query], Awaitable[Reply]] | None = None
    is_dropped: bool = False


class Observer(Protocol):
    """Who keeps the decisions for people (ui/decisions.py); called for each once its answer was sent."""

    def filtered(self, asked: Question, verdicts: Verdicts, seconds: float) -> None:
        """Nodes were filtered."""

    def scored(self, asked: Question, seconds: float) -> None:
        """Nodes were scored."""

    def expected(self, asked: Question, at: int) -> None:
        """The pod will most likely go to this node of the question."""

    def preempted(self, asked: Question, nodes: int) -> None:
        """Victims were named on so many nodes."""

    def bound(self, pod: str, uid: str, node: str, error: str, seconds: float) -> None:
        """A pod, "namespace/name", was bound, or with an error was not."""

    def failed(self, problem: str) -> None:
        """A request was refused."""


def warn_of_unknown(asked: Question) -> None:
    """Log the names that were asked about for the first time and that the cluster does not have."""
    for node in asked.unknown:
        log.warning("Asked about a node that the cluster does not have, letting it pass", extra=kv(node=node))
