"""Where a node's devices are on the PCI buses, of `topowise.io/pci`.

Nothing that a kubelet decides depends on it, so a text that cannot be read costs the report nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from topowise import attributes
from topowise.attributes import places
from topowise.attributes.places import Located
from topowise.errors import ParseError
from topowise_scheduler.report import budget


class _Shared(dict[str, Located]):
    """By id of the device. A dict that can be referred to weakly."""


class Places(NamedTuple):
    """By id of the device, and what is wrong with the text, one line for each."""

    at: Mapping[str, Located]
    problems: tuple[str, ...] = ()


# Nodes of a kind whose devices are named by addresses have the same text. What it says lives as long as one of their
# reports.
_known: WeakValueDictionary[str, _Shared] = WeakValueDictionary()
_NOWHERE: Final = Places({})


def places_of(text: str) -> Places:
    """What the text of the attribute says, nothing for ""."""
    if not text:
        return _NOWHERE
    known = _known.get(text)
    if known is not None:
        return Places(known)
    try:
        located = _Shared(places.read(text))
    except ParseError as exc:
        return Places({}, (f"attribute {attributes.PCI}: {exc}; where its devices are is not known",))
    if len(text) <= budget.MEMORABLE_PLACES:
        _known[text] = located
    return Places(located)
