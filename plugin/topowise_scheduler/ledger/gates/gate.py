"""What a gate is asked, and what it answers: the nodes of a question, and a verdict for each.

Invariant: of several gates that refuse a node, the first in the list of gates (gates.py) gives the verdict.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from topowise.pods import Needs
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.report.shape import PodRequests
from topowise_scheduler.verdicts.engine import Outcome

FITS: Final = int(Outcome.FITS)

Rows = NDArray[np.int32]
_NATIVE: Final = ("cpu", "memory", "ephemeral-storage")


class Question(msgspec.Struct, frozen=True):
    """A pod and the nodes it may go to; `rows` are the engine's rows of the nodes, -1 for a node without a report.

    A simulation leaves no trace: it reserves nothing. A pod that is too large has empty `requests`, and fits nowhere.
    """

    record: PodRecord
    requests: PodRequests
    names: Sequence[str]
    rows: Rows
    is_simulation: bool
    templates: Mapping[int, str] = {}
    """By index of a node that the cluster does not have, and whose group has a profile: why an empty node of the group
    refuses the pod, "" if it takes the pod."""
    unknown: Sequence[str] = ()
    """Names that the cluster does not have and that no earlier question had; for the log, after the answer."""


class Texts:
    """Refusals by number. There are a few dozen, so a number is only ever added."""

    def __init__(self) -> None:
        self.texts = [""]
        self._numbers = {"": 0}

    def number(self, text: str) -> int:
        """Returns the number of a text."""
        number = self._numbers.get(text)
        if number is None:
            number = self._numbers[text] = len(self.texts)
            self.texts.append(text)
        return number


class Draft:
    """The verdicts of a question while the gates write them: every node fits until a gate refuses the node.

    `outcomes` (nodes,) are `Outcome`s, `words` (nodes,) are numbers of `texts`.
    """

    def __init__(self, count: int, texts: Texts) -> None:
        self.outcomes: NDArray[np.int8] = np.full(count, FITS, np.int8)
        self.words: NDArray[np.int16] = np.zeros(count, np.int16)
        self.texts = texts
        self.is_open = True
        """No gate has refused any node so far."""

    def refuse(self, at: NDArray[np.bool_], text: str) -> None:
        """Refuses nodes (nodes,) for a reason that evictions do not change. A node that is refused keeps its reason."""
        if not self.is_open:
            at = at & (self.outcomes == FITS)
        self.is_open = False
        self.outcomes[at], self.words[at] = Outcome.UNRESOLVABLE, self.texts.number(text)

    def refuse_all(self, text: str) -> None:
        """Refuses every node."""
        self.refuse(np.ones(len(self.outcomes), np.bool_), text)

    def refuse_node(self, at: int, text: str, *, may_preempt: bool = False) -> None:
        """Refuses a node that fits so far, for a reason that evictions change or not (`may_preempt`)."""
        self.outcomes[at] = Outcome.UNSCHEDULABLE if may_preempt else Outcome.UNRESOLVABLE
        self.words[at] = self.texts.number(text)

    def refuse_rows(self, question: Question, rows: Rows, text: str) -> None:
        """Refuses the nodes of the question that have these rows of the engine."""
        self.refuse(np.isin(question.rows, rows[rows >= 0]), text)


class Gate(Protocol):
    """One reason to keep pods from nodes, asked about many nodes at once or about one node."""

    @property
    def temporary(self) -> frozenset[str]:
        """Returns the refusals of this gate that time or the next report of the node ends, and no eviction."""

    def verdicts(self, question: Question, draft: Draft) -> None:
        """Refuses in the draft the nodes that this gate keeps the pod from."""

    def refusal(self, record: PodRecord, name: str, leaving: Collection[str] = ()) -> str:
        """Returns why this gate keeps the pod from the node once the pods `leaving` have left, "" if it does not."""


def limited_resources(needs: Needs) -> set[str]:
    """Returns the names of devices and other resources that only limits can request."""
    return {name for container in needs.containers for name in container.limits if name not in _NATIVE}


def may_get_exclusive(record: PodRecord) -> bool:
    """Returns whether a kubelet may give the pod exclusive CPUs, memory or devices; other pods get none."""
    needs = record.needs
    if needs is None:
        return False
    return needs.qos == "Guaranteed" or any(
        container.limits.get(name) for container in needs.containers for name in limited_resources(needs)
    )
