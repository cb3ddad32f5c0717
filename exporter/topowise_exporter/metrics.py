"""The exporter's metric families."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, PlatformCollector, ProcessCollector

from topowise import __version__
from topowise.runtime.event_loop import Lag
from topowise_exporter.zones import Accounts

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_NAME = "topowise_exporter_"

SOURCES = ("configz", "file", "flags", "defaults")


class Metrics:
    """All metric families, in one registry."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        build = Gauge(_NAME + "build_info", "1, labelled with the version.", ["version"], registry=self.registry)
        build.labels(__version__).set(1)
        # Ten measurements a second, as in the scheduler, would be a tenth of the idle exporter's CPU time.
        self.lag = Lag(self.registry, "topowise_exporter", interval=1.0)
        self.sync_seconds = self._histogram(
            "sync", "Time to read the node in a sync: kubelet, state files, /sys if due."
        )
        self.publish_seconds = self._histogram("publish", "Time of a write to the API server.")
        self.writes = self._counter(
            "writes",
            "Writes of an object by outcome; unchanged and held-back count without a write.",
            "kind",
            "outcome",
        )
        self.source_errors = self._counter(
            "source_errors", "Failed syncs, by the source that was unreadable.", "source"
        )
        self.events = self._counter("events", "Triggers of syncs: events, and the interval.", "reason")
        self.clamped = self._counter("clamped_amounts", "Syncs in which the kubelet's amounts were inconsistent.")
        self.drifts = self._counter("drifts", "Objects found changed or deleted on the API server.", "kind")
        self.last_sync = self._gauge("last_sync_timestamp_seconds", "Time of the last successful sync.")
        self.last_publish = self._gauge(
            "last_publish_timestamp_seconds", "Time at which the published object last matched the node."
        )
        self.pods = self._gauge("listed_pods", "Pods in the kubelet's last List.")
        self.withheld = self._gauge("withheld_pods", "Pods left out of the object because they are being admitted.")
        self.admitting = self._gauge("admitting_pods", "Published pods whose admission has not been seen to end.")
        self.unconfirmed = self._gauge(
            "unconfirmed",
            "1 for each reason to keep the last complete object instead of the kubelet's present answer.",
            "reason",
        )
        self.refused_files = self._gauge(
            "refused_state_file", "1 for each state file that the kubelet would refuse at its next start.", "file"
        )
        self.claims = self._gauge(
            "claimed_devices",
            "Devices allocated to pods by resource claims; zone is unknown without a NUMA node in a ResourceSlice.",
            "driver",
            "zone",
        )
        self.foreign = self._gauge(
            "foreign_writer",
            "1 for each other field manager that wrote an object's content in the last minutes.",
            "kind",
            "manager",
        )
        self.source = self._gauge("kubelet_config_source", "1 for the source of the kubelet's configuration.", "source")
        self.zones = self._gauge(
            "zone_resource",
            "Published amounts of this node: cores, bytes, devices.",
            "zone",
            "resource",
            "amount",
        )

    def show_accounts(self, accounts: Accounts) -> None:
        """Sets the amounts of the zones as published last."""
        self.zones.clear()
        for node_id, amounts in accounts.amounts.items():
            for resource, amount in amounts.items():
                unit = 1000 if resource == "cpu" else 1
                for name in ("capacity", "allocatable", "available"):
                    self.zones.labels(f"node-{node_id}", resource, name).set(getattr(amount, name) / unit)

    def show_source(self, current: str) -> None:
        """Sets the source of the kubelet's configuration."""
        for name in SOURCES:
            self.source.labels(name).set(int(name == current))

    def show_claims(self, devices: Mapping[tuple[str, int | None], int]) -> None:
        """Sets the devices allocated by claims, by driver and NUMA node."""
        named = {
            (driver, "unknown" if node is None else f"node-{node}"): count for (driver, node), count in devices.items()
        }
        replace(self.claims, named)

    def _histogram(self, noun: str, text: str) -> Histogram:
        return Histogram(f"{_NAME}{noun}_duration_seconds", text, buckets=_SECONDS, registry=self.registry)

    def _counter(self, noun: str, text: str, *labels: str) -> Counter:
        return Counter(f"{_NAME}{noun}_total", text, labels, registry=self.registry)

    def _gauge(self, noun: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"{_NAME}{noun}", text, labels, registry=self.registry)


def replace(gauge: Gauge, values: Mapping[Any, float]) -> None:
    """Gives the gauge exactly these values, by labels."""
    gauge.clear()
    for labels, value in values.items():
        gauge.labels(*labels).set(value)
