"""The schedulers that are compared: topowise with each of its strategies, and kube-scheduler without topowise.

kube-scheduler takes any node of the best score (selectHost, pkg/scheduler). Scores of topowise are those of the
extender API, 0 to 10.
"""

from __future__ import annotations

from random import Random
from typing import Final

from topowise_scheduler.overlay import plan
from topowise_scheduler.verdicts import strategies

BESIDE: Final = "TightFit, beside kube-scheduler's scores"
BLIND: Final = ("NUMA-blind LeastAllocated", "NUMA-blind MostAllocated")
NAMES: Final = (*strategies.NAMES, BESIDE, *BLIND)


def make(name: str, ties: Random) -> plan.Scheduler:
    """Returns the scheduler with one of NAMES, which the figures carry too."""
    if name in BLIND:
        return plan.Scheduler(plan.KUBE_SCHEDULER, "least" if name == BLIND[0] else "most", ties=ties)
    strategy = "TightFit" if name == BESIDE else name
    return plan.Scheduler(strategy, is_beside=name == BESIDE, is_coarse=True, ties=ties)
