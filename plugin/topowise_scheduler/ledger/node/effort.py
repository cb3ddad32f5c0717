"""How much a search for the possible placements of pods may cost."""

from __future__ import annotations

from typing import Final, NamedTuple


class Effort(NamedTuple):
    """The limits of a search for possible placements: copies of the node that are returned, copies that are made, and
    sets of ended pods that are tried. If a search exceeds its limits, a single copy is worse than all."""

    copies: int
    trials: int
    ends: int = 0

    @property
    def is_exact(self) -> bool:
        """Returns whether the model decides where each pod may lie, and not its amounts alone."""
        return self.ends > 0


FAST: Final = Effort(16, 64)
"""For each change of a node."""
EXACT: Final = Effort(64, 512, 128)
"""For a pod that has to wait otherwise."""
