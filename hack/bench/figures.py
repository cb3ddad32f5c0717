"""Measured figures with their targets, runs as JSON files, and the comparison of two runs."""

from __future__ import annotations

import os
import platform
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Literal, Self

import msgspec
import numpy as np

from sandbox.tables import columns

TARGETS: Final = {
    "writes in 15 idle seconds": 0.0,
    "CPU while idle, a sync a second": 0.5,
    "resident memory": 50.0,
    "admission to API server, beyond that, p50": 10.0,
    "5,000 nodes: a new shape of pod": 10.0,
    "500 names, 20 shapes: filter, CPU of the service, p50": 0.8,
    "500 names, 20 shapes: prioritize, CPU of the service, p50": 0.5,
    "5,000 names, 20 shapes: filter, CPU of the service, p50": 1.5,
    "500 names, a whole pod with its bind, events and report: CPU of the service": 2.8,
    "500 NRT updates/s alone: CPU of the service": 20.0,
    "5,000 NRTs and 150,000 pods: start to ready": 45.0,
    "5,000 NRTs and 150,000 pods: resident after all of this": 350.0,
    "15,000 NRTs and 450,000 pods: start to ready": 20.0,
    "15,000 NRTs and 450,000 pods: resident after that": 900.0,
}


def cpu_seconds(pid: int) -> float:
    """Returns the CPU time of all threads, from schedstat: the clock ticks of stat are 10 ms long, too coarse here."""
    tasks = Path(f"/proc/{pid}/task")
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()) / 1e9


def memory(pid: int) -> tuple[float, float]:
    """Returns the resident memory and its peak (VmHWM), in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = {key: text for key, _, text in (line.partition(":") for line in lines)}
    return int(fields["VmRSS"].split()[0]) / 1024, int(fields["VmHWM"].split()[0]) / 1024


def thread_ms(calls: Sequence[Callable[[], object]]) -> list[float]:
    """Returns the CPU time of this thread for each call, in milliseconds."""
    times = []
    for call in calls:
        since = time.thread_time()
        call()
        times.append((time.thread_time() - since) * 1e3)
    return times


class Figure(msgspec.Struct, frozen=True, omit_defaults=True):
    """A measured number. `on_wall`: a time on the wall, which grows with the load of the machine."""

    name: str
    value: float
    unit: str
    on_wall: bool = False

    @property
    def target(self) -> float | None:
        """The upper limit, None for a figure without a target."""
        return TARGETS.get(self.name)

    @property
    def is_missed(self) -> bool:
        """Whether the figure exceeds its target; False without a target."""
        return self.target is not None and self.value > self.target


def percentile(samples: Sequence[float], percent: int) -> float:
    """Returns the nearest-rank percentile."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, max(0, -(-len(ordered) * percent // 100) - 1))]


def spread(name: str, samples: Sequence[float], unit: str) -> list[Figure]:
    """Returns the p50 and the p99 of times on the wall."""
    return [
        Figure(f"{name}, p50", round(statistics.median(samples), 3), unit, on_wall=True),
        Figure(f"{name}, p99", round(percentile(samples, 99), 3), unit, on_wall=True),
    ]


def say(text: str) -> None:
    """Prints progress."""
    print(f"  {text}", file=sys.stderr, flush=True)


def table(figures: Sequence[Figure]) -> str:
    """Returns a row per figure, with its target."""
    rows = []
    for figure in figures:
        target = "" if figure.target is None else f"<= {figure.target:g}"
        verdict = "" if figure.target is None else "MISSED" if figure.is_missed else "ok"
        rows.append([figure.name, f"{figure.value:g} {figure.unit}", target, verdict])
    return columns(["FIGURE", "VALUE", "TARGET", ""], rows)


class PartResults(msgspec.Struct, frozen=True, omit_defaults=True):
    """The figures of a part, its duration and CPU time. `day` is set if it differs from the run's day."""

    figures: list[Figure] = []
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    day: str = ""


class Machine(msgspec.Struct, frozen=True):
    """The machine of a run. `load` is the load average before the run began."""

    cpu: str
    cpus: int
    memory_gib: float
    system: str
    python: str
    numpy: str
    load: float

    @classmethod
    def here(cls) -> Self:
        """Returns the description of this machine."""
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return cls(
            cpu=_cpu_model(),
            cpus=len(os.sched_getaffinity(0)),
            memory_gib=round(memory / (1 << 30), 1),
            system=f"{platform.system()} {platform.release().partition('-')[0]}",
            python=platform.python_version(),
            numpy=np.__version__,
            load=round(os.getloadavg()[0], 1),
        )

    def words(self) -> str:
        """Returns the description on a line."""
        return (
            f"{self.cpu}, {self.cpus} CPUs, {self.memory_gib:g} GiB, {self.system},"
            f" Python {self.python}, numpy {self.numpy}, load average {self.load:g} at the start"
        )


