"""The engine alone: the CPU time of a decision about 5,000 nodes, compared with a loop over the kubelet model.

CPU time of the thread counts, as the engine waits for nothing, and so a busy machine does not show.
"""

from __future__ import annotations

import statistics
from functools import partial
from typing import Final

from bench.figures import Figure, thread_ms
from bench.scheduler import metal
from sandbox.judging import candidates, judge, rate
from topowise import pods
from topowise_scheduler.configuration import Scoring
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.report.shape import PodRequests
from topowise_scheduler.verdicts import strategies
from topowise_scheduler.verdicts.engine import Engine

NODES: Final = 5000
_ROUNDS: Final = 25
# CPUs, memory, a GPU and a virtual function.
_SHAPE: Final = 13


async def measure() -> list[Figure]:
    """Returns the figures of a new shape of pod, of a known shape, of scores, and of the loop."""
    kubelets = [server.kubelet for server in metal.servers("single-numa-node")]
    engine = Engine()
    for number in range(NODES):
        engine.put(f"node-{number}", kubelets[number % len(kubelets)])
    cold = thread_ms([partial(judge, engine, _requests(extra)) for extra in range(1, _ROUNDS + 1)])
    warm = _requests(0)
    judge(engine, warm)
    changed = [_after_changes(engine, kubelets, warm, round_) for round_ in range(_ROUNDS)]
    scored = thread_ms([partial(_score, engine, warm)] * _ROUNDS)
    one_ms = statistics.mean(thread_ms([partial(_decide, kubelet, warm.needs) for kubelet in kubelets]))
    times = {"a new shape of pod": cold, "a known shape, 10 nodes changed": changed, "TightFit": scored}
    return [
        *(
            Figure(f"{NODES:,} nodes: {title}", round(statistics.median(taken), 2), "ms")
            for title, taken in times.items()
        ),
        Figure(f"{NODES:,} nodes: a loop over the kubelet model", round(one_ms * NODES), "ms"),
    ]


def _requests(extra: int) -> PodRequests:
    """Returns a pod's requests; `extra` bytes of memory make it a shape of its own."""
    return PodRequests(pods.needs(pods.decode(metal.extender_pod(_SHAPE, "new", extra))))


def _after_changes(engine: Engine, kubelets: list[Kubelet], warm: PodRequests, round_: int) -> float:
    """Returns the milliseconds of a decision after changes of ten nodes."""
    for number in range(10):
        at = (round_ * 97 + number * 331) % NODES
        engine.put(f"node-{at}", kubelets[(at + round_ + 1) % len(kubelets)])
    return thread_ms([partial(judge, engine, warm)])[0]


def _score(engine: Engine, pod: PodRequests) -> None:
    scoring = Scoring()
    strategy = strategies.make("TightFit", {resource.name: resource.weight for resource in scoring.resources}, scoring)
    rate(strategy, candidates(engine, pod)).levels(10)


def _decide(kubelet: Kubelet, needs: pods.Needs) -> None:
    trial = kubelet.fork()
    trial.admit_view(trial.view("new", needs))
