"""Mixes of pods as mixes.json records them, with their origin."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from topowise import pods

_FILE: Final = Path(__file__).with_name("mixes.json")


class Hardware(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole machine: `cores` of two CPUs, memory as a quantity, devices and pages of 1 GiB by number."""

    cores: int
    memory: str
    devices: dict[str, int]
    pages: int


class Shape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Pods of one kind: how many there are in the mix, and the limits of every container. All are Guaranteed."""

    count: int
    containers: tuple[dict[str, str], ...]
    source: str = ""

    def needs(self) -> pods.Needs:
        """What the pod asks for."""
        made = tuple(
            pods.Container(f"c{place}", pods.Resources(limits=dict(limits)))
            for place, limits in enumerate(self.containers)
        )
        return pods.needs(pods.Pod(pods.Metadata(uid="new"), pods.Spec(containers=made)))


class Mix(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`origin` says where the shapes are from, `ours` which of the numbers are not from there."""

    name: str
    title: str
    origin: str
    ours: str
    machine: Hardware
    shapes: tuple[Shape, ...]


def read() -> tuple[Mix, ...]:
    """All mixes."""
    return msgspec.json.decode(_FILE.read_bytes(), type=tuple[Mix, ...])
