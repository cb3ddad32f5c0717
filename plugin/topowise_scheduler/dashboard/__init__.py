"""The dashboard: a page on the port for people that shows the ledger and the last decisions.

    ledger, answers, pods -> decisions, cluster_state, details (values)
                          -> markup, page (HTML) -> app (ASGI)

It only reads. Without `ui.enabled` the service does not load the package.
"""

from topowise_scheduler.dashboard.app import Dashboard
from topowise_scheduler.dashboard.decisions import Decisions

__all__ = ["Dashboard", "Decisions"]
