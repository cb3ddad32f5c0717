"""The dashboard: one page on the extender's port that shows what the service knows and what it said.

    answers, ledger, pods -> decisions, state, node, why, fits (values) -> map, lists, panel, page (HTML) -> app (ASGI)

It only reads. Without `ui.enabled` nothing of this is in the path of a request.
"""

from topowise_scheduler.presentation.dashboard.app import Dashboard
from topowise_scheduler.presentation.dashboard.decisions import Decisions

__all__ = ["Dashboard", "Decisions"]
