"""The inventory of a plan from the reports, Nodes and pods of a cluster, or from amounts of pods without manifests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from topowise.errors import TopowiseError
from topowise.pods import Resources
from topowise_scheduler.ledger.budgets import Budget
from topowise_scheduler.overlay.plan.values import Inventory, NodeType, PlannedNode
from topowise_scheduler.report import Report
from topowise_scheduler.report.amounts_only import AmountsSource
from topowise_scheduler.report.exact import ExactSource
from topowise_scheduler.verdicts.kube_scheduler import Container, Metadata, NodeObject, Pod, Spec


def pod_of(name: str, amounts: Mapping[str, str], *, namespace: str = "default") -> Pod:
    """Returns a Guaranteed pod with a container that requests these quantities by resource."""
    limits = dict(amounts)
    container = Container("main", Resources(requests={**limits}, limits={**limits}))
    return Pod(Metadata(name=name, namespace=namespace), Spec(containers=(container,)))


def inventory_of(
    reports: Iterable[Report],
    nodes: Iterable[NodeObject] = (),
    pods: Sequence[Pod] = (),
    *,
    budgets: Sequence[Budget] = (),
    types: Mapping[str, NodeType] | None = None,
    now: float = 0.0,
) -> Inventory:
    """Returns the nodes that have a report or a Node, with the machine of each. Equal machines share a type."""
    by_name = {report.name: report for report in reports}
    objects = {node.metadata.name: node for node in nodes}
    shared: dict[tuple[int, str], NodeType | None] = {}
    planned = []
    for name in sorted({*by_name, *objects}):
        report = by_name.get(name)
        node_type = None
        if report is not None:
            # Reports of equal hardware and configuration share `empty`.
            key = id(report.empty), report.kubelet.name
            if key not in shared:
                shared[key] = type_of(report)
            node_type = shared[key]
        planned.append(PlannedNode(name, node_type, report, objects.get(name)))
    return Inventory(tuple(planned), tuple(pods), tuple(budgets), types or {}, now)


def type_of(report: Report) -> NodeType | None:
    """Returns the type of a reported node, None if the report does not describe a machine."""
    source = report.source
    try:
        if isinstance(source, ExactSource):
            machine, configuration = source.parts()
            return NodeType(machine, configuration, report.kubelet, "runs")
        if isinstance(source, AmountsSource):
            parts = source.parts(report.kubelet, report.page_sizes)
            return NodeType(parts.machine, parts.settings, report.kubelet, "runs", parts.allocatable)
    except (TopowiseError, ValueError):
        # The report has its problems already; a change of this node says that it is not possible.
        return None
    return None
