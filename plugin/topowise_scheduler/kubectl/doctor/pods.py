"""Checks pods: refused lately, waiting because of topowise, never admitted, or with devices too far apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from topowise import pods
from topowise.placement import GATE
from topowise_scheduler.explain import refusal_texts
from topowise_scheduler.explain.text import plural
from topowise_scheduler.kubectl.console import seconds_since
from topowise_scheduler.kubectl.doctor.finding import Finding
from topowise_scheduler.kubectl.objects import Objects, Reported
from topowise_scheduler.ledger.pods.records import KUBELET_REFUSALS, PodRecord
from topowise_scheduler.options.device_affinity.outcomes import NO_TERMS, observed
from topowise_scheduler.report import Report

_LATELY_S: Final = 24 * 3600.0
_GATED_S: Final = 60.0


def check(
    there: Objects, records: Sequence[PodRecord], reports: Sequence[tuple[Reported, Report]], now: float
) -> Iterator[Finding]:
    """Checks all pods; `records` are in the order of the pods."""
    yield from _refused(there.pods or (), now)
    if any(_waits(record, now) for record in records):
        yield from _waiting(there, now)
    yield from _odd(records, reports)
    yield from _apart(records, reports)


def _waits(record: PodRecord, now: float) -> bool:
    """Returns whether kube-scheduler has found no node for the pod, or nobody has opened its gate for a minute."""
    if record.status.leaving or record.status.stage != "pending":
        return False
    age = seconds_since(record.status.started, now)
    return record.status.tried or (GATE in record.status.gates and age is not None and age > _GATED_S)


def _waiting(there: Objects, now: float) -> Iterator[Finding]:
    # Imported on demand: the model needs numpy, and the other checks do not.
    from topowise_scheduler.explain.waiting import waiting_pod
    from topowise_scheduler.explain.waiting_texts import CAUSE_TEXTS, next_step, summary
    from topowise_scheduler.kubectl.cluster import Cluster

    view = Cluster(there, now).view
    for record in (view.trial.record(pod) for pod in there.pods or () if not pod.spec.nodeName):
        if _waits(record, now):
            pod = waiting_pod(view, record)
            is_passing = pod.cause == "unconfirmed" or (pod.fits and not record.status.is_placeable)
            yield Finding(
                "pods", "note" if is_passing else "warning", "pod",
                (f"{record.namespace}/{record.name}",),
                f"waits, cause {pod.cause}: {CAUSE_TEXTS[pod.cause]}",
                summary(pod) or f"{plural(pod.fits, 'node')} would take the pod",
                next_step(pod.step),
            )  # fmt: skip


def _refused(all_pods: Sequence[pods.Pod], now: float) -> Iterator[Finding]:
    counts: dict[tuple[str, str], list[str]] = {}
    for pod in all_pods:
        status = pod.status
        if status is None or status.phase != "Failed":
            continue
        if status.reason not in KUBELET_REFUSALS and not status.reason.startswith("OutOf"):
            continue
        age = seconds_since(status.startTime or pod.metadata.creationTimestamp or "", now)
        if age is None or age < _LATELY_S:
            name = f"{pod.metadata.namespace}/{pod.metadata.name}"
            counts.setdefault((pod.spec.nodeName, status.reason), []).append(name)
    for (node, reason), names in sorted(counts.items()):
        yield Finding(
            "pods", "warning", "node", (node,), f"refused {plural(len(names), 'pod')} with {reason} within a day: "
            f"{', '.join(names[:3])}{' ...' if len(names) > 3 else ''}",
            "they were sent by a scheduler that does not look at NUMA nodes, or knew the node otherwise than it is",
            "schedule such pods by a kube-scheduler with the extender; if they were, report it as a bug",
        )  # fmt: skip


def _odd(records: Sequence[PodRecord], reports: Sequence[tuple[Reported, Report]]) -> Iterator[Finding]:
    """Pending pods without whole cores, where kubelets allocate only whole cores."""
    by_threads: dict[int, list[str]] = {}
    for _, report in reports:
        cpu = report.empty.settings.cpu
        if cpu is not None and cpu.full_pcpus_only:
            sizes = {core.cpus.bit_count() for core in report.empty.topology.cores}
            by_threads.setdefault(max(sizes, default=1), []).append(report.name)
    for threads, names in by_threads.items():
        odd = [
            f"{record.namespace}/{record.name}"
            for record in records
            if record.status.stage == "pending" and threads > 1 and _asks_for_parts(record, threads)
        ]
        if odd:
            yield Finding(
                "pods", "warning", "node", tuple(names),
                f"whole cores only (full-pcpus-only), and {plural(len(odd), 'pending pod')} with a number of "
                f"CPUs that is no multiple of {threads}: {', '.join(odd[:3])}{' ...' if len(odd) > 3 else ''}",
                "the kubelet refuses them with SMTAlignmentError, so that they never run there",
                f"ask for multiples of {threads} CPUs in each container",
            )  # fmt: skip


def _apart(records: Sequence[PodRecord], reports: Sequence[tuple[Reported, Report]]) -> Iterator[Finding]:
    """Pods whose devices violate their affinity annotation."""
    by_node = {report.name: report for _, report in reports}
    for record in records:
        report = by_node.get(record.node)
        name = record.namespace, record.name
        terms = record.demand(NO_TERMS).terms
        if not terms or record.status.stage != "assigned" or record.needs is None or report is None:
            continue
        allocated = report.held.get(name)
        distances = () if allocated is None else observed(terms, record.needs, allocated, report.places)
        for wish, (is_met, reason) in zip(terms, distances, strict=False):
            if is_met is False:
                yield Finding(
                    "pods", "warning", "pod", ("/".join(name),),
                    f"device affinity {wish} is not met: {refusal_texts.against(reason)}",
                    "the kubelet takes any devices near its NUMA nodes, or the devices that the device plug-in prefers",
                    "delete the pod, so that it is placed anew; require instead of prefer keeps it from such nodes",
                )  # fmt: skip


def _asks_for_parts(record: PodRecord, threads: int) -> bool:
    needs = record.needs
    if needs is None or needs.qos != "Guaranteed":
        return False
    amounts = [container.requests.get("cpu", 0) for container in needs.containers]
    return any(amount % 1000 == 0 and amount // 1000 % threads for amount in amounts)
