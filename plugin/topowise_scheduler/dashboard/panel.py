"""The panel of the page: the details of a node, or of a pod."""

from __future__ import annotations

from collections.abc import Sequence

from topowise_scheduler.dashboard.cluster_state import DAMAGED, MARKS, STALE
from topowise_scheduler.dashboard.details import CERTAINTIES, MOST_MATCHES, NodeDetails, PodDetails
from topowise_scheduler.dashboard.markup import (
    Query,
    badge,
    cause_link,
    decisions_table,
    escaped,
    fits_in_words,
    node_link,
    note,
    pod_link,
    problem,
    reasons_in_words,
    since,
    table,
)
from topowise_scheduler.explain.explanation import NodeExplanation
from topowise_scheduler.explain.waiting_texts import CAUSE_TEXTS, text


def node_part(node: NodeDetails, marks: str, query: Query) -> str:
    """A node with its picture and its pods."""
    facts = [
        f"policy {node.policy}",
        f"scope {node.scope}",
        "exact" if node.precision == "exact" else "counts: predicted from amounts alone",
        f"kubelet {node.kubelet}" if node.kubelet else "",
        f"version {node.version}" if node.version else "",
    ]
    marked = "".join(
        f"<li>{badge(mark)} {escaped(MARKS[mark].partition(': ')[2])}</li>"
        for mark in marks
        if mark not in (DAMAGED, STALE)
    )
    marked += f"<li>{badge(STALE)} {escaped(node.stale)}</li>" if node.stale else ""
    problems = "".join(f"<li>{badge(DAMAGED)} {escaped(text)}</li>" for text in node.problems)
    rows = "".join(
        f'<tr><th scope="row">{pod_link(pod.name, query)}</th><td>{escaped(pod.numa)}</td>'
        f'<td title="{escaped(CERTAINTIES[pod.certainty])}">{escaped(pod.certainty)}</td>'
        f'<td class="number">{pod.priority}</td></tr>'
        for pod in node.pods
    )
    return (
        f'{_title(node.name, query)}<p class="facts">{" · ".join(escaped(fact) for fact in facts if fact)}</p>'
        f"{f'<ul class=marks>{marked}{problems}</ul>' if marked or problems else ''}"
        f'<div class="picture" tabindex="0" role="group" aria-label="Picture of the machine">{node.svg}</div>'
        + (table("pods", ("Pod", "NUMA nodes", "State", "#Priority"), rows) if rows else note("No pods."))
    )


def unreported_node_part(name: str, query: Query) -> str:
    """A node without a report."""
    return _title(name, query) + note(f"No exporter has reported a node {escaped(name)}.")


def matches_part(names: Sequence[str], query: Query) -> str:
    """The pods ("namespace/name") that a search found."""
    title = _title(f"Pods named {query.find}", query)
    if not names:
        return title + note(
            "The cluster has no such pod that waits for topowise or is assigned to a node. "
            "Expected: a part of namespace/name."
        )
    links = "".join(f"<li>{pod_link(name, query)}</li>" for name in names[:MOST_MATCHES])
    more = len(names) - MOST_MATCHES
    return f"{title}<ul>{links}</ul>" + (note(f"and {more} more; search for a longer part") if more > 0 else "")


def pod_part(pod: PodDetails, query: Query) -> str:
    """A pod: why it waits, the answers of the nodes, and the decisions."""
    parts = [_title(pod.pod, query)]
    if pod.why is not None:
        waits = f", since {since(pod.since)}" if pod.since else ""
        why = f"{cause_link(pod.why.cause)}, {escaped(CAUSE_TEXTS[pod.why.cause])}"
        parts.append(f'<p class="facts">waits, priority {pod.priority}{waits}: {why}</p>')
        nearest = pod.why.nearest
        link = node_link(nearest, query) if nearest else ""
        parts.append(f'<p class="answer">{link}{escaped(text(pod.why)[len(nearest) :])}</p>')
        counts = [*reasons_in_words(pod.why.reasons), *fits_in_words(pod.why)]
        parts.append(f"<h3>By node, now</h3><ul>{''.join(f'<li>{escaped(text)}</li>' for text in counts)}</ul>")
    if pod.explained:
        parts.append(_explained(pod.explained, query, is_sample=pod.why is not None or len(pod.explained) > 1))
    if pod.problem:
        parts.append(problem(pod.problem))
    if pod.attempts:
        parts.append(f"<h3>Decisions</h3>{decisions_table(pod.attempts, query)}")
    if len(parts) == 1:
        parts.append(note("No decision on this pod is kept, and it does not wait for a node."))
    return "".join(parts)


def _explained(explained: Sequence[NodeExplanation], query: Query, *, is_sample: bool) -> str:
    rows = "".join(
        f'<tr><th scope="row">{node_link(node.node, query)}</th>'
        f'<td><span class="outcome {"bound" if node.verdict == "fits" else "no-room"}">{node.verdict}</span></td>'
        f"<td>{escaped(node.text)}</td></tr>"
        for node in explained
    )
    sample = "; a few nodes for each reason" if is_sample else ""
    unexamined = explained[0].not_looked_at
    return (
        note(f"At present{sample}.")
        + table("explained", ("Node", "Now", "Why"), rows)
        + (note(f"Not examined: {', '.join(unexamined)}.") if unexamined else "")
    )


def _title(name: str, query: Query) -> str:
    return (
        f'<div class="title"><h2><bdi>{escaped(name)}</bdi></h2>'
        f'<a class="close" href="{escaped(query.link(node="", pod=""))}" aria-label="Close">Close</a></div>'
    )
