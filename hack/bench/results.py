"""The results of a run, as they are kept in a JSON file: the machine, and the figures of each part."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import Self

import msgspec
import numpy as np

from bench.figures import Figure


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
