"""All that a kubelet may choose for a pod, by the one-node model with somebody else choosing (device_manager.Choice).

Devices that differ in nothing that matters here (NUMA nodes, and place if anybody asks) are one *kind*, and a choice is
a number of each. What is chosen for one container decides what the next one finds, and on which NUMA nodes, so each way
through all but the last container is an admission of its own; for the last one nothing follows, so its choices are only
combined.

Invariant: every set of devices that the kubelet may give is in some way gone through, as long as `is_complete`. With
devices whose holders are only predicted there are more: such a device may as well be free, and a free one held.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Final, NamedTuple

from topowise.attributes.pci_devices import Located
from topowise.pci import Place
from topowise_scheduler.device_affinity.plugins import Rule, answers
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.device_manager import Choice
from topowise_scheduler.kubelet.device_table import DeviceSet, DeviceTable
from topowise_scheduler.kubelet.masks import lowest
from topowise_scheduler.kubelet.pod import PodView
from topowise_scheduler.kubelet.trial import trial

_MOST_RUNS: Final = 64
_MOST_PICKS: Final = 256
_MOST_WAYS: Final = 1024


class Kind(NamedTuple):
    """Devices of a resource that are alike; `sample` is the id of one, `near` are all with the same NUMA nodes.

    `is_one` is whether all of them are one function, as the ids of a GPU that is shared are.
    """

    resource: str
    devices: DeviceSet
    near: DeviceSet
    sample: str = ""
    located: Located | None = None
    is_one: bool = False


class _Pick(NamedTuple):
    """So many of each kind, and devices for the model that come to the same."""

    counts: tuple[tuple[Kind, int], ...]
    devices: DeviceSet


Way = Mapping[str, Sequence[tuple[Kind, int]]]
"""What each container gets of the resources that are asked about."""


class Seen(NamedTuple):
    """What is known of a node's devices beside its state: where they are, and by resource those of which it is only
    predicted that somebody holds just them."""

    places: Mapping[str, Located]
    guessed: Mapping[str, DeviceSet]
    rules: Mapping[str, Rule]


class Choices:
    """Iterates over the ways, None for one in which the kubelet refuses the pod; `is_complete` once that is over.

    `most_runs` are the admissions that may be tried for that.
    """

    def __init__(
        self, node: Kubelet, pod: PodView, resources: frozenset[str], seen: Seen, *, most_runs: int = _MOST_RUNS
    ) -> None:
        self.is_complete = True
        self._most_runs = most_runs
        self._node = node
        self._pod = pod
        self._resources = resources
        self._seen = seen
        tables = node.devices.tables
        asking = [one.name for one in pod.containers if any(one.limits.get(name) for name in tables)]
        self._last = asking[-1] if asking else ""
        self._kinds: dict[str, tuple[Kind, ...]] = {}
        ids = [one for name in resources & tables.keys() for one in tables[name].ids]
        self._at = Counter(located.address for one in ids if (located := seen.places.get(one)) is not None)

    def __iter__(self) -> Iterator[Way | None]:
        path: list[int] = []
        ways = 0
        for _ in range(self._most_runs):
            run = _Run(self, path)
            for way in run.ways(self._node, self._pod):
                ways += 1
                if ways > _MOST_WAYS:
                    self.is_complete = False
                    return
                yield way
            # The next path: the last choice that can go on does, those after it begin anew.
            path = run.path
            while path and path[-1] + 1 == run.widths[len(path) - 1]:
                path.pop()
            if not path:
                return
            path[-1] += 1
        self.is_complete = False

    def is_last(self, container: str) -> bool:
        """Whether nothing that is chosen later depends on this container's."""
        return container == self._last

    def is_asked(self, resource: str) -> bool:
        """Whether it matters which of its devices are taken, and not only near which NUMA nodes."""
        return resource in self._resources

    def picks(self, choice: Choice) -> list[_Pick]:
        """What may be chosen, at least one."""
        guessed = self._seen.guessed.get(choice.resource, 0) & choice.near & ~choice.among
        rule = self._seen.rules.get(choice.resource, "any")
        if rule != "any" and not guessed and not choice.taken:
            found = self._preferred(choice, rule)
            if found is not None:
                return found
        pool = choice.among | guessed
        kinds = [kind for kind in self._of(choice.resource) if kind.devices & pool]
        picks: list[_Pick] = []
        for counts in _divided([(kind.devices & pool).bit_count() for kind in kinds], choice.number):
            if len(picks) >= _MOST_PICKS:
                self.is_complete = False
                break
            taken = tuple((kind, count) for kind, count in zip(kinds, counts, strict=True) if count)
            picks.append(_Pick(taken, _stand_ins(taken, choice)))
        return picks

    def _preferred(self, choice: Choice, rule: Rule) -> list[_Pick] | None:
        table = self._node.devices.tables[choice.resource]
        known = table.names(table.reported)
        preferred = answers(rule, table.names(choice.among), choice.number, known, self._seen.places)
        if preferred is None:
            return None
        picks: dict[tuple[tuple[Kind, int], ...], _Pick] = {}
        for devices in sorted(map(table.select, preferred)):
            each = [(kind, (kind.devices & devices).bit_count()) for kind in self._of(choice.resource)]
            counts = tuple((kind, count) for kind, count in each if count)
            picks.setdefault(counts, _Pick(counts, devices))
        return list(picks.values())

    def _of(self, resource: str) -> tuple[Kind, ...]:
        kinds = self._kinds.get(resource)
        if kinds is None:
            kinds = self._kinds[resource] = tuple(self._made(resource, self._node.devices.tables[resource]))
        return kinds

    def _made(self, resource: str, table: DeviceTable) -> Iterator[Kind]:
        for near in _by_nodes(table):
            if not self.is_asked(resource):
                yield Kind(resource, near, near)
                continue
            alike: dict[tuple[Place | None, str], DeviceSet] = {}
            for name in table.names(near):
                located = self._seen.places.get(name)
                is_shared = located is not None and self._at[located.address] > 1
                key = (located and located.place, located.address if located is not None and is_shared else "")
                alike[key] = alike.get(key, 0) | 1 << table.index[name]
            for (_, function), devices in alike.items():
                (sample,) = table.names(lowest(devices, 1))
                yield Kind(resource, devices, near, sample, self._seen.places.get(sample), bool(function))


