"""The steps of a room one after the other, each with what those before it have left.

Upstream scores every container against the same room; here a container finds the zones without what the containers
before it keep. A plain init container gives all of it back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from topowise.pods import peak
from topowise_scheduler.engine.room import Room, Step
from topowise_scheduler.strategies.spots import PerZone, Spots

PASSING: Final = "init"


@dataclass(frozen=True, slots=True)
class Turn:
    """What is placed at once: `amounts` above 0, `available` (zones, nodes) of each of them when its turn comes."""

    amounts: Mapping[str, int]
    available: Mapping[str, PerZone]
    spots: Spots


class Way(NamedTuple):
    """How the pod is placed on some nodes: `where` (nodes,), and the turns, computed for all nodes."""

    where: NDArray[np.bool_]
    turns: Sequence[Turn]


def ways(room: Room, *, lasting: bool = False) -> Iterator[Way]:
    """The turns of every node, with `lasting` without the plain init containers; none if nothing is asked for.

    Where all containers lie in the same zones they are one turn, elsewhere one each. So a pod counts as one in scope
    pod, and in scope container where it makes no difference to the zones.
    """
    places = [
        place for place, step in enumerate(room.steps) if asked(room, step) and not (lasting and step.kind == PASSING)
    ]
    if not places:
        return
    steps = [room.steps[place] for place in places]
    masks = room.masks[places]
    together = (masks == masks[0]).all(axis=0)
    if together.any():
        amounts = at_once(room, steps)
        available = {name: room.available[name] for name in amounts}
        yield Way(together, [Turn(amounts, available, Spots.of(masks[0], room.zones))])
    if not together.all():
        yield Way(~together, list(_one_by_one(room, steps, masks)))


def _one_by_one(room: Room, steps: Sequence[Step], masks: NDArray[np.int32]) -> Iterator[Turn]:
    left = dict(room.available)
    for place, (step, mask) in enumerate(zip(steps, masks, strict=True)):
        amounts = asked(room, step)
        spots = Spots.of(mask, room.zones)
        yield Turn(amounts, {name: left[name] for name in amounts}, spots)
        if step.kind != PASSING and place + 1 < len(steps):
            left |= {name: spots.without(left[name], amount) for name, amount in amounts.items()}


def asked(room: Room, step: Step) -> dict[str, int]:
    """The amounts of a step that any node of the room has zones for."""
    return {name: amount for name, amount in step.amounts.items() if amount > 0 and name in room.available}


def at_once(room: Room, steps: Sequence[Step]) -> dict[str, int]:
    """What these containers need together."""
    amounts = [(step.kind, asked(room, step)) for step in steps]
    names = dict.fromkeys(name for _, one in amounts for name in one)
    return {name: peak([(kind, one.get(name, 0)) for kind, one in amounts]) for name in names}


def listed(room: Room, name: str) -> NDArray[np.bool_] | None:
    """(nodes,) whether any zone of a node can give a resource at all; None if so on all nodes. Where it cannot, the
    kubelet does not align it."""
    somewhere = np.asarray(room.allocatable[name].any(axis=0))
    return None if somewhere.all() else somewhere


def could(room: Room, names: Iterable[str], nodes: NDArray[np.intp]) -> NDArray[np.bool_]:
    """For these nodes, whether their zones can give any of the resources."""
    found = np.zeros(nodes.size, np.bool_)
    for name in names:
        where = listed(room, name)
        found |= True if where is None else where[nodes]
    return found
