"""The names of the scoring strategies, by themselves: a command line lists them without loading what computes them."""

from __future__ import annotations

from typing import Final, Literal, get_args

Name = Literal["TightFit", "LeastAllocated", "MostAllocated", "BalancedAllocation", "LeastNUMANodes", "NUMAAware"]
NAMES: Final[tuple[str, ...]] = get_args(Name)
