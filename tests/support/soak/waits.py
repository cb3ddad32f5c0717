"""How long pods wait beside room, by the cause of the answer that makes them wait, and how long they may.

A wait begins with a "no" to a pod that some node would have taken, and ends with its next answer. The seconds of a pod
are summed up by cause and in all.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Final

import msgspec

LIMITS: Final = Path(__file__).with_name("limits.toml")
ALL: Final = "in all"
# Of fewer decisions, or waits, a share says nothing.
_FEWEST_DECISIONS: Final = 5000
_FEWEST_WAITS: Final = 200


class Limit(msgspec.Struct, frozen=True):
    """The most of wrong answers, in per cent of all decisions, and of the seconds that a pod waits by them."""

    percent: float = inf
    p50: float = inf
    p90: float = inf
    max: float = inf


class Waits:
    """The waits of a cluster's pods by uid, in seconds."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[float, str]] = {}
        self._seconds: dict[tuple[str, str], float] = {}

    def begin(self, uid: str, cause: str, now: float) -> None:
        """A wrong "no", by this cause; what the pod has waited before is over."""
        self.end(uid, now)
        self._open[uid] = now, cause

    def end(self, uid: str, now: float) -> None:
        """The pod was answered rightly, or is gone."""
        if (begun := self._open.pop(uid, None)) is not None:
            since, cause = begun
            self._seconds[uid, cause] = self._seconds.get((uid, cause), 0.0) + max(0.0, now - since)

    def seconds(self, now: float, gone: Mapping[str, float]) -> dict[str, list[float]]:
        """By cause and in all, of each pod; waits that go on end now, or when the pod is gone."""
        for uid in list(self._open):
            self.end(uid, min(now, gone.get(uid, now)))
        by_cause: dict[str, list[float]] = {}
        pods: dict[str, float] = {}
        for (uid, cause), seconds in self._seconds.items():
            by_cause.setdefault(cause, []).append(seconds)
            pods[uid] = pods.get(uid, 0.0) + seconds
        return {**by_cause, ALL: list(pods.values())}


def percentile(seconds: Sequence[float], share: float) -> float:
    """Returns the smallest value that this share of the values does not exceed; 0 without values."""
    if not seconds:
        return 0.0
    return sorted(seconds)[min(len(seconds) - 1, int(share * len(seconds)))]


def limits(path: Path = LIMITS) -> dict[str, Limit]:
    """By cause, and in all."""
    return msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), dict[str, Limit])


def breaches(
    decisions: int, answers: Mapping[str, int], seconds: Mapping[str, Sequence[float]], limits: Mapping[str, Limit]
) -> Iterator[str]:
    """What exceeds its limit, in words. A cause without a limit of its own has that of all; the longest wait counts at
    once, shares and percentiles where there are enough to have some."""
    everything = {ALL: sum(answers.values()), **answers}
    for cause, waits in seconds.items():
        limit = limits.get(cause, limits[ALL])
        percent = 100 * everything.get(cause, 0) / max(1, decisions)
        if decisions >= _FEWEST_DECISIONS and percent > limit.percent:
            yield f"{cause}: {percent:.2f} % of all decisions, at most {limit.percent} % are allowed"
        measured = {"p50": percentile(waits, 0.5), "p90": percentile(waits, 0.9)} if len(waits) >= _FEWEST_WAITS else {}
        for name, value in {**measured, "max": max(waits, default=0.0)}.items():
            if value > getattr(limit, name):
                yield f"{cause}: {name} of the waits is {value:.1f} s, at most {getattr(limit, name)} s are allowed"
