"""Computes whether the CPU manager of a node takes the CPUs of each container from a single L3 cache.

Free CPUs of a cache are necessary and not sufficient: before Kubernetes 1.34 an odd number of CPUs comes from several
caches (kubernetes#131850), and half-taken cores count against a cache.
"""

from __future__ import annotations

from collections.abc import Iterable

from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.hints import Refused
from topowise_scheduler.kubelet.masks import members

# Values of Ratings.in_cache. BY_COUNTS: a cache has enough free CPUs, and the model has not been asked.
UNREPORTED, SPLIT, BY_COUNTS, SHARED = -1, 0, 1, 2


def in_one_cache(kubelet: Kubelet, containers: Iterable[tuple[int, int]]) -> bool:
    """Returns whether each container gets CPUs of a single cache. `containers` have a mask of zones and a number of
    CPUs, in the order of admission, without plain init containers.
    """
    assert kubelet.cpu is not None
    topology, available = kubelet.topology, kubelet.cpu.available
    for zones, count in containers:
        near = 0
        for zone in members(zones):
            near |= topology.numa_cpus[zone]
        try:
            cpus = kubelet.cpu.policy.take(available & near, count, zones.bit_count())
        except Refused:
            return False
        if not any(cpus & cache.cpus == cpus for cache in topology.uncores):
            return False
        available &= ~cpus
    return True
