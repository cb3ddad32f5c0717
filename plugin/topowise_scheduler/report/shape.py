"""A pod's requests to a kubelet's managers, without its identity.

Invariant: pods of one `Shape` get the same verdict on the same node, so verdicts are cached by shape. The requests of a
pod determine its view and shape. Both are computed once for each combination of feature gates and behaviours that
affects the pod; most pods are affected by none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple, Protocol

import msgspec

from topowise.pods import HUGEPAGES, Kind, Needs
from topowise_scheduler.kubelet.behaviour import Behaviour
from topowise_scheduler.kubelet.pod import PodView, device_requests, view

Amounts = tuple[tuple[str, int], ...]

# No pod has this uid.
_PLACEHOLDER_UID = "\0"
NATIVE: Final = frozenset(("cpu", "memory", "ephemeral-storage"))
"""Resources of containers that no device plug-in can register."""
_CONTAINER_BYTES = 512
_AMOUNT_BYTES = 200
# Resources in every node's allocatable.
_IN_EVERY_NODE = frozenset(("cpu", "memory"))


class AlignedRequest(NamedTuple):
    """The request for a hint: exclusive CPUs, memory by type, devices by resource; the last two sorted by name.

    `memory` is None for a fraction of a byte.
    """

    cpus: int
    memory: Amounts | None
    devices: Amounts

    def can_be_aligned(self, *, pinned: bool) -> bool:
        """Returns whether a kubelet may align anything of the request; `pinned` is the pod's."""
        amounts = (*self.devices, *(self.memory or () if pinned else ()))
        return self.cpus > 0 or any(amount > 0 for _, amount in amounts)


class Shape(NamedTuple):
    """An equivalence class of pods: equal shapes get equal verdicts on equal nodes.

    `containers` are in the order of admission, with their `kinds`; `total` is the pod's request in scope pod.
    `requests` are the predicates' amounts above 0, `init_requests` the amounts that count even if a node lacks the
    resource. `pinned` and `by_pod_level` as in PodView. `unpinned` are the containers that this kubelet never pins,
    because the pod has pod-level resources, while a kubelet with other gates or of another version may pin them.
    `lacks_gate` as in PodView.
    """

    containers: tuple[AlignedRequest, ...]
    kinds: tuple[Kind, ...]
    total: AlignedRequest
    requests: Amounts
    pinned: bool
    by_pod_level: bool
    init_requests: Amounts
    has_sidecars: bool
    lacks_gate: bool = False
    unpinned: frozenset[int] = frozenset()

    @classmethod
    def of(cls, view: PodView) -> Shape:
        """Returns the shape of a pod for kubelets with the same feature gates."""
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
        init_requests = tuple(sorted([pair for pair in view.init_requests.items() if pair[1] > 0]))
        sidecars = any(container.declared == "sidecar" for container in view.containers)
        return cls(
            containers,
            kinds,
            total,
            requests,
            view.pinned,
            view.by_pod_level,
            init_requests,
            sidecars,
            view.lacks_gate,
        )


class Gates(Protocol):
    """The feature gates and the behaviour of a kubelet that affect its view of a pod."""

    @property
    def behaviour(self) -> Behaviour: ...

    @property
    def pod_level_resources(self) -> bool: ...

    @property
    def pod_level_resource_managers(self) -> bool: ...


class PodForm(NamedTuple):
    """The view and the shape of a pod for kubelets of some gates and behaviours; the view's UID is a placeholder."""

    view: PodView
    shape: Shape


