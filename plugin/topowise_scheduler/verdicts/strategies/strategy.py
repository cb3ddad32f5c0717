"""The interface of a strategy, and its options."""

from __future__ import annotations

from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from topowise_scheduler.verdicts.engine import Candidates


class Strategy:
    """Raw scores, larger is better; ranks (ranks.py) precede them. The candidates of a call are split by group, and
    only `finish` gets all nodes."""

    in_percent = False
    """Whether scores are percents, which are not spread over a scale of 100 levels."""

    def raw(self, candidates: Candidates) -> NDArray[np.int64]:
        """(nodes,) raw scores of these candidates, comparable between parts."""
        raise NotImplementedError

    def finish(self, raw: NDArray[np.int64]) -> NDArray[np.int64]:
        """(nodes,) scores from the raw scores of all candidates of a call, 0 to scale.RAW_MAX."""
        return raw


class Options(Protocol):
    """Options of some strategies; configuration.Scoring implements this."""

    @property
    def tie_break(self) -> Literal["spread", "pack"]: ...
