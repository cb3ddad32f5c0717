"""What every part of the page is made with: somebody's text, times, links, and what the page was asked to show."""

from __future__ import annotations

import html
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlencode

import msgspec

from topowise_scheduler.ui.state import MARKS
from topowise_scheduler.view.picture.text import safe

BADGES: Final = {"u": "uncertain", "q": "quarantine", "p": "damaged report"}


class Query(msgspec.Struct, frozen=True):
    """What the page was asked to show."""

    resource: str = "cpu"
    name: str = ""
    policy: str = ""
    node: str = ""
    is_live: bool = False
    shows_all: bool = False

    def link(self, **changed: str) -> str:
        """The address of the page with something else asked for."""
        asked = {"resource": self.resource, "name": self.name, "policy": self.policy, "node": self.node, **changed}
        given = {key: text for key, text in asked.items() if text and (key, text) != ("resource", "cpu")}
        return f"ui?{urlencode(given)}" if given else "ui"


def node_link(name: str, query: Query) -> str:
    """The name of a node, which shows the node."""
    return f'<a href="{escaped(query.link(node=name))}" data-node="{escaped(name)}"><bdi>{escaped(name)}</bdi></a>'


def badge(mark: str) -> str:
    """What is the matter with a node, by its letter."""
    return f'<span class="badge {mark}" title="{escaped(MARKS[mark])}">{escaped(BADGES[mark])}</span>'


def time_of(when: datetime) -> str:
    """A time of day; the script makes it "3 min ago"."""
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
    return html.escape(safe(words), quote=True)
