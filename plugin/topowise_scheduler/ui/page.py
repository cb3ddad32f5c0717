"""HTML of the page and of its parts. Every name and message in it is somebody else's text.

It is made nowhere else: app.js fetches the parts that have changed and puts them in their places. Without JavaScript
the page has all of them as of when it was loaded, and the nodes as a table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from topowise_scheduler.refusals import PREFIX
from topowise_scheduler.ui.decisions import Decision
from topowise_scheduler.ui.fits import Fits
from topowise_scheduler.ui.map import BINS, map_parts
from topowise_scheduler.ui.markup import Query, badge, escaped, node_link, since, time_of
from topowise_scheduler.ui.node import CERTAINTIES, NodePage
from topowise_scheduler.ui.state import MARKS, State
from topowise_scheduler.view.explanation import NodeExplanation
from topowise_scheduler.view.picture.words import counted

_FEW_DECISIONS: Final = 15
_MOST_ROOMS: Final = 200
_MOST_DECISIONS: Final = 200
_MOST_REASONS: Final = 2
_COUNTERS: Final = (
    ("waiting", "pods wait", "refused here, pending"),
    ("predictionHits", "predicted right", "placements that a report has confirmed"),
    ("predictionMisses", "predicted wrong", "pods on other NUMA nodes than predicted"),
    ("refusals", "kubelet refusals", "pods that kubelets did not place"),
    ("bindConflicts", "binds refused", "the node had changed since the answer"),
    ("openReservations", "reservations", "pods expected on a node, not bound yet"),
    ("uncertain", "uncertain pods", "bound, may lie elsewhere than predicted"),
    ("quarantines", "in quarantine", "pairs of a node and a kind of pod its kubelet refused"),
)


async def parts(state: State, query: Query, node: NodePage | None) -> dict[str, str]:
    """The inner HTML of the page's elements, by their ids: what the script swaps. Nodes are drawn in slices."""
    found = {
        "summary": summary_part(state),
        "resource": _options(((one, one) for one in state.resources), state.resource),
        "decisions-list": decisions_part(state.decisions, query),
        "waiting-list": waiting_part(state),
        "node": node_part(node, query) if node is not None else "",
    }
    if query.node and node is None:
        found["node"] = f'<p class="note">No exporter has reported a node {escaped(query.node)}.</p>'
    return found | await map_parts(state, query)


async def page(state: State, query: Query, node: NodePage | None, version: str) -> str:
    """The whole document."""
    made = await parts(state, query, node)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>topowise</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="ui/style.css">
