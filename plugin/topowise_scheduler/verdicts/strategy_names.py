"""The names of the scoring strategies, in a separate module so that command lines list them without importing numpy."""

from __future__ import annotations

from typing import Final, Literal, get_args

Name = Literal["TightFit", "LeastAllocated", "MostAllocated", "BalancedAllocation", "LeastNUMANodes", "NUMAAware"]
NAMES: Final[tuple[str, ...]] = get_args(Name)
