"""The exporter's metric families; children are kept, because finding one by label costs more than moving it."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, PlatformCollector, ProcessCollector

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class Metrics:
    """All families in one registry."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        name = "topowise_exporter_"
        self.scan_seconds = Histogram(
            name + "scan_duration_seconds",
            "Time of one look at the node: /sys, kubelet configuration and podresources.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.publish_seconds = Histogram(
            name + "publish_duration_seconds",
            "Time of one write to the API server.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.writes = Counter(
            name + "writes_total", "Writes of the NodeResourceTopology.", ["outcome"], registry=self.registry
        )
        self.source_errors = Counter(
            name + "source_errors_total",
            "Looks that failed, by what could not be read.",
            ["source"],
            registry=self.registry,
        )
        self.last_publish = Gauge(
            name + "last_publish_timestamp_seconds",
            "When the published object last agreed with what was seen.",
            registry=self.registry,
        )
        self.written = self.writes.labels("written")
        self.unchanged = self.writes.labels("unchanged")
        self.failed = self.writes.labels("failed")
