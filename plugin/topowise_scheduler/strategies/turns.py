"""The steps of a room one after the other, each with what those before it have left.

Upstream scores every container against the same room; here a container finds the zones without what the containers
before it keep. A plain init container gives all of it back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from topowise_scheduler.engine.room import Room, Step
from topowise_scheduler.strategies.spots import PerZone, Spots

PASSING: Final = "init"


@dataclass(frozen=True, slots=True)
class Turn:
    """What is placed at once: `amounts` above 0, `available` (zones, nodes) of each of them when its turn comes."""

    amounts: Mapping[str, int]
    available: Mapping[str, PerZone]
    spots: Spots


def turns(room: Room, *, lasting: bool = False) -> Iterator[Turn]:
    """What is placed, in order; with `lasting` without the plain init containers.

    Steps that lie in the same zones on every node are one turn: that is the pod in scope pod, and the same question in
    scope container.
    """
    places = [
        place for place, step in enumerate(room.steps) if asked(room, step) and not (lasting and step.kind == PASSING)
    ]
    if not places:
        return
    steps = [room.steps[place] for place in places]
    masks = room.masks[places]
    if len(steps) > 1 and (masks == masks[0]).all():
        amounts = at_once(room, steps)
        yield Turn(amounts, {name: room.available[name] for name in amounts}, Spots.of(masks[0], room.zones))
        return
    left = dict(room.available)
    for step, mask in zip(steps, masks, strict=True):
        amounts = asked(room, step)
        spots = Spots.of(mask, room.zones)
        yield Turn(amounts, {name: left[name] for name in amounts}, spots)
        if step.kind != PASSING and step is not steps[-1]:
            left |= {name: spots.without(left[name], amount) for name, amount in amounts.items()}


def asked(room: Room, step: Step) -> dict[str, int]:
    """The amounts of a step that any node of the room has zones for."""
    return {name: amount for name, amount in step.amounts.items() if amount > 0 and name in room.available}


def at_once(room: Room, steps: Sequence[Step]) -> dict[str, int]:
    """What these containers need together: an init container runs beside the sidecars before it, and before the rest
    (resourcehelper.PodRequests)."""
    running: dict[str, int] = {}
    sidecars: dict[str, int] = {}
    peaks: dict[str, int] = {}
    for step in steps:
        for name, amount in asked(room, step).items():
            if step.kind == PASSING:
                peaks[name] = max(peaks.get(name, 0), sidecars.get(name, 0) + amount)
                continue
            running[name] = running.get(name, 0) + amount
            if step.kind == "sidecar":
                sidecars[name] = sidecars.get(name, 0) + amount
    return {name: max(running.get(name, 0), peaks.get(name, 0)) for name in (running | peaks)}


def listed(room: Room, name: str) -> NDArray[np.bool_] | None:
    """(nodes,) whether any zone of a node can give a resource at all; None if so on all nodes. Where it cannot, the
    kubelet does not align it."""
    somewhere = np.asarray(room.allocatable[name].any(axis=0))
    return None if somewhere.all() else somewhere
