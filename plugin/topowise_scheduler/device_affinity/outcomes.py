"""What a node's devices come to for a pod's wishes: before the pod is there, and once it has got them.

Invariant: `sure` is said only if no choice of the kubelet, wherever its newest pods may lie, misses the wish, and
`impossible` only if none meets it. Where choices are too many to be gone through it is `possible` or `unknown`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import combinations_with_replacement
from typing import Final, Literal, NamedTuple

import msgspec

from topowise import pci
from topowise.attributes.pci_devices import Located
from topowise.pci import Place
from topowise.pods import Needs
from topowise_scheduler import refusals
from topowise_scheduler.device_affinity.choices import Choices, Kind, Seen
from topowise_scheduler.device_affinity.plugins import Rule
from topowise_scheduler.device_affinity.wishes import Wish
from topowise_scheduler.kubelet import Kubelet, Placement
from topowise_scheduler.kubelet.device_table import DeviceSet
from topowise_scheduler.kubelet.pod import PodView

Outcome = Literal["sure", "possible", "impossible", "unknown"]
Admits = Literal["sure", "possible"]

_GRADES: Final[Mapping[Outcome, int]] = {"sure": 2, "possible": 1, "impossible": 0, "unknown": 0}
_REFUSALS: Final[Mapping[Outcome, str]] = {
    "possible": refusals.NOT_SURELY_NEAR,
    "impossible": refusals.NOT_NEAR,
    "unknown": refusals.PLACES_UNKNOWN,
}
# Under these, pods whose place is only predicted lie nowhere but in the node's possible placements.
_FORESEEN: Final = ("none", "restricted", "single-numa-node")


class Settings(NamedTuple):
    """What the service was told: which plug-in's rule a resource has, and what `require` is content with."""

    rules: Mapping[str, Rule] = {}
    admits: Admits = "sure"


class Devices(NamedTuple):
    """Where a node's devices are, by id, and the uids of pods of which it is only predicted which they hold."""

    places: Mapping[str, Located]
    guessed: Collection[str] = ()


class Judged(msgspec.Struct, frozen=True):
    """The outcome of each wish with a reason for people, and of all that are required together ("" for none)."""

    wishes: tuple[Wish, ...]
    outcomes: tuple[Outcome, ...]
    whys: tuple[str, ...]
    required: Outcome | Literal[""]

    @property
    def grade(self) -> int:
        """How good that is beside other nodes, larger is better."""
        return sum(_GRADES[outcome] for outcome in self.outcomes)

    def refusal(self, admits: Admits) -> str:
        """Why the pod is kept from the node, "" if it is not."""
        if not self.required or self.required == "sure" or (self.required == admits):
            return ""
        return _REFUSALS[self.required]


class _Item(NamedTuple):
    """Devices of one container that are alike, one of which is `name`; `is_one`: they are one function."""

    resource: str
    name: str
    located: Located | None
    number: int = 1
    is_one: bool = True


class _Tally:
    """What became of wishes in the ways looked at so far: met, not met, or None for not known."""

    def __init__(self, wishes: tuple[Wish, ...]) -> None:
        self._wishes = wishes
        self._required = [at for at, wish in enumerate(wishes) if wish.strength == "require"]
        self._seen: list[set[bool | None]] = [set() for _ in wishes]
        self._together: set[bool | None] = set()
        self._whys: list[dict[bool | None, str]] = [{} for _ in wishes]
        self.doubt = ""
        """Why what was seen may not be all there is, "" if it is."""

    def add(self, found: Sequence[tuple[bool | None, str]]) -> None:
        """One more way: for each wish whether it is met, and what is against it."""
        for (is_met, why), seen, whys in zip(found, self._seen, self._whys, strict=True):
            seen.add(is_met)
            whys.setdefault(is_met, why)
        self._together.add(_all(found[at][0] for at in self._required))

    @property
    def is_settled(self) -> bool:
        """Whether no further way changes anything."""
        return all({True, False} <= seen for seen in self._seen) and (
            not self._required or (True in self._together and len(self._together) > 1)
        )

    def judged(self) -> Judged:
        """All that was seen."""
        outcomes = tuple(self._outcome(seen) for seen in self._seen)
        return Judged(
            self._wishes,
            outcomes,
            tuple(_WHYS[outcome].format(whys.get(False) or whys.get(None) or self.doubt)
                  for outcome, whys in zip(outcomes, self._whys, strict=True)),
            self._outcome(self._together) if self._required else "",
        )  # fmt: skip

    def _outcome(self, seen: set[bool | None]) -> Outcome:
        if seen == {True} and not self.doubt:
            return "sure"
        if seen == {False} and not self.doubt:
            return "impossible"
        return "possible" if True in seen else "unknown"


_WHYS: Final[Mapping[Outcome, str]] = {
    "sure": "whatever the kubelet takes",
    "possible": "it depends on what the kubelet takes: {}",
    "impossible": "whatever the kubelet takes: {}",
    "unknown": "{}",
}


