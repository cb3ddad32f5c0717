"""Reads the NUMA node that a pod requires, from an annotation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from topowise import digits
from topowise.errors import ParseError

ANNOTATION: Final = "topowise.io/numa-node"
_HIGHEST: Final = 63


def required_numa_node(annotations: Mapping[str, str]) -> int | None:
    """Returns the id of the required NUMA node, None without the annotation. Raises ParseError."""
    text = annotations.get(ANNOTATION)
    if text is None:
        return None
    numa = digits.natural(text, 2)
    if numa is None or numa > _HIGHEST:
        raise ParseError(f"annotation {ANNOTATION}", text, f"the id of a NUMA node, 0 to {_HIGHEST}")
    return numa
