"""The cost of a decision by number of nodes, and by number of NUMA nodes per machine."""

from __future__ import annotations

import itertools
import statistics
from functools import partial
from random import Random
from typing import Final

from bench.engine.servers import KINDS, loaded
from bench.engine.workloads import five
from bench.results import Point
from bench.usage import thread_ms
from sandbox.judging import candidates, judge, rate
from topowise import pods
from topowise_scheduler.configuration import Scoring
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.report.shape import PodRequests
from topowise_scheduler.verdicts import strategies
from topowise_scheduler.verdicts.engine import Engine

NODES: Final = (100, 300, 1000, 3000, 5000, 10000, 20000)
ZONES: Final = (1, 2, 4, 8)
_DISTINCT: Final = 100
_ROUNDS: Final = 15
_POLICY: Final = "single-numa-node"


def measure() -> list[Point]:
    """Returns the points by zones, then nodes."""
    return [point for zones in ZONES for point in _grown(zones)]


def _grown(zones: int) -> list[Point]:
    rng = Random(zones)
    kubelets = [loaded(rng, _POLICY, KINDS[number % len(KINDS)], zones) for number in range(_DISTINCT)]
    engine = Engine()
    shapes = map(PodRequests, map(five, itertools.count(1)))
    warm = PodRequests(five(0))
    one_ms = _model_ms(kubelets, warm.needs)
    points = []
    for nodes in NODES:
        for number in range(len(engine), nodes):
            engine.put(f"node-{number}", kubelets[number % _DISTINCT])
        cold = thread_ms([partial(judge, engine, shape) for shape in itertools.islice(shapes, _ROUNDS)])
        judge(engine, warm)
        changed = [after_changes(engine, kubelets, warm, round_) for round_ in range(_ROUNDS)]
        scored = thread_ms([partial(_score, engine, warm)] * _ROUNDS)
        cold_ms, changed_ms, scored_ms = (round(statistics.median(times), 4) for times in (cold, changed, scored))
        points.append(Point(zones, nodes, cold_ms, changed_ms, scored_ms, round(one_ms * nodes, 2)))
    return points


def after_changes(engine: Engine, kubelets: list[Kubelet], warm: PodRequests, round_: int) -> float:
    """Returns the milliseconds of a decision after changes of ten nodes."""
    for number in range(10):
        at = (round_ * 97 + number * 331) % len(engine)
        engine.put(f"node-{at}", kubelets[(at + round_ + 1) % len(kubelets)])
    return thread_ms([partial(judge, engine, warm)])[0]


def _score(engine: Engine, pod: PodRequests) -> None:
    scoring = Scoring()
    strategy = strategies.make("TightFit", {resource.name: resource.weight for resource in scoring.resources}, scoring)
    rate(strategy, candidates(engine, pod)).levels(10)


def _model_ms(kubelets: list[Kubelet], needs: pods.Needs) -> float:
    def decide(kubelet: Kubelet) -> None:
        trial = kubelet.fork()
        trial.admit_view(trial.view("new", needs))

    return statistics.mean(thread_ms([partial(decide, kubelet) for kubelet in kubelets]))
