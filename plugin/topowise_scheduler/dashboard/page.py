"""The HTML of the page, and of its panel with the details of a node or of a pod. Names and messages of the cluster are
untrusted text and are escaped.

app.js reads the page again every two seconds and replaces the elements with `data-part` that have changed. Without
JavaScript the page is complete; a reload brings newer values.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from topowise.runtime import clock
from topowise_scheduler.dashboard.cluster_state import ANY_MARK, DAMAGED, MARKS, STALE, NodeRow, NodeRows, State, Zone
from topowise_scheduler.dashboard.details import CERTAINTIES, MOST_MATCHES, NodeDetails, PodDetails
from topowise_scheduler.dashboard.markup import (
    BADGES,
    Query,
    badge,
    cause_link,
    decisions_part,
    decisions_table,
    escaped,
    fits_in_words,
    node_link,
    note,
    pod_link,
    problem,
    reasons_in_words,
    refused_part,
    since,
    table,
    time_of,
    waiting_part,
)
from topowise_scheduler.explain.explanation import NodeExplanation
from topowise_scheduler.explain.text import first_of, with_unit
from topowise_scheduler.explain.waiting_texts import CAUSE_TEXTS, text
from topowise_scheduler.verdicts.fragmentation import HIGH_LOSS, MEDIUM_LOSS

_FIGURES: Final = (
    ("waiting", "pods wait", "refused by topowise, pending", "waiting"),
    ("refusals", "kubelet refusals", "pods that kubelets refused", "refused"),
    ("quarantines", "in quarantine", "pairs of a node and a pod class that its kubelet refused", "refused"),
    ("IDS", "exact predictions", "pods with every CPU, NUMA node of memory and device as predicted", ""),
    ("NUMA_NODES", "exact NUMA nodes", "pods with other CPUs or devices of the predicted NUMA nodes", ""),
    ("HINT", "exact hints", "pods with other devices, near more NUMA nodes, that satisfy the predicted hint", ""),
    ("MISSED", "missed predictions", "pods on other NUMA nodes than predicted", ""),
    ("bindConflicts", "binds refused", "the node changed after the answer", "decisions"),
    ("openReservations", "reservations", "pods expected on a node, not bound yet", "decisions"),
    ("uncertain", "uncertain pods", "bound; their NUMA nodes may differ from the prediction", "nodes"),
)
_FILTERS: Final = {"": "all", ANY_MARK: "with a mark", **BADGES}
_BINS: Final = ("none", "1–25 %", "26–50 %", "51–75 %", "over 75 %")
_MAX_NAMES: Final = 20
_NO_REPORT: Final = note(
    "No node has been reported yet. The exporter runs as a DaemonSet and reports a node within seconds of its start. "
    "<code>kubectl get pods --all-namespaces --selector app.kubernetes.io/component=exporter</code> lists its pods; "
    "<code>kubectl topowise doctor</code> names what is missing."
)


def page(state: State, nodes: NodeRows, query: Query, panel: str, version: str) -> str:
    """The whole document."""
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
<body data-now="{clock.wall():.3f}" data-problem="{escaped(state.problem)}">
<a class="skip" href="#nodes">Skip to the nodes</a>
<header>
<h1>topowise <small>{escaped(version)}</small></h1>
<form id="find" action="ui" method="get" role="search">
<label>Pod <input name="find" type="search" value="{escaped(query.find)}" placeholder="namespace/name"
autocomplete="off"></label>
<button type="submit">Find</button></form>
<p id="live" role="status">as of {time_of(clock.wall())}; reload for newer</p>
</header>
<main>
<section id="summary" aria-label="Summary" data-part>{_summary(state)}</section>
<aside id="panel" aria-label="Details"{"" if panel else " hidden"} tabindex="-1" data-part>{panel}</aside>
<section id="waiting" aria-labelledby="waiting-title">
<h2 id="waiting-title">Waiting pods</h2>
<div id="waiting-list" class="list" data-part>{waiting_part(state, query)}</div>
</section>
<section id="refused" aria-labelledby="refused-title">
<h2 id="refused-title">Refused by kubelets</h2>
<div id="refused-list" class="list" data-part>{refused_part(state, query)}</div>
</section>
<section id="decisions" aria-labelledby="decisions-title">
<h2 id="decisions-title">Last decisions</h2>
<div id="decisions-list" class="list tall" data-part>{decisions_part(state.decisions, query)}</div>
</section>
<section id="nodes" aria-labelledby="nodes-title">
<h2 id="nodes-title">Nodes</h2>
{_form(state, query)}
<div id="nodes-list" data-part>{_nodes(nodes, state, query)}</div>
</section>
</main>
</body>
</html>
"""


