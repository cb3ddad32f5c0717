"""Whether the devices of a pod are, or will be, as near each other as its affinity terms say.

Invariant: an outcome is `sure` only if every possible allocation meets the term, in every possible placement of
unconfirmed pods, and `impossible` only if none does. Where not all allocations are examined, the outcome is `possible`
or `unknown`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import combinations_with_replacement
from typing import Final, Literal, NamedTuple

import msgspec

from topowise import pci
from topowise.attributes.pci_devices import Located
from topowise.pods import Needs
from topowise_scheduler.kubelet import Kubelet, Placement
from topowise_scheduler.kubelet.device_table import DeviceSet
from topowise_scheduler.kubelet.pod import PodView
from topowise_scheduler.ledger.pods.demands import OptionDemand, Reader
from topowise_scheduler.options.device_affinity.affinity_terms import ANNOTATION, AffinityTerm, terms_of
from topowise_scheduler.options.device_affinity.choices import Choices, DeviceClass, KnownDevices
from topowise_scheduler.options.device_affinity.preferred_allocation import Rule
from topowise_scheduler.verdicts.refusals import Refusal

Outcome = Literal["sure", "possible", "impossible", "unknown"]
Admits = Literal["sure", "possible"]

_GRADES: Final[Mapping[Outcome, int]] = {"sure": 2, "possible": 1, "impossible": 0, "unknown": 0}
_REFUSALS: Final[Mapping[Outcome, Refusal]] = {
    "possible": Refusal.NOT_SURELY_NEAR,
    "impossible": Refusal.NOT_NEAR,
    "unknown": Refusal.PLACES_UNKNOWN,
}
# Under these policies the node's possible placements cover every placement of an unconfirmed pod.
_COVERED_POLICIES: Final = ("none", "restricted", "single-numa-node")


class Reason(NamedTuple):
    """What is against a term. `devices`: those it concerns, "resource id"; of "two apart" the resource and the PCI path
    of both. `distance`: how far they are from each other, "" if unknown."""

    kind: Literal[
        "nothing", "unlisted", "no paths", "no path", "refused", "not examined", "unconfirmed", "apart", "two apart"
    ]
    devices: tuple[str, ...] = ()
    distance: str = ""


Verdict = tuple[bool | None, Reason]
"""Whether a term is met, None if that is not known, and the reason against it."""

_MET: Final[Verdict] = (True, Reason("nothing"))
_UNLISTED: Final[Verdict] = (None, Reason("unlisted"))


class DeviceAffinity(OptionDemand, frozen=True, gc=False):
    """The terms of a pod."""

    terms: tuple[AffinityTerm, ...] = ()

    @property
    def is_required(self) -> bool:
        """Whether a node that does not meet the terms is refused."""
        return any(term.strength == "require" for term in self.terms)

    def observed(
        self, needs: Needs, held: Mapping[str, Placement], places: Mapping[str, Located]
    ) -> Iterator[tuple[bool | None, str]]:
        """See `OptionDemand`."""
        for term, (is_met, reason) in zip(self.terms, observed(self.terms, needs, held, places), strict=True):
            yield is_met, f"{term}: {', '.join(reason.devices)} {reason.distance}"


NO_TERMS: Final = DeviceAffinity()
READER: Final = Reader(
    frozenset((ANNOTATION,)), frozenset(), lambda annotations, _, needs: DeviceAffinity(terms_of(annotations, needs))
)


class Settings(NamedTuple):
    """The service's configuration: the plug-in's rule by resource, and the outcome that a required term needs."""

    rules: Mapping[str, Rule] = {}
    admits: Admits = "sure"


class Devices(NamedTuple):
    """The PCI functions of a node's devices by id, and the uids of pods whose devices are only predicted."""

    places: Mapping[str, Located]
    guessed: Collection[str] = ()


class AffinityVerdict(msgspec.Struct, frozen=True):
    """The outcome of each term with the reason against it, and of all required terms together ("" without any)."""

    affinity_terms: tuple[AffinityTerm, ...]
    outcomes: tuple[Outcome, ...]
    reasons: tuple[Reason, ...]
    required: Outcome | Literal[""]

    @property
    def grade(self) -> int:
        """The rank of this node among other nodes, larger is better: up to 2 for each term."""
        return sum(_GRADES[outcome] for outcome in self.outcomes)

    def refusal(self, admits: Admits) -> Refusal | None:
        """Why the node is refused, None if it is not."""
        return None if not self.required or self.required in ("sure", admits) else _REFUSALS[self.required]


class _Tally:
    """The verdicts of the allocations so far: for each term, then for all required terms together, the first reason
    by verdict."""

    def __init__(self, terms: tuple[AffinityTerm, ...]) -> None:
        self._terms = terms
        self._required = [at for at, term in enumerate(terms) if term.strength == "require"]
        self._reasons: list[dict[bool | None, Reason]] = [{} for _ in range(len(terms) + bool(self._required))]
        self.doubt: Reason | None = None
        """Why other allocations may exist, None if all were examined."""

    def add(self, verdicts: Sequence[Verdict]) -> None:
        """Counts an allocation: a verdict for each term."""
        required = [_worst([verdicts[at] for at in self._required])] if self._required else []
        for (is_met, reason), reasons in zip([*verdicts, *required], self._reasons, strict=True):
            reasons.setdefault(is_met, reason)

    @property
    def is_settled(self) -> bool:
        """Whether no further allocation changes an outcome."""
        return all(True in reasons and False in reasons for reasons in self._reasons)

    def judged(self) -> AffinityVerdict:
        """The outcomes."""
        outcomes = [self._outcome(reasons) for reasons in self._reasons]
        against = [
            reasons.get(False) or reasons.get(None) or self.doubt or Reason("nothing") for reasons in self._reasons
        ]
        count = len(self._terms)
        required = outcomes[-1] if self._required else ""
        return AffinityVerdict(self._terms, tuple(outcomes[:count]), tuple(against[:count]), required)

    def _outcome(self, reasons: Mapping[bool | None, Reason]) -> Outcome:
        if len(reasons) == 1 and None not in reasons and not self.doubt:
            return "sure" if True in reasons else "impossible"
        return "possible" if True in reasons else "unknown"


