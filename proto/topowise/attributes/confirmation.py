"""What an exporter is not sure of: `topowise.io/admitting` and `topowise.io/unconfirmed`, lists with commas.

The first names pods ("namespace/name") whose admission has not been seen to end: they may hold more than the object
says. The second has the reasons for which the object is the last true one and not what the kubelet says now:
"cpu-manager", "memory-manager", "pods", "device:example.com/nic"; with the last kind alone it is the present one, but
for these devices. Both are absent when there is nothing to say, and a reader takes a word that it does not know for a
reason like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from topowise import attributes

CPU_MANAGER: Final = "cpu-manager"
"""CPU manager static, and no CPU is allocatable."""
MEMORY_MANAGER: Final = "memory-manager"
"""Memory manager Static, and no memory is allocatable."""
PODS: Final = "pods"
"""A kubelet that has just started lists fewer pods than its state files have."""
DEVICE: Final = "device:"
"""A resource follows whose device plug-in has not registered again."""

MOST_PODS: Final = 64
"""A kubelet admits one pod after the other, so there are hardly ever two."""
MOST_REASONS: Final = 32
_LONGEST: Final = 300


def device(resource: str) -> str:
    """The reason that a device plug-in has not registered again: its devices are not allocatable yet."""
    return DEVICE + resource


def of_devices_only(reasons: Iterable[str]) -> bool:
    """Whether all that the kubelet says of CPUs, memory and pods is true."""
    return all(reason.startswith(DEVICE) for reason in reasons)


def write_pods(pods: Iterable[tuple[str, str]]) -> str:
    """(namespace, name) sorted, the first `MOST_PODS`."""
    return ",".join(f"{namespace}/{name}" for namespace, name in sorted(set(pods))[:MOST_PODS])


def read_pods(named: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    """The inverse of `write_pods`; what is no namespace and name is left out."""
    pairs = (part.partition("/") for part in _parts(named, attributes.ADMITTING, MOST_PODS))
    return frozenset((namespace, name) for namespace, _, name in pairs if namespace and name)


def write_reasons(reasons: Iterable[str]) -> str:
    """Sorted, the first `MOST_REASONS`."""
    return ",".join(sorted(set(reasons))[:MOST_REASONS])


def read_reasons(named: Mapping[str, str]) -> tuple[str, ...]:
    """The inverse of `write_reasons`; empty if the object is the truth as far as its exporter knows."""
    return tuple(sorted(set(_parts(named, attributes.UNCONFIRMED, MOST_REASONS))))


def _parts(named: Mapping[str, str], name: str, most: int) -> list[str]:
    """Not too many and none too long: they go into messages for people."""
    return [part[:_LONGEST] for part in named.get(name, "").split(",", most)[:most] if part]
