"""The exporters' pods, and what they say of themselves where their metrics can be read.

`last_sync` is the heartbeat that an NRT does not have: it moves every second, whatever is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from topowise.errors import SourceError
from topowise.kube import paths
from topowise_scheduler.kubectl.doctor.finding import Finding
from topowise_scheduler.kubectl.durations import human
from topowise_scheduler.kubectl.source import Kubectl, decoded

_SELECTOR: Final = "app.kubernetes.io%2Fpart-of%3Dtopowise,app.kubernetes.io%2Fcomponent%3Dexporter"
PATH: Final = f"/api/v1/pods?labelSelector={_SELECTOR}"
_PORT: Final = 9153
_AT_ONCE: Final = 16
_MOST: Final = 256
_STALE_S: Final = 60.0
_SAMPLE: Final = re.compile(r"topowise_exporter_(\w+?)(?:\{(.*)\})? (-?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]{1,2})?)")


class Exporter(msgspec.Struct, frozen=True):
    """One pod. `problem` is why it is not ready, "" if it is."""

    namespace: str
    name: str
    node: str
    port: int
    problem: str


def listed(answer: bytes) -> list[Exporter]:
    """The exporters of a list of pods. Raises SourceError."""
    return [_exporter(item) for item in decoded(answer, PATH).get("items") or ()]


def check(found: Sequence[Exporter], kubectl: Kubectl, now: float) -> Iterator[Finding]:
    """Each pod, and its metrics through the API server's proxy."""
    for one in found:
        if one.problem:
            yield Finding(
                "exporters", "error", "exporter", (f"{one.namespace}/{one.name}",), f"on {one.node} {one.problem}",
                "its node is known as it was when it last wrote",
                "kubectl describe pod and kubectl logs tell why",
            )  # fmt: skip
    ready = [one for one in found if not one.problem][:_MOST]
    for start in range(0, len(ready), _AT_ONCE):
        batch = ready[start : start + _AT_ONCE]
        answers = kubectl.attempt(*(_metrics_path(one) for one in batch))
        for one, answer in zip(batch, answers, strict=True):
            if not isinstance(answer, SourceError):
                yield from _metrics(one, answer.decode(errors="replace"), now)
        failed = next((answer for answer in answers if isinstance(answer, SourceError)), None)
        if failed is not None:
            yield Finding(
                "exporters", "note", "exporters", (), f"not all can be asked for their metrics: {failed}",
                "how fresh reports are is judged by the pods they tell of, which shows a dead exporter later",
                "allow get on pods/proxy, or watch topowise_exporter_last_sync_timestamp_seconds by Prometheus",
            )  # fmt: skip
            return


def _metrics(one: Exporter, text: str, now: float) -> Iterator[Finding]:
    name = f"{one.namespace}/{one.name}"
    samples = [
        (match[1], match[2] or "", float(match[3])) for match in map(_SAMPLE.fullmatch, text.splitlines()) if match
    ]
    for metric, what in (
        ("last_sync_timestamp_seconds", "has not read its node"),
        ("last_publish_timestamp_seconds", "has not got its object to the API server"),
    ):
        for seen, _, value in samples:
            if seen == metric and now - value > _STALE_S:
                yield Finding(
                    "exporters", "error", "exporter", (name,),
                    f"on {one.node} {what} for {human(int(now - value)) if value else 'ever'}",
                    "the node is not what its report says",
                    "its log tells what cannot be read or written",
                )  # fmt: skip
    for seen, labels, value in samples:
        if seen == "kubelet_config_source" and value and 'source="defaults"' in labels:
            yield Finding(
                "exporters", "warning", "exporter", (name,), f"on {one.node} does not know its kubelet's configuration",
                "it reports a kubelet's defaults (policy none), so that nothing is predicted for the node",
                "allow get on nodes/configz (nodes/proxy), or name the file in kubelet.configFile",
            )  # fmt: skip


def _exporter(item: dict[str, Any]) -> Exporter:
    metadata, spec, status = item.get("metadata") or {}, item.get("spec") or {}, item.get("status") or {}
    ports = [
        port.get("containerPort", _PORT)
        for container in spec.get("containers") or ()
        for port in container.get("ports") or ()
        if port.get("name") == "metrics"
    ]
    is_ready = any(one.get("type") == "Ready" and one.get("status") == "True" for one in status.get("conditions") or ())
    waiting = [
        reason
        for container in status.get("containerStatuses") or ()
        if (reason := ((container.get("state") or {}).get("waiting") or {}).get("reason"))
    ]
    problem = "" if is_ready else f"is not ready: {', '.join(waiting) or status.get('phase') or 'no status'}"
    return Exporter(
        namespace=str(metadata.get("namespace") or "default"),
        name=str(metadata.get("name") or ""),
        node=str(spec.get("nodeName") or "no node"),
        port=int(ports[0]) if ports else _PORT,
        problem=problem,
    )


def _metrics_path(one: Exporter) -> str:
    return paths.pod(one.namespace, f"{one.name}:{one.port}", "proxy", "metrics")
