"""Events on Nodes whose report is not used, because the report is above its bounds (report/budget.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from topowise.kube.api import Api
from topowise.runtime import clock
from topowise_scheduler.controllers import controller, events
from topowise_scheduler.ledger.ledger import Ledger

REASON: Final = "ReportNotUsed"
_INTERVAL_S: Final = 5.0
# A report that crosses its bounds again and again must not fill the API server with events.
_AGAIN_S: Final = 300.0


class _Unused(NamedTuple):
    node: str
    why: str


class UnusedReports:
    """Posts the events. `clock` gives seconds, monotonic."""

    def __init__(self, api: Api, ledger: Ledger, clock: Callable[[], float] = clock.monotonic) -> None:
        self._api = api
        self._ledger = ledger
        self._clock = clock
        # When the last event about a node was posted.
        self._posted_at: dict[str, float] = {}

    async def run(self) -> None:
        """Posts events until cancelled."""
        await controller.run("post an event about a report", self.due, self._post, interval=_INTERVAL_S)

    def due(self) -> Mapping[str, _Unused]:
        """Returns the nodes, by name, about which no event was posted lately."""
        unused, recent = self._ledger.reports.over_budget, self._clock() - _AGAIN_S
        # A node that is within the bounds for a moment gets no new event for that.
        self._posted_at = {node: at for node, at in self._posted_at.items() if node in unused or at > recent}
        return {node: _Unused(node, why) for node, why in unused.items() if node not in self._posted_at}

    async def _post(self, unused: _Unused) -> None:
        note = f"The NodeResourceTopology is not used for scheduling: {unused.why}"
        await events.post_about_node(self._api, unused.node, REASON, note, action="ReadReport")
        self._posted_at[unused.node] = self._clock()
