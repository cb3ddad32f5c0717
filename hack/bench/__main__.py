"""`python -m bench [PART ...]`: measures all parts or the named parts, prints tables, writes JSON."""

from __future__ import annotations

import argparse
import asyncio
import datetime
import os
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import msgspec

from bench import density, engine, exporter, figures, scheduler
from bench.figures import Figure, Machine, PartResults, Results

PARTS: Final[dict[str, Callable[[], Awaitable[list[Figure]]]]] = {
    "exporter": exporter.measure,
    "engine": engine.measure,
    "scheduler": scheduler.measure,
    "density": density.measure,
}
_REPOSITORY: Final = Path(__file__).resolve().parents[2]
_LATEST: Final = _REPOSITORY / ".bench/latest.json"
_RECORDED: Final = _REPOSITORY / "hack/bench/recorded.json"


def main() -> int:
    """Returns 0, whether or not figures meet their targets. Exits with 2 for wrong arguments and unreadable files."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; default: all")
    parser.add_argument("--json", type=Path, default=_LATEST, metavar="FILE", help="where to write the results")
    parser.add_argument(
        "--against",
        type=Path,
        nargs="?",
        const=_RECORDED,
        metavar="FILE",
        help="print differences from that run beyond noise; without FILE from the recorded run",
    )
    options = parser.parse_args()
    if unknown := [part for part in options.parts if part not in PARTS]:
        parser.error(f"unknown part {unknown[0]!r}, expected {', '.join(PARTS)}")
    try:
        earlier = None if options.against is None else figures.read(options.against)
    except (OSError, msgspec.DecodeError) as exc:
        parser.error(f"{options.against}: {exc}")
    run = asyncio.run(_measure(options.parts or list(PARTS)))
    figures.write(options.json, run)
    print(run.machine.words())
    for name, part in run.parts.items():
        print(f"\n{name} ({part.seconds:.0f} s, {part.cpu_seconds:.0f} s of CPU)\n\n{figures.table(part.figures)}")
    if earlier is not None:
        print(f"\n{figures.comparison(earlier, run)}")
    return 0


async def _measure(parts: list[str]) -> Results:
    machine = Machine.here()
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    measured = {}
    for number, part in enumerate(parts, 1):
        print(f"part {number} of {len(parts)}: {part}", file=sys.stderr, flush=True)
        since, cpu = time.perf_counter(), _cpu_seconds()
        listed = await PARTS[part]()
        seconds, cpu_seconds = time.perf_counter() - since, _cpu_seconds() - cpu
        measured[part] = PartResults(listed, round(seconds, 1), round(cpu_seconds, 1))
        print(f"  took {seconds:.0f} s, {cpu_seconds:.0f} s of CPU", file=sys.stderr, flush=True)
    return Results(machine, day, measured)


def _cpu_seconds() -> float:
    """Returns the CPU time of this process and of its ended children."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


if __name__ == "__main__":
    sys.exit(main())
