"""What a pod asks the managers of a kubelet for, without who it is.

Invariant: pods of one `Shape` get the same verdict on the same node, so every verdict is kept by shape. What follows
from the requests of a pod, its view and its shape under each combination of feature gates and behaviours that makes a
difference to it, is computed once; to most pods none does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import msgspec

from topowise.pods import HUGEPAGES, Kind, Needs
from topowise_scheduler.kubelet.behaviour import Behaviour
from topowise_scheduler.kubelet.pod import PodView, device_requests, view

Amounts = tuple[tuple[str, int], ...]

# No pod has this uid.
_NOBODY = "\0"
# What no device plugin can be registered for.
_NATIVE = frozenset(("cpu", "memory", "ephemeral-storage"))
_CONTAINER_BYTES = 512
_AMOUNT_BYTES = 200
# What every node allocatable has.
_ALWAYS_KNOWN = frozenset(("cpu", "memory"))


class AlignedRequest(NamedTuple):
    """What one hint is asked for: exclusive CPUs, memory by type, devices by resource; the last two sorted by name.

    `memory` is None for what is no whole number of bytes.
    """

    cpus: int
    memory: Amounts | None
    devices: Amounts

    def can_be_aligned(self, *, pinned: bool) -> bool:
        """Whether it asks for anything that some kubelet would align; `pinned` is the pod's."""
        amounts = (*self.devices, *(self.memory or () if pinned else ()))
        return self.cpus > 0 or any(amount > 0 for _, amount in amounts)


class Shape(NamedTuple):
    """Equal shapes get equal verdicts on equal nodes.

    `containers` are in the order of admission, `kinds` theirs; `total` is what scope pod asks for at once. `requests`
    are those above 0 the predicates look at, `init_requests` those that count also where a node lacks the resource.
    `pinned` and `by_pod_level` as in PodView.
    """

    containers: tuple[AlignedRequest, ...]
    kinds: tuple[Kind, ...]
    total: AlignedRequest
    requests: Amounts
    pinned: bool
    by_pod_level: bool
    init_requests: Amounts
    has_sidecars: bool

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
        before = tuple(sorted([pair for pair in view.init_requests.items() if pair[1] > 0]))
        sidecars = any(container.declared == "sidecar" for container in view.containers)
        return cls(containers, kinds, total, requests, view.pinned, view.by_pod_level, before, sidecars)


class Gates(Protocol):
    """What decides how a kubelet sees a pod: its feature gates, and three fields of its behaviour."""

    @property
    def behaviour(self) -> Behaviour: ...

    @property
    def pod_level_resources(self) -> bool: ...

    @property
    def pod_level_resource_managers(self) -> bool: ...


class PodForm(NamedTuple):
    """A pod as kubelets of some gates and behaviours see it; the view is nobody's, its uid is one no pod has."""

    view: PodView
    shape: Shape


