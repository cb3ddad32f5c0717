"""`python -m bench [PART ...]`: measures all parts, or those named, and prints tables.

Everything found goes to a file as JSON. `--write-docs` records a whole run as the one that docs/benchmarks.md tells of.
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

from bench import against, density, engine, exporter, p5, pages, results, scheduler, tables
from bench.results import Found, Machine, Results

PARTS: Final[dict[str, Callable[[], Awaitable[Found]]]] = {
    "exporter": exporter.measure,
    "engine": engine.measure,
    "scheduler": scheduler.measure,
    "density": density.measure,
    "p5": p5.measure,
}
_REPOSITORY: Final = Path(__file__).resolve().parents[2]
_LATEST: Final = _REPOSITORY / ".bench/latest.json"


def main() -> int:
    """0 whatever was found: figures are for reading, tests are for failing. 2 for a file that cannot be read."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--json", type=Path, default=_LATEST, metavar="FILE", help="where to write what was found")
    parser.add_argument(
        "--from", type=Path, dest="source", metavar="FILE", help="an earlier run; only the parts named are measured"
    )
    parser.add_argument(
        "--against",
        type=Path,
        nargs="?",
        const=_REPOSITORY / pages.RECORDED,
        metavar="FILE",
        help="print what differs from that run beyond noise; without FILE from the recorded one",
    )
    parser.add_argument("--write-docs", action="store_true", help="record the run and write its page")
    options = parser.parse_args()
    if unknown := [part for part in options.parts if part not in PARTS]:
        parser.error(f"unknown part {unknown[0]!r}, expected one of {', '.join(PARTS)}")
    if options.write_docs and options.source is None and set(options.parts) not in (set(), set(PARTS)):
        parser.error("the page needs a whole run, not only some parts")
    earlier = None
    if options.source is not None:
        try:
            earlier = results.read(options.source)
        except (OSError, msgspec.DecodeError) as exc:
            parser.error(f"{options.source}: {exc}")
    found = _found(options.parts, earlier)
    if found is not earlier:
        results.write(options.json, found)
    print(tables.whole(found))
    if options.against is not None:
        try:
            print(f"\n{against.table(results.read(options.against), found)}")
        except (OSError, msgspec.DecodeError) as exc:
            parser.error(f"{options.against}: {exc}")
    if options.write_docs:
        try:
            written = pages.write(_REPOSITORY, found)
        except KeyError as exc:
            parser.error(f"the page needs a whole run at its full extent; this one has no {exc}")
        for path in written:
            print(f"wrote {path.relative_to(_REPOSITORY)}", file=sys.stderr)
    return 0


def _found(parts: list[str], earlier: Results | None) -> Results:
    """An earlier run with these parts measured again, or a run of them, or of all."""
    if earlier is None:
        return asyncio.run(_measure(parts or list(PARTS)))
    if not parts:
        return earlier
    return results.renewed(earlier, asyncio.run(_measure(parts)))


async def _measure(parts: list[str]) -> Results:
    machine = Machine.here()
    found = {}
    for number, part in enumerate(parts, 1):
        print(f"part {number} of {len(parts)}: the {part}", file=sys.stderr, flush=True)
        since, cpu = time.perf_counter(), _cpu_seconds()
        one = await PARTS[part]()
        seconds, cpu_seconds = time.perf_counter() - since, _cpu_seconds() - cpu
        found[part] = msgspec.structs.replace(one, seconds=round(seconds, 1), cpu_seconds=round(cpu_seconds, 1))
        print(f"  took {seconds:.0f} s, {cpu_seconds:.0f} s of CPU", file=sys.stderr, flush=True)
    return Results(machine, datetime.datetime.now(datetime.UTC).date().isoformat(), found)


def _cpu_seconds() -> float:
    """Of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


if __name__ == "__main__":
    sys.exit(main())
