"""One shape of pod against many nodes at once: what `Kubelet.admit_view` does, in its order (kubelet/node.py).

The result is the model's wherever the numbers of counts.py tell it. Where it depends on which CPUs or devices a
container gets, the node is left to the model, with the cause.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topowise_scheduler.engine import vote
from topowise_scheduler.engine.claims import Claim
from topowise_scheduler.engine.counts import CPU
from topowise_scheduler.engine.cpus import Cpus
from topowise_scheduler.engine.decisions import AFFINITY, FAILED, SHORT, Decisions
from topowise_scheduler.engine.devices import Devices
from topowise_scheduler.engine.lattice import Bits, Flags, order
from topowise_scheduler.engine.memory import Memory
from topowise_scheduler.engine.merging import lowest, merge, merge_single
from topowise_scheduler.engine.shape import Ask, Shape
from topowise_scheduler.engine.sheet import Sheet
from topowise_scheduler.engine.traits import Traits

# What the kubelet looks at first, in its order; the others follow by name (predicates.py).
_FIRST = ("cpu", "memory", "ephemeral-storage")


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Of each node: `fits`; `reason` and `short` (decisions.py) where it does not; `cause` where the model is to be
    asked. `short` counts the resources of `requested(shape)`. `masks` (steps, nodes) are the hints where it fits."""

    fits: Flags
    reason: NDArray[np.int8]
    short: NDArray[np.int16]
    cause: NDArray[np.int8]
    masks: NDArray[np.int32]


def requested(shape: Shape) -> tuple[str, ...]:
    """The resources the predicates check, in their order."""
    amounts = dict(shape.requests)
    return ("pods", *[name for name in _FIRST if name in amounts], *sorted(amounts.keys() - set(_FIRST)))


def judge(shape: Shape, sheet: Sheet, traits: Traits) -> Verdicts:
    """The verdicts on the nodes of a sheet, all of which have these traits."""
    trial = _Trial(shape, sheet, traits)
    masks = trial.run()
    decisions = trial.decisions
    return Verdicts(decisions.live, decisions.reason, decisions.short, decisions.cause, masks)


