"""`topowise.io/refused-state-files`: why the kubelet would not start again, by the name of its state file, as JSON.

The attribute is absent if it would.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from topowise import attributes, documents

_LONGEST = 500


def write(problems: Mapping[str, str]) -> str:
    """By file, sorted."""
    return msgspec.json.encode(problems, order="sorted").decode()


def read(named: Mapping[str, str]) -> dict[str, str]:
    """The inverse of `write`; empty without the attribute, and for a text that is none of ours."""
    try:
        found = msgspec.json.decode(named.get(attributes.REFUSED_STATE_FILES, "{}"), type=dict[str, str])
    except documents.UNREADABLE:
        return {}
    return {name[:_LONGEST]: text[:_LONGEST] for name, text in list(found.items())[:8]}
