"""The fragmentation of reported nodes, for the table, the order and the JSON of `nodes`.

It depends on the report and the waiting pods. The configuration of the service is not read here, so shapes that it
declares do not count.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from topowise_scheduler.kubectl.console import BAD, WARN
from topowise_scheduler.ledger.pods.records import Records
from topowise_scheduler.report import Report, kubelet_of
from topowise_scheduler.verdicts.fragmentation import HIGH_LOSS, MEDIUM_LOSS, Fragmentation, most_frequent, of_node
from topowise_scheduler.verdicts.kube_scheduler import Pod


class Losses:
    """The fragmentation of nodes for these pods, computed at the first use."""

    def __init__(self, pods: Iterable[Pod] | None = None) -> None:
        records = map(Records().record, pods or ())
        self._waiting = most_frequent(
            (f"{record.namespace}/{record.name}", record.requests)
            for record in records
            if record.status.waits and record.requests is not None
        )
        self._by_node: dict[str, Fragmentation] = {}

    def of(self, report: Report) -> Fragmentation:
        """Returns the fragmentation of a node."""
        if report.name not in self._by_node:
            self._by_node[report.name] = of_node(kubelet_of(report, lambda _: None), self._waiting)
        return self._by_node[report.name]

    def cell(self, report: Report) -> str:
        """Returns the loss of a node as text."""
        loss = self.of(report).loss
        return "-" if loss is None else f"{loss}%"


def colour_of(cell: str) -> str:
    """Returns the colour of a cell."""
    loss = 0 if cell == "-" else int(cell.removesuffix("%"))
    return BAD if loss >= HIGH_LOSS else WARN if loss >= MEDIUM_LOSS else ""


def document(fragmentation: Fragmentation) -> dict[str, Any]:
    """Returns the fields of a node's JSON: `fragmentation` in percent, amounts as quantities."""
    return {
        "fragmentation": fragmentation.loss,
        "largestAligned": {
            resource: {field: str(amount) for field, amount in figure._asdict().items()}
            for resource, figure in fragmentation.resources.items()
        },
        "copies": {name: figure._asdict() for name, figure in fragmentation.pods.items()},
    }
