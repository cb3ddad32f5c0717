"""The pods that are asked about."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from bench.engine.servers import GI, GPU, NIC, Limits, pod
from topowise import pods


class Workload(NamedTuple):
    """`shape` makes the pod, another shape for every number."""

    name: str
    shape: Callable[[int], pods.Needs]


def five(number: int) -> pods.Needs:
    limits: Limits = {"cpu": "6", "memory": 12 * GI + number, "hugepages-2Mi": "512Mi", GPU: "1", NIC: "1"}
    return pods.needs(pod("new", limits))


def _wide(number: int) -> pods.Needs:
    """Returns a pod that fits a NUMA node of few servers."""
    limits: Limits = {"cpu": "12", "memory": 8 * GI + number, "hugepages-2Mi": "512Mi", GPU: "2", NIC: "2"}
    return pods.needs(pod("new", limits))


def _several(number: int) -> pods.Needs:
    init: Limits = {"cpu": "1", "memory": GI + number}
    main: Limits = {"cpu": "4", "memory": 8 * GI, GPU: "1", NIC: "1"}
    side: Limits = {"cpu": "2", "memory": 4 * GI, NIC: "1"}
    return pods.needs(pod("new", init, main, side, init=1))


def _large(number: int) -> pods.Needs:
    limits: Limits = {"cpu": "40", "memory": 150 * GI + number, "hugepages-2Mi": "5Gi", GPU: "2", NIC: "9"}
    return pods.needs(pod("new", limits))


WORKLOADS = (
    Workload("5 resources", five),
    Workload("5 resources in numbers", _wide),
    Workload("larger than a zone", _large),
    Workload("init and two containers", _several),
)
