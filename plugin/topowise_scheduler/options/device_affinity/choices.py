"""Every device allocation that a kubelet may choose for a pod, by the kubelet model with a `chooser`
(kubelet/device_manager.py), and whether one of them makes the kubelet refuse the pod.

Devices that are equal in what counts here (NUMA nodes, and PCI path where it matters) form a *device class*. An option
is a number of devices of each class. An option of an earlier container changes what later containers can get, so each
combination of such options is an admission of its own. Nothing depends on the options of the last container, so these
are combined without further admissions.

Invariant: with `is_complete`, the iterator yields every set of devices that the kubelet may allocate. A device of an
unconfirmed holder may be free and a free device may be allocated, so both belong to the options. An init container
leaves its devices to later containers, so where free devices stand for those of an unconfirmed holder there, the later
allocations of the model are not those of the kubelet.

A kubelet with free resources for a pod may refuse it all the same. Among devices that satisfy the hint it takes any, in
the order of a Go map. If some of them are near more NUMA nodes than the rest, or a hint has several NUMA nodes, a
container may get the devices that the next container needs. Under the policies that refuse, with hints per container,
the next container then fails with TopologyAffinityError. The node still fits, because a pod without another node would
wait for ever; nodes without this risk only rank first. A few admissions are tried, so with many choices a refusal can
be overlooked, and True is only returned if the model refuses the pod under a possible choice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Final, NamedTuple

from topowise.attributes.pci_devices import Located
from topowise.pci import Place
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.device_manager import Choice
from topowise_scheduler.kubelet.device_table import DeviceSet, DeviceTable
from topowise_scheduler.kubelet.masks import lowest
from topowise_scheduler.kubelet.pod import PodView
from topowise_scheduler.kubelet.trial import trial
from topowise_scheduler.options.device_affinity.preferred_allocation import Rule, answers

_MOST_RUNS: Final = 64
_MOST_OPTIONS: Final = 256
_MOST_ALLOCATIONS: Final = 1024
# Admissions per answer. Each takes about 0.1 ms on two NUMA nodes.
_MOST_RUNS_OF_RISK: Final = 8


class DeviceClass(NamedTuple):
    """Equal devices of a resource, `sample` is the id of the first. `near` are all devices with the same NUMA nodes.

    `is_one_function`: all ids are the same PCI function, as the replicas of a shared GPU are.
    """

    resource: str
    sample: str = ""
    located: Located | None = None
    is_one_function: bool = False
    devices: DeviceSet = 0
    near: DeviceSet = 0


ClassCounts = tuple[tuple[DeviceClass, int], ...]
Allocation = Mapping[str, Mapping[DeviceClass, int]]
"""The number of devices of each class that each container gets, of the resources in question."""


class _Option(NamedTuple):
    """A number of devices of each class, and free devices of the model that stand for them."""

    counts: ClassCounts
    devices: DeviceSet

    @property
    def is_exact(self) -> bool:
        """Whether the free devices are of these classes themselves."""
        return all((device_class.devices & self.devices).bit_count() == number for device_class, number in self.counts)


class KnownDevices(NamedTuple):
    """What is known of a node's devices beside the model's state: PCI functions by id, devices by resource whose
    holders no report has confirmed, and the plug-in's rule by resource."""

    places: Mapping[str, Located]
    unconfirmed: Mapping[str, DeviceSet]
    rules: Mapping[str, Rule]


