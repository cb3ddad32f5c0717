"""Sets as they travel, as the model has them.

The same texts come with every report of a node and on every node of its kind, so what they mean is remembered.
"""

from __future__ import annotations

from functools import lru_cache

from topowise import cpuset
from topowise_scheduler.kubelet.cpu_topology import CpuSet
from topowise_scheduler.kubelet.masks import Mask, mask_of


@lru_cache(maxsize=65536)
def cpu_set(text: str) -> CpuSet:
    """The CPUs of a cpulist. Raises ParseError."""
    return mask_of(cpuset.parse(text))


@lru_cache(maxsize=4096)
def nodes_of(text: str, known: tuple[int, ...]) -> tuple[int, ...]:
    """The NUMA nodes of a nodelist, ascending; none if it names one that is not known. Raises ParseError."""
    nodes = cpuset.parse(text)
    return tuple(sorted(nodes)) if nodes.issubset(known) else ()


@lru_cache(maxsize=4096)
def mask_on(text: str, known: tuple[int, ...]) -> Mask:
    """The same as a mask over the positions of the known nodes, 0 for none."""
    return mask_of(known.index(node) for node in nodes_of(text, known))