class PodRequests:
    """What pods with these needs ask for; pods that ask for the same share it.

    `ungated` is what such a pod needs where the gate PodLevelResources is off, None if that is the same. `shape` is
    equal for equal needs (PodRecord). `shared_devices` are the resources that more than one container asks for. `size`
    is bytes, about.
    """

    __slots__ = ("__weakref__", "_forms", "_one", "_ways", "needs", "shape", "shared_devices", "size", "ungated")

    def __init__(self, needs: Needs, ungated: Needs | None = None, shape: bytes = b"") -> None:
        self.needs = needs
        self.ungated = ungated
        self.shape = shape
        self.size = _size(needs)
        self.shared_devices = _shared(needs)
        self._ways: _Ways | None = None
        self._one: PodForm | None = None
        self._forms: dict[_Way, PodForm] = {}

    @property
    def forms(self) -> tuple[PodForm, ...]:
        """One if all kubelets see the pod alike; else all that there can be, that of the newest first."""
        if self._one is not None:
            return (self._one,)
        if self._ways is None:
            self._ways = _Ways.of(self.needs, self.ungated)
        found = tuple([self._made(way) for way in self._ways.all()])
        if len(found) == 1:
            self._one = found[0]
        return found

    @property
    def can_be_aligned(self) -> bool:
        """Whether any container asks for anything that some kubelet would align."""
        shapes = [form.shape for form in self.forms]
        return any(request.can_be_aligned(pinned=shape.pinned) for shape in shapes for request in shape.containers)

    def form(self, gates: Gates) -> PodForm:
        """The pod as a kubelet with these gates and this behaviour sees it."""
        if self._one is None and self._ways is None:
            _ = self.forms
        return self._one or self._made(_way(gates, self._ways or _ALIKE))

    def view(self, uid: str, gates: Gates) -> PodView:
        """One of these pods as a kubelet with these gates sees it."""
        return msgspec.structs.replace(self.form(gates).view, uid=uid)

    def _made(self, way: _Way) -> PodForm:
        form = self._forms.get(way)
        if form is None:
            needs = self.needs if way.pod_level or self.ungated is None else self.ungated
            found = view(
                _NOBODY,
                needs,
                pod_level_resource_managers=way.managers,
                behaviour=Behaviour(
                    sidecars_are_kept=way.keeps_sidecars,
                    unknown_resources_of_init_containers_are_dropped=way.drops_unknown,
                    pod_level_pods_are_not_aligned=way.leaves_alone,
                ),
            )
            form = self._forms[way] = PodForm(found, Shape.of(found))
        return form


class _Way(NamedTuple):
    """How a kubelet sees a pod. What makes no difference to the pod is as in the newest."""

    pod_level: bool = True
    managers: bool = False
    keeps_sidecars: bool = True
    drops_unknown: bool = True
    leaves_alone: bool = True


class _Ways(NamedTuple):
    """What can make a difference to a pod."""

    pod_level: bool
    sidecars: bool
    unknown: bool

    @classmethod
    def of(cls, needs: Needs, ungated: Needs | None) -> _Ways:
        before = [container for container in needs.containers if container.kind != "app"]
        return cls(
            needs.pod_level is not None or ungated is not None,
            any(container.kind == "sidecar" for container in before),
            any(
                name not in _ALWAYS_KNOWN and not name.startswith(HUGEPAGES) for one in before for name in one.requests
            ),
        )

    def all(self) -> Iterator[_Way]:
        gates = [(True, False, True), (True, False, False), (True, True, True), (False, False, True)]
        for pod_level, managers, apart in gates if self.pod_level else gates[:1]:
            for keeps in (True, False) if self.sidecars else (True,):
                for drops in (True, False) if self.unknown else (True,):
                    yield _Way(pod_level, managers, keeps, drops, apart)


_ALIKE = _Ways(False, False, False)


def _way(gates: Gates, ways: _Ways) -> _Way:
    how = gates.behaviour
    pod_level = not ways.pod_level or gates.pod_level_resources
    managers = ways.pod_level and pod_level and gates.pod_level_resource_managers
    return _Way(
        pod_level,
        managers,
        not ways.sidecars or how.sidecars_are_kept,
        not ways.unknown or how.unknown_resources_of_init_containers_are_dropped,
        # Without pod-level resources, or with managers of them, nobody is left alone.
        managers or not pod_level or not ways.pod_level or how.pod_level_pods_are_not_aligned,
    )


def _size(needs: Needs) -> int:
    """Names and amounts are kept several times over, by who looks at them."""
    amounts = [name for one in needs.containers for name in (*one.requests, *one.limits)]
    return _CONTAINER_BYTES * len(needs.containers) + sum([_AMOUNT_BYTES + len(name) for name in amounts])


def _shared(needs: Needs) -> frozenset[str]:
    seen, shared = set[str](), set[str]()
    for one in needs.containers if len(needs.containers) > 1 else ():
        mine = {name for name, _ in _devices(one.limits)}
        shared |= seen & mine
        seen |= mine
    return frozenset(shared)


def _sorted(amounts: dict[str, int] | None) -> Amounts | None:
    return None if amounts is None else tuple(sorted(amounts.items()))


def _devices(limits: dict[str, int]) -> Amounts:
    return tuple(
        sorted([pair for pair in limits.items() if pair[0] not in _NATIVE and not pair[0].startswith(HUGEPAGES)])
    )
