"""The results of a run, as they are kept in a JSON file: the machine, and the figures of each part."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Self

import msgspec
import numpy as np

from bench.figures import Figure


class Filled(msgspec.Struct, frozen=True):
    """A cluster that a scheduler has filled.

    `first`: pods that ran at the first refusal, or at the first pod that fit nowhere. `running`: pods at the end.
    `refused`: refusals by kubelets. A node that has refused a shape is not sent the shape again before the next
    admission, although kube-scheduler would do so. `cpus` and `devices`: shares in use at the end. `zones`: the mean
    number of NUMA nodes of a pod.
    """

    first: int
    running: int
    refused: int
    cpus: float
    devices: float
    zones: float


class DensityRow(msgspec.Struct, frozen=True):
    """A scheduler on a kind of cluster, per seed: the filled cluster, and the upper bound of `first`.

    `left_out` is the share of the mix's pods that do not fit an empty node; the stream has none of them.
    """

    mix: str
    policy: str
    scope: str
    zones: int
    scheduler: str
    left_out: float
    filled: tuple[Filled, ...]
    bounds: tuple[int, ...]


class Point(msgspec.Struct, frozen=True):
    """The CPU time of a decision about all nodes of a cluster: medians in milliseconds.

    `cold_ms`: a new shape of pod; `changed_ms`: a known shape after 10 nodes have changed; `scored_ms`: TightFit on the
    nodes that fit. `loop_ms`: the kubelet model on a node, times the number of nodes.
    """

    zones: int
    nodes: int
    cold_ms: float
    changed_ms: float
    scored_ms: float
    loop_ms: float


class PartResults(msgspec.Struct, frozen=True, omit_defaults=True):
    """The results of a part, its duration and CPU time. `day` is set if it differs from the run's day."""

    figures: list[Figure] = []
    growth: list[Point] = []
    density: list[DensityRow] = []
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


class Results(msgspec.Struct, frozen=True):
    """A run: all parts, or a selection."""

    machine: Machine
    day: str
    parts: dict[str, PartResults]


def read(path: Path) -> Results:
    """Returns the run in a file of `write`. Raises OSError and msgspec.ValidationError."""
    return msgspec.json.decode(path.read_bytes(), type=Results)


def renewed(earlier: Results, again: Results) -> Results:
    """Returns the earlier run, with the parts of `again` in place of its own."""
    newer = {name: msgspec.structs.replace(part, day=again.day) for name, part in again.parts.items()}
    return msgspec.structs.replace(earlier, parts={**earlier.parts, **newer})


def write(path: Path, results: Results) -> None:
    """Writes the run as JSON, a line per figure, so that diff can compare two runs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(as_json(results))


def as_json(results: Results) -> bytes:
    """Returns the JSON document of a run."""
    parts = []
    for name, part in results.parts.items():
        lists = [
            f'   "{key}": [\n    ' + ",\n    ".join(map(_encoded, rows)) + "\n   ]"
            for key in ("figures", "growth", "density")
            if (rows := getattr(part, key))
        ]
        took = f'   "seconds": {part.seconds:g},\n   "cpu_seconds": {part.cpu_seconds:g}'
        took += f',\n   "day": {_encoded(part.day)}' if part.day else ""
        parts.append(f'  "{name}": {{\n' + ",\n".join([*lists, took]) + "\n  }")
    head = f' "machine": {_encoded(results.machine)},\n "day": {_encoded(results.day)},\n'
    return ("{\n" + head + ' "parts": {\n' + ",\n".join(parts) + "\n }\n}\n").encode()


def _encoded(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, text = line.partition(":")
        if key.strip() in ("model name", "Model"):
            return text.strip()
    return platform.machine()
