"""`python -m bench [PART ...]`: measures all parts or the named parts, prints tables, and writes the results as JSON.

`--write-docs` records the run, and makes docs/benchmarks.md from it.
"""

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

from bench import against, density, engine, exporter, pages, results, scheduler, steering, tables
from bench.results import Machine, PartResults, Results

PARTS: Final[dict[str, Callable[[], Awaitable[PartResults]]]] = {
    "exporter": exporter.measure,
    "engine": engine.measure,
    "scheduler": scheduler.measure,
    "density": density.measure,
    "steering": steering.measure,
}
_REPOSITORY: Final = Path(__file__).resolve().parents[2]
_LATEST: Final = _REPOSITORY / ".bench/latest.json"


def main() -> int:
    """Returns 0, whether or not figures meet their targets. Exits with 2 for wrong arguments and unreadable files."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; default: all")
    parser.add_argument("--json", type=Path, default=_LATEST, metavar="FILE", help="where to write the results")
    parser.add_argument(
        "--from", type=Path, dest="source", metavar="FILE", help="an earlier run; only the named parts are measured"
    )
    parser.add_argument(
        "--against",
        type=Path,
        nargs="?",
        const=_REPOSITORY / pages.RECORDED,
        metavar="FILE",
        help="print differences from that run beyond noise; without FILE from the recorded run",
    )
    parser.add_argument("--write-docs", action="store_true", help="record the run, and write docs/benchmarks.md")
    options = parser.parse_args()
    if unknown := [part for part in options.parts if part not in PARTS]:
        parser.error(f"unknown part {unknown[0]!r}, expected {', '.join(PARTS)}")
    if options.write_docs and options.source is None and set(options.parts) not in (set(), set(PARTS)):
        parser.error("--write-docs needs a run of all parts; name none, or add --from FILE")
    earlier = None
    if options.source is not None:
        try:
            earlier = results.read(options.source)
        except (OSError, msgspec.DecodeError) as exc:
            parser.error(f"{options.source}: {exc}")
    run = _run(options.parts, earlier)
    if run is not earlier:
        results.write(options.json, run)
    print(tables.whole(run))
    if options.against is not None:
        try:
            print(f"\n{against.table(results.read(options.against), run)}")
        except (OSError, msgspec.DecodeError) as exc:
            parser.error(f"{options.against}: {exc}")
    if options.write_docs:
        try:
            written = pages.write(_REPOSITORY, run)
        except KeyError as exc:
            parser.error(f"--write-docs needs a run with BENCH_NODES and BENCH_CALLS unset; this run has no {exc}")
        for path in written:
            print(f"wrote {path.relative_to(_REPOSITORY)}", file=sys.stderr)
    return 0


def _run(parts: list[str], earlier: Results | None) -> Results:
    """Returns the earlier run with the parts measured again; without it, a run of the parts, or of all."""
    if earlier is None:
        return asyncio.run(_measure(parts or list(PARTS)))
    if not parts:
        return earlier
    return results.renewed(earlier, asyncio.run(_measure(parts)))


async def _measure(parts: list[str]) -> Results:
    machine = Machine.here()
    measured = {}
    for number, part in enumerate(parts, 1):
        print(f"part {number} of {len(parts)}: {part}", file=sys.stderr, flush=True)
        since, cpu = time.perf_counter(), _cpu_seconds()
        result = await PARTS[part]()
        seconds, cpu_seconds = time.perf_counter() - since, _cpu_seconds() - cpu
        measured[part] = msgspec.structs.replace(result, seconds=round(seconds, 1), cpu_seconds=round(cpu_seconds, 1))
        print(f"  took {seconds:.0f} s, {cpu_seconds:.0f} s of CPU", file=sys.stderr, flush=True)
    return Results(machine, datetime.datetime.now(datetime.UTC).date().isoformat(), measured)


def _cpu_seconds() -> float:
    """Returns the CPU time of this process and of its ended children."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


if __name__ == "__main__":
    sys.exit(main())
