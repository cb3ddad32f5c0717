"""What a pod asks the managers of a kubelet for, without who it is.

Invariant: pods of one `Shape` get the same verdict on the same node, so every verdict is kept by shape. What follows
from the requests of a pod, its view and its shape under each combination of feature gates, is computed once.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import msgspec

from topowise.pods import HUGEPAGES, Kind, Needs
from topowise_scheduler.kubelet.pod import PodView, device_requests, view

Amounts = tuple[tuple[str, int], ...]

# No pod has this uid.
_NOBODY = "\0"
# What no device plugin can be registered for.
_NATIVE = frozenset(("cpu", "memory", "ephemeral-storage"))


class AlignedRequest(NamedTuple):
    """What one hint is asked for: exclusive CPUs, memory by type, devices by resource; the last two sorted by name.

    `memory` is None for what is no whole number of bytes.
    """

    cpus: int
    memory: Amounts | None
    devices: Amounts


class Shape(NamedTuple):
    """Equal shapes get equal verdicts on equal nodes.

    `containers` are in the order of admission, `kinds` theirs; `total` is what scope pod asks for at once. `requests`
    are those above 0 the predicates look at. `pinned` and `by_pod_level` as in PodView.
    """

    containers: tuple[AlignedRequest, ...]
    kinds: tuple[Kind, ...]
    total: AlignedRequest
    requests: Amounts
    pinned: bool
    by_pod_level: bool

    @classmethod
    def of(cls, view: PodView) -> Shape:
        """The shape of a pod as kubelets with the same feature gates see it."""
        containers = tuple(
            [
                AlignedRequest(container.cpus, _sorted(container.memory), _devices(container.limits))
                for container in view.containers
            ]
        )
        if len(containers) == 1 and view.containers[0].kind == "app" and not view.by_pod_level:
            total = containers[0]
        else:
            named = sorted({name for request in containers for name, _ in request.devices})
            counts = tuple([(name, device_requests(view, name) or 0) for name in named])
            total = AlignedRequest(view.cpus, _sorted(view.memory), counts)
        requests = tuple(sorted([pair for pair in view.requests.items() if pair[1] > 0]))
        kinds = tuple([container.kind for container in view.containers])
        return cls(containers, kinds, total, requests, view.pinned, view.by_pod_level)


class Gates(Protocol):
    """The feature gates of a kubelet that decide how it sees a pod."""

    @property
    def pod_level_resources(self) -> bool: ...

    @property
    def pod_level_resource_managers(self) -> bool: ...


class PodForm(NamedTuple):
    """A pod as kubelets of one combination of gates see it; the view is nobody's, its uid is one no pod has."""

    view: PodView
    shape: Shape


class PodRequests:
    """What pods with these needs ask for; pods that ask for the same share it.

    `ungated` is what such a pod needs where the gate PodLevelResources is off, None if that is the same.
    """

    __slots__ = ("_forms", "needs", "ungated")

    def __init__(self, needs: Needs, ungated: Needs | None = None) -> None:
        self.needs = needs
        self.ungated = ungated
        self._forms: tuple[PodForm, ...] = ()

    @property
    def forms(self) -> tuple[PodForm, ...]:
        """One for all gates if they make no difference; else the usual, with managers of pod-level resources, and
        without pod-level resources."""
        if not self._forms:
            usual = _form(self.needs)
            self._forms = (usual,)
            if self.needs.pod_level is not None or self.ungated is not None:
                without = usual if self.ungated is None else _form(self.ungated)
                self._forms = (usual, _form(self.needs, managers=True), without)
        return self._forms

    def form(self, gates: Gates) -> PodForm:
        """The pod as a kubelet with these gates sees it."""
        forms = self._forms or self.forms
        if len(forms) == 1:
            return forms[0]
        if not gates.pod_level_resources:
            return forms[2]
        return forms[1] if gates.pod_level_resource_managers else forms[0]

    def view(self, uid: str, gates: Gates) -> PodView:
        """One of these pods as a kubelet with these gates sees it."""
        return msgspec.structs.replace(self.form(gates).view, uid=uid)


def _form(needs: Needs, *, managers: bool = False) -> PodForm:
    found = view(_NOBODY, needs, pod_level_resource_managers=managers)
    return PodForm(found, Shape.of(found))


def _sorted(amounts: dict[str, int] | None) -> Amounts | None:
    return None if amounts is None else tuple(sorted(amounts.items()))


def _devices(limits: dict[str, int]) -> Amounts:
    return tuple(
        sorted([pair for pair in limits.items() if pair[0] not in _NATIVE and not pair[0].startswith(HUGEPAGES)])
    )
