"""Steering inside a node: large pods that still fit after a mix of small pods, and pods whose placement is certain.

The planner decides: the service's gates, and the model of the kubelet. `alone`: no pod is steered. `steered`: each pod
goes to the NUMA node that the service chooses. Placements do not depend on the machine's load.
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
from topowise.steering import RESOURCE
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.trial import View, place_all
from topowise_scheduler.overlay import plan
from topowise_scheduler.verdicts.kube_scheduler import Metadata, Pod

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
    node_type = machines.node_type(_HARDWARE, zones, "single-numa-node", "container")
    inventory = plan.Inventory((plan.PlannedNode("node", node_type),))
    fleet = plan.fleet_of(inventory, plan.Scheduler(), plan.Change(steering=is_steered))
    kinds = {cpus: fleet.kind(_pod(f"small-{cpus}", cpus)) for cpus in _SIZES}
    running: dict[str, int] = {}
    sent = admitted = 0
    total = 2 * _HARDWARE.cores
    for number in range(_ARRIVALS):
        # The same draws in both cases, whatever is admitted.
        cpus, ends = random.choice(_SIZES), random.random()
        while running and sum(running.values()) + cpus > share * total:
            name = sorted(running)[int(ends * len(running))]
            fleet.end(name)
            del running[name]
        uid, node = f"small-{number}", fleet.find(kinds[cpus])
        if node is not None:
            numa = fleet.bind(kinds[cpus], uid, ("bench", uid), node)
            running[uid] = cpus
            admitted += 1
            sent += numa is not None
    kubelet = fleet.ledger.kubelet("node")
    assert kubelet is not None
    return kubelet, sent / admitted


def _large_pods(node: Kubelet, zones: int) -> int:
    """Returns how many pods of 3/4 of a NUMA node are admitted, one after another."""
    pod, count = _pod("large", 2 * _HARDWARE.cores // zones * 3 // 4), 0
    while place_all(node, [_view(pod, number) for number in range(count + 1)]) is not None:
        count += 1
    return count


def _view(pod: Pod, number: int) -> View:
    view = msgspec.structs.replace(pod, metadata=Metadata(uid=f"large-{number}"))
    return lambda node: node.view_of(view)


def _pod(name: str, cpus: int) -> Pod:
    return plan.pod_of(name, {"cpu": str(cpus), "memory": "1Gi", RESOURCE: "1"}, namespace="bench")
