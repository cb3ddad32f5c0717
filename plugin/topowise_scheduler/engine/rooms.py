"""From the counts of a table to the room a strategy scores (room.py)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from topowise.pods import Amounts, Needs
from topowise_scheduler.engine.counts import CPU, DISTANCES
from topowise_scheduler.engine.grid import Key
from topowise_scheduler.engine.room import Room, Step
from topowise_scheduler.engine.shape import Shape
from topowise_scheduler.engine.table import Table


def room_of(
    table: Table,
    shape: Shape,
    needs: Needs,
    columns: NDArray[np.int32],
    rows: NDArray[np.int32],
    masks: NDArray[np.int32],
) -> Room:
    """The room of some columns of a table."""
    zones = table.traits.zones
    kind = table.kind[columns]
    allocatable: dict[str, NDArray[np.int64]] = {}
    available: dict[str, NDArray[np.int64]] = {}
    for name, key in _sections(table):
        allocatable[name] = _taken(table.kinds.empty.section(key)[:zones], kind)
        available[name] = _taken(table.grid.section(key)[:zones], columns)
    steps = _steps(table, shape, needs)
    if zones == 1:
        # With one NUMA node "no affinity" leads nowhere else.
        masks = np.broadcast_to(np.array([[bool(step.amounts)] for step in steps], np.int32), masks.shape)
    distances = table.kinds.fixed.section(DISTANCES).take(kind, axis=1).astype(np.int32)
    return Room(
        rows=rows,
        zones=zones,
        distances=distances.reshape(zones, zones, len(kind)),
        allocatable=allocatable,
        available=available,
        steps=steps,
        masks=masks,
    )


def _taken(section: NDArray[np.int64], columns: NDArray[np.int32]) -> NDArray[np.int64]:
    """Some columns of a section; what a node does not have counts as nothing."""
    taken = section.take(columns, axis=1)
    return np.maximum(taken, 0, out=taken)


def _sections(table: Table) -> list[tuple[str, Key]]:
    found: list[tuple[str, Key]] = [("cpu", CPU)] if table.traits.cpu else []
    found += [(name, (family, name)) for family in ("memory", "device") for name in table.grid.names(family)]
    return found


def _steps(table: Table, shape: Shape, needs: Needs) -> tuple[Step, ...]:
    """The containers, with what the managers of these nodes align."""
    devices = set(table.grid.names("device"))
    steps = []
    for container, ask in zip(needs.containers, shape.asks, strict=True):
        amounts: Amounts = {}
        if table.traits.cpu and ask.cpus:
            amounts["cpu"] = ask.cpus
        if table.traits.memory and shape.pinned:
            amounts |= {name: size for name, size in ask.memory or () if size}
        amounts |= {name: count for name, count in ask.devices if count and name in devices}
        steps.append(Step(container.name, container.kind, amounts))
    return tuple(steps)
