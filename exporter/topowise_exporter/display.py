"""Shows readings and outcomes to people: the log (conditions, events) and the metrics."""

from __future__ import annotations

import logging

from topowise import nrt
from topowise.attributes import confirmation
from topowise.runtime.log import V2, kv
from topowise_exporter.conditions import OF_SOURCES, Condition, Conditions
from topowise_exporter.metrics import Metrics, replace
from topowise_exporter.observe import Reading
from topowise_exporter.publisher import Outcome, Write

log = logging.getLogger(__name__)


class Display:
    """Conditions are logged when they change; metrics are set each time."""

    def __init__(self, metrics: Metrics, conditions: Conditions, node_name: str) -> None:
        self._metrics = metrics
        self._conditions = conditions
        self._node_name = node_name
        self._doubts: frozenset[str] = frozenset()

    def show_reading(self, reading: Reading) -> None:
        """The sources, admissions, doubts, and state files on which the kubelet would not start."""
        source, refused = reading.configuration, reading.observation.refused_state_files
        problems = dict(reading.problems)
        if source.problems:
            problems[Condition.CONFIGURATION] = "; ".join((*source.problems, f"using {source.name or 'none'}"))
        for condition in OF_SOURCES:
            self._conditions.note(condition, (problems[condition],) if condition in problems else ())
        self._metrics.last_sync.set_to_current_time()
        self._metrics.show_source(source.name)
        self._metrics.withheld.set(len(reading.withheld))
        self._metrics.admitting.set(len(reading.observation.allocations.admitting))
        replace(self._metrics.refused_files, {(name,): 1 for name in refused})
        self._conditions.note(Condition.WILL_NOT_START, tuple(f"{name}: {why}" for name, why in refused.items()))
        if reading.doubts != self._doubts:
            self._show_doubts(reading.doubts)

    def _show_doubts(self, reasons: frozenset[str]) -> None:
        self._doubts = reasons
        replace(self._metrics.unconfirmed, {(reason,): 1 for reason in reasons})
        texts = (", ".join(sorted(reasons)),) if reasons else ()
        is_of_devices = confirmation.of_devices_only(reasons)
        self._conditions.note(Condition.NOT_TRUE_YET, () if is_of_devices else texts)
        self._conditions.note(Condition.NO_DEVICES_YET, texts if is_of_devices else ())

    def show_outcome(self, outcome: Outcome) -> None:
        """What the publisher wrote, found and could not do."""
        for condition, problems in outcome.conditions.items():
            self._conditions.note(condition, problems)
        if outcome.other_writers is not None:
            writers = {(kind, name): 1 for kind, names in outcome.other_writers.items() for name in names}
            replace(self._metrics.foreign, writers)
        for drift in outcome.drifts:
            self._metrics.drifts.labels(drift.kind).inc()
            # A condition names a writer that writes again and again.
            level = V2 if drift.is_repeated else logging.WARNING
            about = "Published object is not as it was left, writing it anew"
            log.log(level, about, extra=kv(kind=drift.kind, why=drift.why))
        self._show_content(outcome)
        for write in outcome.writes:
            self._show_write(write)
        if outcome.standing.is_current:
            self._metrics.last_publish.set_to_current_time()

    def _show_content(self, outcome: Outcome) -> None:
        content = outcome.content
        if content is None:
            return
        if outcome.conditions.get(Condition.ODD_NUMBERS):
            self._metrics.clamped.inc()
        self._metrics.pods.set(content.pods)
        self._metrics.show_claims(content.claims)
        if any(write.kind == nrt.KIND and write.result == "written" for write in outcome.writes):
            self._metrics.show_accounts(content.accounts)

    def _show_write(self, write: Write) -> None:
        self._metrics.writes.labels(write.kind, write.result).inc()
        if write.result != "written":
            return
        self._metrics.publish_seconds.observe(write.seconds)
        level = logging.INFO if write.is_first else V2
        log.log(
            level,
            "Published",
            extra=kv(kind=write.kind, node=self._node_name, took_ms=round(write.seconds * 1e3, 1)),
        )
