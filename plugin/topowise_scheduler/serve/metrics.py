"""The metric families of the service. Counts of parts of the service are read at each scrape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Gauge, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from topowise import __version__
from topowise_scheduler.explain.cluster_view import ClusterView
from topowise_scheduler.explain.refusal_texts import TEXTS
from topowise_scheduler.explain.shortage import Shortage, Waits
from topowise_scheduler.explain.waiting_texts import CAUSE_TEXTS
from topowise_scheduler.kubelet.panics import HAZARDS, hazards
from topowise_scheduler.ledger.answers import Answers
from topowise_scheduler.ledger.gates import unconfirmed
from topowise_scheduler.ledger.holes import PODS, Holes
from topowise_scheduler.ledger.ledger import Ledger
from topowise_scheduler.ledger.node.history import Precision
from topowise_scheduler.ledger.pods.records import KUBELET_REFUSALS
from topowise_scheduler.options.claims.gate import ClaimOption, Outcome
from topowise_scheduler.report import Report

PREFIX = "topowise_scheduler"
_NAME = f"{PREFIX}_"
_PLACEMENTS = ("written", "bound", "elsewhere", "conflict", "failed", "remade")
_SCALE_UP = ("requested", "helped", "useless", "late", "taken", "unneeded")
_REQUESTS = ("allocated", "lost", "withdrawn", "refused", "unanswered", "failed")
_ALIGNMENTS: tuple[Outcome, ...] = ("aligned", "apart", "nothing", "unknown")
_LABEL_BUCKETS = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
_WAIT_BUCKETS = (1, 5, 15, 60, 300, 900, 3600, 14400, 86400)


class Counts(Collector):
    """Collects counts of the ledger, the engine and the answers."""

    def __init__(self, ledger: Ledger, answers: Answers) -> None:
        self._ledger = ledger
        self._answers = answers

    def collect(self) -> Iterator[Metric]:
        """Called at every scrape."""
        yield from self._states()
        yield from self._decisions()
        yield from self._controllers()
        yield from self._engine_caches()

    def _states(self) -> Iterator[Metric]:
        ledger = self._ledger
        yield _gauge("nodes", "Nodes of the cluster.", len(ledger.reports.nodes))
        # A deleted node whose report is left does not count: it would hide a node without a report.
        reported = len(ledger.reports.nodes & set(ledger.node_states.reported()))
        yield _gauge("reported_nodes", "Nodes of the cluster that an exporter has reported.", reported)
        yield _gauge("nodes_by_counts", "Nodes that are predicted from amounts only.", _nodes_by_counts(ledger))
        yield _kubelets(ledger)
        yield _hazards(ledger)
        yield _gauge(
            "unconfirmed_nodes",
            "Nodes whose last report is not confirmed at present.",
            len(ledger.gates.unconfirmed),
        )
        yield _unconfirmed(ledger)
        yield _gauge(
            "new_nodes",
            "New nodes that take no pod to align before the first report of their exporter.",
            len(ledger.gates.new_nodes),
        )
        yield _gauge(
            "over_budget_nodes",
            "Nodes whose newest report exceeds the bounds of a report, so that it is not used.",
            len(ledger.reports.over_budget),
        )
        yield _gauge(
            "open_reservations", "Pods that are expected on a node and not bound yet.", len(ledger.reservations)
        )
        uncertain = ledger.node_states.possible.pods
        yield _gauge("uncertain_pods", "Bound pods whose actual placement may differ from the prediction.", uncertain)
        yield _gauge("waiting_pods", "Pending pods that this service has refused.", len(ledger.waiting))
        yield _gauge("quarantines", "Pairs of node and pod shape that kubelets refused.", len(ledger.gates.quarantine))

    def _decisions(self) -> Iterator[Metric]:
        events = self._ledger.events
        yield _counter(
            "verdicts",
            'Verdicts on nodes by refusal text; "fits" for no refusal.',
            "reason",
            {
                TEXTS[number] or "fits": times
                for number, times in enumerate(self._answers.verdict_counts.tolist())
                if times
            },
        )
        yield _counter(
            "predictions",
            "Placements that a report has confirmed, by what was as predicted.",
            "precision",
            {precision.label: events[f"prediction_{precision.label}"] for precision in Precision},
        )
        yield _counter(
            "device_affinity",
            "Device affinity terms of placed pods, by whether the allocated devices meet them.",
            "outcome",
            {outcome: events[f"wish_{outcome}"] for outcome in ("met", "not_met", "unknown")},
        )
        yield _counter(
            "reports",
            "Reports of nodes applied to the ledger, by precision of the predictions they allow.",
            "precision",
            {kind: events[f"report_{kind}"] for kind in ("exact", "counts")},
        )
        yield _counter(
            "kubelet_refusals",
            "Pods that kubelets have refused, by their reason.",
            "reason",
            # Every reason starts at 0: a counter that first appears at 1 shows no increase.
            {reason: events[f"refusal_{reason}"] for reason in KUBELET_REFUSALS},
        )
        yield _counter(
            "reservations_ended",
            "Reservations that ended without a bind.",
            "why",
            {"expired": events["reservation_expired"], "conflict": events["bind_conflict"]},
        )

    def _controllers(self) -> Iterator[Metric]:
        ledger, events = self._ledger, self._ledger.events
        yield _count("requeued_pods", "Pods requeued after a node improved.", events["requeued"])
        placements = ledger.placements
        yield _gauge("gated_pods", "Pods that wait for this service to place them.", placements.gated_count)
        yield _gauge("placed_pods", "Pods placed by this service and not bound yet.", placements.placed_count)
        yield _counter(
            "placements",
            "Placements of this service by outcome.",
            "outcome",
            {outcome: events[f"placement_{outcome}"] for outcome in _PLACEMENTS},
        )
        yield _count(
            "startup_taints_removed",
            "Nodes whose start-up taint was removed after their first report.",
            events["startup_taint_removed"],
        )
        yield _count(
            "refused_pods_deleted",
            "Pods that were deleted after their kubelet had refused them.",
            events["refused_pod_deleted"],
        )
        yield _count(
            "alignment_evictions",
            "Pods evicted for a pod that waited only for its alignment.",
            events["evicted_for_alignment"],
        )
        yield _counter(
            "scale_up",
            "Requests of nodes for pods that wait only for alignment, by outcome.",
            "outcome",
            {outcome: events[f"scale_up_{outcome}"] for outcome in _SCALE_UP},
        )
        yield _counter(
            "scale_down_guard",
            "Nodes whose scale-down was disabled for the alignment of their pods, and nodes released again.",
            "action",
            {action: events[f"scale_down_{action}"] for action in ("guarded", "released")},
        )
        yield _counter(
            "admission_checks",
            "Decided admission checks of Kueue, by state.",
            "state",
            {state: events[f"admission_check_{state}"] for state in ("ready", "retry", "rejected")},
        )

    def _engine_caches(self) -> Iterator[Metric]:
        engine = self._ledger.engine
        yield _counter(
            "model_runs",
            "Verdicts that the one-node model gave because the arrays could not, by cause.",
            "cause",
            dict(engine.fallbacks),
        )
        yield _counter(
            "cached_verdicts",
            "Verdicts on nodes by whether they were cached.",
            "outcome",
            {"hit": engine.cache_hits, "miss": engine.cache_misses},
        )


def _nodes_by_counts(ledger: Ledger) -> int:
    node_states = [ledger.node_states.of(name) for name in ledger.reports.nodes]
    reports = [node_state.report for node_state in node_states if node_state is not None]
    return sum(report is not None and report.precision == "counts" for report in reports)


def _kubelets(ledger: Ledger) -> Metric:
    """Returns nodes by kubelet version: certainty "assumed" is a version that was not compared with the model yet."""
    counts = Counter((report.kubelet.name, report.certainty) for report in _reports(ledger))
    text = "Reported nodes by the kubelet version that predicts them, and the certainty of that."
    return _gauges("kubelets", text, ["kubelet", "certainty"], sorted(counts.items()))


def _unconfirmed(ledger: Ledger) -> Metric:
    family = GaugeMetricFamily(
        _NAME + "unconfirmed_nodes_by_cause",
        "Nodes whose last report is not confirmed at present, by the first cause of each node.",
        labels=["cause"],
    )
    counts = ledger.gates.unconfirmed.causes()
    for cause in unconfirmed.CAUSES:
        family.add_metric([cause], counts[cause])
    return family


def _hazards(ledger: Ledger) -> Metric:
    """Returns nodes whose kubelet may panic or hang over a pod, or give a CPU to two pods."""
    counts = Counter(
        hazard
        for report in _reports(ledger)
        for hazard in hazards(report.empty, knows_cores=report.precision == "exact")
    )
    text = "Reported nodes whose kubelet may panic on a pod, never finish its admission or share its CPUs, by cause."
    return _gauges("kubelet_hazards", text, ["hazard"], [([hazard], counts[hazard]) for hazard in HAZARDS])


def _reports(ledger: Ledger) -> Iterator[Report]:
    for name in ledger.node_states.reported():
        node_state = ledger.node_states.of(name)
        if node_state is not None and node_state.report is not None:
            yield node_state.report


class _Shortages(Collector):
    """Collects what the last sync of `Shortage` found."""

    def __init__(self, holes: Holes, waits: Waits) -> None:
        self._holes = holes
        self._waits = waits

    def collect(self) -> Iterator[Metric]:
        """Called at every scrape."""
        yield _gauges(
            "fragmentation_ratio",
            "Share of the largest aligned pods of all nodes that is lost because free amounts are on several NUMA "
            f'nodes, 0 to 1, by resource, or of "{PODS}"; docs/glossary.md.',
            ["kind"],
            [([kind], loss) for kind, loss in sorted(self._holes.losses().items())],
        )
        pieces = sorted(self._holes.pieces().items())
        yield _gauges(
            "free_shapes",
            "Number of free pieces of a size, each on one NUMA node: CPUs, bytes or devices.",
            ["resource", "size"],
            [([resource, str(size)], count) for resource, by_size in pieces for size, count in by_size.items()],
        )
        causes = "; ".join(f'"{cause}": {words}' for cause, words in CAUSE_TEXTS.items())
        yield _gauges(
            "waiting_pods_by_cause",
            f"Pending pods for which kube-scheduler found no node. {causes}.",
            ["cause"],
            [([cause], count) for cause, count in self._waits.counts().items()],
        )
        yield _gauges(
            "longest_wait_seconds",
            "The longest time that a pending pod has waited since this service first knew that it waits.",
            ["cause"],
            [([cause], seconds) for cause, seconds in self._waits.longest().items()],
        )


def watch_shortage(registry: CollectorRegistry, ledger: Ledger, view: ClusterView) -> Shortage:
    """Registers the families of `Shortage`. Returns the `Shortage`, which the caller runs."""
    waited = Histogram(
        _NAME + "waited_seconds",
        "How long pods that this service had refused waited until they were bound.",
        buckets=_WAIT_BUCKETS,
        registry=registry,
    )
    shortage = Shortage(ledger, view, waited.observe)
    registry.register(_Shortages(shortage.holes, shortage.waits))
    return shortage


class _Steering(Collector):
    """Collects the results of steering requests."""

    def __init__(self, results: Mapping[str, int]) -> None:
        self._results = results

    def collect(self) -> Iterator[Metric]:
        """Called at every scrape."""
        yield _counter(
            "steering_requests",
            "Requests to label the markers of a node for a pod, by result.",
            "result",
            {result: self._results.get(result, 0) for result in _REQUESTS},
        )


def watch_steering(registry: CollectorRegistry, results: Mapping[str, int]) -> Callable[[float], None]:
    """Registers the families of steering. Returns what receives the seconds from each request to its label."""
    seconds = Histogram(
        _NAME + "steering_label_duration_seconds",
        "From a steering request to the label that the kubelet shows: the time that steering adds to a bind.",
        buckets=_LABEL_BUCKETS,
        registry=registry,
    )
    registry.register(_Steering(results))
    return seconds.observe


class _Claims(Collector):
    """Collects the alignment of pods with claims."""

    def __init__(self, option: ClaimOption) -> None:
        self._option = option

    def collect(self) -> Iterator[Metric]:
        """Called at every scrape; a node that has not changed is not examined again."""
        counts = Counter(pod.outcome for pod in self._option.all_bound())
        yield _gauges(
            "claimed_pods",
            'Bound pods with claims. "aligned": CPUs, memory and devices of device plug-ins are on the NUMA nodes of '
            'the claimed devices; "apart": they are not; "nothing": the devices have no NUMA node.',
            ["alignment"],
            [([outcome], counts[outcome]) for outcome in _ALIGNMENTS],
        )


def watch_claims(registry: CollectorRegistry, option: ClaimOption) -> None:
    """Registers the families of claims."""
    registry.register(_Claims(option))


def registry(ledger: Ledger, answers: Answers) -> CollectorRegistry:
    """Returns a registry with all families except those that the protocols observe themselves."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    registry.register(Counts(ledger, answers))
    build = Gauge(_NAME + "build_info", "1, labelled with the version.", ["version"], registry=registry)
    build.labels(__version__).set(1)
    return registry


def watch(registry: CollectorRegistry, name: str, text: str, read: Callable[[], float]) -> None:
    """Registers a gauge that is read at each scrape."""
    Gauge(_NAME + name, text, registry=registry).set_function(read)


def _gauge(name: str, text: str, amount: float) -> Metric:
    return GaugeMetricFamily(_NAME + name, text, value=amount)


def _gauges(name: str, text: str, labels: list[str], rows: Iterable[tuple[Sequence[str], float]]) -> Metric:
    family = GaugeMetricFamily(_NAME + name, text, labels=labels)
    for values, amount in rows:
        family.add_metric(values, amount)
    return family


def _count(name: str, text: str, amount: float) -> Metric:
    return CounterMetricFamily(_NAME + name, text, value=amount)


def _counter(name: str, text: str, label: str, amounts: Mapping[str, float]) -> Metric:
    family = CounterMetricFamily(_NAME + name, text, labels=[label])
    for key, amount in sorted(amounts.items()):
        family.add_metric([key], amount)
    return family
