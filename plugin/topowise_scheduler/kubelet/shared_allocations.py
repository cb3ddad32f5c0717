"""Returns one shared object for all containers with equal allocations.

Most pods have one container, and on machines of one type equally named containers have equal allocations: a cluster of
150,000 pods has about a thousand distinct pairs. A dict for each pod and manager took a sixth of the service's memory.

Invariant: no caller changes a returned dict. The managers replace the state of a pod, and never change it in place
(node.py).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import lru_cache
from typing import Final, TypeVar, cast

Allocation = TypeVar("Allocation", bound=Hashable)

# Entries of each cache, and limits of an entry: about a kilobyte each. A hostile report's larger values are not cached.
_CACHE_SIZE: Final = 8192
_MAX_NAME_LENGTH: Final = 63
_MAX_CPU_SET: Final = 1 << 1024
_MAX_PARTS: Final = 4


def single(name: str, allocation: Allocation) -> dict[str, Allocation]:
    """Returns {name: allocation}. The caller must not change it."""
    return (
        cast(dict[str, Allocation], _cached_single(name, allocation))
        if _is_cacheable(name, allocation)
        else {name: allocation}
    )


def with_container(
    allocations: Mapping[str, Allocation] | None, name: str, allocation: Allocation
) -> dict[str, Allocation]:
    """Returns {**allocations, name: allocation}. The caller must not change it."""
    if not allocations:
        return single(name, allocation)
    if len(allocations) > _MAX_PARTS or not _is_cacheable(name, allocation):
        return {**allocations, name: allocation}
    return cast(dict[str, Allocation], _cached_with_container(tuple(allocations.items()), name, allocation))


def single_resource(name: str, resource: str, devices: int) -> dict[str, dict[str, int]]:
    """Returns {name: {resource: devices}}. The caller must not change it."""
    is_common = _is_cacheable(name, devices) and len(resource) <= 2 * _MAX_NAME_LENGTH
    return _cached_single_resource(name, resource, devices) if is_common else {name: {resource: devices}}


def _is_cacheable(name: str, allocation: Hashable) -> bool:
    is_large = (
        allocation >= _MAX_CPU_SET
        if isinstance(allocation, int)
        else isinstance(allocation, tuple) and len(allocation) > _MAX_PARTS
    )
    return len(name) <= _MAX_NAME_LENGTH and not is_large


@lru_cache(maxsize=_CACHE_SIZE)
def _cached_single(name: str, allocation: Hashable) -> dict[str, Hashable]:
    return {name: allocation}


@lru_cache(maxsize=_CACHE_SIZE)
def _cached_with_container(
    allocations: tuple[tuple[str, Hashable], ...], name: str, allocation: Hashable
) -> dict[str, Hashable]:
    return {**dict(allocations), name: allocation}


@lru_cache(maxsize=_CACHE_SIZE)
def _cached_single_resource(name: str, resource: str, devices: int) -> dict[str, dict[str, int]]:
    return {name: {resource: devices}}
