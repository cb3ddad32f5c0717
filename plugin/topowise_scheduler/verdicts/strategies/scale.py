"""The interface of a strategy, and the conversion of ranks and raw scores to the extender's, 0 to 10 or 0 to 100.

kube-scheduler adds an extender's integer score without normalization (times weight times ten), which leaves eleven
levels. So the nodes of a call are spread over all levels, from the worst with 0 to the best. Equal nodes get the same
level.

With several ranks (ranks.py) the best rank has the upper half of the levels, and all further ranks share the lower
half. So no level is lost to the distance between ranks, and most levels are where the choice is made.
"""

from __future__ import annotations

from typing import Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from topowise_scheduler.verdicts.engine import Candidates
from topowise_scheduler.verdicts.strategies.ranks import Ranks

# Raw scores are hundredths of a percent, so that differences below a percent still count.
RAW_MAX: Final = 10_000


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


Levels = NDArray[np.int64]


def spread(raw: NDArray[np.int64], ranks: Ranks, top: int, low: int = 0, *, more_below: bool = False) -> Levels:
    """(nodes,) levels from low to top: linear between the worst and the best raw score (0 to 10,000) of a rank, rounded
    half up. `more_below`: the call has a worse rank whose nodes are not in these arrays."""
    if not raw.size:
        return raw
    half = (top - low + 1) // 2
    if int(ranks.min()) == int(ranks.max()):
        if more_below:
            return _stretched(raw, low + half, top)
        if int(raw.min()) == int(raw.max()):
            # The absolute score stays comparable between calls.
            return np.maximum((2 * raw * top + RAW_MAX) // (2 * RAW_MAX), low)
        return _stretched(raw, low, top)
    known, numbers = np.unique(ranks, return_inverse=True)
    further = len(known) - 1
    levels = np.zeros_like(raw)
    for number in range(len(known)):
        in_rank = numbers == number
        if number == 0:
            levels[in_rank] = _stretched(raw[in_rank], low + half, top)
            continue
        # With more ranks than levels, several ranks share a level.
        first, end = (further - number) * half // further, (further - number + 1) * half // further
        levels[in_rank] = _stretched(raw[in_rank], low + first, low + max(first, end - 1), equal=low + first)
    return levels


def tied(raw: NDArray[np.int64], ranks: Ranks) -> NDArray[np.bool_]:
    """Returns (nodes,) whether the node has the best rank, and the best raw score of that rank."""
    best: NDArray[np.bool_] = ranks == ranks.min()
    best &= raw == raw[best].max()
    return best


def break_tie(
    levels: Levels, raw: NDArray[np.int64], ranks: Ranks, wins: NDArray[np.bool_], top: int, low: int
) -> None:
    """Lowers all nodes but the best nodes with `wins` by a level, so that these nodes have the top level alone."""
    if not raw.size:
        return
    best = tied(raw, ranks)
    winners = best & wins
    if not winners.any() or wins[best].all():
        return
    level = int(levels[winners][0])
    if level > low:
        levels[~winners] = np.minimum(levels[~winners], level - 1)
    else:
        # All nodes have the lowest level, so the winners are raised instead.
        levels[winners] = min(level + 1, top)


def percents(raw: NDArray[np.int64], ranks: Ranks) -> Levels:
    """(nodes,) 0 to 100 in proportion to raw scores, lowered where a rank would overlap a better rank."""
    levels = raw * 100 // RAW_MAX
    ceiling = 101
    for rank in np.unique(ranks).tolist():
        in_rank = ranks == rank
        levels[in_rank] = np.minimum(levels[in_rank], ceiling - 1)
        ceiling = int(levels[in_rank].min())
    # No level is left below a rank that reaches 0.
    return levels if ceiling >= 0 else spread(raw, ranks, 100)


def _stretched(raw: NDArray[np.int64], low: int, high: int, equal: int | None = None) -> Levels:
    """Linear from low to high; if all scores are equal, `equal` (by default high)."""
    worst, best = int(raw.min()), int(raw.max())
    if worst == best:
        return np.full_like(raw, high if equal is None else equal)
    width = best - worst
    return low + (2 * (high - low) * (raw - worst) + width) // (2 * width)