class _Trial:
    def __init__(self, shape: Shape, sheet: Sheet, traits: Traits) -> None:
        self.shape = shape
        self.sheet = sheet
        self.traits = traits
        self.decisions = Decisions(len(sheet))
        self.cpus = Cpus(sheet, traits, self.decisions) if traits.cpu else None
        self.memory = Memory(sheet, self.decisions) if traits.memory and shape.pinned else None
        self.devices = Devices(sheet, self.decisions)
        self.order = order(traits.zones, traits.distances)

    def run(self) -> NDArray[np.int32]:
        """Decide every node; the hints of every container."""
        shape, traits, count = self.shape, self.traits, len(self.sheet)
        masks = np.zeros((len(shape.asks), count), dtype=np.int32)
        everything = np.ones(count, dtype=np.bool_)
        if shape.by_pod_level:
            self.decisions.doubt(everything, "pod-level-managers")
        elif traits.by_socket and any(ask.cpus for ask in shape.asks):
            self.decisions.doubt(everything, "align-by-socket")
        elif traits.exact_shares:
            self.decisions.doubt(everything, "exact-shares")
        if not self.decisions.live.any():
            return masks
        hint = np.zeros(count, dtype=np.uint8)
        preferred = np.zeros(count, dtype=np.bool_)
        by_pod = traits.policy != "none" and traits.scope == "pod"
        if by_pod:
            hint, preferred = self._decide(shape.total, shape.asks[0])
        for step, ask in enumerate(shape.asks):
            if traits.policy != "none" and not by_pod:
                hint, preferred = self._decide(ask, ask)
            masks[step] = hint
            self._allocate(step, hint, preferred)
        if traits.predicates:
            self._check_predicates()
        return masks

    def _decide(self, ask: Ask, first: Ask) -> tuple[Bits, Flags]:
        """The merged hints, 0 for no affinity, and whether they are preferred. Refuses and doubts.

        `first` is the container that is allocated with the hint first.
        """
        claims: list[Claim | None] = [self.devices.claim(name, count) for name, count in ask.devices]
        cpus = self.cpus if ask.cpus else None
        if cpus is not None:
            claims.append(cpus.claim(ask.cpus))
        if self.memory is not None and ask.memory:
            claims.append(self.memory.claim(ask.memory))
        found = [claim for claim in claims if claim is not None]
        policy, live = self.traits.policy, self.decisions.live
        if policy == "single-numa-node":
            hint, preferred = merge_single(
                found, self.traits.zones, len(live), lambda fits: self._pick(fits, claimed=cpus is not None)
            )
        else:
            if policy == "best-effort":
                # Every hint is admitted, so what no hint helps need not wait for one.
                self._check(first)
                if self.memory is not None and first.memory:
                    self.memory.check(first.memory)
            hint, preferred = merge(found, self.order, live, policy == "best-effort")
        if policy != "best-effort":
            self.decisions.refuse(~preferred, AFFINITY)
        if cpus is not None:
            cpus.confirm(hint, preferred)
        return hint, preferred

    def _pick(self, fits: Bits, *, claimed: bool) -> Bits:
        """Policy single-numa-node: of the NUMA nodes that fit the lowest, or the one the vote leaves."""
        if not self.traits.most_allocated:
            return lowest(fits)
        zones = self.traits.zones
        fits = fits & np.uint8((1 << zones) - 1)
        votes = []
        if self.cpus is not None:
            free = self.cpus.free(fits != lowest(fits), claimed=claimed)
            allocatable = self.sheet.kinds.empty.section(CPU)[:zones, self.sheet.kind]
            votes.append(vote.scores(allocatable - free, allocatable))
        if self.traits.memory:
            memory = self.memory or Memory(self.sheet, self.decisions)
            votes.append(vote.scores(*memory.reserved()))
        return vote.pick(fits, votes)

    def _allocate(self, step: int, hint: Bits, preferred: Flags) -> None:
        """Device, CPU and memory manager, in this order."""
        shape = self.shape
        ask, kind, later = shape.asks[step], shape.kinds[step], shape.asks[step + 1 :]
        self._check(ask)
        for name, count in ask.devices:
            more = any(name == other for one in later for other, _ in one.devices)
            self.devices.allocate(name, count, kind, hint, more=more)
        if self.cpus is not None and ask.cpus:
            # The vote counts CPUs for every later container, also one that shares its own.
            voting = self.traits.most_allocated and self.traits.scope == "container" and bool(later)
            self.cpus.allocate(ask.cpus, kind, hint, more=voting or any(one.cpus for one in later))
        if self.memory is not None:
            if ask.memory is None:
                self.decisions.refuse(self.decisions.live, FAILED)
            else:
                more = any(one.memory is not None for one in later)
                self.memory.allocate(ask.memory, kind, hint, preferred, more=more)

    def _check(self, ask: Ask) -> None:
        """What device and CPU manager refuse whatever the hint."""
        for name, count in ask.devices:
            self.devices.check(name, count)
        if self.cpus is not None and ask.cpus:
            self.cpus.check(ask.cpus)

    def _check_predicates(self) -> None:
        """The sums of requests against node allocatable; the first resource that is short is the reason."""
        amounts = dict(self.shape.requests)
        for place, name in enumerate(requested(self.shape)):
            short = self._short(name, 1 if name == "pods" else amounts[name])
            if short is not None:
                where = short & self.decisions.live
                if where.any():
                    self.decisions.short[where] = place
                    self.decisions.refuse(where, SHORT)

    def _short(self, name: str, amount: int) -> Flags | None:
        if ("slack", name) in self.sheet:
            short: Flags = self.sheet.section(("slack", name))[0] < amount
            return short
        if name.startswith("hugepages-"):
            return np.ones(len(self.sheet), dtype=np.bool_)
        return self.devices.short(name, amount, self._holding())

    def _holding(self) -> Flags:
        """Whether the pod was given devices, whichever."""
        holding = np.zeros(len(self.sheet), dtype=np.bool_)
        asked: set[str] = {name for ask in self.shape.asks for name, count in ask.devices if count > 0}
        for name in asked:
            registered = self.devices.registered(name)
            if registered is not None:
                holding |= registered
        return holding
