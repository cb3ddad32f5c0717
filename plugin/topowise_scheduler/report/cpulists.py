"""Sets as they travel, as the model has them.

The same texts come with every report of a node and on every node of its kind, so what they mean is remembered.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from topowise import cpuset
from topowise_scheduler.kubelet.cpu_topology import CpuSet
from topowise_scheduler.kubelet.masks import Mask, mask_of

# Of what a hostile report says, no more is remembered than this many characters and that many texts.
_SHORT: Final = 256
_MANY: Final = 8192


def cpu_set(text: str) -> CpuSet:
    """The CPUs of a cpulist. Raises ParseError."""
    return _cpu_set(text) if len(text) <= _SHORT else cpuset.mask(text)


_cpu_set = lru_cache(maxsize=_MANY)(cpuset.mask)


def nodes_of(text: str, known: tuple[int, ...]) -> tuple[int, ...]:
    """The NUMA nodes of a nodelist, ascending; none if it names one that is not known. Raises ParseError."""
    nodes = cpu_set(text)
    found = tuple([node for node in known if nodes >> node & 1])
    return found if len(found) == nodes.bit_count() else ()


def mask_on(text: str, known: tuple[int, ...], modelled: tuple[int, ...]) -> Mask:
    """The same as a mask over the positions of those of them that are modelled, 0 for none (Machine.modelled)."""
    nodes = nodes_of(text, known)
    return mask_of(position for position, node in enumerate(modelled) if node in nodes)
