"""Parses single texts of a report: cpulists and nodelists, costs, names of hugepages, PCI paths.

Every report of a node, and every node of a machine type, repeats the same texts, so parsed lists are cached. No kubelet
decision depends on PCI paths, so their unreadable text costs the report nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from topowise import attributes, cpuset, digits, nrt
from topowise.attributes import pci_devices
from topowise.attributes.pci_devices import Located
from topowise.errors import ParseError
from topowise_scheduler.kubelet.cpu_topology import CpuSet
from topowise_scheduler.kubelet.machine import hugepages_resource
from topowise_scheduler.kubelet.masks import Mask, mask_of
from topowise_scheduler.report import budget

# A kernel distance has 8 bits. The bound is far above that and keeps sums of distances small.
_MAX: Final = 1 << 20


def distances(costs: Iterable[nrt.Cost], ids: Sequence[int]) -> tuple[int, ...] | None:
    """Returns the costs to these NUMA nodes, in their order, or None unless each NUMA node has a valid cost.

    Costs may name NUMA nodes without a zone. If the ids have no gaps, the row then has an entry for every id, as the
    kernel prints it: the kubelet reads the row by id.
    """
    cost_by_name = {cost.name: cost.value for cost in costs}
    every = range(len(cost_by_name))
    if len(cost_by_name) > len(ids) and all(nrt.zone_name(numa_id) in cost_by_name for numa_id in every):
        ids = every
    row = [cost_by_name.get(nrt.zone_name(numa_id)) for numa_id in ids]
    valid = tuple([cost for cost in row if cost is not None and 0 <= cost <= _MAX])
    return valid if len(valid) == len(row) else None


def speed(texts: Sequence[str], ids: Sequence[int]) -> tuple[tuple[int, ...], int, int]:
    """Returns the initiators among these NUMA ids, the read latency and the read bandwidth; 0 for an unreported figure.

    No verdict depends on them, so unreadable text counts as unreported.
    """
    if not texts:
        return (), 0, 0
    named, *figures = texts
    try:
        initiators = cpuset.parse(named)
    except ParseError:
        return (), 0, 0
    # Nanoseconds and MiB/s.
    latency, bandwidth = (digits.natural(text) or 0 for text in figures)
    # An initiator without a zone has no position, so it is dropped.
    return tuple([numa_id for numa_id in ids if numa_id in initiators]), latency, bandwidth


_NAME = re.compile(r"hugepages-([1-9][0-9]{0,9})(Ki|Mi|Gi)", re.ASCII)
_KIB = {"Ki": 1, "Mi": 1 << 10, "Gi": 1 << 20}
# A longer name is not cached: the cache must not keep texts of a hostile report.
_MAX_LENGTH = 32


def page_kib(resource: str) -> int | None:
    """Returns the page size in KiB of "hugepages-2Mi"; None unless the kubelet uses this very name for a size."""
    return _page_kib(resource) if len(resource) <= _MAX_LENGTH else None


@lru_cache(maxsize=256)
def _page_kib(resource: str) -> int | None:
    match = _NAME.fullmatch(resource)
    if match is None:
        return None
    # # The kubelet names 2048Ki "hugepages-2Mi" (HugePageResourceName), so "hugepages-2048Ki" is no resource of a node.
    kib = int(match[1]) * _KIB[match[2]]
    return kib if hugepages_resource(kib) == resource else None


class _Shared(dict[str, Located]):
    """PCI paths by device id. A dict that supports weak references."""


class Places(NamedTuple):
    """PCI paths by device id, and a line for each fault in the text."""

    at: Mapping[str, Located]
    problems: tuple[str, ...] = ()


# Nodes of a machine type whose devices are named by PCI address have equal texts. An entry lives as long as a report
# that uses it.
_cache: WeakValueDictionary[str, _Shared] = WeakValueDictionary()
_NO_PATHS: Final = Places({})


def pci_paths_of(text: str) -> Places:
    """Returns the PCI paths in the attribute's text; none for ""."""
    if not text:
        return _NO_PATHS
    cached = _cache.get(text)
    if cached is not None:
        return Places(cached)
    try:
        located = _Shared(pci_devices.read(text))
    except ParseError as exc:
        return Places({}, (f"attribute {attributes.PCI}: {exc}; the PCI paths of its devices are unknown",))
    if len(text) <= budget.MEMORABLE_PLACES:
        # A long text may be hostile, and is not shared.
        _cache[text] = located
    return Places(located)


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
