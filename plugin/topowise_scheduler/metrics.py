"""The service's metric families. What parts of the service count for themselves is read when somebody scrapes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Gauge, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from topowise import __version__
from topowise_scheduler.answers import Answers
from topowise_scheduler.cluster.ledger import Ledger
from topowise_scheduler.cluster.pods.records import KUBELET_REFUSALS
from topowise_scheduler.kubelet.hazards import HAZARDS, hazards
from topowise_scheduler.report import Report
from topowise_scheduler.shortage import CAUSES, Holes, Shortage, Waits

PREFIX = "topowise_scheduler"
_NAME = f"{PREFIX}_"
_NOMINATIONS = ("written", "honoured", "elsewhere", "late", "moved", "withdrawn", "conflict", "failed")
_WAIT_BUCKETS = (1, 5, 15, 60, 300, 900, 3600, 14400, 86400)


class Counts(Collector):
    """Ledger, engine and answers as they are now."""

    def __init__(self, ledger: Ledger, answers: Answers) -> None:
        self._ledger = ledger
        self._answers = answers

    def collect(self) -> Iterator[Metric]:
        """Called at every scrape."""
        yield from self._states()
        yield from self._decisions()
        yield from self._duties()
        yield from self._engine_caches()

    def _states(self) -> Iterator[Metric]:
        ledger = self._ledger
        yield _gauge("nodes", "Nodes of the cluster.", len(ledger.reports.nodes))
        # Not those of which only a report is left: it would hide a node that has none.
        reported = len(ledger.reports.nodes & set(ledger.node_states.reported()))
        yield _gauge("reported_nodes", "Nodes of the cluster that an exporter has reported.", reported)
        yield _gauge("nodes_by_counts", "Nodes that are predicted by counts alone.", _by_counts(ledger))
        yield _kubelets(ledger)
        yield _hazards(ledger)
        yield _gauge(
            "unconfirmed_nodes",
            "Nodes whose last report their kubelet does not confirm now.",
            len(ledger.gates.unconfirmed),
        )
        yield _gauge(
            "over_budget_nodes",
            "Nodes whose newest report is more than a report may be, so that nothing of it is used.",
            len(ledger.reports.over_budget),
        )
        yield _gauge(
            "open_reservations", "Pods that are expected on a node and not bound yet.", len(ledger.reservations)
        )
        uncertain = ledger.node_states.possible.pods
        yield _gauge("uncertain_pods", "Bound pods that may lie elsewhere than predicted.", uncertain)
        yield _gauge("waiting_pods", "Pending pods that were refused here.", len(ledger.waiting))
        yield _gauge("quarantines", "Pairs of node and shape that a kubelet has refused.", len(ledger.gates.quarantine))

    def _decisions(self) -> Iterator[Metric]:
        events = self._ledger.events
        yield _counter(
            "verdicts",
            'Verdicts on nodes by the words of the refusal; "fits" for none.',
            "reason",
            {words or "fits": times for words, times in self._answers.verdict_counts.items()},
        )
        yield _counter(
            "predictions",
            "Placements that a report has confirmed, by whether they were predicted right.",
            "outcome",
            {"hit": events["prediction_hit"], "miss": events["prediction_miss"]},
        )
        yield _counter(
            "device_affinity",
            "Wishes of pods for devices near each other, by whether what the pods got meets them.",
            "outcome",
            {outcome: events[f"wish_{outcome}"] for outcome in ("met", "not_met", "unknown")},
        )
        yield _counter(
            "reports",
            "Reports of nodes taken into the ledger, by what they allow to predict.",
            "precision",
            {kind: events[f"report_{kind}"] for kind in ("exact", "counts")},
        )
        yield _counter(
            "kubelet_refusals",
            "Pods that kubelets have refused, by their reason.",
            "reason",
            # From the start with 0 for each: a counter that first appears at 1 shows no increase.
            {reason: events[f"refusal_{reason}"] for reason in KUBELET_REFUSALS},
        )
        yield _counter(
            "reservations_ended",
            "Reservations that came to nothing.",
            "why",
            {"expired": events["reservation_expired"], "conflict": events["bind_conflict"]},
        )

    def _duties(self) -> Iterator[Metric]:
        ledger, events = self._ledger, self._ledger.events
        yield _counter("requeued_pods", "Pods that were requeued for new room.", "", {"": events["requeued"]})
        yield _gauge(
            "nominated_pods", "Pods that we have nominated and that are not bound yet.", len(ledger.nominations)
        )
        yield _gauge(
            "nominator_queue", "Pods that kube-scheduler has not tried yet, if we nominate.", len(ledger.queue)
        )
        yield _counter(
            "nominations",
            "Nominations of ours by what became of them.",
            "outcome",
            {outcome: events[f"nomination_{outcome}"] for outcome in _NOMINATIONS},
        )
        yield _counter(
            "startup_taints_removed",
            "Nodes whose start-up taint was removed, as they are reported.",
            "",
            {"": events["startup_taint_removed"]},
        )
        yield _counter(
            "refused_pods_deleted",
            "Pods that were deleted after their kubelet had refused them.",
            "",
            {"": events["refused_pod_deleted"]},
        )
        yield _counter(
            "alignment_evictions",
            "Pods that were evicted for one that waited for its alignment alone.",
            "",
            {"": events["evicted_for_alignment"]},
        )
        yield _counter(
            "defragmentation_evictions",
            "Pods that were evicted so that there is room in one piece for a declared shape.",
            "",
            {"": events["evicted_for_room"]},
        )

    def _engine_caches(self) -> Iterator[Metric]:
        engine = self._ledger.engine
        yield _counter(
            "model_runs",
            "Verdicts that the arrays could not give and the one-node model gave, by cause.",
            "cause",
            dict(engine.fallbacks),
        )
        yield _counter(
            "cached_verdicts",
            "Verdicts on nodes by whether they were known already.",
            "outcome",
            {"hit": engine.cache_hits, "miss": engine.cache_misses},
        )


def _by_counts(ledger: Ledger) -> int:
    reports = [one.report for name in ledger.reports.nodes if (one := ledger.node_states.of(name)) is not None]
    return sum(report is not None and report.precision == "counts" for report in reports)


def _kubelets(ledger: Ledger) -> Metric:
    """By version: 1.39 with certainty "assumed" is a kubelet that nobody has compared with the model yet."""
    family = GaugeMetricFamily(
        _NAME + "kubelets",
        "Reported nodes by the kubelet they are judged as, and how sure it is that it decides so.",
        labels=["kubelet", "certainty"],
    )
    found = Counter((report.kubelet.name, report.certainty) for report in _reports(ledger))
    for labels, count in sorted(found.items()):
        family.add_metric(labels, count)
    return family


def _hazards(ledger: Ledger) -> Metric:
    """A kubelet with a hazard ends, or never answers again, once a scheduler that does not know it sends it a pod."""
    family = GaugeMetricFamily(
        _NAME + "kubelet_hazards",
        "Reported nodes whose kubelet would panic on some pods, or never end to admit them, by why.",
        labels=["hazard"],
    )
    found = Counter(hazard for report in _reports(ledger) for hazard in hazards(report.empty))
    for hazard in HAZARDS:
        family.add_metric([hazard], found[hazard])
    return family


def _reports(ledger: Ledger) -> Iterator[Report]:
    for name in ledger.node_states.reported():
        node_state = ledger.node_states.of(name)
        if node_state is not None and node_state.report is not None:
            yield node_state.report


class _Shortages(Collector):
    """What `Shortage` has found at its last sync."""

    def __init__(self, holes: Holes, waits: Waits) -> None:
        self._holes = holes
        self._waits = waits

    def collect(self) -> Iterator[Metric]:
        """Called at every scrape."""
        family = GaugeMetricFamily(
            _NAME + "largest_free_shape",
            "The most of a resource that is free on one NUMA node: CPUs, bytes or devices.",
            labels=["resource"],
        )
        for resource, amount in sorted(self._holes.largest().items()):
            family.add_metric([resource], amount)
        yield family
        family = GaugeMetricFamily(
            _NAME + "free_shapes",
            "How many pieces of a size are free, each on one NUMA node: CPUs, bytes or devices.",
            labels=["resource", "size"],
        )
        for resource, pieces in sorted(self._holes.pieces().items()):
            for size, count in pieces.items():
                family.add_metric([resource, str(size)], count)
        yield family
        causes = "; ".join(f'"{cause}": {words}' for cause, words in CAUSES.items())
        family = GaugeMetricFamily(
            _NAME + "waiting_pods_by_cause", f"Pending pods that were refused here. {causes}.", labels=["cause"]
        )
        for cause, count in self._waits.counts().items():
            family.add_metric([cause], count)
        yield family
        family = GaugeMetricFamily(
            _NAME + "longest_wait_seconds",
            "For how long the pod has waited that has waited longest since it was refused here.",
            labels=["cause"],
        )
        for cause, seconds in self._waits.longest().items():
            family.add_metric([cause], seconds)
        yield family


def watch_shortage(made: CollectorRegistry, ledger: Ledger, answers: Answers) -> Shortage:
    """Families of what `Shortage` finds; it is to be run."""
    waited = Histogram(
        _NAME + "waited_seconds",
        "How long pods that were refused here have waited until they were bound.",
        buckets=_WAIT_BUCKETS,
        registry=made,
    )
    shortage = Shortage(ledger, answers, waited.observe)
    made.register(_Shortages(shortage.holes, shortage.waits))
    return shortage


def registry(ledger: Ledger, answers: Answers) -> CollectorRegistry:
    """A registry with everything but the families that the protocols observe themselves."""
    made = CollectorRegistry()
    ProcessCollector(registry=made)
    PlatformCollector(registry=made)
    made.register(Counts(ledger, answers))
    build = Gauge(_NAME + "build_info", "1, labelled with the version.", ["version"], registry=made)
    build.labels(__version__).set(1)
    return made


def watch(made: CollectorRegistry, name: str, text: str, read: Callable[[], float]) -> None:
    """A gauge that is read when somebody scrapes."""
    Gauge(_NAME + name, text, registry=made).set_function(read)


def _gauge(name: str, text: str, amount: float) -> Metric:
    return GaugeMetricFamily(_NAME + name, text, value=amount)


def _counter(name: str, text: str, label: str, amounts: Mapping[str, float]) -> Metric:
    family = CounterMetricFamily(_NAME + name, text, labels=[label] if label else [])
    for key, amount in sorted(amounts.items()):
        family.add_metric([key] if label else [], amount)
    return family
