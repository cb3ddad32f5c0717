"""What a pod asks the managers of a kubelet for, without who it is: pods of one shape share every verdict."""

from __future__ import annotations

from typing import NamedTuple

from topowise.pods import HUGEPAGES, Kind
from topowise_scheduler.kubelet.pod import PodView, device_requests

Amounts = tuple[tuple[str, int], ...]

# What no device plugin can be registered for.
_NATIVE = frozenset(("cpu", "memory", "ephemeral-storage"))


class Ask(NamedTuple):
    """What one hint is asked for: exclusive CPUs, memory by type, devices by resource; the last two sorted by name.

    `memory` is None for what is no whole number of bytes.
    """

    cpus: int
    memory: Amounts | None
    devices: Amounts


class Shape(NamedTuple):
    """Equal shapes get equal verdicts on equal nodes.

    `asks` has one entry a container in the order of admission, `kinds` their kinds; `total` is what scope pod asks
    for at once. `requests` are those above 0 the predicates look at. `pinned` and `by_pod_level` as in PodView.
    """

    asks: tuple[Ask, ...]
    kinds: tuple[Kind, ...]
    total: Ask
    requests: Amounts
    pinned: bool
    by_pod_level: bool

    @classmethod
    def of(cls, view: PodView) -> Shape:
        """The shape of a pod as kubelets with the same feature gates see it."""
        asks = tuple(
            [
                Ask(container.cpus, _sorted(container.memory), _devices(container.limits))
                for container in view.containers
            ]
        )
        if len(asks) == 1 and view.containers[0].kind == "app" and not view.by_pod_level:
            total = asks[0]
        else:
            named = sorted({name for ask in asks for name, _ in ask.devices})
            counts = tuple([(name, device_requests(view, name) or 0) for name in named])
            total = Ask(view.cpus, _sorted(view.memory), counts)
        requests = tuple(sorted([pair for pair in view.requests.items() if pair[1] > 0]))
        kinds = tuple([container.kind for container in view.containers])
        return cls(asks, kinds, total, requests, view.pinned, view.by_pod_level)


def _sorted(amounts: dict[str, int] | None) -> Amounts | None:
    return None if amounts is None else tuple(sorted(amounts.items()))


def _devices(limits: dict[str, int]) -> Amounts:
    return tuple(
        sorted([pair for pair in limits.items() if pair[0] not in _NATIVE and not pair[0].startswith(HUGEPAGES)])
    )