class Choices:
    """Iterates over the possible allocations, None for an admission that fails; then `is_complete` is valid.

    `most_runs` limits the admissions.
    """

    def __init__(
        self, node: Kubelet, pod: PodView, resources: frozenset[str], known: KnownDevices, most_runs: int = _MOST_RUNS
    ) -> None:
        self.is_complete = True
        self._most_runs = most_runs
        self._node = node
        self._pod = pod
        self._resources = resources
        self._known = known
        tables = {
            resource: table
            for resource, table in node.devices.tables.items()
            if any(container.limits.get(resource) for container in pod.containers)
        }
        names = [container.name for container in pod.containers if any(map(container.limits.get, tables))]
        self._last = names[-1] if names else ""
        self._leaves_devices = {container.name for container in pod.containers if container.kind == "init"}
        ids = [device for resource in resources & tables.keys() for device in tables[resource].ids]
        self._uses = Counter(known.places[device].address for device in ids if device in known.places)
        self._classes = {resource: tuple(self._classify(resource, table)) for resource, table in tables.items()}
        # Of the current admission: the option taken at each choice, the number of options there, and the options of
        # the resources in question by container.
        self._path: list[int] = []
        self._widths: list[int] = []
        self._open: list[tuple[str, Sequence[_Option]]] = []

    def __iter__(self) -> Iterator[Allocation | None]:
        allocations = 0
        self._path = []
        for _ in range(self._most_runs):
            self._widths, self._open = [], []
            is_admitted = trial(self._node, self._pod, chooser=self._choose).admission.admitted
            for combination in product(*(options for _, options in self._open)) if is_admitted else [None]:
                allocations += 1
                if allocations > _MOST_ALLOCATIONS:
                    self.is_complete = False
                    return
                yield None if combination is None else self._allocation(combination)
            # The next path: the last choice with a further option takes it, the choices after it begin anew.
            while self._path and self._path[-1] + 1 == self._widths[len(self._path) - 1]:
                self._path.pop()
            if not self._path:
                return
            self._path[-1] += 1
        self.is_complete = False

    def _allocation(self, combination: Sequence[_Option]) -> Allocation:
        allocation: dict[str, dict[DeviceClass, int]] = {}
        for (container, _), option in zip(self._open, combination, strict=True):
            numbers = allocation.setdefault(container, {})
            for device_class, number in option.counts:
                numbers[device_class] = numbers.get(device_class, 0) + number
        return allocation

    def _choose(self, choice: Choice) -> DeviceSet:
        options: Sequence[_Option] = self._options(choice)
        if choice.container != self._last:
            at = len(self._widths)
            self._widths.append(len(options))
            if at == len(self._path):
                self._path.append(0)
            options = options[self._path[at] : self._path[at] + 1]
            if choice.container in self._leaves_devices and not options[0].is_exact:
                self.is_complete = False
        if choice.resource in self._resources:
            self._open.append((choice.container, options))
        return options[0].devices

    def _options(self, choice: Choice) -> list[_Option]:
        """The options of a choice, never empty."""
        classes: Sequence[DeviceClass] = self._classes[choice.resource]
        unconfirmed = self._known.unconfirmed.get(choice.resource, 0) & choice.near & ~choice.among
        rule = self._known.rules.get(choice.resource, "any")
        if rule != "any" and not unconfirmed and not choice.taken:
            table = self._node.devices.tables[choice.resource]
            known = table.names(table.reported)
            preferred = answers(rule, table.names(choice.among), choice.number, known, self._known.places)
            if preferred is not None:
                by_counts: dict[ClassCounts, _Option] = {}
                for devices in sorted(map(table.select, preferred)):
                    counts = _counts(
                        classes, [(device_class.devices & devices).bit_count() for device_class in classes]
                    )
                    by_counts.setdefault(counts, _Option(counts, devices))
                return list(by_counts.values())
        pool = choice.among | unconfirmed
        classes = [device_class for device_class in classes if device_class.devices & pool]
        options: list[_Option] = []
        for numbers in _divided([(device_class.devices & pool).bit_count() for device_class in classes], choice.number):
            if len(options) >= _MOST_OPTIONS:
                self.is_complete = False
                break
            counts = _counts(classes, numbers)
            options.append(_Option(counts, _stand_ins(counts, choice)))
        return options

    def _classify(self, resource: str, table: DeviceTable) -> Iterator[DeviceClass]:
        """The device classes of a resource; PCI paths count only for the resources in question."""
        parts = [(1 << len(table.ids)) - 1]
        # filterByAffinity treats a device without any topology otherwise than a device with an empty list of nodes.
        for subset in (*table.near, table.without_topology, table.healthy):
            parts = [part for whole in parts for part in (whole & subset, whole & ~subset) if part]
        for near in parts:
            if resource not in self._resources:
                yield DeviceClass(resource, devices=near, near=near)
                continue
            equal: dict[tuple[Place | None, str], DeviceSet] = {}
            for name in table.names(near):
                located = self._known.places.get(name)
                function = located.address if located is not None and self._uses[located.address] > 1 else ""
                key = (None if located is None else located.place, function)
                equal[key] = equal.get(key, 0) | 1 << table.index[name]
            for (_, function), devices in equal.items():
                (sample,) = table.names(lowest(devices, 1))
                yield DeviceClass(resource, sample, self._known.places.get(sample), bool(function), devices, near)


def _counts(classes: Sequence[DeviceClass], numbers: Sequence[int]) -> ClassCounts:
    return tuple((device_class, number) for device_class, number in zip(classes, numbers, strict=True) if number)


def _divided(available: Sequence[int], count: int) -> Iterator[tuple[int, ...]]:
    """All ways to take `count` in sum, of each entry at most what is available."""
    if not available:
        yield ()
        return
    behind = sum(available[1:])
    for first in range(min(available[0], count), max(0, count - behind) - 1, -1):
        yield from ((first, *tail) for tail in _divided(available[1:], count - first))


def _stand_ins(counts: ClassCounts, choice: Choice) -> DeviceSet:
    """Free devices of the model, near the same NUMA nodes, as many as `counts` has.

    Where an unconfirmed holder has a device of these classes in the model, it has another device in this allocation.
    """
    taken = 0
    for device_class, count in counts:
        taken |= lowest(device_class.devices & choice.among, count)
    for device_class, count in counts:
        missing = count - (device_class.devices & choice.among).bit_count()
        if missing > 0:
            taken |= lowest(device_class.near & choice.among & ~taken, missing)
    return taken | lowest(choice.among & ~taken, choice.number - taken.bit_count())


def may_refuse(node: Kubelet, pod: PodView, shared: frozenset[str], rules: Mapping[str, Rule]) -> bool:
    """Whether `node`, a state in which the pod fits, may refuse the pod. The state does not change.

    `shared` are the resources that several containers of the pod request (PodRequests.shared_devices).
    """
    if not _choice_matters(node, pod, shared):
        return False
    choices = Choices(node, pod, frozenset(), KnownDevices({}, {}, rules), most_runs=_MOST_RUNS_OF_RISK)
    return any(allocation is None for allocation in choices)


def _choice_matters(node: Kubelet, pod: PodView, shared: frozenset[str]) -> bool:
    """Whether the devices that a hint allows can be near different NUMA nodes."""
    settings = node.settings.topology
    if settings.policy not in ("restricted", "single-numa-node") or settings.scope != "container":
        return False
    for resource in shared & node.devices.tables.keys():
        table = node.devices.tables[resource]
        if not table.has_topology:
            continue
        counts = [container.limits.get(resource, 0) for container in pod.containers]
        # A hint of `restricted` has several nodes only if a request exceeds the devices of every single node.
        is_wide = settings.policy == "restricted" and any(count and table.smallest_mask(count) > 1 for count in counts)
        # On a single NUMA node there is no affinity, so devices without a NUMA node are taken too.
        is_mixed = settings.policy == "single-numa-node" and len(node.node_ids) == 1
        if is_wide or not table.of_one_node or (is_mixed and table.healthy & ~table.with_nodes):
            return True
    return False
