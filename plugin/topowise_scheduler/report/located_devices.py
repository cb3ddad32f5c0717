"""Where a node's devices are on the PCI buses, of `topowise.io/pci`.

Nothing that a kubelet decides depends on it, so a text that cannot be read costs the report nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from topowise import attributes
from topowise.attributes import places
from topowise.attributes.places import Located
from topowise.errors import ParseError

# Nodes of a kind whose devices are named by addresses have the same text; of long ones no more than one is kept.
_MEMORABLE: Final = 1 << 13
_MANY: Final = 4096


class Places(NamedTuple):
    """By id of the device, and what is wrong with the text, one line for each."""

    at: Mapping[str, Located]
    problems: tuple[str, ...] = ()


def places_of(text: str) -> Places:
    """What the text of the attribute says, nothing for ""."""
    return _places_of(text) if len(text) <= _MEMORABLE else _places_of.__wrapped__(text)


@lru_cache(maxsize=_MANY)
def _places_of(text: str) -> Places:
    if not text:
        return Places({})
    try:
        return Places(places.read(text))
    except ParseError as exc:
        return Places({}, (f"attribute {attributes.PCI}: {exc}; where its devices are is not known",))
