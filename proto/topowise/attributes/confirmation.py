"""What an exporter has not confirmed (`topowise.io/admitting`, `topowise.io/unconfirmed`), and the state files that the
kubelet would refuse at its next start (`topowise.io/refused-state-files`, JSON: state file -> why).

`admitting` names pods ("namespace/name") whose admission has not been seen to end: they may hold more than the object
shows. `unconfirmed` has the reasons for which the object is the last complete object instead of the kubelet's present
answer: "cpu-manager", "memory-manager", "pods", "device:example.com/nic". With reasons of the last kind only, the
object is the present answer without these devices. Both are separated by commas. Each attribute is absent when it would
be empty. A reader treats an unknown reason like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from topowise import attributes, documents

CPU_MANAGER: Final = "cpu-manager"
"""The CPU manager's policy is static, and no CPU is allocatable."""
MEMORY_MANAGER: Final = "memory-manager"
"""The memory manager's policy is Static, and no memory is allocatable."""
PODS: Final = "pods"
"""A kubelet that has just started lists fewer pods than its state files have."""
DEVICE: Final = "device:"
"""Prefix of a resource whose device plug-in has not registered again."""

MOST_PODS: Final = 64
"""A kubelet admits pods one after the other, so there are hardly ever two."""
MOST_REASONS: Final = 32
_LONGEST: Final = 300
_LONGEST_REASON = 500


def device(resource: str) -> str:
    """Returns the reason that a device plug-in has not registered again: its devices are not allocatable yet."""
    return DEVICE + resource


def of_devices_only(reasons: Iterable[str]) -> bool:
    """Whether CPUs, memory and pods are confirmed."""
    return all(reason.startswith(DEVICE) for reason in reasons)


def write_pods(pods: Iterable[tuple[str, str]]) -> str:
    """Returns (namespace, name) sorted, at most `MOST_PODS`."""
    return ",".join(f"{namespace}/{name}" for namespace, name in sorted(set(pods))[:MOST_PODS])


def read_pods(named: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    """Returns the inverse of `write_pods`, without malformed entries."""
    pairs = (part.partition("/") for part in _parts(named, attributes.ADMITTING, MOST_PODS))
    return frozenset((namespace, name) for namespace, _, name in pairs if namespace and name)


def write_reasons(reasons: Iterable[str]) -> str:
    """Returns the reasons sorted, at most `MOST_REASONS`."""
    return ",".join(sorted(set(reasons))[:MOST_REASONS])


def read_reasons(named: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the inverse of `write_reasons`; empty if the exporter has confirmed the object."""
    return tuple(sorted(set(_parts(named, attributes.UNCONFIRMED, MOST_REASONS))))


def _parts(named: Mapping[str, str], name: str, most: int) -> list[str]:
    """Returns the parts, limited in number and length because they appear in messages."""
    return [part[:_LONGEST] for part in named.get(name, "").split(",", most)[:most] if part]


def refused_text(problems: Mapping[str, str]) -> str:
    """Returns the text, sorted by file."""
    return msgspec.json.encode(problems, order="sorted").decode()


def refused_state_files(named: Mapping[str, str]) -> dict[str, str]:
    """Returns the inverse of `write`; empty without the attribute, and for malformed text."""
    try:
        problems = msgspec.json.decode(named.get(attributes.REFUSED_STATE_FILES, "{}"), type=dict[str, str])
    except documents.UNREADABLE:
        return {}
    return {name[:_LONGEST_REASON]: text[:_LONGEST_REASON] for name, text in list(problems.items())[:8]}
