"""Parses cpulists and nodelists into the sets of the model.

Every report of a node, and every node of a machine type, repeats the same texts, so parsed texts are cached.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from topowise import cpuset
from topowise_scheduler.kubelet.cpu_topology import CpuSet
from topowise_scheduler.kubelet.masks import Mask, mask_of

# The cache is bounded against hostile reports: characters of a text, and number of texts.
_MAX_CACHED_LENGTH: Final = 256
_CACHE_SIZE: Final = 8192


def cpu_set(text: str) -> CpuSet:
    """Returns the CPUs of a cpulist. Raises ParseError."""
    return _cpu_set(text) if len(text) <= _MAX_CACHED_LENGTH else cpuset.mask(text)


_cpu_set = lru_cache(maxsize=_CACHE_SIZE)(cpuset.mask)


def nodes_of(text: str, known: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the NUMA nodes of a nodelist, ascending, or () if any is not in `known`. Raises ParseError."""
    nodes = cpu_set(text)
    listed = tuple([node for node in known if nodes >> node & 1])
    return listed if len(listed) == nodes.bit_count() else ()


def mask_on(text: str, known: tuple[int, ...], modelled: tuple[int, ...]) -> Mask:
    """Returns a nodelist as a mask over the positions in `modelled`; 0 if none is modelled (Machine.modelled)."""
    nodes = nodes_of(text, known)
    return mask_of(position for position, node in enumerate(modelled) if node in nodes)
