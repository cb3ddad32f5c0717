"""The lists of the page: pods that wait, pods that kubelets refused, and the last decisions. All of them open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from topowise_scheduler.presentation.dashboard.cluster_state import QUARANTINED, State, Waiting
from topowise_scheduler.presentation.dashboard.decisions import Decision
from topowise_scheduler.presentation.dashboard.markup import (
    Query,
    badge,
    escaped,
    node_link,
    pod_link,
    since,
    table,
    time_of,
)
from topowise_scheduler.presentation.text import most_frequent_first, plural
from topowise_scheduler.refusals import PREFIX

_FEW_DECISIONS: Final = 15
_MOST_DECISIONS: Final = 200
_MOST_REFUSED: Final = 50
_MOST_REASONS: Final = 2


def waiting_part(state: State, query: Query) -> str:
    """Pods that were refused here, by kind."""
    if not state.waiting:
        return '<p class="note">No pod waits for a NUMA node.</p>'
    rows = "".join(_waiting(one, query) for one in state.waiting)
    rest = state.waiting_count - sum(one.count for one in state.waiting)
    return table("waiting", ("Pod", "Why", "Waits"), rows) + (f'<p class="note">and {rest} more</p>' if rest else "")


def refused_part(state: State, query: Query) -> str:
    """Pods that kubelets refused, with the nodes that are kept from their like."""
    if not state.refused:
        return '<p class="note">No kubelet has refused a pod.</p>'
    rows = "".join(
        f'<tr><th scope="row">{pod_link(one.pod, query)}</th><td>{node_link(one.bound, query)} '
        f"{badge(QUARANTINED) if one.bound in state.quarantined else ''}</td><td>{escaped(one.problem)}</td>"
        f"<td>{time_of(one.at)}</td></tr>"
        for one in state.refused[:_MOST_REFUSED]
    )
    rest = len(state.refused) - _MOST_REFUSED
    more = f'<p class="note">and {rest} more</p>' if rest > 0 else ""
    return table("refused", ("Pod", "Node", "Reason", "When"), rows) + more


def decisions_part(decisions: Sequence[Decision], query: Query) -> str:
    """The table of the last decisions, the newest first."""
    if not decisions:
        return '<p class="note">Of no pod is it known that it was asked about.</p>'
    is_short = query.decisions != "all"
    shown = decisions[: _FEW_DECISIONS if is_short else _MOST_DECISIONS]
    more = ""
    if is_short and len(decisions) > len(shown):
        more = f'<p><a href="{escaped(query.link(decisions="all"))}">Show all {len(decisions)}</a></p>'
    return decisions_table(shown, query) + more


def decisions_table(decisions: Sequence[Decision], query: Query) -> str:
    """A row for each."""
    heads = ("When", "Pod", "Outcome", "Node", "Fit", "Why not", "#Time")
    return table("decisions", heads, "".join(_decision(one, query) for one in decisions))


def reasons_in_words(reasons: Mapping[str, int]) -> list[str]:
    """The most frequent first."""
    return [f"{count}× {words.removeprefix(PREFIX)}" for words, count in most_frequent_first(reasons)]


def _waiting(one: Waiting, query: Query) -> str:
    rest = one.count - 1
    facts = reasons_in_words(one.reasons)[:_MOST_REASONS]
    facts += [f"would fit on {plural(one.fits, 'node')}"] if one.fits else []
    why = "; ".join(facts) or "no node is reported"
    alike = f" and {rest} more alike" if rest else ""
    return (
        f'<tr><th scope="row">{pod_link(one.pod, query)}{alike}</th><td>{escaped(why)}</td>'
        f"<td>{since(one.since) if one.since else ''} <small>priority {one.priority}</small></td></tr>"
    )


def _decision(one: Decision, query: Query) -> str:
    clauses = reasons_in_words(one.reasons)
    if one.victims_on is not None:
        clauses.insert(0, f"evictions would help on {plural(one.victims_on, 'node')}")
    rest = len(clauses) - _MOST_REASONS
    reasons = "; ".join(clauses[:_MOST_REASONS]) + (f"; {plural(rest, 'more reason')}" if rest > 0 else "")
    times = [f"{ms:.1f}" for ms in (one.filter_ms, one.score_ms, one.bind_ms) if ms is not None]
    node = one.bound or one.expected
    place = node_link(node, query) if node else ""
    numa = f" <small>NUMA {escaped(one.numa)}</small>" if one.numa else ""
    fit = "" if one.fits is None else f"{one.fits} of {one.asked}"
    told = '<small title="before this service started, or by another replica">as the pod tells</small>'
    return (
        f'<tr><td>{time_of(one.at)}</td><th scope="row">{pod_link(one.pod, query)}</th>'
        f'<td><span class="outcome {one.outcome.replace(" ", "-")}">{escaped(one.outcome)}</span></td>'
        f"<td>{place}{numa}</td><td>{fit}</td><td>{escaped(one.bind_error or one.problem or reasons)}</td>"
        f'<td class="number" title="filter + score + bind">{" + ".join(times)}{" ms" if times else ""}'
        f"{told if one.is_told and not times else ''}</td></tr>"
    )