def judge(
    terms: tuple[AffinityTerm, ...],
    needs: Needs,
    states: Iterable[Kubelet],
    view: Callable[[Kubelet], PodView],
    devices: Devices,
    settings: Settings,
) -> AffinityVerdict:
    """The outcomes for a pod with these needs and this view on a node in each of these states, which do not change.

    Without a state every outcome is `unknown`.
    """
    requested = [_requested(needs, term) for term in terms]
    tally = _Tally(terms)
    if not any(count > 1 for counts in requested for count in counts.values()):
        tally.add([_MET] * len(terms))
        return tally.judged()
    if not devices.places:
        tally.add([(None, Reason("no paths"))] * len(terms))
        return tally.judged()
    resources = frozenset(name for term in terms for name in term.resources)
    for state in states:
        unconfirmed, policy = _unconfirmed(state, devices.guessed), state.settings.topology.policy
        choices = Choices(state, view(state), resources, KnownDevices(devices.places, unconfirmed, settings.rules))
        for allocation in choices:
            if allocation is None:
                tally.add([(False, Reason("refused"))] * len(terms))
                continue
            tally.add([_of_pod(term, counts, allocation) for term, counts in zip(terms, requested, strict=True)])
            if tally.is_settled:
                return tally.judged()
        if not choices.is_complete:
            tally.doubt = Reason("not examined")
        elif any(unconfirmed.values()) and len(state.node_ids) > 1 and policy not in _COVERED_POLICIES:
            tally.doubt = Reason("unconfirmed")
    return tally.judged()


def observed(
    terms: tuple[AffinityTerm, ...], needs: Needs, held: Mapping[str, Placement], places: Mapping[str, Located]
) -> list[Verdict]:
    """The verdict of each term for the devices that the containers of a pod hold."""
    allocation = {
        name: {
            DeviceClass(resource, device, places.get(device), is_one_function=True): 1
            for resource, ids in placement.devices.items()
            for device in ids
        }
        for name, placement in held.items()
    }
    return [_of_pod(term, _requested(needs, term), allocation) for term in terms]


def _unconfirmed(state: Kubelet, uids: Collection[str]) -> dict[str, DeviceSet]:
    """The devices of these pods by resource. A holder is a uid, or a uid, a blank and a possible placement's key."""
    unconfirmed: dict[str, DeviceSet] = {}
    for holder, containers in state.devices.allocations.items() if uids else ():
        if holder.partition(" ")[0] in uids:
            for holding in containers.values():
                for resource, devices in holding.items():
                    unconfirmed[resource] = unconfirmed.get(resource, 0) | devices
    return unconfirmed


def _requested(needs: Needs, term: AffinityTerm) -> dict[str, int]:
    """The number of devices of a term's resources by container; a plain init container ends before the pod works."""
    return {
        container.name: sum(container.limits.get(name, 0) for name in term.resources)
        for container in needs.containers
        if container.kind != "init"
    }


def _of_pod(
    term: AffinityTerm, requested: Mapping[str, int], allocation: Mapping[str, Mapping[DeviceClass, int]]
) -> Verdict:
    """Whether each container with several devices gets devices that are near enough."""
    verdicts = [_MET]
    for name, count in requested.items():
        if count > 1:
            counts = {
                device_class: number
                for device_class, number in allocation.get(name, {}).items()
                if device_class.resource in term.resources
            }
            verdicts.append(_of_container(term, counts) if sum(counts.values()) == count else _UNLISTED)
    return _worst(verdicts)


def _of_container(term: AffinityTerm, counts: Mapping[DeviceClass, int]) -> Verdict:
    verdict = _MET
    for first, second in combinations_with_replacement(counts, 2):
        if first is second and counts[first] < 2:
            continue
        if first.located is None or second.located is None:
            unknown = first if first.located is None else second
            verdict = None, Reason("no path", (f"{unknown.resource} {unknown.sample}",))
        elif first.is_one_function if first is second else first.located.address == second.located.address:
            continue
        elif not term.allows(first.located.place, second.located.place):
            distance = pci.distance(first.located.place, second.located.place) or ""
            if first is second:
                return False, Reason("two apart", (first.resource, "/".join(first.located.place.path)), distance)
            pair = f"{first.resource} {first.sample}", f"{second.resource} {second.sample}"
            return False, Reason("apart", pair, distance)
    return verdict


def _worst(verdicts: Sequence[Verdict]) -> Verdict:
    """The first False, then the first None."""
    return min(verdicts, key=lambda verdict: (False, None, True).index(verdict[0]))
