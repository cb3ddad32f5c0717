"""Building blocks of the page: escaped text, times, links, tables, and the query of its address."""

from __future__ import annotations

import html
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlencode

import msgspec

from topowise.text import escaped as visible
from topowise_scheduler.dashboard.cluster_state import MARKS
from topowise_scheduler.explain.next_step import Cause
from topowise_scheduler.explain.waiting_texts import CAUSE_TEXTS

_CAUSES_PAGE: Final = "https://github.com/topowise/topowise/blob/main/docs/how-to/explain.md#why-a-pod-waits"
BADGES: Final = {"u": "uncertain", "q": "quarantine", "p": "damaged report", "s": "stale report"}


class Query(msgspec.Struct, frozen=True):
    """The query of an address: the resource, the filters of the nodes, and the node, pod or search in the panel."""

    resource: str = "cpu"
    name: str = ""
    state: str = ""
    node: str = ""
    pod: str = ""
    find: str = ""
    decisions: str = ""

    def link(self, **changed: str) -> str:
        """The address of the page with these parameters changed."""
        replaces_panel = {"find": ""} if changed.keys() & {"node", "pod"} else {}
        parameters = {**msgspec.structs.asdict(self), **replaces_panel, **changed}
        shown = {key: text for key, text in parameters.items() if text and (key, text) != ("resource", "cpu")}
        return f"ui?{urlencode(shown)}" if shown else "ui"


def node_link(name: str, query: Query) -> str:
    """A link that opens the node in the panel."""
    address = escaped(query.link(node=name, pod=""))
    return f'<a href="{address}" data-node="{escaped(name)}"><bdi>{escaped(name)}</bdi></a>'


def pod_link(name: str, query: Query) -> str:
    """A link that opens the pod ("namespace/name") in the panel; a note for a request without a pod."""
    if not name:
        return "<bdi>(unreadable request)</bdi>"
    address = escaped(query.link(pod=name, node=""))
    return f'<a href="{address}" data-pod="{escaped(name)}"><bdi>{escaped(name)}</bdi></a>'


def cause_link(cause: Cause) -> str:
    """A link from the cause of a wait to the page that says what to do."""
    return f'<a href="{_CAUSES_PAGE}" title="{escaped(CAUSE_TEXTS[cause])}" rel="noreferrer">{escaped(cause)}</a>'


def table(kind: str, heads: Sequence[str], rows: str) -> str:
    """A table with a class; "#" marks the head of a column of numbers."""
    cells = "".join(
        f'<th scope="col"{" class=number" if head.startswith("#") else ""}>{head.removeprefix("#")}</th>'
        for head in heads
    )
    return f'<table class="{kind}"><thead><tr>{cells}</tr></thead><tbody>{rows}</tbody></table>'


def badge(mark: str) -> str:
    """The badge of a mark of a node (cluster_state.MARKS)."""
    return f'<span class="badge {mark}" title="{escaped(MARKS[mark])}">{escaped(BADGES[mark])}</span>'


def note(text: str) -> str:
    """A remark; `text` is HTML."""
    return f'<p class="note">{text}</p>'


def problem(text: str) -> str:
    """An error message."""
    return f'<p class="problem" role="alert">{escaped(text)}</p>'


def time_of(when: datetime | float) -> str:
    """A time of day, from seconds since 1970; app.js turns it into "3 min ago"."""
    when = when if isinstance(when, datetime) else datetime.fromtimestamp(when, UTC)
    iso = when.isoformat(timespec="seconds").replace("+00:00", "Z")
    return f'<time datetime="{iso}" data-at="{int(when.timestamp())}">{when:%H:%M:%S} UTC</time>'


def since(timestamp: str) -> str:
    """An RFC 3339 time of the API server; the escaped text if it cannot be read."""
    try:
        return time_of(datetime.fromisoformat(timestamp).astimezone(UTC))
    except (ValueError, OverflowError):
        return escaped(timestamp)


def escaped(text: str) -> str:
    """Untrusted text for a place between tags or between double quotes."""
    return html.escape(visible(text), quote=True)
