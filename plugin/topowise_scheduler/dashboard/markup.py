"""Building blocks of the page: escaped text, times, links, tables, the query of its address, and its lists.

The lists are waiting pods, pods that kubelets refused, and the last decisions.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlencode

import msgspec

from topowise.text import escaped as visible
from topowise_scheduler.dashboard.cluster_state import MARKS, QUARANTINED, State, WaitingPods
from topowise_scheduler.dashboard.decisions import Decision
from topowise_scheduler.explain.next_step import Cause
from topowise_scheduler.explain.text import plural
from topowise_scheduler.explain.waiting import WaitingPod
from topowise_scheduler.explain.waiting_texts import CAUSE_TEXTS, by_reason, next_step
from topowise_scheduler.verdicts.refusals import Reason

_CAUSES_PAGE: Final = "https://github.com/topowise/topowise/blob/main/docs/how-to/explain.md#why-a-pod-waits"
BADGES: Final = {"u": "uncertain", "q": "quarantine", "p": "damaged report", "s": "stale report"}
_FEW_DECISIONS: Final = 15
_MOST_DECISIONS: Final = 200
_MOST_REFUSED: Final = 50
_MOST_REASONS: Final = 2


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


def waiting_part(state: State, query: Query) -> str:
    """Pending pods for which kube-scheduler found no node, by pod class."""
    if not state.waiting:
        return note("No pod waits for a node.")
    rows = "".join(_waiting(pods, query) for pods in state.waiting)
    return table("waiting", ("Pod", "Cause", "Why", "Next step", "Waits"), rows) + _more(
        state.waiting_count - sum(pods.count for pods in state.waiting)
    )


def refused_part(state: State, query: Query) -> str:
    """Pods that kubelets refused; a badge marks nodes in quarantine."""
    if not state.refused:
        return note("No kubelet has refused a pod.")
    rows = "".join(
        f'<tr><th scope="row">{pod_link(decision.pod, query)}</th><td>{node_link(decision.bound, query)} '
        f"{badge(QUARANTINED) if decision.bound in state.quarantined else ''}</td><td>{escaped(decision.problem)}</td>"
        f"<td>{time_of(decision.at)}</td></tr>"
        for decision in state.refused[:_MOST_REFUSED]
    )
    return table("refused", ("Pod", "Node", "Reason", "When"), rows) + _more(len(state.refused) - _MOST_REFUSED)


def decisions_part(decisions: Sequence[Decision], query: Query) -> str:
    """The last decisions, the newest first."""
    if not decisions:
        return note("No decision yet.")
    is_short = query.decisions != "all"
    shown = decisions[: _FEW_DECISIONS if is_short else _MOST_DECISIONS]
    more = ""
    if is_short and len(decisions) > len(shown):
        more = f'<p><a href="{escaped(query.link(decisions="all"))}">Show all {len(decisions)}</a></p>'
    return decisions_table(shown, query) + more


def decisions_table(decisions: Sequence[Decision], query: Query) -> str:
    """A row for each decision."""
    heads = ("When", "Pod", "Outcome", "Node", "Fit", "Why not", "#Time")
    return table("decisions", heads, "".join(_decision(decision, query) for decision in decisions))


def reasons_in_words(reasons: Mapping[Reason, int]) -> list[str]:
    """ "2× no room that the kubelet could align", the most frequent first."""
    return [f"{count}× {words}" for words, count in by_reason(reasons)]


def fits_in_words(pod: WaitingPod) -> list[str]:
    """The nodes that take the pod, if there are any."""
    return [f"would fit on {plural(pod.fits, 'node')}"] if pod.fits else []


def _more(count: int) -> str:
    return note(f"and {count} more") if count > 0 else ""


def _waiting(pods: WaitingPods, query: Query) -> str:
    facts = [*reasons_in_words(pods.why.reasons)[:_MOST_REASONS], *fits_in_words(pods.why)]
    alike = f" and {pods.count - 1} more alike" if pods.count > 1 else ""
    return (
        f'<tr><th scope="row">{pod_link(pods.pod, query)}{alike}</th>'
        f"<td>{cause_link(pods.why.cause)}</td><td>{escaped('; '.join(facts))}</td>"
        f"<td>{escaped(next_step(pods.why.step))}</td>"
        f"<td>{since(pods.since) if pods.since else ''} <small>priority {pods.priority}</small></td></tr>"
    )


def _decision(decision: Decision, query: Query) -> str:
    clauses = reasons_in_words(decision.reasons)
    if decision.victims_on is not None:
        clauses.insert(0, f"evictions would help on {plural(decision.victims_on, 'node')}")
    rest = len(clauses) - _MOST_REASONS
    reasons = "; ".join(clauses[:_MOST_REASONS]) + (f"; {plural(rest, 'more reason')}" if rest > 0 else "")
    times = [f"{ms:.1f}" for ms in (decision.filter_ms, decision.score_ms, decision.bind_ms) if ms is not None]
    name = decision.bound or decision.expected
    node = node_link(name, query) if name else ""
    numa = f" <small>NUMA {escaped(decision.numa)}</small>" if decision.numa else ""
    fit = "" if decision.fits is None else f"{decision.fits} of {decision.candidates}"
    source = '<small title="by another replica, or before this service started">from the pod\'s status</small>'
    return (
        f'<tr><td>{time_of(decision.at)}</td><th scope="row">{pod_link(decision.pod, query)}</th>'
        f'<td><span class="outcome {decision.outcome.replace(" ", "-")}">{escaped(decision.outcome)}</span></td>'
        f"<td>{node}{numa}</td><td>{fit}</td>"
        f"<td>{escaped(decision.bind_error or decision.problem or reasons)}</td>"
        f'<td class="number" title="filter + score + bind">{" + ".join(times)}{" ms" if times else ""}'
        f"{source if decision.is_from_pod and not times else ''}</td></tr>"
    )
