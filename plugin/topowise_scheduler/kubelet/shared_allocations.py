"""What a container holds, once for all containers that hold the same.

Most pods have one container, and containers of a kind are called alike and hold alike on machines of a kind: a cluster
of 150,000 pods has some thousand such pairs. A dict for each pod and manager was a sixth of the service's memory.

Invariant: nobody changes what comes from here; the state of a pod is replaced, never changed in place (node.py).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import lru_cache
from typing import Final, TypeVar, cast

Held = TypeVar("Held", bound=Hashable)

# Of each kind, at most some kilobyte each: what a hostile report makes up is larger, and is not shared.
_MOST: Final = 8192
_LONGEST: Final = 63
_LARGEST: Final = 1 << 1024
_MANY: Final = 4


def only(name: str, held: Held) -> dict[str, Held]:
    """{name: held}. Not to be changed."""
    return cast(dict[str, Held], _only(name, held)) if _is_common(name, held) else {name: held}


def with_more(mine: Mapping[str, Held] | None, name: str, held: Held) -> dict[str, Held]:
    """{**mine, name: held}. Not to be changed."""
    if not mine:
        return only(name, held)
    if len(mine) > _MANY or not _is_common(name, held):
        return {**mine, name: held}
    return cast(dict[str, Held], _with_more(tuple(mine.items()), name, held))


def only_of(name: str, resource: str, held: int) -> dict[str, dict[str, int]]:
    """{name: {resource: held}}. Not to be changed."""
    is_common = _is_common(name, held) and len(resource) <= 2 * _LONGEST
    return _only_of(name, resource, held) if is_common else {name: {resource: held}}


def _is_common(name: str, held: Hashable) -> bool:
    is_large = held >= _LARGEST if isinstance(held, int) else isinstance(held, tuple) and len(held) > _MANY
    return len(name) <= _LONGEST and not is_large


@lru_cache(maxsize=_MOST)
def _only(name: str, held: Hashable) -> dict[str, Hashable]:
    return {name: held}


@lru_cache(maxsize=_MOST)
def _with_more(mine: tuple[tuple[str, Hashable], ...], name: str, held: Hashable) -> dict[str, Hashable]:
    return {**dict(mine), name: held}


@lru_cache(maxsize=_MOST)
def _only_of(name: str, resource: str, held: int) -> dict[str, dict[str, int]]:
    return {name: {resource: held}}
