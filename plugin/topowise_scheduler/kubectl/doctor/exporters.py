"""Checks the exporters' pods, and their metrics where they can be read.

`last_sync` is the heartbeat that an NRT does not have: it changes every second, whether or not the NRT changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from topowise.errors import SourceError
from topowise.kube import paths
from topowise_scheduler.kubectl.doctor import own_pods
from topowise_scheduler.kubectl.doctor.finding import Finding
from topowise_scheduler.kubectl.doctor.own_pods import OwnPod
from topowise_scheduler.kubectl.durations import human
from topowise_scheduler.kubectl.objects import Reported
from topowise_scheduler.kubectl.source import Kubectl

COMPONENT: Final = "exporter"
PATH: Final = own_pods.path(COMPONENT)
_WITHOUT: Final = "its node is known as it was when it last wrote"
FIELD_MANAGER: Final = "topowise-exporter"
_AT_ONCE: Final = 16
_MOST: Final = 256
_STALE_S: Final = 60.0
_SAMPLE: Final = re.compile(r"topowise_exporter_(\w+?)(?:\{(.*)\})? (-?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]{1,2})?)")


def check(exporters: Sequence[OwnPod], reports: Sequence[Reported], kubectl: Kubectl, now: float) -> Iterator[Finding]:
    """Checks each pod, its metrics through the API server's proxy, and reported nodes without an exporter."""
    yield from own_pods.check(exporters, "exporters", "exporter", _WITHOUT, now)
    there = {exporter.node for exporter in exporters}
    for report in reports if there else ():
        name = report.topology.metadata.name
        if FIELD_MANAGER in report.writers and name not in there:
            yield Finding(
                "exporters", "error", "node", (name,), f"reported by {FIELD_MANAGER}, which has no pod there",
                _WITHOUT,
                "let the exporter's DaemonSet tolerate the node's taints and select it; kubectl describe daemonset",
            )  # fmt: skip
    ready = [exporter for exporter in exporters if not exporter.problem][:_MOST]
    for start in range(0, len(ready), _AT_ONCE):
        batch = ready[start : start + _AT_ONCE]
        answers = kubectl.attempt(*(_metrics_path(exporter) for exporter in batch))
        for exporter, answer in zip(batch, answers, strict=True):
            if not isinstance(answer, SourceError):
                yield from _metrics(exporter, answer.decode(errors="replace"), now)
        failed = next((answer for answer in answers if isinstance(answer, SourceError)), None)
        if failed is not None:
            yield Finding(
                "exporters", "note", "exporters", (), f"not all can be asked for their metrics: {failed}",
                "the age of reports is judged only by the pods in them, which shows a dead exporter later",
                "allow get on pods/proxy, or watch topowise_exporter_last_sync_timestamp_seconds by Prometheus",
            )  # fmt: skip
            return


def _metrics(exporter: OwnPod, text: str, now: float) -> Iterator[Finding]:
    name = f"{exporter.namespace}/{exporter.name}"
    samples = [
        (match[1], match[2] or "", float(match[3])) for match in map(_SAMPLE.fullmatch, text.splitlines()) if match
    ]
    for metric, failure in (
        ("last_sync_timestamp_seconds", "has not read its node"),
        ("last_publish_timestamp_seconds", "has not got its object to the API server"),
    ):
        for seen, _, value in samples:
            if seen == metric and now - value > _STALE_S:
                yield Finding(
                    "exporters", "error", "exporter", (name,),
                    f"on {exporter.node} {failure} for {human(int(now - value)) if value else 'ever'}",
                    "the node is not what its report says",
                    "read its log: it names the file or the request that fails",
                )  # fmt: skip
    for seen, labels, value in samples:
        if seen == "kubelet_config_source" and value and 'source="defaults"' in labels:
            yield Finding(
                "exporters", "warning", "exporter", (name,),
                f"on {exporter.node} does not know its kubelet's configuration",
                "it reports a kubelet's defaults (policy none), so that nothing is predicted for the node",
                "allow get on nodes/configz (nodes/proxy), or name the file in kubelet.configFile",
            )  # fmt: skip


def _metrics_path(exporter: OwnPod) -> str:
    return paths.pod(exporter.namespace, f"{exporter.name}:{exporter.port}", "proxy", "metrics")
