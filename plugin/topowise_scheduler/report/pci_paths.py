"""Reads the PCI paths of a node's devices from `topowise.io/pci`.

No kubelet decision depends on them, so unreadable text costs the report nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from topowise import attributes
from topowise.attributes import pci_devices
from topowise.attributes.pci_devices import Located
from topowise.errors import ParseError
from topowise_scheduler.report import budget


class _Shared(dict[str, Located]):
    """PCI paths by device id. A dict that supports weak references."""


class Places(NamedTuple):
    """PCI paths by device id, and a line for each fault in the text."""

    at: Mapping[str, Located]
    problems: tuple[str, ...] = ()


# Nodes of a machine type whose devices are named by PCI address have equal texts. An entry lives as long as a report
# that uses it.
_cache: WeakValueDictionary[str, _Shared] = WeakValueDictionary()
_NO_PATHS: Final = Places({})


def pci_paths_of(text: str) -> Places:
    """Returns the PCI paths in the attribute's text; none for ""."""
    if not text:
        return _NO_PATHS
    cached = _cache.get(text)
    if cached is not None:
        return Places(cached)
    try:
        located = _Shared(pci_devices.read(text))
    except ParseError as exc:
        return Places({}, (f"attribute {attributes.PCI}: {exc}; the PCI paths of its devices are unknown",))
    if len(text) <= budget.MEMORABLE_PLACES:
        # A long text may be hostile, and is not shared.
        _cache[text] = located
    return Places(located)
