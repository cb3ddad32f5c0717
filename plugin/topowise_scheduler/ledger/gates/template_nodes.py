"""Nodes that the cluster does not have, as an autoscaler or a simulator would add them, if a new node refuses the pod.

Such a node is in a question as a whole Node object. The caller finds its group and asks the group's profile
(scale_up/template_nodes.py), because a node that does not exist has no state here.
"""

from __future__ import annotations

from collections.abc import Collection

from topowise_scheduler.ledger.gates.gate import FITS, Draft, Question
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.verdicts.refusals import Refusal


class TemplateNodes:
    """See `Gate`."""

    def verdicts(self, question: Question, draft: Draft) -> None:
        """See `Gate`."""
        for at, refusal in question.templates.items():
            if refusal and draft.outcomes[at] == FITS:
                draft.refuse_node(at, refusal)

    def refusal(self, record: PodRecord, name: str, leaving: Collection[str] = ()) -> Refusal | None:
        """See `Gate`. Returns None: the node does not exist."""
        return None