class Results(msgspec.Struct, frozen=True):
    """A run: all parts, or a selection."""

    machine: Machine
    day: str
    parts: dict[str, PartResults]


def read(path: Path) -> Results:
    """Returns the run in a file of `write`. Raises OSError and msgspec.ValidationError."""
    return msgspec.json.decode(path.read_bytes(), type=Results)


def write(path: Path, results: Results) -> None:
    """Writes the run as JSON, a line per figure, so that diff can compare two runs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = msgspec.json.format(msgspec.json.encode(results), indent=1).decode()
    # The fields of a figure on its line.
    path.write_text(re.sub(r"\{\s+(\"name\"[^}]*?)\s+\}", lambda found: "{" + " ".join(found[1].split()) + "}", whole))


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, text = line.partition(":")
        if key.strip() in ("model name", "Model"):
            return text.strip()
    return platform.machine()


Verdict = Literal["", "better", "WORSE"]

# Observed ratios between two runs of the same code on a shared machine: CPU time, and time on the wall.
_NOISE_OF_CPU: Final = 1.3
_NOISE_ON_WALL: Final = 1.8
_NOISE_OF_MEMORY: Final = 1.08
_NOISE_OF_REST: Final = 1.2
# The resolution of a measurement, by unit.
_LEAST: Final = {"ms": 0.05, "us": 5.0, "s": 0.1, "% of a core": 1.0, "%": 1.0}
_TIMES: Final = ("ms", "us", "s", "% of a core")
# Units in which more is better.
_RATES: Final = ("pods/s", "pods")


def verdict(before: Figure, now: Figure) -> Verdict:
    """Returns whether a figure has changed by more than noise."""
    least = _LEAST.get(now.unit, 0.0)
    old, new = max(before.value, least), max(now.value, least)
    if now.unit in _RATES:
        old, new = new, old
    noise = _noise(now)
    if new > old * noise:
        return "WORSE"
    return "better" if old > new * noise else ""


def comparison(before: Results, now: Results) -> str:
    """Returns a comparison of the changed figures, and the names of figures that are missing in either run."""
    pairs = list(_pairs(before, now))
    rows = [
        [part, new.name, f"{old.value:g}", f"{new.value:g} {new.unit}", _ratio(old, new), change]
        for part, old, new in pairs
        if (change := verdict(old, new))
    ]
    lines = [f"against the run of {before.day}: {len(pairs)} figures compared, {len(rows)} differ beyond noise"]
    if before.machine.cpu != now.machine.cpu or before.machine.python != now.machine.python:
        lines.append(f"NOT THE SAME MACHINE: {before.machine.cpu}, Python {before.machine.python}")
    if now.machine.load > now.machine.cpus / 2:
        lines.append(f"NOT A QUIET MACHINE: load average {now.machine.load:g}")
    lines += [f"only in one of the runs: {part}: {name}" for part, name in _unpaired(before, now)]
    return "\n".join([*lines, *([columns(["PART", "FIGURE", "BEFORE", "NOW", "RATIO", ""], rows)] if rows else [])])


def _ratio(old: Figure, new: Figure) -> str:
    return f"{new.value / old.value:.2f}" if old.value else ""


def _noise(figure: Figure) -> float:
    if figure.unit == "MiB":
        return _NOISE_OF_MEMORY
    if figure.unit not in _TIMES:
        return _NOISE_OF_REST
    return _NOISE_ON_WALL if figure.on_wall else _NOISE_OF_CPU


def _by_name(part: PartResults) -> dict[str, Figure]:
    return {figure.name: figure for figure in part.figures}


def _pairs(before: Results, now: Results) -> Iterator[tuple[str, Figure, Figure]]:
    for part in now.parts.keys() & before.parts.keys():
        old, new = _by_name(before.parts[part]), _by_name(now.parts[part])
        for name in new:
            if name in old:
                yield part, old[name], new[name]


def _unpaired(before: Results, now: Results) -> Iterator[tuple[str, str]]:
    for part in sorted(now.parts.keys() & before.parts.keys()):
        old, new = _by_name(before.parts[part]), _by_name(now.parts[part])
        for name in sorted(old.keys() ^ new.keys()):
            yield part, name
