"""From ranks and raw scores to the extender's 0..10, or 0..100.

kube-scheduler adds an extender's score as it comes (times weight times ten) and asks for integers, which leaves eleven
levels. So the nodes of one call are spread over all of them, best on top and worst 0. If all are equal there is no
opinion, and all get one level.

Where nodes are of several ranks (ranks.py), the best rank has the upper half of the levels and all others share the
lower half, so that no level is wasted on the distance between ranks, and most are left where the choice is made.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from topowise_scheduler.strategies.ranks import Ranks

# Raw scores are hundredths of a percent, so that nodes of a percent's difference are still told apart.
RAW_MAX: Final = 10_000

Levels = NDArray[np.int64]


def spread(raw: NDArray[np.int64], ranks: Ranks, top: int, low: int = 0, *, more_below: bool = False) -> Levels:
    """(nodes,) ranks and raw scores 0..10,000 to low..top: linear between the worst and the best of a rank, rounded
    half up. `more_below`: there is a worse rank still, whose nodes are none of these."""
    if not raw.size:
        return raw
    half = (top - low + 1) // 2
    if int(ranks.min()) == int(ranks.max()):
        if more_below:
            return _stretched(raw, low + half, top)
        if int(raw.min()) == int(raw.max()):
            # The height still means something to someone who compares two calls.
            return np.maximum((2 * raw * top + RAW_MAX) // (2 * RAW_MAX), low)
        return _stretched(raw, low, top)
    known, numbers = np.unique(ranks, return_inverse=True)
    others = len(known) - 1
    found = np.zeros_like(raw)
    for number in range(len(known)):
        mine = numbers == number
        if number == 0:
            found[mine] = _stretched(raw[mine], low + half, top)
            continue
        # With more ranks than levels some share one.
        first, end = (others - number) * half // others, (others - number + 1) * half // others
        found[mine] = _stretched(raw[mine], low + first, low + max(first, end - 1), equal=low + first)
    return found


def break_tie(
    levels: Levels, raw: NDArray[np.int64], ranks: Ranks, wins: NDArray[np.bool_], top: int, low: int
) -> None:
    """Of the best nodes those that win are left alone on their level, a level above all others."""
    if not raw.size:
        return
    best = ranks == ranks.min()
    best &= raw == raw[best].max()
    winners = best & wins
    if not winners.any() or wins[best].all():
        return
    level = int(levels[winners][0])
    if level > low:
        levels[~winners] = np.minimum(levels[~winners], level - 1)
    else:
        # All are equal otherwise, and at the bottom.
        levels[winners] = min(level + 1, top)


def percents(raw: NDArray[np.int64], ranks: Ranks) -> Levels:
    """(nodes,) 0 to 100 by the height of raw scores, for who compares them with figures from elsewhere; lowered where a
    rank would reach into a better one."""
    found = raw * 100 // RAW_MAX
    ceiling = 101
    for rank in np.unique(ranks).tolist():
        mine = ranks == rank
        found[mine] = np.minimum(found[mine], ceiling - 1)
        ceiling = int(found[mine].min())
    # There is no room below a rank that reaches down to 0.
    return found if ceiling >= 0 else spread(raw, ranks, 100)


def _stretched(raw: NDArray[np.int64], low: int, high: int, equal: int | None = None) -> Levels:
    """From low to high; all `equal` (high) if they are equal."""
    worst, best = int(raw.min()), int(raw.max())
    if worst == best:
        return np.full_like(raw, high if equal is None else equal)
    width = best - worst
    return low + (2 * (high - low) * (raw - worst) + width) // (2 * width)
