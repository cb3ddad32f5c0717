"""How many examples a property is tried with: more by night (make nightly PART=thorough)."""

from __future__ import annotations

import os
from typing import Final

USUAL: Final = 40
_TRIED: Final = int(os.environ.get("TOPOWISE_EXAMPLES", USUAL))


def examples(count: int = USUAL) -> int:
    """Returns as many times `count` as this run tries more examples than usual."""
    return max(1, count * _TRIED // USUAL)
