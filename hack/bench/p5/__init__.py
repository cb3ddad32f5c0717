"""The scenario p5: a day of a fleet of 8-GPU machines in simulated time, with owners that make refused pods again.

The service's own ledger, answers and reports are at work, and the kubelets are the model of one node; only time, the
API server and kube-scheduler's queue are simulated.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Final

from bench.p5 import choosing, scenario
from bench.results import Churned, ChurnRow, Found

MACHINES: Final = 40
HOURS: Final = 24.0
SEEDS: Final = min(3, int(os.environ.get("BENCH_SEEDS", "3")))

__all__ = ["HOURS", "MACHINES", "measure"]


async def measure() -> Found:
    """A row for each who chooses."""
    tasks = [(name, seed) for name in choosing.NAMES for seed in range(SEEDS)]
    found = Found()
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), get_context("spawn")) as pool:
        of_seeds = zip(*[iter(pool.map(_run, tasks))] * SEEDS, strict=True)
        for name, results in zip(choosing.NAMES, of_seeds, strict=True):
            print(f"  p5: {name}", file=sys.stderr, flush=True)
            found.churn.append(ChurnRow(name, MACHINES, HOURS, tuple(results)))
    return found


def _run(task: tuple[str, int]) -> Churned:
    name, seed = task
    return scenario.run(name, MACHINES, HOURS, seed)