class PodRequests:
    """The requests of pods with these needs; pods with equal requests share it.

    `ungated` are the needs without the gate PodLevelResources, None if equal. `shape` is equal for equal needs
    (PodRecord). `shared_devices` are the resources that several containers request. `size` is in bytes, about.
    """

    __slots__ = ("__weakref__", "_dims", "_forms", "_only_form", "needs", "shape", "shared_devices", "size", "ungated")

    def __init__(self, needs: Needs, ungated: Needs | None = None, shape: bytes = b"") -> None:
        self.needs = needs
        self.ungated = ungated
        self.shape = shape
        self.size = _size(needs)
        self.shared_devices = _shared_devices(needs)
        self._dims: _Dimensions | None = None
        self._only_form: PodForm | None = None
        self._forms: dict[_Variant, PodForm] = {}

    @property
    def forms(self) -> tuple[PodForm, ...]:
        """Returns one form if all kubelets see the pod alike, otherwise all forms, the newest version's first."""
        if self._only_form is not None:
            return (self._only_form,)
        if self._dims is None:
            self._dims = _Dimensions.of(self.needs, self.ungated)
        forms = tuple([self._build(variant) for variant in self._dims.all()])
        if len(forms) == 1:
            self._only_form = forms[0]
        return forms

    @property
    def can_be_aligned(self) -> bool:
        """Returns whether a kubelet may align any container's request."""
        shapes = [form.shape for form in self.forms]
        return any(request.can_be_aligned(pinned=shape.pinned) for shape in shapes for request in shape.containers)

    def form(self, gates: Gates) -> PodForm:
        """Returns the pod as a kubelet with these gates and this behaviour sees it."""
        if self._only_form is None and self._dims is None:
            _ = self.forms
        return self._only_form or self._build(_variant(gates, self._dims or _NO_DIMENSIONS))

    def view(self, uid: str, gates: Gates, steered: int | None = None) -> PodView:
        """Returns the view of a pod with these needs and this UID, whose markers are near the NUMA node `steered`."""
        return msgspec.structs.replace(self.form(gates).view, uid=uid, steered=steered)

    def _build(self, variant: _Variant) -> PodForm:
        form = self._forms.get(variant)
        if form is None:
            needs = self.needs if variant.pod_level or self.ungated is None else self.ungated
            pod_view = view(
                _PLACEHOLDER_UID,
                needs,
                pod_level_resource_managers=variant.managers,
                behaviour=Behaviour(
                    sidecars_are_kept=variant.keeps_sidecars,
                    unknown_resources_of_init_containers_are_dropped=variant.drops_unknown,
                    pod_level_pods_are_not_aligned=variant.ignores_pod_level,
                    pod_level_pods_are_never_aligned=variant.ignores_pod_level,
                    pod_level_pods_need_their_gate=variant.needs_gate,
                ),
            )
            shape = Shape.of(pod_view)
            if variant.pod_level and needs.pod_level is not None and variant.ignores_pod_level and not variant.managers:
                shape = shape._replace(unpinned=self._pinned_elsewhere(variant))
            form = self._forms[variant] = PodForm(pod_view, shape)
        return form

    def _pinned_elsewhere(self, variant: _Variant) -> frozenset[int]:
        """Returns the containers whose CPUs or memory a kubelet with other gates or of another version may pin."""
        variants = (
            variant._replace(managers=True),
            variant._replace(pod_level=False, ignores_pod_level=False),
            variant._replace(ignores_pod_level=False),
        )
        return frozenset(
            number
            for shape in [self._build(pinning).shape for pinning in variants]
            for number, request in enumerate(shape.containers)
            if shape.pinned and (request.cpus or request.memory)
        )


class _Variant(NamedTuple):
    """The gates and behaviours of a view. Values without an effect on the pod equal the newest version's."""

    pod_level: bool = True
    managers: bool = False
    keeps_sidecars: bool = True
    drops_unknown: bool = True
    ignores_pod_level: bool = True
    needs_gate: bool = True


class _Dimensions(NamedTuple):
    """The gates and behaviours that affect a pod."""

    pod_level: bool
    sidecars: bool
    unknown: bool

    @classmethod
    def of(cls, needs: Needs, ungated: Needs | None) -> _Dimensions:
        init_containers = [container for container in needs.containers if container.kind != "app"]
        return cls(
            needs.pod_level is not None or ungated is not None,
            any(container.kind == "sidecar" for container in init_containers),
            any(
                name not in _IN_EVERY_NODE and not name.startswith(HUGEPAGES)
                for container in init_containers
                for name in container.requests
            ),
        )

    def all(self) -> Iterator[_Variant]:
        for of_gates in _GATES if self.pod_level else _GATES[:1]:
            for keeps in (True, False) if self.sidecars else (True,):
                for drops in (True, False) if self.unknown else (True,):
                    yield of_gates._replace(keeps_sidecars=keeps, drops_unknown=drops)


_NO_DIMENSIONS = _Dimensions(False, False, False)
_GATES: Final = (
    _Variant(),
    _Variant(ignores_pod_level=False),
    _Variant(managers=True),
    # Without the gate: from 1.36 on, in 1.34 and 1.35, and before.
    _Variant(pod_level=False),
    _Variant(pod_level=False, ignores_pod_level=False),
    _Variant(pod_level=False, ignores_pod_level=False, needs_gate=False),
)


def _variant(gates: Gates, dimensions: _Dimensions) -> _Variant:
    behaviour = gates.behaviour
    pod_level = not dimensions.pod_level or gates.pod_level_resources
    managers = dimensions.pod_level and pod_level and gates.pod_level_resource_managers
    return _Variant(
        pod_level,
        managers,
        not dimensions.sidecars or behaviour.sidecars_are_kept,
        not dimensions.unknown or behaviour.unknown_resources_of_init_containers_are_dropped,
        # Without pod-level resources, or with managers for them, no pod is ignored.
        managers
        or not dimensions.pod_level
        or (behaviour.pod_level_pods_are_not_aligned if pod_level else behaviour.pod_level_pods_are_never_aligned),
        pod_level or behaviour.pod_level_pods_need_their_gate,
    )


def _size(needs: Needs) -> int:
    """Returns the approximate size; several caches keep the names and amounts."""
    amounts = [name for container in needs.containers for name in (*container.requests, *container.limits)]
    return _CONTAINER_BYTES * len(needs.containers) + sum([_AMOUNT_BYTES + len(name) for name in amounts])


def _shared_devices(needs: Needs) -> frozenset[str]:
    seen, shared = set[str](), set[str]()
    for container in needs.containers if len(needs.containers) > 1 else ():
        names = {name for name, _ in _devices(container.limits)}
        shared |= seen & names
        seen |= names
    return frozenset(shared)


def _sorted(amounts: dict[str, int] | None) -> Amounts | None:
    return None if amounts is None else tuple(sorted(amounts.items()))


def _devices(limits: dict[str, int]) -> Amounts:
    return tuple(
        sorted([pair for pair in limits.items() if pair[0] not in NATIVE and not pair[0].startswith(HUGEPAGES)])
    )
