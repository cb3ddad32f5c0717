"""What a run of the test has found, as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Final, TypeAlias

import msgspec

Figure: TypeAlias = int | float | str

# Of a series, by the service's own count.
HITS: Final = "predictions that the service saw come true"
MISSES: Final = "and not"
HIT_RATE: Final = "hit rate, %"


class Part(msgspec.Struct, frozen=True):
    """One part: whether all was as it should be, its figures by name, and what was not, in words. `key` is how it is
    chosen, `on` are the guests, `kubelet` is their version, `at` the day, the commit and the image that it was run
    with: a page may have parts of several runs."""

    name: str
    passed: bool
    figures: dict[str, Figure] = {}
    problems: tuple[str, ...] = ()
    key: str = ""
    on: str = ""
    kubelet: str = ""
    at: str = ""


class Results(msgspec.Struct, frozen=True):
    """`versions` of what ran, by name; `machines` in words, by guest; `not_run` is what this run has left out,
    `notes` are of whoever ran it."""

    day: str
    commit: str
    host: str
    versions: dict[str, str]
    machines: dict[str, str]
    parts: tuple[Part, ...] = ()
    not_run: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return bool(self.parts) and all(part.passed for part in self.parts)


def merged(earlier: Results, run: Results) -> Results:
    """A run, with the parts of an earlier one that were not run again on the same guests and kubelet, in order."""
    again = {(part.key, part.on, part.kubelet) for part in run.parts}
    parts = (*(part for part in earlier.parts if (part.key, part.on, part.kubelet) not in again), *run.parts)
    there = {part.key for part in parts}
    return msgspec.structs.replace(
        run,
        parts=parts,
        machines={**earlier.machines, **run.machines},
        not_run=tuple(name for name in run.not_run if name not in there),
    )


def as_json(run: Results) -> bytes:
    return msgspec.json.format(msgspec.json.encode(run), indent=1) + b"\n"


def hit_rate(hits: int, misses: int) -> Figure:
    """In percent."""
    return round(100 * hits / (hits + misses), 1) if hits + misses else "-"


def percentile(values: list[float], share: float) -> float:
    """The smallest value that so large a share of them does not exceed, 0 of none."""
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 3) if ordered else 0.0


def read(path: Path) -> Results:
    """A recorded run."""
    return msgspec.json.decode(path.read_bytes(), type=Results)
