"""`python -m bench [PART ...] [--json]`: all parts, or those named."""

from __future__ import annotations

import argparse
import asyncio
import sys

from bench import engine, exporter, figures, scheduler

PARTS = {"exporter": exporter.measure, "engine": engine.measure, "scheduler": scheduler.measure}


def main() -> int:
    """Always 0: figures are for reading, tests are for failing."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help=f"of {', '.join(PARTS)}")
    parser.add_argument("--json", action="store_true", help="figures as JSON")
    options = parser.parse_args()
    found = []
    for part in options.parts or PARTS:
        print(f"measuring the {part}, one to three minutes", file=sys.stderr)
        found += asyncio.run(PARTS[part]())
    print(figures.as_json(found) if options.json else figures.table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
