"""What was decided, and what went wrong by its cause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec


class Tally(msgspec.Struct):
    """`decisions` are answers to filter. `refused` are pods of ours that a kubelet refused, `kept_waiting` answers that
    let a pod onto no node although one would have taken it, and `left_out` pods that waited beside room for them when
    nothing moved any more; all by cause, of which "" is none. `evidence` is of those without one. `broken` are
    clusters that were not played to their end."""

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
        return lines
