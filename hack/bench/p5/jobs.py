"""The jobs of a fleet for machine learning: 1, 2, 4 or 8 GPUs, with the share of the machine that belongs to them.

Under the policy single-numa-node no pod gets more than a NUMA node, here half a machine. So a job of 8 GPUs is two
pods of 4, and has waited until both run. Half of the jobs are made by ReplicaSets, which make a new pod for one that
was refused as soon as they see it, the others by Jobs, which wait 10 s, then 20, up to six minutes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from random import Random
from typing import Final, Literal

import msgspec

from bench.density.mix import Hardware
from topowise import pods

GPU: Final = "nvidia.com/gpu"
_NIC: Final = "vpc.amazonaws.com/efa"
# A p5.48xlarge.
MACHINE: Final = Hardware(cores=96, memory="2Ti", devices={GPU: 8, _NIC: 32}, pages=0)
ZONES: Final = 2
GPUS: Final = MACHINE.devices[GPU]
_POD_GPUS: Final = (1, 2, 4)
# GPUs of a job, and how often it comes.
_JOBS: Final = {1: 45, 2: 25, 4: 20, 8: 10}
_MEAN_S: Final = 3600.0
_SHORTEST_S: Final = 60.0
HOUR_S: Final = 3600.0
# Of all GPUs, on average and at the height of the day.
_LOAD: Final = 0.85
_SWING: Final = 0.15
# A ReplicaSet's pod is refused, seen, made anew and scheduled: four in 90 s, as pytorch/ci-infra#696 tells.
_REPLICA_SET_S: Final = 22.0
_JOB_S: Final = 10.0
_LONGEST_JOB_S: Final = 360.0


class Job(msgspec.Struct):
    """`at` and `runs_for` in seconds. `waits` counts its pods that have never run."""

    number: int
    gpus: int
    at: float
    runs_for: float
    owner: Literal["ReplicaSet", "Job"]
    waits: int = 0
    refused: int = 0
    waited: float = math.inf

    @property
    def pods(self) -> list[int]:
        """The GPUs of each."""
        largest = max(_POD_GPUS)
        return [min(self.gpus, largest)] * -(-self.gpus // largest)

    def pause(self) -> float:
        """For how long its owner waits after a refusal, in seconds."""
        if self.owner == "ReplicaSet":
            return _REPLICA_SET_S
        # Beyond some the power is not needed, nor can it be had.
        return min(_LONGEST_JOB_S, _JOB_S * 2.0 ** min(self.refused - 1, 10))


def stream(machines: int, hours: float, seed: int) -> Iterator[Job]:
    """The same for all schedulers: random times, more by day than by night."""
    rng = Random(f"jobs {seed}")
    gpus, counts = list(_JOBS), list(_JOBS.values())
    mean = sum(size * often for size, often in _JOBS.items()) / sum(counts)
    per_second = machines * GPUS / mean / _MEAN_S
    at, number = 0.0, 0
    while True:
        # Thinning: as many as at the day's height, and then those left out that do not come now.
        at += rng.expovariate(per_second * (_LOAD + _SWING))
        if at >= hours * HOUR_S:
            return
        load = _LOAD + _SWING * math.sin(2 * math.pi * at / (24 * HOUR_S))
        if rng.random() * (_LOAD + _SWING) > load:
            continue
        number += 1
        runs_for = max(_SHORTEST_S, rng.expovariate(1 / _MEAN_S))
        yield Job(number, rng.choices(gpus, counts)[0], at, runs_for, rng.choice(("ReplicaSet", "Job")))


def pod(gpus: int, uid: str = "", node: str = "") -> pods.Pod:
    """With so many GPUs, on a node or on its way to one; it is named by its uid."""
    amounts: pods.Quantities = {
        "cpu": str(22 * gpus),
        "memory": f"{220 * gpus}Gi",
        GPU: str(gpus),
        _NIC: str(4 * gpus),
    }
    container = pods.Container("c", pods.Resources(requests=amounts, limits=amounts))
    metadata = pods.Metadata(name=uid, namespace="default", uid=uid)
    return pods.Pod(metadata, pods.Spec(containers=(container,), nodeName=node))


def needs(gpus: int) -> pods.Needs:
    """Of a pod with so many."""
    return pods.needs(pod(gpus))


NEEDS: Final = {gpus: needs(gpus) for gpus in _POD_GPUS}