def _summary(state: State) -> str:
    figures = {**state.counters, "waiting": state.waiting_count}
    reported = f"{state.reported}/{state.known}" if state.known else str(state.reported)
    cells = [_figure("nodes", reported, "nodes reported", "of the nodes in the cluster", "nodes")]
    cells += [_figure(key, str(figures[key]), words, more, leads_to) for key, words, more, leads_to in _FIGURES]
    names = first_of(map(escaped, state.unreported), _MAX_NAMES)
    return (
        (problem(f"Not ready: {state.problem}") if state.problem else "")
        + f"<dl>{''.join(cells)}</dl>"
        + (note(f"No exporter has reported {names}.") if names else "")
    )


def _figure(key: str, figure: str, words: str, more: str, leads_to: str) -> str:
    zero = ' class="zero"' if figure == "0" else ""
    shown = f'<a href="#{leads_to}">{words}</a>' if leads_to else words
    return f'<div data-key="{key}" title="{more}"{zero}><dt>{shown}</dt><dd>{figure}</dd></div>'


def _form(state: State, query: Query) -> str:
    resources = _options(((name, name) for name in state.resources), _resource(state, query))
    return (
        '<form id="filter" action="ui" method="get" role="search">'
        f'<label>Resource <select name="resource">{resources}</select></label>'
        f'<label>Name <input name="name" type="search" value="{escaped(query.name)}" autocomplete="off"></label>'
        f'<label>State <select name="state">{_options(_FILTERS.items(), query.state)}</select></label>'
        '<button type="submit">Show</button></form>'
    )


def _options(choices: Iterable[tuple[str, str]], chosen: str) -> str:
    return "".join(
        f'<option value="{escaped(value)}"{" selected" if value == chosen else ""}>{escaped(words)}</option>'
        for value, words in choices
    )


def _resource(state: State, query: Query) -> str:
    return query.resource if query.resource in state.resources else "cpu"


def _nodes(nodes: NodeRows, state: State, query: Query) -> str:
    if not nodes.rows:
        return note("No node matches.") if state.reported else _NO_REPORT
    resource = _resource(state, query)
    keys = "".join(f'<li><span class="key b{number}"></span>{words}</li>' for number, words in enumerate(_BINS))
    heads = ("Node", "Policy", f"NUMA nodes: free/all {escaped(resource)}", "#Fragmentation", "#Pods", "State")
    rest = nodes.matching - len(nodes.rows)
    return (
        f'<ul class="legend" aria-label="Free share of a NUMA node">{keys}<li>free for exclusive use</li></ul>'
        + table("nodes", heads, "".join(_row(node, resource, query) for node in nodes.rows))
        + (note(f"and {rest} more; filter by name or state") if rest else "")
    )


def _row(node: NodeRow, resource: str, query: Query) -> str:
    cells = "".join(_zone(zone, resource) for zone in node.zones) or '<span class="note">has none</span>'
    badges = "".join(badge(mark) for mark in node.marks)
    precision = "" if node.is_exact else '<span class="badge quiet">counts</span>'
    chosen = ' class="chosen"' if node.name == query.node else ""
    return (
        f'<tr{chosen}><th scope="row">{node_link(node.name, query)}</th><td>{escaped(node.policy)}</td>'
        f'<td><div class="zones">{cells}</div></td>{_loss(node.loss)}<td class="number">{node.pods}</td>'
        f"<td>{precision}{badges}</td></tr>"
    )


def _loss(loss: int | None) -> str:
    """The cell of the fragmentation, in the colours of the marks."""
    text = "–" if loss is None else f"{loss} %"
    mark = "p" if (loss or 0) >= HIGH_LOSS else "q" if (loss or 0) >= MEDIUM_LOSS else ""
    return f'<td class="number">{f"""<span class="badge {mark}">{text}</span>""" if mark else text}</td>'


def _zone(zone: Zone, resource: str) -> str:
    total = with_unit(resource, zone.total)
    if zone.free is None:
        title, amounts = f"{total}, no manager accounts for it", "–"
    else:
        free = with_unit(resource, zone.free)
        title, amounts = f"{free} of {total} free", f"{free}<small>/{total}</small>"
    return (
        f'<span class="zone b{_bin(zone)} w{_tenths(zone)}" title="NUMA node {zone.id}: {title}">'
        f'<i>{zone.id}</i><span class="hidden">:</span> {amounts}</span>'
    )


def _bin(zone: Zone) -> str:
    """The index in _BINS of the free share, "x" if it is unknown."""
    if zone.free is None or not zone.total:
        return "x"
    return str(min(4, -(-4 * zone.free // zone.total)))


def _tenths(zone: Zone) -> int:
    """The free share in tenths; 0 only if nothing is free."""
    return 0 if not zone.free or not zone.total else min(10, max(1, 10 * zone.free // zone.total))


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
