"""The mixes of pods in mixes.json."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from topowise import pods
from topowise_scheduler.verdicts.kube_scheduler import Container, Metadata, Pod, Spec

_FILE: Final = Path(__file__).with_name("mixes.json")


class Hardware(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A machine: `cores` of two CPUs, memory as a quantity, counts of devices and of 1 GiB hugepages."""

    cores: int
    memory: str
    devices: dict[str, int]
    pages: int


class Shape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A shape of Guaranteed pods: its count in the mix, and the limits of every container."""

    count: int
    containers: tuple[dict[str, str], ...]
    source: str = ""

    def needs(self) -> pods.Needs:
        """Returns what a pod of this shape requests."""
        return pods.needs(self.pod())

    def pod(self, name: str = "new") -> Pod:
        """Returns a pod of this shape."""
        containers = tuple(
            Container(f"c{place}", pods.Resources(limits=dict(limits))) for place, limits in enumerate(self.containers)
        )
        return Pod(Metadata(name=name, namespace="bench", uid=name), Spec(containers=containers))


class Mix(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`origin` names the source of the shapes, `ours` the numbers that the source does not have."""

    name: str
    title: str
    origin: str
    ours: str
    machine: Hardware
    shapes: tuple[Shape, ...]


def read() -> tuple[Mix, ...]:
    """Returns all mixes."""
    return msgspec.json.decode(_FILE.read_bytes(), type=tuple[Mix, ...])