class _Run:
    """One admission. `path` is which pick was taken at each choice of the containers but the last one, of `widths`."""

    def __init__(self, choices: Choices, path: Sequence[int]) -> None:
        self._choices = choices
        self._given = path
        self.path: list[int] = []
        self.widths: list[int] = []
        self._fixed: dict[str, list[tuple[Kind, int]]] = {}
        self._open: list[tuple[str, list[_Pick]]] = []

    def ways(self, node: Kubelet, pod: PodView) -> Iterator[Way | None]:
        """Those that begin with the path."""
        if not trial(node, pod, chooser=self._choose).admission.admitted:
            yield None
            return
        for combination in product(*(picks for _, picks in self._open)):
            way = {name: list(counts) for name, counts in self._fixed.items()}
            for (container, _), pick in zip(self._open, combination, strict=True):
                way.setdefault(container, []).extend(pick.counts)
            yield way

    def _choose(self, choice: Choice) -> DeviceSet:
        picks = self._choices.picks(choice)
        is_asked = self._choices.is_asked(choice.resource)
        if self._choices.is_last(choice.container):
            if is_asked:
                self._open.append((choice.container, picks))
            return picks[0].devices
        at = len(self.path)
        number = self._given[at] if at < len(self._given) else 0
        self.path.append(number)
        self.widths.append(len(picks))
        if is_asked:
            self._fixed.setdefault(choice.container, []).extend(picks[number].counts)
        return picks[number].devices


def _by_nodes(table: DeviceTable) -> list[DeviceSet]:
    """The devices by the set of NUMA nodes that they are near."""
    parts = [(1 << len(table.ids)) - 1]
    # What has no topology at all is taken otherwise than what has one without nodes.
    for mine in (*table.near, table.without_topology, table.healthy):
        parts = [part for one in parts for part in (one & mine, one & ~mine) if part]
    return parts


def _divided(most: Sequence[int], count: int) -> Iterator[tuple[int, ...]]:
    """All ways to take so many in all, of each at most what there is."""
    if not most:
        yield ()
        return
    rest = sum(most[1:])
    for first in range(min(most[0], count), max(0, count - rest) - 1, -1):
        yield from ((first, *others) for others in _divided(most[1:], count - first))


def _stand_ins(counts: Sequence[tuple[Kind, int]], choice: Choice) -> DeviceSet:
    """As many devices that the model has free, near the same NUMA nodes: where one of these is held by a guess, the
    holder has another."""
    taken = 0
    for kind, count in counts:
        taken |= lowest(kind.devices & choice.among, count)
    for kind, count in counts:
        missing = count - (kind.devices & choice.among).bit_count()
        if missing > 0:
            taken |= lowest(kind.near & choice.among & ~taken, missing)
    return taken | lowest(choice.among & ~taken, choice.number - taken.bit_count())
