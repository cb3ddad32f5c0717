"""Computes how much fragmentation makes the pods smaller that a node can take.

    loss = (together - now) / together

`now`: the largest size of a kind of pods that the kubelet of the node admits aligned, in the present state.
`together`: the largest size that it would admit aligned if the free amounts were on the same NUMA nodes: the free
amounts of the whole node cover the size, and the kubelet admits the size aligned on the node without pods.

A kind is either a resource or a pod:

- The size of a resource is the amount that a single pod requests, at most the capacity of the largest NUMA node. The
  unit is a whole CPU (with full-pcpus-only: the CPUs of a core), a device, or a 128th of the memory or hugepages of
  the largest NUMA node, rounded up to whole pages. Results are in CPUs, devices and bytes.
- The size of a pod is the number of its copies that the node admits one after another, at most 8.

*Aligned* means that the kubelet admits the pod. Under best-effort, which admits every pod, all hints must be preferred.
With policy none the Topology Manager aligns nothing, so `now` is `together`. Every other answer about a size is a trial
of the model (kubelet/trial.py); only the free amounts of the whole node are sums, of the model's managers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Final, NamedTuple, TypeVar, cast

from topowise.pods import HUGEPAGES, Amounts, ContainerNeeds, Needs, amount_of
from topowise_scheduler.kubelet import Kubelet, free_amounts
from topowise_scheduler.kubelet.pod import PodView
from topowise_scheduler.kubelet.trial import place_all
from topowise_scheduler.report.shape import PodRequests

Result = TypeVar("Result")
Steps = Generator[None, None, Result]
"""Work in steps, each of a trial, and its result."""

MAX_RESOURCES: Final = 32
"""Resources of a node, because writers of reports may invent resources. Machines have fewer kinds of devices."""
MAX_PODS: Final = 8
"""Kinds of pods, and copies of a pod."""
HIGH_LOSS: Final = 50
MEDIUM_LOSS: Final = 25
"""Percent from which a loss is marked."""
# A millisecond of work.
_MAX_WAITING: Final = 1024
_STEPS: Final = 128
_PAGE: Final = 4096


class Figure(NamedTuple):
    """The sizes of a kind: CPUs, bytes, devices or copies of a pod."""

    now: int
    together: int

    @property
    def loss(self) -> int | None:
        """Returns the loss in percent, None if the free amounts suffice for no size."""
        return round(100 * (self.together - self.now) / self.together) if self.together else None


class Fragmentation(NamedTuple):
    """The figures of a node: by resource, and by the name of a pod."""

    resources: Mapping[str, Figure] = {}
    pods: Mapping[str, Figure] = {}

    @property
    def loss(self) -> int | None:
        """Returns the largest loss in percent of the pods; of the resources if no pod would fit.

        None if the free amounts suffice for nothing.
        """
        figures = [figure for figure in self.pods.values() if figure.together] or self.resources.values()
        return max((figure.loss for figure in figures if figure.loss is not None), default=None)


class _Kind(NamedTuple):
    """A kind of pods. `most` is its largest size in units, `pod` returns what the pod of a size requests."""

    most: int
    unit: int
    pod: Callable[[int], PodRequests]
    is_copied: bool = False

    def of(self, size: int) -> tuple[PodRequests, int]:
        """Returns what each pod of a size requests, and the number of pods."""
        return self.pod(size * self.unit), size if self.is_copied else 1


def of_node(node: Kubelet, pods: Mapping[str, PodRequests]) -> Fragmentation:
    """Returns the figures of a node, with these pods by name."""
    run = steps(node, pods)
    while True:
        try:
            next(run)
        except StopIteration as end:
            return cast(Fragmentation, end.value)


def steps(node: Kubelet, pods: Mapping[str, PodRequests]) -> Steps[Fragmentation]:
    """Returns the figures of a node, in a step for each trial."""
    empty = node.emptied()
    resources, pod_figures = dict[str, Figure](), dict[str, Figure]()
    for resource, kind in _resource_kinds(node, empty):
        resources[resource] = yield from _figure(node, empty, kind)
    for name, requests in pods.items():
        kind = _Kind(MAX_PODS, 1, partial(_unscaled, requests), is_copied=True)
        pod_figures[name] = yield from _figure(node, empty, kind)
    return Fragmentation(resources, pod_figures)


def most_frequent(pods: Iterable[tuple[str, PodRequests]]) -> dict[str, PodRequests]:
    """Returns the most frequent requests of the first 1,024 named pods, each by the name of its first pod."""
    first: dict[bytes, tuple[str, PodRequests]] = {}
    counts: Counter[bytes] = Counter()
    for name, requests in islice(pods, _MAX_WAITING):
        first.setdefault(requests.shape, (name, requests))
        counts[requests.shape] += 1
    return dict(first[shape] for shape, _ in counts.most_common(MAX_PODS))


def _resource_kinds(node: Kubelet, empty: Kubelet) -> Iterator[tuple[str, _Kind]]:
    """Yields the resources that the managers of a node align."""
    by_numa_node = free_amounts.by_position(empty)
    # Memory without a capacity is not in the report: the model has any amount of it.
    known = [name for name in sorted(by_numa_node[0]) if name in node.capacity or name in node.devices.tables]
    for resource in known[:MAX_RESOURCES]:
        capacity = max(amounts[resource] for amounts in by_numa_node)
        unit = _unit(node, resource, capacity)
        if capacity:
            yield resource, _Kind(capacity // unit, unit, partial(_requesting, resource))


def _unit(node: Kubelet, resource: str, capacity: int) -> int:
    """Returns the amount by which the sizes of a resource differ."""
    if resource == "cpu":
        is_whole_cores = node.cpu is not None and node.cpu.policy.options.full_pcpus_only
        return node.topology.cpus_per_core if is_whole_cores else 1
    if resource == "memory" or resource.startswith(HUGEPAGES):
        page = _PAGE if resource == "memory" else amount_of(resource, resource.removeprefix(HUGEPAGES))
        return page * max(1, -(-capacity // (_STEPS * page)))
    return 1


def _requesting(resource: str, amount: int) -> PodRequests:
    """Returns the requests of a pod of a resource; Guaranteed if a manager aligns only Guaranteed pods."""
    is_device = resource != "cpu" and resource != "memory" and not resource.startswith(HUGEPAGES)
    least: Amounts = {} if is_device else {"cpu": 1, "memory": 1}
    amounts = {**least, resource: 1000 * amount if resource == "cpu" else amount}
    container = ContainerNeeds("c", "app", amounts, amounts)
    return PodRequests(Needs((container,), amounts, "BestEffort" if is_device else "Guaranteed"))


def _unscaled(pod: PodRequests, _: int) -> PodRequests:
    return pod


def _figure(node: Kubelet, empty: Kubelet, kind: _Kind) -> Steps[Figure]:
    covered = yield from _largest(kind.most, lambda size: _covers(node, *kind.of(size)))
    together = yield from _largest(covered, lambda size: _aligns(empty, *kind.of(size)))
    aligns_nothing = node.settings.topology.policy == "none"
    now = together if aligns_nothing else (yield from _largest(together, lambda size: _aligns(node, *kind.of(size))))
    return Figure(now * kind.unit, together * kind.unit)


def _largest(most: int, fits: Callable[[int], bool]) -> Steps[int]:
    """Returns the largest size up to `most` that fits, 0 if none fits; it tries `most`, then bisects.

    A kubelet with policy restricted may refuse a size below a size that it admits. Then the result may be too small.
    """
    low, high, size = 0, most + 1, most
    while high - low > 1:
        if fits(size):
            low = size
        else:
            high = size
        size = (low + high) // 2
        yield
    return low


def _covers(node: Kubelet, pod: PodRequests, copies: int) -> bool:
    """Returns whether the free amounts of the whole node cover the copies, on whichever NUMA nodes the amounts are."""
    (free,) = free_amounts.on_masks(node, [(1 << len(node.node_ids)) - 1])
    shape = pod.form(node.settings).shape
    memory = shape.total.memory or () if shape.pinned else ()
    amounts = (("cpu", shape.total.cpus), *memory, *shape.total.devices)
    if any(copies * amount > free[name] for name, amount in amounts if name in free):
        return False
    # The predicates count what pods request, also without an allocation.
    if not node.predicates:
        return True
    left = {name: amount - node.requested.get(name, 0) for name, amount in node.capacity.items()}
    left["pods"] = node.capacity["pods"] - len(node.active)
    return all(copies * amount <= left[name] for name, amount in (*shape.requests, ("pods", 1)) if name in left)


def _aligns(node: Kubelet, pod: PodRequests, copies: int) -> bool:
    """Returns whether the kubelet of the node admits the copies aligned, one after another."""
    uids = [f"\0{number}" for number in range(copies)]
    after = place_all(node, [partial(_view, pod, uid) for uid in uids])
    if after is None or after.settings.topology.policy != "best-effort":
        return after is not None
    return all(placement.preferred for uid in uids for placement in after.placements(uid).values())


def _view(pod: PodRequests, uid: str, node: Kubelet) -> PodView:
    return pod.view(uid, node.settings)