<script src="ui/app.js" defer></script>
</head>
<body data-resource="{escaped(state.resource)}">
<a class="skip" href="#room">Skip to the nodes</a>
<header>
<h1>topowise <small>{escaped(version)}</small></h1>
<p id="live" role="status">as of {time_of(datetime.now(UTC))}; reload for newer</p>
</header>
<main>
<section id="summary" aria-label="Summary">{made["summary"]}</section>
<section id="room" aria-labelledby="room-title">
<h2 id="room-title">Free room by NUMA node</h2>
{_form(state, query, made["resource"])}
{legend_part()}
<div id="map">{made["map"]}</div>
</section>
<section id="node" aria-label="Node"{"" if made["node"] else " hidden"} tabindex="-1">{made["node"]}</section>
<section id="decisions" aria-labelledby="decisions-title">
<h2 id="decisions-title">Last decisions</h2>
<div id="decisions-list">{made["decisions-list"]}</div>
</section>
<section id="waiting" aria-labelledby="waiting-title">
<h2 id="waiting-title">Waiting pods</h2>
<div id="waiting-list">{made["waiting-list"]}</div>
</section>
<section id="fits" aria-labelledby="fits-title">
<h2 id="fits-title">What fits</h2>
<noscript><p class="note">Counting needs JavaScript; <code>kubectl topowise fits</code> does the same.</p></noscript>
<form id="fits-form" hidden>
<label for="manifest">Manifest of a pod, or of a controller with a template (YAML or JSON)</label>
<textarea id="manifest" rows="10" spellcheck="false" autocomplete="off"></textarea>
<button type="submit">How many fit now?</button>
</form>
<div id="fits-result" aria-live="polite"></div>
</section>
</main>
</body>
</html>
"""


def summary_part(state: State) -> str:
    """The figures."""
    problem = f'<p class="problem" role="alert">Not ready: {escaped(state.problem)}</p>' if state.problem else ""
    figures = dict(state.counters)
    figures["waiting"] = state.waiting_count
    figures["refusals"] = sum(count for name, count in state.counters.items() if name.endswith("Error"))
    nodes = f"{len(state.nodes)}/{state.known}" if state.known else str(len(state.nodes))
    cells = [_figure("nodes", nodes, "nodes reported", "of those in the cluster")]
    cells += [_figure(key, str(figures[key]), words, more) for key, words, more in _COUNTERS]
    missing = ""
    if state.unreported:
        rest = state.unreported_count - len(state.unreported)
        names = ", ".join(map(escaped, state.unreported)) + (f" and {rest} more" if rest else "")
        missing = f'<p class="note">No exporter has reported {names}.</p>'
    return f"{problem}<dl>{''.join(cells)}</dl>{missing}"


def legend_part() -> str:
    """What the colours mean."""
    keys = "".join(f'<li><span class="key b{number}"></span>{words}</li>' for number, words in enumerate(BINS))
    return f'<ul class="legend" aria-label="Free share of a NUMA node">{keys}<li>free for exclusive use</li></ul>'


def decisions_part(decisions: Sequence[Decision], query: Query) -> str:
    """The table of the last decisions, the newest first."""
    if not decisions:
        return '<p class="note">No pod was asked about since the service started.</p>'
    heads = ("When", "Pod", "Outcome", "Node", "Fit", "Why not", "Time")
    head = "".join(f'<th scope="col">{words}</th>' for words in heads)
    is_short = query.is_live and not query.shows_all
    shown = decisions[: _FEW_DECISIONS if is_short else _MOST_DECISIONS]
    rows = "".join(_decision(one, query) for one in shown)
    rest = is_short and len(decisions) > len(shown)
    button = f'<button type="button" class="more">Show all {len(decisions)}</button>' if rest else ""
    return f'<table class="decisions"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{button}'


def explained_part(one: Decision, explained: Sequence[NodeExplanation], query: Query) -> str:
    """Why some nodes of a decision say yes or no, as things are now."""
    rows = "".join(
        f'<tr><th scope="row">{node_link(why.node, query)}</th>'
        f'<td><span class="outcome {"bound" if why.verdict == "fits" else "no-room"}">{why.verdict}</span></td>'
        f"<td>{escaped(why.text)}</td></tr>"
        for why in explained
    )
    some = (
        f"a few of the {one.asked} nodes, some for each reason"
        if one.asked > len(explained)
        else "all nodes asked about"
    )
    note = f'<p class="note">As things are now; {some}.</p>'
    return (
        f"{note}<table><tbody>{rows}</tbody></table>{_not_looked_at(explained[0].not_looked_at if explained else ())}"
    )


def fits_part(fits: Fits, query: Query) -> str:
    """How many more fit where, and why not on the other nodes."""
    rows = "".join(
        f'<tr><th scope="row">{node_link(room.node, query)}</th>'
        f'<td class="number">{"≥ " if room.is_least else ""}{room.count}</td><td>{escaped(room.first)}</td>'
        f"<td>{escaped(room.limit)}</td></tr>"
        for room in fits.nodes[:_MOST_ROOMS]
    )
    head = (
        '<tr><th scope="col">Node</th><th scope="col" class="number">Fit</th><th scope="col">First on NUMA</th>'
        '<th scope="col">Then</th></tr>'
    )
    table = f'<table class="rooms"><thead>{head}</thead><tbody>{rows}</tbody></table>' if rows else ""
    rest = len(fits.nodes) - _MOST_ROOMS
    reasons = "".join(
        f"<li>{counted(count, 'node')}: {escaped(words.removeprefix(PREFIX))}</li>"
        for words, count in fits.reasons.items()
    )
    least = "At least " if fits.is_least else ""
    return (
        f'<p class="total"><strong>{least}{fits.total}</strong> more of {escaped(fits.pod)} '
        f"fit on {len(fits.nodes)} of {counted(fits.asked, 'node')}.</p>{table}"
        + (f'<p class="note">and {rest} more nodes</p>' if rest > 0 else "")
        + (f"<ul>{reasons}</ul>" if reasons else "")
        + _not_looked_at(fits.not_looked_at)
    )


def problem_part(text: str) -> str:
    """Something that cannot be shown."""
    return f'<p class="problem" role="alert">{escaped(text)}</p>'


def _not_looked_at(words: Sequence[str]) -> str:
    return f'<p class="note">Not looked at: {", ".join(words)}.</p>' if words else ""


def waiting_part(state: State) -> str:
    """Pods that were refused here."""
    if not state.waiting:
        return '<p class="note">No pod waits for a NUMA node.</p>'
    items = "".join(
        f"<li><bdi>{escaped(one.pod)}</bdi> <small>priority {one.priority}"
        f"{f', since {since(one.since)}' if one.since else ''}</small></li>"
        for one in state.waiting
    )
    rest = state.waiting_count - len(state.waiting)
    return f"<ul>{items}</ul>" + (f'<p class="note">and {rest} more</p>' if rest else "")


def node_part(node: NodePage, query: Query) -> str:
    """A node with its picture."""
    seen = (
        f"reported {time_of(datetime.fromtimestamp(node.seen, UTC))}"
        if node.seen
        else "no new report since the service started"
    )
    words = [
        f"policy {node.policy}",
        f"scope {node.scope}",
        "exact" if node.precision == "exact" else "counts: predicted from amounts alone",
        f"kubelet {node.kubelet}" if node.kubelet else "",
        f"version {node.version}" if node.version else "",
    ]
    facts = [*(escaped(one) for one in words if one), seen]
    marks = "".join(
        f"<li>{badge(mark)} {escaped(MARKS[mark].partition(': ')[2])}</li>" for mark in node.marks if mark != "p"
    )
    problems = "".join(f"<li>{badge('p')} {escaped(problem)}</li>" for problem in node.problems)
    rows = "".join(
        f'<tr><th scope="row"><bdi>{escaped(pod.name)}</bdi></th><td>{escaped(pod.numa)}</td>'
        f'<td title="{escaped(CERTAINTIES[pod.certainty])}">{escaped(pod.certainty)}</td>'
        f'<td class="number">{pod.priority}</td></tr>'
        for pod in node.pods
    )
    table = (
        '<table class="pods"><thead><tr><th scope="col">Pod</th><th scope="col">NUMA nodes</th>'
        '<th scope="col">State</th><th scope="col" class="number">Priority</th></tr></thead>'
        f"<tbody>{rows}</tbody></table>"
        if rows
        else '<p class="note">No pods.</p>'
    )
    return (
        f'<div class="title"><h2><bdi>{escaped(node.name)}</bdi></h2>'
        f'<a class="close" href="{escaped(query.link(node=""))}" aria-label="Close the node">Close</a></div>'
        f'<p class="facts">{" · ".join(facts)}</p>'
        f"{f'<ul class=marks>{marks}{problems}</ul>' if marks or problems else ''}"
        f'<div class="picture" tabindex="0" role="group" aria-label="Picture of the machine">{node.svg}</div>{table}'
    )


def _form(state: State, query: Query, resources: str) -> str:
    policies = _options([("", "all"), *((one, one) for one in reversed(state.policies))], query.policy)
    return (
        '<form id="filter" action="ui" method="get" role="search">'
        f'<label>Resource <select id="resource" name="resource">{resources}</select></label>'
        f'<label>Name <input name="name" type="search" value="{escaped(query.name)}" autocomplete="off"></label>'
        f'<label>Policy <select name="policy">{policies}</select></label>'
        '<button type="submit">Show</button></form>'
    )


def _options(choices: Iterable[tuple[str, str]], chosen: str) -> str:
    return "".join(
        f'<option value="{escaped(one)}"{" selected" if one == chosen else ""}>{escaped(words)}</option>'
        for one, words in choices
    )


def _decision(one: Decision, query: Query) -> str:
    clauses = [f"{count}× {words.removeprefix(PREFIX)}" for words, count in _most(one.reasons)]
    if one.victims_on is not None:
        clauses.insert(0, f"evictions would help on {counted(one.victims_on, 'node')}")
    rest = len(clauses) - _MOST_REASONS
    reasons = "; ".join(clauses[:_MOST_REASONS]) + (f"; {counted(rest, 'more reason')}" if rest > 0 else "")
    more = one.bind_error or one.problem
    times = [f"{ms:.1f}" for ms in (one.filter_ms, one.score_ms, one.bind_ms) if ms is not None]
    node = one.bound or one.expected
    fit = "" if one.fits is None else f"{one.fits} of {one.asked}"
    pod = f"<bdi>{escaped(one.pod or '(unreadable request)')}</bdi>"
    if query.is_live and one.pod:
        pod = f'<button type="button" aria-expanded="false" data-number="{one.number}">{pod}</button>'
    return (
        f"<tr><td>{time_of(datetime.fromtimestamp(one.at, UTC))}</td>"
        f'<th scope="row">{pod}</th>'
        f'<td><span class="outcome {one.outcome.replace(" ", "-")}">{escaped(one.outcome)}</span></td>'
        f"<td><bdi>{escaped(node)}</bdi></td><td>{fit}</td><td>{escaped(more or reasons)}</td>"
        f'<td class="number" title="filter + score + bind">{" + ".join(times)}{" ms" if times else ""}</td></tr>'
    )


def _most(reasons: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(reasons.items(), key=lambda one: (-one[1], one[0]))


def _figure(key: str, figure: str, words: str, more: str) -> str:
    zero = ' class="zero"' if figure == "0" else ""
    return f'<div data-key="{key}" title="{more}"{zero}><dt>{words}</dt><dd>{figure}</dd></div>'
