"""What every part of the page is made with: somebody's text, times, links, and what the page was asked to show."""

from __future__ import annotations

import html
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlencode

import msgspec

from topowise.text import escaped as visible
from topowise_scheduler.presentation.dashboard.cluster_state import MARKS

ASKED: Final = ("resource", "name", "policy", "state", "room", "fits", "open", "node", "pod", "decisions")
"""What an address says, in this order."""
_DIGITS: Final = 16
BADGES: Final = {"u": "uncertain", "q": "quarantine", "p": "damaged report"}


class Query(msgspec.Struct, frozen=True):
    """What the page was asked to show."""

    resource: str = "cpu"
    name: str = ""
    policy: str = ""
    state: str = ""
    room: str = ""
    fits: str = ""
    open: str = ""
    node: str = ""
    pod: str = ""
    decisions: str = ""

    @property
    def least(self) -> int:
        """What one NUMA node has to have free of the resource, in its unit; 0 for what is no number."""
        return int(self.room) if self.room.isascii() and self.room.isdigit() and len(self.room) < _DIGITS else 0

    @property
    def opened(self) -> frozenset[str]:
        """Numbers of the groups of nodes that are open."""
        return frozenset(self.open.split(".")) - {""}

    def link(self, **changed: str) -> str:
        """The address of the page with something else asked for."""
        asked = {key: getattr(self, key) for key in ASKED} | changed
        given = {key: text for key, text in asked.items() if text and (key, text) != ("resource", "cpu")}
        return f"ui?{urlencode(given)}" if given else "ui"


def node_link(name: str, query: Query) -> str:
    """The name of a node, which opens the node."""
    address = escaped(query.link(node=name, pod=""))
    return f'<a href="{address}" data-node="{escaped(name)}"><bdi>{escaped(name)}</bdi></a>'


def pod_link(name: str, query: Query) -> str:
    """The name of a pod, which opens what is known of it; a name that is none is text."""
    if not name:
        return "<bdi>(unreadable request)</bdi>"
    address = escaped(query.link(pod=name, node=""))
    return f'<a href="{address}" data-pod="{escaped(name)}"><bdi>{escaped(name)}</bdi></a>'


def table(kind: str, heads: Sequence[str], rows: str) -> str:
    """A table with a class; a head that begins with "#" is of numbers."""
    cells = "".join(
        f'<th scope="col"{" class=number" if head.startswith("#") else ""}>{head.removeprefix("#")}</th>'
        for head in heads
    )
    return f'<table class="{kind}"><thead><tr>{cells}</tr></thead><tbody>{rows}</tbody></table>'


def badge(mark: str) -> str:
    """What is the matter with a node, by its letter."""
    return f'<span class="badge {mark}" title="{escaped(MARKS[mark])}">{escaped(BADGES[mark])}</span>'


def time_of(when: datetime | float) -> str:
    """A time of day; the script makes it "3 min ago"."""
    when = when if isinstance(when, datetime) else datetime.fromtimestamp(when, UTC)
    iso = when.isoformat(timespec="seconds").replace("+00:00", "Z")
    return f'<time datetime="{iso}" data-at="{int(when.timestamp())}">{when:%H:%M:%S} UTC</time>'


def since(text: str) -> str:
    """Somebody's time, as it stands if it is none."""
    try:
        return time_of(datetime.fromisoformat(text).astimezone(UTC))
    except (ValueError, OverflowError):
        return escaped(text)


def escaped(words: str) -> str:
    """Somebody's text, for a place between tags or between double quotes."""
    return html.escape(visible(words), quote=True)
