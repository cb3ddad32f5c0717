"""Parses pod shapes such as `{cpu: 16, memory: 64Gi, nvidia.com/gpu: 4, count: 2}`, and daily time windows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import time
from typing import Final, NamedTuple

import msgspec

from topowise import pods
from topowise.errors import ParseError
from topowise_scheduler import kube_scheduler

COUNT: Final = "count"
_WINDOW: Final = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)", re.ASCII)
_MAX_COUNT: Final = 1000


class DeclaredShape(msgspec.Struct, frozen=True):
    """Pods of a container with these amounts, and the number of pods that should fit."""

    amounts: Mapping[str, str]
    count: int

    def __str__(self) -> str:
        return ", ".join(f"{name} {amount}" for name, amount in self.amounts.items())

    def pod(self, priority: int) -> kube_scheduler.Pod:
        """Returns such a pod. It tolerates taints named like its extended resources, as the admission plugin
        ExtendedResourceToleration adds to real pods."""
        document = {
            "metadata": {"name": "declared-shape", "namespace": "default"},
            "spec": {
                "priority": priority,
                "containers": [{"name": "c", "resources": {"requests": self.amounts, "limits": self.amounts}}],
                "tolerations": [{"key": name, "operator": "Exists"} for name in self.amounts if "/" in name],
            },
        }
        return kube_scheduler.decode(msgspec.json.encode(document))


def shape(declared: Mapping[str, str | int]) -> DeclaredShape:
    """Returns the parsed shape. Raises ValueError."""
    amounts = {name: str(amount) for name, amount in declared.items() if name != COUNT}
    count = declared.get(COUNT, 1)
    if not isinstance(count, int) or not 1 <= count <= _MAX_COUNT:
        raise ValueError(f"{COUNT} of a shape is {count!r:.80}, expected a number from 1 to {_MAX_COUNT}")
    if not amounts:
        raise ValueError("a shape names no resource, expected amounts such as cpu: 16")
    for name, amount in amounts.items():
        try:
            pods.amount_of(name, amount)
        except ParseError as exc:
            raise ValueError(f"{name} of a shape is {amount!r:.80}, expected a quantity") from exc
    return DeclaredShape(amounts, count)


class Window(NamedTuple):
    """A part of every day, in UTC; it may end on the next day."""

    begins: time
    ends: time

    def __contains__(self, moment: object) -> bool:
        if not isinstance(moment, time):
            return False
        if self.begins <= self.ends:
            return self.begins <= moment < self.ends
        return moment >= self.begins or moment < self.ends


def window(text: str) -> Window:
    """Parses a text like "22:00-06:00". Raises ValueError."""
    match = _WINDOW.fullmatch(text)
    if not match or match[1] + match[2] == match[3] + match[4]:
        raise ValueError(f'{text!r:.80} is not a time window, expected a window such as "22:00-06:00"')
    first, second, third, fourth = map(int, match.groups())
    return Window(time(first, second), time(third, fourth))
