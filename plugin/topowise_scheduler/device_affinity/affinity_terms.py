"""What a pod may wish, by annotation.

    topowise.io/device-affinity: "require nvidia.com/gpu,rdma/hca: pcie-switch; prefer nvidia.com/gpu: pcie-root"

Each entry is about each container by itself: all devices of these resources that it gets are to be, two by two, as near
as the level says. So two GPUs and a NIC "at one switch" are three devices at one switch. A plain init container is gone
before the pod does its work, so it does not count. An entry without `require` or `prefer` is preferred.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from topowise import pci
from topowise.errors import ParseError
from topowise.pci import Place
from topowise.pods import Needs

ANNOTATION: Final = "topowise.io/device-affinity"

Strength = Literal["require", "prefer"]
Level = Literal["pcie-switch", "pcie-root-port", "pcie-root"]

_FARTHEST: Final[Mapping[Level, frozenset[pci.Distance]]] = {
    "pcie-switch": frozenset(("PIX",)),
    "pcie-root-port": frozenset(("PIX", "PXB")),
    "pcie-root": frozenset(("PIX", "PXB", "PHB")),
}
_LEVELS: Final[Mapping[str, Level]] = {level: level for level in _FARTHEST}
_STRENGTHS: Final[Mapping[str, Strength]] = {"require": "require", "prefer": "prefer"}
_RESOURCE: Final = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_LONGEST: Final = 1024
_MOST: Final = 8
_FORM: Final = "entries as 'require nvidia.com/gpu,rdma/hca: pcie-switch', with ';' between them"
_MEANWHILE: Final = "the pod is not placed until it is corrected"


class Wish(msgspec.Struct, frozen=True, gc=False):
    """One entry."""

    strength: Strength
    resources: tuple[str, ...]
    level: Level

    def __str__(self) -> str:
        return f"{self.strength} {','.join(self.resources)}: {self.level}"

    def allows(self, one: Place, other: Place) -> bool:
        """Whether two functions at these places are near enough."""
        return pci.distance(one, other) in _FARTHEST[self.level]


def read(text: str) -> tuple[Wish, ...]:
    """The entries of an annotation, each once. Raises ParseError, which says what happens instead."""
    if len(text) > _LONGEST:
        raise _error(text, f"at most {_LONGEST} characters")
    entries = [entry for entry in (part.strip() for part in text.split(";")) if entry]
    if not 0 < len(entries) <= _MOST:
        raise _error(text, f"1 to {_MOST} {_FORM}")
    return tuple(dict.fromkeys(_entry(entry) for entry in entries))


def wishes_of(annotations: Mapping[str, str], needs: Needs) -> tuple[Wish, ...]:
    """What a pod with these needs wishes. Raises ParseError, for a resource that none of its containers gets too."""
    text = annotations.get(ANNOTATION, "")
    if not text.strip():
        return ()
    found = read(text)
    given = {name for one in needs.containers if one.kind != "init" for name, count in one.limits.items() if count > 0}
    for name in (name for wish in found for name in wish.resources):
        if name not in given:
            raise _error(name, "a resource of which a container of the pod, no init container, has a limit")
    return found


def _entry(text: str) -> Wish:
    head, colon, level = text.rpartition(":")
    words = head.split(maxsplit=1)
    strength = _STRENGTHS.get(words[0]) if words else None
    names = tuple(dict.fromkeys(name.strip() for name in (head if strength is None else "".join(words[1:])).split(",")))
    if not colon or len(names) > _MOST or not all(map(_RESOURCE.fullmatch, names)):
        raise _error(text, _FORM)
    if level.strip() not in _LEVELS:
        raise _error(text, f"one of {', '.join(_LEVELS)} at its end")
    return Wish(strength or "prefer", names, _LEVELS[level.strip()])


def _error(text: str, expected: str) -> ParseError:
    return ParseError(f"annotation {ANNOTATION}", text, f"{expected}; {_MEANWHILE}")
