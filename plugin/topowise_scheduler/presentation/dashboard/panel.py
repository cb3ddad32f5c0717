"""What opens beside the page: a node, or a pod with what is known of it."""

from __future__ import annotations

from collections.abc import Sequence

from topowise_scheduler.presentation.dashboard.cluster_state import MARKS
from topowise_scheduler.presentation.dashboard.lists import decisions_table, reasons_in_words
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
from topowise_scheduler.presentation.dashboard.node_details import CERTAINTIES, NodePage
from topowise_scheduler.presentation.dashboard.pod_details import Why
from topowise_scheduler.presentation.explain.explanation import NodeExplanation
from topowise_scheduler.presentation.text import plural


def node_part(node: NodePage, query: Query) -> str:
    """A node with its picture."""
    words = [
        f"policy {node.policy}",
        f"scope {node.scope}",
        "exact" if node.precision == "exact" else "counts: predicted from amounts alone",
        f"kubelet {node.kubelet}" if node.kubelet else "",
        f"version {node.version}" if node.version else "",
    ]
    seen = f"reported {time_of(node.seen)}" if node.seen else "no new report since the service started"
    facts = [*(escaped(one) for one in words if one), seen]
    marks = "".join(
        f"<li>{badge(mark)} {escaped(MARKS[mark].partition(': ')[2])}</li>" for mark in node.marks if mark != "p"
    )
    problems = "".join(f"<li>{badge('p')} {escaped(problem)}</li>" for problem in node.problems)
    rows = "".join(
        f'<tr><th scope="row">{pod_link(pod.name, query)}</th><td>{escaped(pod.numa)}</td>'
        f'<td title="{escaped(CERTAINTIES[pod.certainty])}">{escaped(pod.certainty)}</td>'
        f'<td class="number">{pod.priority}</td></tr>'
        for pod in node.pods
    )
    pods = table("pods", ("Pod", "NUMA nodes", "State", "#Priority"), rows) if rows else '<p class="note">No pods.</p>'
    return (
        f'{_title(node.name, query)}<p class="facts">{" · ".join(facts)}</p>'
        f"{f'<ul class=marks>{marks}{problems}</ul>' if marks or problems else ''}"
        f'<div class="picture" tabindex="0" role="group" aria-label="Picture of the machine">{node.svg}</div>{pods}'
    )


def no_node_part(name: str, query: Query) -> str:
    """Nobody has reported it."""
    return f'{_title(name, query)}<p class="note">No exporter has reported a node {escaped(name)}.</p>'


def pod_part(why: Why, query: Query) -> str:
    """A pod: what it waits for, what nodes say, and what was decided."""
    parts = [_title(why.pod, query)]
    if why.waits:
        waits = f", since {since(why.since)}" if why.since else ""
        parts.append(f'<p class="facts">waits, priority {why.priority}{waits}</p>')
    if why.obstacle is not None:
        nearest = why.obstacle.nearest
        link = node_link(nearest, query) if nearest else ""
        parts.append(f'<p class="answer">{link}{escaped(why.obstacle.text.removeprefix(nearest))}</p>')
    if why.waits and not why.problem:
        counts = [*reasons_in_words(why.reasons), *([f"would fit on {plural(why.fits, 'node')}"] if why.fits else [])]
        parts.append(f"<h3>By node, now</h3><ul>{''.join(f'<li>{escaped(one)}</li>' for one in counts)}</ul>")
    if why.explained:
        parts.append(explained_part(why.explained, query, is_sample=why.waits or len(why.explained) > 1))
    if why.problem:
        parts.append(problem_part(why.problem))
    if why.attempts:
        parts.append(f"<h3>Decisions</h3>{decisions_table(why.attempts, query)}")
    if len(parts) == 1:
        parts.append('<p class="note">No decision about it is kept, and it does not wait for a NUMA node.</p>')
    return "".join(parts)


def explained_part(explained: Sequence[NodeExplanation], query: Query, *, is_sample: bool) -> str:
    """Why some nodes say yes or no, as things are now."""
    rows = "".join(
        f'<tr><th scope="row">{node_link(why.node, query)}</th>'
        f'<td><span class="outcome {"bound" if why.verdict == "fits" else "no-room"}">{why.verdict}</span></td>'
        f"<td>{escaped(why.text)}</td></tr>"
        for why in explained
    )
    some = "; a few nodes of each reason" if is_sample else ""
    note = f'<p class="note">As things are now{some}.</p>'
    return f"{note}{table('explained', ('Node', 'Now', 'Why'), rows)}{not_looked_at(explained[0].not_looked_at)}"


def problem_part(text: str) -> str:
    """Something that cannot be shown."""
    return f'<p class="problem" role="alert">{escaped(text)}</p>'


def not_looked_at(words: Sequence[str]) -> str:
    """What a pod asks for that is not judged here."""
    return f'<p class="note">Not looked at: {", ".join(words)}.</p>' if words else ""


def _title(name: str, query: Query) -> str:
    return (
        f'<div class="title"><h2><bdi>{escaped(name)}</bdi></h2>'
        f'<a class="close" href="{escaped(query.link(node="", pod=""))}" aria-label="Close">Close</a></div>'
    )
