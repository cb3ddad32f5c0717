"""HTML of the page and of its parts. Every name and message in it is somebody else's text.

It is made nowhere else: app.js fetches the parts that have changed and puts them in their places. Without JavaScript
the page has all of them as of when it was loaded, and the nodes as a table.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from topowise_scheduler.presentation.dashboard.capacity import Fits, Fitting
from topowise_scheduler.presentation.dashboard.cluster_state import State
from topowise_scheduler.presentation.dashboard.lists import decisions_part, refused_part, waiting_part
from topowise_scheduler.presentation.dashboard.map import STATES, map_parts, with_blocks
from topowise_scheduler.presentation.dashboard.markup import ASKED, Query, escaped, node_link, table, time_of
from topowise_scheduler.presentation.dashboard.panel import not_looked_at
from topowise_scheduler.presentation.dashboard.spread import BINS
from topowise_scheduler.presentation.text import plural
from topowise_scheduler.refusals import PREFIX

_MOST_ROOMS: Final = 20
_COUNTERS: Final = (
    ("waiting", "pods wait", "refused here, pending", "waiting"),
    ("refusals", "kubelet refusals", "pods that kubelets did not place", "refused"),
    ("quarantines", "in quarantine", "pairs of a node and a kind of pod its kubelet refused", "refused"),
    ("predictionHits", "predicted right", "placements that a report has confirmed", ""),
    ("predictionMisses", "predicted wrong", "pods on other NUMA nodes than predicted", ""),
    ("bindConflicts", "binds refused", "the node had changed since the answer", "decisions"),
    ("openReservations", "reservations", "pods expected on a node, not bound yet", "decisions"),
    ("uncertain", "uncertain pods", "bound, may lie elsewhere than predicted", "room"),
)


async def parts(state: State, query: Query, panel: str, fitting: Fitting | None) -> dict[str, str]:
    """The inner HTML of the page's elements, by their ids: what the script swaps. Nodes are drawn in slices."""
    return {
        "summary": summary_part(state),
        "resource": _options(((one, one) for one in state.resources), state.resource),
        "unit": escaped(state.unit),
        "waiting-list": waiting_part(state, query),
        "refused-list": refused_part(state, query),
        "decisions-list": decisions_part(state.decisions, query),
        "panel": panel,
        **await map_parts(state, query, fitting),
    }


async def page(state: State, query: Query, panel: str, fitting: Fitting | None, version: str) -> str:
    """The whole document."""
    made = await parts(state, query, panel, fitting)
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
<body data-resource="{escaped(state.resource)}" data-asked="{" ".join(ASKED)}">
<a class="skip" href="#room">Skip to the nodes</a>
<header>
<h1>topowise <small>{escaped(version)}</small></h1>
<p id="live" role="status">as of {time_of(time.time())}; reload for newer</p>
</header>
<main>
<section id="summary" aria-label="Summary">{made["summary"]}</section>
<aside id="panel" aria-label="Details"{"" if made["panel"] else " hidden"} tabindex="-1">{made["panel"]}</aside>
<div class="pair">
<section id="waiting" aria-labelledby="waiting-title">
<h2 id="waiting-title">Waiting pods</h2>
<div id="waiting-list" class="list">{made["waiting-list"]}</div>
</section>
<section id="refused" aria-labelledby="refused-title">
<h2 id="refused-title">Refused by kubelets</h2>
<div id="refused-list" class="list">{made["refused-list"]}</div>
</section>
</div>
<section id="room" aria-labelledby="room-title">
<h2 id="room-title">Free room by NUMA node</h2>
{_form(state, query, made["resource"])}
{_fits_form()}
<div id="filtered">{made["filtered"]}</div>
<div id="spread">{made["spread"]}</div>
{legend_part()}
<div id="map">{with_blocks(made)}</div>
</section>
<section id="decisions" aria-labelledby="decisions-title">
<h2 id="decisions-title">Last decisions</h2>
<div id="decisions-list">{made["decisions-list"]}</div>
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
    cells = [_figure("nodes", nodes, "nodes reported", "of those in the cluster", "room")]
    cells += [_figure(key, str(figures[key]), words, more, leads_to) for key, words, more, leads_to in _COUNTERS]
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


def fits_part(fits: Fits, digest: str, query: Query) -> str:
    """How many more fit where, and why not on the other nodes."""
    rows = "".join(
        f'<tr><th scope="row">{node_link(room.node, query)}</th>'
        f'<td class="number">{"≥ " if room.is_least else ""}{room.count}</td><td>{escaped(room.first)}</td>'
        f"<td>{escaped(room.limit)}</td></tr>"
        for room in fits.nodes[:_MOST_ROOMS]
    )
    rest = len(fits.nodes) - _MOST_ROOMS
    reasons = "".join(
        f"<li>{plural(count, 'node')}: {escaped(words.removeprefix(PREFIX))}</li>"
        for words, count in fits.reasons.items()
    )
    least = "At least " if fits.is_least else ""
    return (
        f'<p class="total" data-fits="{digest}"><strong>{least}{fits.total}</strong> more of {escaped(fits.pod)} '
        f"fit on {len(fits.nodes)} of {plural(fits.asked, 'node')}.</p>"
        + (table("rooms", ("Node", "#Fit", "First on NUMA", "Then"), rows) if rows else "")
        + (f'<p class="note">and {rest} more nodes</p>' if rest > 0 else "")
        + (f"<ul>{reasons}</ul>" if reasons else "")
        + not_looked_at(fits.not_looked_at)
    )


def _form(state: State, query: Query, resources: str) -> str:
    policies = _options([("", "all"), *((one, one) for one in reversed(state.policies))], query.policy)
    room = query.least or ""
    return (
        '<form id="filter" action="ui" method="get" role="search">'
        f'<label>Resource <select id="resource" name="resource">{resources}</select></label>'
        f'<label>Name <input name="name" type="search" value="{escaped(query.name)}" autocomplete="off"></label>'
        f'<label>Policy <select name="policy">{policies}</select></label>'
        f'<label>State <select name="state">{_options(STATES.items(), query.state)}</select></label>'
        f'<label>Room on one NUMA node for <input name="room" type="number" min="0" value="{room}" autocomplete="off"> '
        f'<span id="unit">{escaped(state.unit)}</span></label>'
        '<button type="submit">Show</button></form>'
    )


def _fits_form() -> str:
    return (
        '<noscript><p class="note">Counting needs JavaScript; <code>kubectl topowise fits</code> does the same.</p>'
        '</noscript><details id="fits" hidden><summary>Where would a pod fit?</summary><form id="fits-form">'
        '<label for="manifest">Manifest of a pod, or of a controller with a template (YAML or JSON)</label>'
        '<textarea id="manifest" rows="10" spellcheck="false" autocomplete="off"></textarea>'
        '<button type="submit">How many fit now?</button></form>'
        '<div id="fits-result" aria-live="polite"></div></details>'
    )


def _options(choices: Iterable[tuple[str, str]], chosen: str) -> str:
    return "".join(
        f'<option value="{escaped(one)}"{" selected" if one == chosen else ""}>{escaped(words)}</option>'
        for one, words in choices
    )


def _figure(key: str, figure: str, words: str, more: str, leads_to: str) -> str:
    zero = ' class="zero"' if figure == "0" else ""
    shown = f'<a href="#{leads_to}">{words}</a>' if leads_to else words
    return f'<div data-key="{key}" title="{more}"{zero}><dt>{shown}</dt><dd>{figure}</dd></div>'
