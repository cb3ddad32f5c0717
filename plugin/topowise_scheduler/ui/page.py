"""HTML of the page and of its parts, as it is without JavaScript. Every name and message in it is somebody else's text.

app.js draws the same with the same classes from state.json; style.css has both.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlencode

import msgspec

from topowise import quantity
from topowise_scheduler.refusals import PREFIX
from topowise_scheduler.ui.decisions import Decision
from topowise_scheduler.ui.node import CERTAINTIES, NodePage
from topowise_scheduler.ui.state import MARKS, Node, State, Zone
from topowise_scheduler.view.picture.text import safe
from topowise_scheduler.view.picture.words import counted

BINS: Final = ("none", "1–25 %", "26–50 %", "51–75 %", "over 75 %")
_MOST_ROWS: Final = 100
_MOST_DECISIONS: Final = 200
_MOST_REASONS: Final = 2
_BADGES: Final = {"u": "unsettled", "q": "quarantine", "p": "damaged report"}
_COUNTERS: Final = (
    ("waiting", "pods wait", "refused here, pending"),
    ("predictionHits", "predicted right", "placements that a report has confirmed"),
    ("predictionMisses", "predicted wrong", "pods on other NUMA nodes than predicted"),
    ("refusals", "kubelet refusals", "pods that kubelets did not place"),
    ("bindConflicts", "binds refused", "the node had changed since the answer"),
    ("openClaims", "claims", "pods expected on a node, not bound yet"),
    ("unsettled", "unsettled pods", "bound, may lie elsewhere than predicted"),
    ("quarantines", "in quarantine", "pairs of a node and a kind of pod its kubelet refused"),
)


class Query(msgspec.Struct, frozen=True):
    """What the page was asked to show."""

    resource: str = "cpu"
    name: str = ""
    policy: str = ""
    node: str = ""

    def link(self, **changed: str) -> str:
        """The address of the page with something else asked for."""
        asked = {**msgspec.structs.asdict(self), **changed}
        given = {key: text for key, text in asked.items() if text and (key, text) != ("resource", "cpu")}
        return f"ui?{urlencode(given)}" if given else "ui"

    def accepts(self, node: Node, policies: Sequence[str]) -> bool:
        """Whether the filters let a node through."""
        return self.name.lower() in node.name.lower() and self.policy in ("", policies[node.policy])


def page(state: State, query: Query, node: NodePage | None, version: str) -> str:
    """The whole document."""
    about = "" if node is None else node_part(node, query)
    if query.node and node is None:
        about = f'<p class="note">No exporter has reported a node {_text(query.node)}.</p>'
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
<body data-resource="{_text(state.resource)}">
<a class="skip" href="#room">Skip to the nodes</a>
<header>
<h1>topowise <small>{_text(version)}</small></h1>
<p id="live" role="status">as of {_time(datetime.now(UTC))}; reload for newer</p>
</header>
<main>
<section id="summary" aria-label="Summary">{summary_part(state)}</section>
<section id="room" aria-labelledby="room-title">
<h2 id="room-title">Free room by NUMA node</h2>
{_form(state, query)}
{legend_part()}
<div id="map">{map_part(state, query)}</div>
</section>
<section id="node" aria-label="Node"{"" if about else " hidden"} tabindex="-1">{about}</section>
<section id="decisions" aria-labelledby="decisions-title">
<h2 id="decisions-title">Last decisions</h2>
<div id="decisions-list">{decisions_part(state.decisions)}</div>
</section>
<section id="waiting" aria-labelledby="waiting-title">
<h2 id="waiting-title">Waiting pods</h2>
<div id="waiting-list">{waiting_part(state)}</div>
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
    problem = f'<p class="problem" role="alert">Not ready: {_text(state.problem)}</p>' if state.problem else ""
    figures = dict(state.counters)
    figures["waiting"] = state.waiting_count
    figures["refusals"] = sum(count for name, count in state.counters.items() if name.endswith("Error"))
    nodes = f"{len(state.nodes)}/{state.known}" if state.known else str(len(state.nodes))
    cells = [_figure("nodes", nodes, "nodes reported", "of those in the cluster")]
    cells += [_figure(key, str(figures[key]), words, more) for key, words, more in _COUNTERS]
    missing = ""
    if state.unreported:
        rest = state.unreported_count - len(state.unreported)
        names = ", ".join(map(_text, state.unreported)) + (f" and {rest} more" if rest else "")
        missing = f'<p class="note">No exporter has reported {names}.</p>'
    return f"{problem}<dl>{''.join(cells)}</dl>{missing}"


def legend_part() -> str:
    """What the colours mean."""
    keys = "".join(f'<li><span class="key b{number}"></span>{words}</li>' for number, words in enumerate(BINS))
    return f'<ul class="legend" aria-label="Free share of a NUMA node">{keys}<li>free for exclusive use</li></ul>'


def map_part(state: State, query: Query) -> str:
    """The nodes as a table; of many how they are distributed, and the first."""
    nodes = [node for node in state.nodes if query.accepts(node, state.policies)]
    if not nodes:
        words = "No node matches." if state.nodes else "No node has been reported yet."
        return f'<p class="note">{words}</p>'
    more = len(nodes) - _MOST_ROWS
    rows = "".join(_row(node, state, query) for node in nodes[:_MOST_ROWS])
    return (
        f"{distribution_part(nodes, state)}"
        f'<table class="nodes"><thead><tr><th scope="col">Node</th><th scope="col">Policy</th>'
        f'<th scope="col">NUMA nodes: free/all {_text(state.resource)}</th><th scope="col" class="number">Pods</th>'
        f'<th scope="col">State</th></tr></thead><tbody>{rows}</tbody></table>'
        + (f'<p class="note">and {more} more: filter by name or policy.</p>' if more > 0 else "")
    )


def distribution_part(nodes: Sequence[Node], state: State) -> str:
    """How many NUMA nodes have how much free, by policy; nothing for a handful."""
    if len(nodes) <= 8:
        return ""
    rows = []
    for number, policy in reversed(list(enumerate(state.policies))):
        mine = [zone for node in nodes if node.policy == number for zone in node.zones]
        if mine:
            rows.append(_distribution(policy, mine))
    if len(rows) > 1:
        rows.append(_distribution("all", [zone for node in nodes for zone in node.zones]))
    heads = "".join(f'<th scope="col" class="number">{words}</th>' for words in BINS)
    return (
        f'<table class="distribution"><caption>NUMA nodes by free share of {_text(state.resource)}</caption>'
        f'<thead><tr><th scope="col">Policy</th>{heads}<th scope="col" class="number">not counted</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )


def decisions_part(decisions: Sequence[Decision]) -> str:
    """The table of the last decisions, the newest first."""
    if not decisions:
        return '<p class="note">No pod was asked about since the service started.</p>'
    heads = ("When", "Pod", "Outcome", "Node", "Fit", "Why not", "Time")
    head = "".join(f'<th scope="col">{words}</th>' for words in heads)
    rows = "".join(map(_decision, decisions[:_MOST_DECISIONS]))
    return f'<table class="decisions"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'


def waiting_part(state: State) -> str:
    """Pods that were refused here."""
    if not state.waiting:
        return '<p class="note">No pod waits for a NUMA node.</p>'
    items = "".join(
        f"<li><bdi>{_text(one.pod)}</bdi> <small>priority {one.priority}"
        f"{f', since {_text(one.since)}' if one.since else ''}</small></li>"
        for one in state.waiting
    )
    rest = state.waiting_count - len(state.waiting)
    return f"<ul>{items}</ul>" + (f'<p class="note">and {rest} more</p>' if rest else "")


def node_part(node: NodePage, query: Query) -> str:
    """A node with its picture."""
    seen = (
        f"reported {_time(datetime.fromtimestamp(node.seen, UTC))}"
        if node.seen
        else "no new report since the service started"
    )
    facts = [
        f"policy {node.policy}",
        f"scope {node.scope}",
        "exact" if node.precision == "exact" else "counts: predicted from amounts alone",
        seen,
        f"version {node.version}" if node.version else "",
    ]
    marks = "".join(
        f"<li>{_badge(mark)} {_text(MARKS[mark].partition(': ')[2])}</li>" for mark in node.marks if mark != "p"
    )
    problems = "".join(f"<li>{_badge('p')} {_text(problem)}</li>" for problem in node.problems)
    rows = "".join(
        f'<tr><th scope="row"><bdi>{_text(pod.name)}</bdi></th><td>{_text(pod.numa)}</td>'
        f'<td title="{_text(CERTAINTIES[pod.certainty])}">{_text(pod.certainty)}</td>'
        f'<td class="number">{pod.priority}</td></tr>'
        for pod in node.pods
    )
    table = (
        '<table class="pods"><thead><tr><th scope="col">Pod</th><th scope="col">NUMA nodes</th>'
        '<th scope="col">Standing</th><th scope="col" class="number">Priority</th></tr></thead>'
        f"<tbody>{rows}</tbody></table>"
        if rows
        else '<p class="note">No pods.</p>'
    )
    return (
        f'<div class="title"><h2><bdi>{_text(node.name)}</bdi></h2>'
        f'<a class="close" href="{_text(query.link(node=""))}" aria-label="Close the node">Close</a></div>'
        f'<p class="facts">{" · ".join(_text(fact) for fact in facts if fact)}</p>'
        f"{f'<ul class=marks>{marks}{problems}</ul>' if marks or problems else ''}"
        f'<div class="picture" tabindex="0" role="group" aria-label="Picture of the machine">{node.svg}</div>{table}'
    )


def _form(state: State, query: Query) -> str:
    resources = _options(((one, one) for one in state.resources), state.resource)
    policies = _options([("", "all"), *((one, one) for one in reversed(state.policies))], query.policy)
    return (
        '<form id="filter" action="ui" method="get" role="search">'
        f'<label>Resource <select name="resource">{resources}</select></label>'
        f'<label>Name <input name="name" type="search" value="{_text(query.name)}" autocomplete="off"></label>'
        f'<label>Policy <select name="policy">{policies}</select></label>'
        '<button type="submit">Show</button></form>'
    )


def _options(choices: Iterable[tuple[str, str]], chosen: str) -> str:
    return "".join(
        f'<option value="{_text(one)}"{" selected" if one == chosen else ""}>{_text(words)}</option>'
        for one, words in choices
    )


def _row(node: Node, state: State, query: Query) -> str:
    cells = "".join(_zone(zone, state.unit) for zone in node.zones) or '<span class="note">has none</span>'
    badges = "".join(_badge(mark) for mark in node.marks)
    precision = "" if node.is_exact else '<span class="badge quiet">counts</span>'
    return (
        f'<tr><th scope="row"><a href="{_text(query.link(node=node.name))}"><bdi>{_text(node.name)}</bdi></a></th>'
        f"<td>{_text(state.policies[node.policy])}</td>"
        f'<td><div class="zones">{cells}</div></td><td class="number">{node.pods}</td><td>{precision}{badges}</td></tr>'
    )


def _zone(zone: Zone, unit: str) -> str:
    if zone.free is None:
        told, words = "–", f"{_amount(zone.total, unit)}, nobody counts"
    else:
        told = f"{_amount(zone.free, unit)}<small>/{_amount(zone.total, unit)}</small>"
        words = f"{_amount(zone.free, unit)} of {_amount(zone.total, unit)} free"
    return (
        f'<span class="zone b{bin_of(zone)} w{tenths(zone)}" title="NUMA node {zone.id}: {words}">'
        f'<i>{zone.id}</i><span class="hidden">:</span> {told}</span>'
    )


def bin_of(zone: Zone) -> str:
    """The class of a share: a place in BINS, "x" where nobody counts."""
    if zone.free is None or not zone.total:
        return "x"
    return str(min(4, -(-4 * zone.free // zone.total)))


def tenths(zone: Zone) -> int:
    """The share in tenths; 0 for nothing alone."""
    return 0 if not zone.free or not zone.total else max(1, 10 * zone.free // zone.total)


def _distribution(policy: str, zones: Sequence[Zone]) -> str:
    counts = dict.fromkeys(("0", "1", "2", "3", "4", "x"), 0)
    for zone in zones:
        counts[bin_of(zone)] += 1
    cells = "".join(
        f'<td class="number{f" b{number}" if count else ""}">{count or "·"}</td>' for number, count in counts.items()
    )
    return f'<tr><th scope="row">{_text(policy)}</th>{cells}</tr>'


def _decision(one: Decision) -> str:
    told = [f"{count}× {words.removeprefix(PREFIX)}" for words, count in _most(one.reasons)]
    if one.victims_on is not None:
        told.insert(0, f"evictions would help on {counted(one.victims_on, 'node')}")
    rest = len(told) - _MOST_REASONS
    reasons = "; ".join(told[:_MOST_REASONS]) + (f"; {counted(rest, 'more reason')}" if rest > 0 else "")
    more = one.bind_error or one.problem
    times = [f"{ms:.1f}" for ms in (one.filter_ms, one.score_ms, one.bind_ms) if ms is not None]
    node = one.bound or one.expected
    fit = "" if one.fits is None else f"{one.fits} of {one.asked}"
    return (
        f"<tr><td>{_time(datetime.fromtimestamp(one.at, UTC))}</td>"
        f'<th scope="row"><bdi>{_text(one.pod or "(unreadable request)")}</bdi></th>'
        f'<td><span class="outcome {one.outcome.replace(" ", "-")}">{_text(one.outcome)}</span></td>'
        f"<td><bdi>{_text(node)}</bdi></td><td>{fit}</td><td>{_text(more or reasons)}</td>"
        f'<td class="number">{" + ".join(times)}{" ms" if times else ""}</td></tr>'
    )


def _most(reasons: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(reasons.items(), key=lambda one: (-one[1], one[0]))


def _figure(key: str, figure: str, words: str, more: str) -> str:
    return f'<div data-key="{key}" title="{more}"><dt>{words}</dt><dd>{figure}</dd></div>'


def _badge(mark: str) -> str:
    return f'<span class="badge {mark}" title="{_text(MARKS[mark])}">{_text(_BADGES[mark])}</span>'


def _amount(amount: int, unit: str) -> str:
    return quantity.human_bytes(amount << 20) if unit == "MiB" else str(amount)


def _time(when: datetime) -> str:
    told = when.isoformat(timespec="seconds").replace("+00:00", "Z")
    return f'<time datetime="{told}">{when:%H:%M:%S} UTC</time>'


def _text(text: str) -> str:
    """Somebody's text, for a place between tags or between double quotes."""
    return html.escape(safe(text), quote=True)
