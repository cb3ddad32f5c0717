"""Returns a shared object for all containers with equal allocations.

Most pods have one container. On equal machines, equally named containers have equal allocations: a cluster of 150,000
pods has about a thousand distinct pairs. A dict for each pod and manager took a sixth of the service's memory.

Invariant: no caller changes a returned dict. The managers replace the state of a pod, never change it in place.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import lru_cache
from typing import Final, TypeVar, cast

Value = TypeVar("Value", bound=Hashable)

# Entries of each cache, and limits of an entry: about a kilobyte each. A hostile report's larger values are not cached.
_CACHE_SIZE: Final = 8192
_MAX_NAME_LENGTH: Final = 63
_MAX_CPU_SET: Final = 1 << 1024
_MAX_PARTS: Final = 4


def single(name: str, value: Value) -> dict[str, Value]:
    """Returns {name: value}. The caller must not change it."""
    return cast(dict[str, Value], _cached_single(name, value)) if _is_cacheable(name, value) else {name: value}


def with_container(by_container: Mapping[str, Value] | None, name: str, value: Value) -> dict[str, Value]:
    """Returns {**by_container, name: value}. The caller must not change it."""
    if not by_container:
        return single(name, value)
    if len(by_container) > _MAX_PARTS or not _is_cacheable(name, value):
        return {**by_container, name: value}
    return cast(dict[str, Value], _cached_with_container(tuple(by_container.items()), name, value))


def single_resource(name: str, resource: str, devices: int) -> dict[str, dict[str, int]]:
    """Returns {name: {resource: devices}}. The caller must not change it."""
    is_common = _is_cacheable(name, devices) and len(resource) <= 2 * _MAX_NAME_LENGTH
    return _cached_single_resource(name, resource, devices) if is_common else {name: {resource: devices}}


def _is_cacheable(name: str, value: Hashable) -> bool:
    is_large = value >= _MAX_CPU_SET if isinstance(value, int) else isinstance(value, tuple) and len(value) > _MAX_PARTS
    return len(name) <= _MAX_NAME_LENGTH and not is_large


@lru_cache(maxsize=_CACHE_SIZE)
def _cached_single(name: str, value: Hashable) -> dict[str, Hashable]:
    return {name: value}


@lru_cache(maxsize=_CACHE_SIZE)
def _cached_with_container(items: tuple[tuple[str, Hashable], ...], name: str, value: Hashable) -> dict[str, Hashable]:
    return {**dict(items), name: value}


@lru_cache(maxsize=_CACHE_SIZE)
def _cached_single_resource(name: str, resource: str, devices: int) -> dict[str, dict[str, int]]:
    return {name: {resource: devices}}
