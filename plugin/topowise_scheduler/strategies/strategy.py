"""What a strategy is to those who ask it, and what it is made from."""

from __future__ import annotations

from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from topowise_scheduler.engine.room import Room


class Strategy(Protocol):
    """Raw scores, larger is better. Nodes of one call come in several rooms, so only `finish` sees all of them."""

    def raw(self, room: Room) -> NDArray[np.int64]:
        """(nodes,) of the room, comparable between rooms."""

    def finish(self, raw: NDArray[np.int64]) -> NDArray[np.int64]:
        """(nodes,) of all candidates of a call, 0 to scale.RAW_MAX."""


class Options(Protocol):
    """What only some strategies read; `Scoring` of the configuration has it."""

    @property
    def tie_break(self) -> Literal["spread", "pack"]: ...

    @property
    def max_numa_nodes(self) -> int: ...
