"""The engine inside one process, beside a loop over the model of one node.

Times are CPU time of the thread: the engine waits for nothing, and so a busy machine does not show.
"""

from __future__ import annotations

from bench.engine import decisions, growth
from bench.results import PartResults


async def measure() -> PartResults:
    """Returns all figures of the engine, and the points of its curve."""
    return PartResults(figures=decisions.measure(), growth=growth.measure())
