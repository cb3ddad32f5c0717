"""`topowise.io/refused-state-files`, JSON: state file -> why the kubelet would refuse it at its next start.

The attribute is absent if the kubelet would start.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from topowise import attributes, documents

_LONGEST = 500


def write(problems: Mapping[str, str]) -> str:
    """Returns the text, sorted by file."""
    return msgspec.json.encode(problems, order="sorted").decode()


def read(named: Mapping[str, str]) -> dict[str, str]:
    """Returns the inverse of `write`; empty without the attribute, and for malformed text."""
    try:
        problems = msgspec.json.decode(named.get(attributes.REFUSED_STATE_FILES, "{}"), type=dict[str, str])
    except documents.UNREADABLE:
        return {}
    return {name[:_LONGEST]: text[:_LONGEST] for name, text in list(problems.items())[:8]}
