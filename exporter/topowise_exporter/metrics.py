"""The exporter's metric families."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, PlatformCollector, ProcessCollector

from topowise import __version__
from topowise.runtime.turns import Lag
from topowise_exporter.zones import Accounts

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_NAME = "topowise_exporter_"

SOURCES = ("configz", "file", "flags", "defaults")


class Metrics:
    """All families, in a registry."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        build = Gauge(_NAME + "build_info", "1, labelled with the version.", ["version"], registry=self.registry)
        build.labels(__version__).set(1)
        self.lag = Lag(self.registry, "topowise_exporter")
        self.sync_seconds = self._histogram(
            "sync", "Time of one reading of the node: kubelet, state files, /sys if due."
        )
        self.publish_seconds = self._histogram("publish", "Time of one write to the API server.")
        self.writes = self._counter(
            "writes", "Writes of an object, or none as it is unchanged or held back.", "kind", "outcome"
        )
        self.source_errors = self._counter("source_errors", "Syncs that failed, by what could not be read.", "source")
        self.events = self._counter("events", "What made the exporter sync: events, and the interval.", "reason")
        self.clamped = self._counter("clamped_amounts", "Syncs at which the kubelet's numbers did not add up.")
        self.drifts = self._counter("drifts", "Objects found changed or deleted on the API server.", "kind")
        self.last_sync = self._gauge("last_sync_timestamp_seconds", "When the node was last read.")
        self.last_publish = self._gauge(
            "last_publish_timestamp_seconds", "When the published object last agreed with what was seen."
        )
        self.pods = self._gauge("listed_pods", "Pods in the kubelet's last answer.")
        self.withheld = self._gauge("withheld_pods", "Pods left out of the object because they are being admitted.")
        self.admitting = self._gauge(
            "admitting_pods", "Pods published although their admission has not been seen to end."
        )
        self.unconfirmed = self._gauge(
            "unconfirmed",
            "1 for each reason for which the object is the last true one and not what the kubelet says now.",
            "reason",
        )
        self.refused_files = self._gauge(
            "refused_state_file", "1 for each state file on which the kubelet would not start again.", "file"
        )
        self.claims = self._gauge(
            "claimed_devices",
            "Devices that pods hold by resource claims; zone is unknown for those no ResourceSlice places on one.",
            "driver",
            "zone",
        )
        self.foreign = self._gauge(
            "foreign_writer",
            "1 for each other that wrote an object's content in the last minutes.",
            "kind",
            "manager",
        )
        self.source = self._gauge("kubelet_config_source", "1 for where the kubelet's configuration is from.", "source")
        self.zones = self._gauge(
            "zone_resource",
            "Amounts of the own node as published: cores, bytes, devices.",
            "zone",
            "resource",
            "amount",
        )

    def show_accounts(self, accounts: Accounts) -> None:
        """The zones as they were published last."""
        self.zones.clear()
        for node_id, amounts in accounts.amounts.items():
            for resource, amount in amounts.items():
                unit = 1000 if resource == "cpu" else 1
                for name in ("capacity", "allocatable", "available"):
                    self.zones.labels(f"node-{node_id}", resource, name).set(getattr(amount, name) / unit)

    def show_doubts(self, reasons: Iterable[str]) -> None:
        """Why the kubelet is not believed."""
        self.unconfirmed.clear()
        for reason in reasons:
            self.unconfirmed.labels(reason).set(1)

    def show_admissions(self, withheld: Collection[object], admitting: Collection[object]) -> None:
        """How many pods are being admitted."""
        self.withheld.set(len(withheld))
        self.admitting.set(len(admitting))

    def show_refused_files(self, names: Iterable[str]) -> None:
        """State files that the kubelet would not accept."""
        self.refused_files.clear()
        for name in names:
            self.refused_files.labels(name).set(1)

    def show_source(self, current: str) -> None:
        """Where the kubelet's configuration is from."""
        for name in SOURCES:
            self.source.labels(name).set(int(name == current))

    def show_claims(self, devices: Mapping[tuple[str, int | None], int]) -> None:
        """Devices held by claims, by driver and NUMA node."""
        self.claims.clear()
        for (driver, node_id), count in devices.items():
            self.claims.labels(driver, "unknown" if node_id is None else f"node-{node_id}").set(count)

    def show_foreign(self, writers: Mapping[str, Iterable[str]]) -> None:
        """Other writers, by kind of object."""
        self.foreign.clear()
        for kind, managers in writers.items():
            for manager in managers:
                self.foreign.labels(kind, manager).set(1)

    def _histogram(self, noun: str, text: str) -> Histogram:
        return Histogram(f"{_NAME}{noun}_duration_seconds", text, buckets=_SECONDS, registry=self.registry)

    def _counter(self, noun: str, text: str, *labels: str) -> Counter:
        return Counter(f"{_NAME}{noun}_total", text, labels, registry=self.registry)

    def _gauge(self, noun: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"{_NAME}{noun}", text, labels, registry=self.registry)