def judge(
    wishes: tuple[Wish, ...],
    needs: Needs,
    states: Iterable[Kubelet],
    view: Callable[[Kubelet], PodView],
    devices: Devices,
    settings: Settings,
) -> Judged:
    """What a node in each of these states, which are left as they are, would give a pod with these needs and this
    view. Without a state nothing is known of the node."""
    asked = [_asked(needs, wish) for wish in wishes]
    tally = _Tally(wishes)
    if not any(count > 1 for counts in asked for count in counts.values()):
        tally.add([(True, "")] * len(wishes))
        return tally.judged()
    if not devices.places:
        tally.add([(None, "no report tells where the node's devices are on the PCI buses")] * len(wishes))
        return tally.judged()
    resources = frozenset(name for wish in wishes for name in wish.resources)
    for state in states:
        pod, guessed = view(state), _guessed(state, devices.guessed)
        choices = Choices(state, pod, resources, Seen(devices.places, guessed, settings.rules))
        for way in choices:
            if way is None:
                tally.add([(False, "the kubelet refuses the pod")] * len(wishes))
                continue
            got = {name: _items(counts) for name, counts in way.items()}
            tally.add([_of_pod(wish, mine, got) for wish, mine in zip(wishes, asked, strict=True)])
            if tally.is_settled:
                return tally.judged()
        if not choices.is_complete:
            tally.doubt = "there are too many choices to look at"
        elif any(guessed.values()) and len(state.node_ids) > 1 and state.settings.topology.policy not in _FORESEEN:
            tally.doubt = "no report has confirmed yet where its newest pods lie"
    return tally.judged()


def observed(
    wishes: tuple[Wish, ...], needs: Needs, held: Mapping[str, Placement], places: Mapping[str, Located]
) -> list[tuple[bool | None, str]]:
    """Whether each wish is met by what the containers of a pod hold, None if that is not known, and what is against
    it."""
    got = {
        name: [_Item(resource, one, places.get(one)) for resource, ids in placement.devices.items() for one in ids]
        for name, placement in held.items()
    }
    return [_of_pod(wish, _asked(needs, wish), got) for wish in wishes]


def _guessed(state: Kubelet, uids: Collection[str]) -> dict[str, DeviceSet]:
    """By resource the devices of these pods; what one might hold elsewhere is under its uid with a place."""
    found: dict[str, DeviceSet] = {}
    for holder, containers in state.devices.allocations.items() if uids else ():
        if holder.partition(" ")[0] in uids:
            for holding in containers.values():
                for resource, devices in holding.items():
                    found[resource] = found.get(resource, 0) | devices
    return found


def _asked(needs: Needs, wish: Wish) -> dict[str, int]:
    """By container how many devices the wish is about."""
    return {
        one.name: sum(one.limits.get(name, 0) for name in wish.resources)
        for one in needs.containers
        if one.kind != "init"
    }


def _items(counts: Sequence[tuple[Kind, int]]) -> list[_Item]:
    total: dict[Kind, int] = {}
    for kind, count in counts:
        total[kind] = total.get(kind, 0) + count
    return [_Item(kind.resource, kind.sample, kind.located, count, kind.is_one) for kind, count in total.items()]


def _of_pod(wish: Wish, asked: Mapping[str, int], got: Mapping[str, Sequence[_Item]]) -> tuple[bool | None, str]:
    """Whether each container that gets several devices gets such that are near, and what is against it."""
    found: list[tuple[bool | None, str]] = [(True, "")]
    for name, count in asked.items():
        if count > 1:
            mine = [item for item in got.get(name, ()) if item.resource in wish.resources]
            found.append(_of_container(wish, mine) if sum(item.number for item in mine) == count else _NOT_THERE)
    return min(found, key=lambda one: _ORDER.index(one[0]))


_ORDER: Final = (False, None, True)
_NOT_THERE: Final = (None, "not all of its devices are known")


def _of_container(wish: Wish, items: Sequence[_Item]) -> tuple[bool | None, str]:
    worst: tuple[bool | None, str] = (True, "")
    for one, other in combinations_with_replacement(items, 2):
        if one is other and one.number < 2:
            continue
        if one.located is None or other.located is None:
            unknown = one if one.located is None else other
            worst = None, f"nobody tells where {unknown.resource} {unknown.name} is on the PCI buses"
        elif one.is_one if one is other else one.located.address == other.located.address:
            continue
        elif not wish.allows(one.located.place, other.located.place):
            return False, _apart(one, one.located.place, other, other.located.place)
    return worst


def _apart(one: _Item, at: Place, other: _Item, place: Place) -> str:
    distance = pci.distance(at, place) or "on different roots, nobody tells how far"
    if one is other:
        return f"two of {one.resource} at {'/'.join(at.path)} are {distance} apart"
    return f"{one.resource} {one.name} and {other.resource} {other.name} are {distance} apart"


def _all(found: Iterable[bool | None]) -> bool | None:
    return min(found, key=_ORDER.index, default=True)
