"""What a strategy is to those who ask it, and what it is made from."""

from __future__ import annotations

from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from topowise_scheduler.engine import Candidates


class Strategy(Protocol):
    """Raw scores, larger is better; ranks.py comes before them. The candidates of a call come in several parts, so only
    `finish` sees all."""

    @property
    def in_percent(self) -> bool:
        """Whether scores are figures that people know, and are not spread where there are levels for them."""

    def raw(self, candidates: Candidates) -> NDArray[np.int64]:
        """(nodes,) of these candidates, comparable with other candidates'."""

    def finish(self, raw: NDArray[np.int64]) -> NDArray[np.int64]:
        """(nodes,) of all candidates of a call, 0 to scale.RAW_MAX."""


class Options(Protocol):
    """What only some strategies read; `Scoring` of the configuration has it."""

    @property
    def tie_break(self) -> Literal["spread", "pack"]: ...

    @property
    def max_numa_nodes(self) -> int: ...
