"""What a run of the test has found, as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

import msgspec

Figure: TypeAlias = int | float | str

# Figures of a series, from the service's metrics.
HITS: Final = "predictions that the service saw come true"
MISSES: Final = "and not"
VERDICTS: Final = "verdicts on nodes"
WAITS: Final = "of them waiting for a report"


class Part(msgspec.Struct, frozen=True):
    """A part of the test: its verdict, its figures by name, and its problems in words."""

    name: str
    passed: bool
    figures: dict[str, Figure] = {}
    problems: tuple[str, ...] = ()


class Results(msgspec.Struct, frozen=True):
    """A run: `versions` by name of program; `not_run` are the omitted parts."""

    day: str
    commit: str
    host: str
    versions: dict[str, str]
    machines: tuple[str, ...]
    parts: tuple[Part, ...] = ()
    not_run: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return bool(self.parts) and all(part.passed for part in self.parts)


def as_json(run: Results) -> bytes:
    """Returns the JSON document of a run, a line per part, so that diff can compare two runs."""
    head = msgspec.json.format(msgspec.json.encode({**msgspec.to_builtins(run), "parts": []}), indent=1)
    parts = b",\n  ".join(map(msgspec.json.encode, run.parts))
    return head.replace(b'"parts": []', b'"parts": [\n  ' + parts + b"\n ]" if parts else b'"parts": []') + b"\n"


def came_true(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, Figure]:
    """Returns the increase of the counts of predictions and verdicts; a hit has any precision but "missed"."""
    increase = {name: int(count - before[name]) for name, count in after.items()}
    misses, verdicts, waits = (increase.pop(name) for name in ("missed", "verdicts", "waits"))
    hits = sum(increase.values())
    return {HITS: hits, MISSES: misses, VERDICTS: verdicts, WAITS: waits}


def percentile(values: list[float], share: float) -> float:
    """Returns the smallest value that this share of the values does not exceed, 0 without values."""
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 3) if ordered else 0.0
