"""Steering inside a node: large pods that still fit after a mix of small pods, and pods whose placement is certain.

The kubelet model decides about admission. `alone`: no pod has a marker. `steered`: each pod goes to the NUMA node that
the service chooses. Placements do not depend on the machine's load.
"""

from __future__ import annotations

import statistics
from itertools import product
from random import Random
from typing import Final

import msgspec

from bench.density import machines
from bench.density.mix import Hardware
from bench.figures import Figure
from bench.results import PartResults
from topowise import pods
from topowise.steering import RESOURCE
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.pod import PodView
from topowise_scheduler.steering.choice import choose

_HARDWARE: Final = Hardware(cores=64, memory="512Gi", devices={}, pages=0)
_ZONES: Final = (2, 8)
_SEEDS: Final = range(20)
_SIZES: Final = (2, 4, 6, 8)
_ARRIVALS: Final = 120
# Shares of the CPUs that small pods have.
_FILLED: Final = (0.5, 0.8)
_NAME: Final = "{} NUMA nodes, {:.0%} in use"


async def measure() -> PartResults:
    """Returns the figures for each number of NUMA nodes and each share in use."""
    figures: list[Figure] = []
    for zones, share in product(_ZONES, _FILLED):
        name = _NAME.format(zones, share)
        alone = [_filled(zones, share, seed, is_steered=False) for seed in _SEEDS]
        chosen = [_filled(zones, share, seed, is_steered=True) for seed in _SEEDS]
        for title, fillings in (("kubelet alone", alone), ("steered", chosen)):
            large = statistics.mean([_large_pods(node, zones) for node, _ in fillings])
            figures.append(Figure(f"{name}: large pods, {title}", round(large, 2), "pods"))
        requests = statistics.mean([sent for _, sent in chosen])
        figures.append(Figure(f"{name}: pods with a request", round(100 * requests, 1), "%"))
    return PartResults(figures=figures)


def names() -> list[str]:
    """Returns the beginnings of the names of figures."""
    return [_NAME.format(zones, share) for zones, share in product(_ZONES, _FILLED)]


def _filled(zones: int, share: float, seed: int, *, is_steered: bool) -> tuple[Kubelet, float]:
    """Returns a node after pods have come and ended, and the share of the pods that were steered by a request."""
    random = Random(seed)
    node = machines.kubelet(_HARDWARE, zones, "single-numa-node", "container")
    running: dict[str, int] = {}
    sent = admitted = 0
    total = sum(cpus.bit_count() for cpus in node.topology.numa_cpus)
    for number in range(_ARRIVALS):
        # The same draws in both cases, whatever is admitted.
        cpus, ends = random.choice(_SIZES), random.random()
        while running and sum(running.values()) + cpus > share * total:
            name = sorted(running)[int(ends * len(running))]
            node.remove(name)
            del running[name]
        view = _view(node, f"small-{number}", cpus)
        numa = _chosen(node, view) if is_steered else None
        if node.admit_view(_near(view, numa)).admitted:
            running[view.uid] = cpus
            admitted += 1
            sent += numa is not None
    return node, sent / admitted


def _chosen(node: Kubelet, view: PodView) -> int | None:
    return choose([node], lambda numa: lambda _: _near(view, numa)).numa


def _near(view: PodView, numa: int | None) -> PodView:
    """Returns the view of a pod whose markers are near a NUMA node, or near none."""
    return msgspec.structs.replace(view, steered=numa)


def _large_pods(node: Kubelet, zones: int) -> int:
    """Returns how many pods of 3/4 of a NUMA node are admitted, one after another."""
    cpus = 2 * _HARDWARE.cores // zones * 3 // 4
    trial, count = node.fork(), 0
    while trial.admit_view(_view(trial, f"large-{count}", cpus)).admitted:
        count += 1
    return count


def _view(node: Kubelet, name: str, cpus: int) -> PodView:
    sizes = {"cpu": str(cpus), "memory": "1Gi", RESOURCE: "1"}
    container = {"name": "c", "resources": {"requests": sizes, "limits": sizes}}
    document = {"metadata": {"name": name, "namespace": "bench", "uid": name}, "spec": {"containers": [container]}}
    return node.view_of(pods.decode(msgspec.json.encode(document)))
