"""Which reports are outdated, by the causes of the service (ledger/gates/unconfirmed.py), without the model."""

from __future__ import annotations

from collections.abc import Sequence

from topowise_scheduler.kubectl.doctor import own_pods, reports
from topowise_scheduler.kubectl.objects import Objects, Reported
from topowise_scheduler.report import Report


def causes(
    there: Objects, known: Sequence[tuple[Reported, Report]], now: float, *, has_all_pods: bool
) -> dict[str, list[str]]:
    """The causes by node. A single look cannot show for how long an exporter has been not Ready.

    Without all pods of the cluster no report is compared with the pods of its node.
    """
    mismatched = reports.mismatches(there, known, now) if has_all_pods else {}
    pods = [pod for pod in there.pods or () if own_pods.is_of(pod.metadata, own_pods.EXPORTER)]
    ready = {pod.spec.nodeName for pod in pods if pod.is_ready}
    covered = {pod.spec.nodeName for pod in pods}
    by_node = {}
    for raw, report in known:
        is_expected = report.name in covered or (covered and own_pods.FIELD_MANAGER in raw.writers)
        applies = {
            "kubelet": bool(report.unconfirmed),
            "exporter-down": is_expected and report.name not in ready,
            "pods-unreported": report.name in mismatched,
        }
        if named := [cause for cause, is_cause in applies.items() if is_cause]:
            by_node[report.name] = named
    return by_node
