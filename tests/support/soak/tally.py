"""What was decided, and what went wrong by its cause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec

from soak.waits import ALL, Limit, breaches, percentile


class Tally(msgspec.Struct):
    """Counts of wrong answers by cause; the cause "" is a defect.

    `decisions` are answers to filter. `refused` are topowise's pods that a kubelet refused, `kept_waiting` answers with
    no node although a node would have admitted the pod, and `left_out` pods that still waited in that way at the end.
    `seconds` are the pods' waits, by cause and in all (waits.py). `evidence` is about defects. `broken` counts clusters
    that were not played to their end.
    """

    seeds: int = 0
    decisions: int = 0
    bound: int = 0
    hours: float = 0.0
    broken: int = 0
    refused: Counter[str] = msgspec.field(default_factory=Counter)
    kept_waiting: Counter[str] = msgspec.field(default_factory=Counter)
    left_out: Counter[str] = msgspec.field(default_factory=Counter)
    seconds: dict[str, list[float]] = {}
    evidence: list[str] = []

    @property
    def unexplained(self) -> int:
        """Of all three kinds."""
        return self.refused[""] + self.kept_waiting[""] + self.left_out[""]

    def add(self, other: Tally) -> None:
        """Both together."""
        self.seeds += other.seeds
        self.decisions += other.decisions
        self.bound += other.bound
        self.hours += other.hours
        self.refused.update(other.refused)
        self.kept_waiting.update(other.kept_waiting)
        self.left_out.update(other.left_out)
        for cause, seconds in other.seconds.items():
            self.seconds[cause] = self.seconds.get(cause, []) + seconds
        self.evidence += other.evidence

    def lines(self) -> list[str]:
        """For people."""
        lines = [
            f"{self.decisions} decisions on {self.seeds} clusters in {self.hours:.1f} simulated hours, "
            f"{self.bound} pods bound"
        ]
        kinds: Mapping[str, Counter[str]] = {
            "refused by a kubelet": self.refused,
            "no although a node would take it": self.kept_waiting,
            "left out at the end": self.left_out,
        }
        for kind, causes in kinds.items():
            lines.append(f"  {kind}: {causes.total()}, {causes['']} of them unexplained")
            lines += [f"    {count:6} {cause}" for cause, count in causes.most_common() if cause]
        return [*lines, *self._waits()]

    def breaches(self, limits: Mapping[str, Limit]) -> list[str]:
        """Which limits are exceeded, in words."""
        return list(breaches(self.decisions, self.kept_waiting, self.seconds, limits))

    def _waits(self) -> list[str]:
        lines = [
            "  seconds that pods were kept waiting beside room: pods, p50, p90, longest; wrong answers of all decisions"
        ]
        answers = {ALL: self.kept_waiting.total(), **self.kept_waiting}
        for cause, seconds in sorted(self.seconds.items(), key=lambda item: -len(item[1])):
            p50, p90, longest = percentile(seconds, 0.5), percentile(seconds, 0.9), max(seconds, default=0.0)
            share = 100 * answers.get(cause, 0) / max(1, self.decisions)
            lines.append(
                f"    {len(seconds):6} {p50:7.1f} {p90:7.1f} {longest:7.1f} {share:7.2f} % {cause or 'unexplained'}"
            )
        return lines
