"""What a run found, as it is kept in a file: the machine, and what each part measured on it."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Self

import msgspec
import numpy as np

from bench.figures import Figure


class Filled(msgspec.Struct, frozen=True):
    """What became of the pods that one scheduler put on one cluster.

    `first` run when one is refused, or fits nowhere, for the first time; `running` when none gets in any more.
    `refused` by kubelets until then: a node that has refused a shape is not sent it again before another pod got in,
    though kube-scheduler would at once. `cpus` and `devices` are the shares in use at the end; `zones` is the mean
    number of NUMA nodes of a pod.
    """

    first: int
    running: int
    refused: int
    cpus: float
    devices: float
    zones: float


class Steady(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one scheduler made of pods that came and went.

    Shares of all pods and of the large ones that were placed `at_once`, and how long they waited on average, in mean
    running times of a pod. `refused` by kubelets, each of which waits for another pod's end. `cpus` and `devices` are
    the shares in use, averaged over time. `moved` is how many pods were moved for large ones, of all that were placed.
    """

    at_once: float
    large_at_once: float
    wait: float
    large_wait: float
    refused: int
    cpus: float
    devices: float
    moved: float = 0.0


class Offered(msgspec.Struct, frozen=True):
    """What ran of the same pods offered to each scheduler, and the shares in use then."""

    placed: int
    cpus: float
    devices: float


class Churned(msgspec.Struct, frozen=True):
    """What one scheduler made of the scenario p5.

    `joined` machines in all; pods that kubelets `refused`, and the most of a single job. GPUs in use as a share of the
    bound, which is what jobs ask for and machines have, whichever is less, and of all that machines have. Waits in
    minutes, of all jobs and of those of 8 GPUs, of which so many ran `at_once`, within a minute.
    """

    jobs: int
    joined: int
    refused: int
    most_refused: int
    of_bound: float
    in_use: float
    wait: float
    large_wait: float
    large_wait_p95: float
    large_at_once: float


class ChurnRow(msgspec.Struct, frozen=True):
    """One scheduler: what came of each seed."""

    scheduler: str
    machines: int
    hours: float
    found: tuple[Churned, ...]


class Row(msgspec.Struct, frozen=True):
    """One scheduler on one kind of cluster: what came of each seed, with the upper bound of `first` beside.

    `left_out` is the share of the mix's pods that not even an empty node takes; they are not in the stream.
    """

    mix: str
    policy: str
    scope: str
    zones: int
    scheduler: str
    left_out: float
    found: tuple[Filled, ...]
    bounds: tuple[int, ...]


class SteadyRow(msgspec.Struct, frozen=True):
    """One scheduler on one kind of cluster that is kept busy: what came of each seed."""

    mix: str
    policy: str
    scope: str
    zones: int
    scheduler: str
    found: tuple[Steady, ...]


class OfferedRow(msgspec.Struct, frozen=True):
    """One scheduler on one kind of cluster and the longest streams of which anybody could place all: what came of each
    seed."""

    mix: str
    policy: str
    scope: str
    zones: int
    scheduler: str
    found: tuple[Offered, ...]
    bounds: tuple[int, ...]


class Point(msgspec.Struct, frozen=True):
    """What a decision about all nodes of a cluster costs the engine: medians in milliseconds of CPU.

    `cold_ms`: a shape never asked before; `changed_ms`: a known one after 10 nodes have changed; `scored_ms`: TightFit
    on those that fit. `loop_ms` is what one node costs the model times the number of nodes, measured on a few.
    """

    zones: int
    nodes: int
    cold_ms: float
    changed_ms: float
    scored_ms: float
    loop_ms: float


class Found(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of one part; `seconds` is how long it took, `cpu_seconds` what its processes had the CPUs do. `day` is when,
    if not with the rest of the run."""

    figures: list[Figure] = []
    growth: list[Point] = []
    density: list[Row] = []
    offered: list[OfferedRow] = []
    steady: list[SteadyRow] = []
    churn: list[ChurnRow] = []
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    day: str = ""


class Machine(msgspec.Struct, frozen=True):
    """What it ran on. `load` is the load average when the run began: what others had it do."""

    cpu: str
    cpus: int
    memory_gib: float
    system: str
    python: str
    numpy: str
    load: float

    @classmethod
    def here(cls) -> Self:
        """This one."""
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
    """A whole run, or some parts of one."""

    machine: Machine
    day: str
    parts: dict[str, Found]


def read(path: Path) -> Results:
    """A file that `write` wrote. Raises OSError and ValidationError."""
    return msgspec.json.decode(path.read_bytes(), type=Results)


def renewed(earlier: Results, again: Results) -> Results:
    """The earlier run with the parts that were measured again."""
    late = {name: msgspec.structs.replace(one, day=again.day) for name, one in again.parts.items()}
    return msgspec.structs.replace(earlier, parts={**earlier.parts, **late})


def rows(path: Path) -> list[Row]:
    """Of density, by themselves."""
    return msgspec.json.decode(path.read_bytes(), type=list[Row])


def write(path: Path, results: Results) -> None:
    """As JSON, for scripts and for `read`: a line a figure, so that two runs can be compared."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(as_json(results))


def as_json(results: Results) -> bytes:
    """What `write` writes."""
    parts = []
    for name, found in results.parts.items():
        lists = [
            f'   "{key}": [\n    ' + ",\n    ".join(map(_encoded, listed)) + "\n   ]"
            for key in ("figures", "growth", "density", "offered", "steady", "churn")
            if (listed := getattr(found, key))
        ]
        took = f'   "seconds": {found.seconds:g},\n   "cpu_seconds": {found.cpu_seconds:g}'
        took += f',\n   "day": {_encoded(found.day)}' if found.day else ""
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
