"""Checks whether a kubelet would start again, and what its next restart does to the pods that run on its node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from topowise.pods import Pod
from topowise_scheduler.explain.text import plural
from topowise_scheduler.kubectl.doctor import kubelets
from topowise_scheduler.kubectl.doctor.finding import Finding
from topowise_scheduler.kubectl.objects import Objects, Reported
from topowise_scheduler.kubelet.hints import SMT_ALIGNMENT
from topowise_scheduler.report import Report, read
from topowise_scheduler.report.restart_forecast import NodeRestart, foresee_all

_WHY = "a restarted kubelet admits all its pods again, and decides otherwise than when the pods started"
_WHY_STOPS = "it compares the file with machine and configuration at its next start, and exits if they differ"
_WHY_SMT = "full-pcpus-only counts free cores before it finds the CPUs that a container already has"


def check(known: Sequence[tuple[Reported, Report]], all_pods: Sequence[Pod]) -> Iterator[Finding]:
    """Checks each exact report. Not named again are state files that the exporter has found invalid (kubelets.py)."""
    named = {report.name for raw, report in known if any(kubelets.of_restarts(raw))}
    for node in foresee_all([report for _, report in known], all_pods, []):
        if node.error and node.node not in named:
            yield Finding(
                "restart", "warning", "node", (node.node,), f"the kubelet would not start again: {node.error}",
                _with_remark(_WHY_STOPS, node), node.mend,
            )  # fmt: skip
        by_reason: dict[str, list[str]] = {}
        for pod in node.refused:
            if pod.is_running:
                by_reason.setdefault(pod.reason, []).append(pod.pod)
        for reason, names in by_reason.items():
            yield Finding(
                "restart", "warning", "node", (node.node,),
                f"a restart of the kubelet would end {plural(len(names), 'running pod')} with {reason}: "
                f"{', '.join(names[:3])}{' ...' if len(names) > 3 else ''}",
                _with_remark(_WHY_SMT if reason == SMT_ALIGNMENT else _WHY, node),
                "drain the node before the kubelet restarts; kubectl topowise simulate --restart shows each pod",
            )  # fmt: skip


def _with_remark(why: str, node: NodeRestart) -> str:
    return f"{why}; {node.remark}" if node.remark else why


def lines(there: Objects, node: str) -> list[str]:
    """Returns a line for each finding about a restart of this node's kubelet."""
    raw = there.report(node)
    if raw is None:
        return []
    report = read(raw.topology, there.kubelet_versions.get(node, ""), size=raw.size)
    words = [(severity, value, mend) for severity, value, _, mend in kubelets.of_restarts(raw)]
    words += [(finding.severity, finding.value, finding.mend) for finding in check([(raw, report)], there.pods or ())]
    return [f"{severity}: node {node}: {value}; {mend}" for severity, value, mend in words]
