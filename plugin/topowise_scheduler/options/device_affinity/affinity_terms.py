"""The terms of the annotation `topowise.io/device-affinity`.

    topowise.io/device-affinity: "require nvidia.com/gpu,rdma/hca: pcie-switch; prefer nvidia.com/gpu: pcie-root"

A term applies to each container by itself: every two devices of these resources in the container must be at least as
near as the level says. So two GPUs and a NIC "at one switch" are three devices at one switch. A plain init container
ends before the pod does its work, so it does not count. A term without `require` or `prefer` is preferred.
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

_NEAR_ENOUGH: Final[Mapping[Level, frozenset[pci.Distance]]] = {
    "pcie-switch": frozenset(("PIX",)),
    "pcie-root-port": frozenset(("PIX", "PXB")),
    "pcie-root": frozenset(("PIX", "PXB", "PHB")),
}
_LEVELS: Final[Mapping[str, Level]] = {level: level for level in _NEAR_ENOUGH}
_STRENGTHS: Final[Mapping[str, Strength]] = {"require": "require", "prefer": "prefer"}
_RESOURCE: Final = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_LONGEST: Final = 1024
_MOST: Final = 8
_FORM: Final = "entries as 'require nvidia.com/gpu,rdma/hca: pcie-switch', with ';' between them"
_CONSEQUENCE: Final = "the pod is not placed until it is corrected"


class AffinityTerm(msgspec.Struct, frozen=True, gc=False):
    """An entry of the annotation."""

    strength: Strength
    resources: tuple[str, ...]
    level: Level

    def __str__(self) -> str:
        return f"{self.strength} {','.join(self.resources)}: {self.level}"

    def allows(self, first: Place, second: Place) -> bool:
        """Whether two functions at these places are near enough."""
        return pci.distance(first, second) in _NEAR_ENOUGH[self.level]


def read(text: str) -> tuple[AffinityTerm, ...]:
    """The terms of an annotation without duplicates. Raises ParseError, whose text names the consequence."""
    if len(text) > _LONGEST:
        raise _error(text, f"at most {_LONGEST} characters")
    entries = [entry for entry in (part.strip() for part in text.split(";")) if entry]
    if not 0 < len(entries) <= _MOST:
        raise _error(text, f"1 to {_MOST} {_FORM}")
    return tuple(dict.fromkeys(_entry(entry) for entry in entries))


def terms_of(annotations: Mapping[str, str], needs: Needs) -> tuple[AffinityTerm, ...]:
    """The terms of a pod with these needs. Raises ParseError, also for a resource without a limit in any container."""
    text = annotations.get(ANNOTATION, "")
    if not text.strip():
        return ()
    terms = read(text)
    limits = [container.limits for container in needs.containers if container.kind != "init"]
    for name in (name for term in terms for name in term.resources):
        if not any(amounts.get(name, 0) > 0 for amounts in limits):
            raise _error(name, "a resource of which a container of the pod, no init container, has a limit")
    return terms


def _entry(text: str) -> AffinityTerm:
    head, colon, level = text.rpartition(":")
    words = head.split(maxsplit=1)
    strength = _STRENGTHS.get(words[0]) if words else None
    names = tuple(dict.fromkeys(name.strip() for name in (head if strength is None else "".join(words[1:])).split(",")))
    if not colon or len(names) > _MOST or not all(map(_RESOURCE.fullmatch, names)):
        raise _error(text, _FORM)
    if level.strip() not in _LEVELS:
        raise _error(text, f"one of {', '.join(_LEVELS)} at its end")
    return AffinityTerm(strength or "prefer", names, _LEVELS[level.strip()])


def _error(text: str, expected: str) -> ParseError:
    return ParseError(f"annotation {ANNOTATION}", text, f"{expected}; {_CONSEQUENCE}")
