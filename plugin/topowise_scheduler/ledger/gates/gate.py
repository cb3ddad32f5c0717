"""What a gate is asked, and what it answers: the nodes of a question, and a verdict for each.

Invariant: of several gates that refuse a node, the first in the list of gates (gates.py) gives the verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Protocol, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from topowise.pods import Needs
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.report.shape import PodRequests
from topowise_scheduler.verdicts.engine import Outcome
from topowise_scheduler.verdicts.refusals import Refusal

FITS: Final = int(Outcome.FITS)

Rows = NDArray[np.int32]
RefusalOf: TypeAlias = Callable[[PodRecord, str], Refusal | None]
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
    templates: Mapping[int, Refusal | None] = {}
    """By index of a node that the cluster does not have, and whose group has a profile: why an empty node of the group
    refuses the pod, None if it takes the pod."""
    unknown: Sequence[str] = ()
    """Names that the cluster does not have and that no earlier question had; for the log, after the answer."""


class Draft:
    """The verdicts of a question while the gates write them: every node fits until a gate refuses the node.

    `outcomes` (nodes,) are `Outcome`s, `refusals` (nodes,) are `Refusal`s, 0 for a node that fits.
    """

    def __init__(self, count: int) -> None:
        self.outcomes: NDArray[np.int8] = np.full(count, FITS, np.int8)
        self.refusals: NDArray[np.int8] = np.zeros(count, np.int8)
        self.is_open = True
        """No gate has refused any node so far."""

    def refuse(self, at: NDArray[np.bool_], refusal: Refusal) -> None:
        """Refuses nodes (nodes,) for a reason that evictions do not change. A node that is refused keeps its reason."""
        if not self.is_open:
            at = at & (self.outcomes == FITS)
        self.is_open = False
        self.outcomes[at], self.refusals[at] = Outcome.UNRESOLVABLE, refusal

    def refuse_all(self, refusal: Refusal) -> None:
        """Refuses every node."""
        self.refuse(np.ones(len(self.outcomes), np.bool_), refusal)

    def refuse_node(self, at: int, refusal: Refusal, *, may_preempt: bool = False) -> None:
        """Refuses a node that fits so far, for a reason that evictions change or not (`may_preempt`)."""
        self.outcomes[at] = Outcome.UNSCHEDULABLE if may_preempt else Outcome.UNRESOLVABLE
        self.refusals[at] = refusal

    def refuse_each(
        self, question: Question, refusal_of: RefusalOf, may_preempt: Collection[Refusal] = frozenset()
    ) -> None:
        """Asks about each node that fits so far, and refuses it; evictions change the refusals `may_preempt`."""
        for at in np.flatnonzero(self.outcomes == FITS).tolist():
            refusal = refusal_of(question.record, question.names[at])
            if refusal is not None:
                self.refuse_node(at, refusal, may_preempt=refusal in may_preempt)

    def refuse_rows(self, question: Question, rows: Rows, refusal: Refusal) -> None:
        """Refuses the nodes of the question that have these rows of the engine."""
        self.refuse(np.isin(question.rows, rows[rows >= 0]), refusal)


class Gate(Protocol):
    """One reason to keep pods from nodes, asked about many nodes at once or about one node."""

    def verdicts(self, question: Question, draft: Draft) -> None:
        """Refuses in the draft the nodes that this gate keeps the pod from."""

    def refusal(self, record: PodRecord, name: str, leaving: Collection[str] = ()) -> Refusal | None:
        """Returns why this gate keeps the pod from the node once the pods `leaving` have left, None if it does not."""


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
