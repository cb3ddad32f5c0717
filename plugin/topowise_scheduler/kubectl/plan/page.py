"""The plan as one HTML page without scripts and without network: comparison, bars before and after, node drawings.

The style sheet is in the code, so that the file for laptops has it too.
"""

from __future__ import annotations

import html
from collections.abc import Iterator
from typing import Final

from topowise.text import escaped as visible
from topowise_scheduler.explain import picture
from topowise_scheduler.kubectl.plan.planned import Planned, bad_restarts, refusals, rows, title, verdict
from topowise_scheduler.kubectl.zones import short
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.overlay.plan import NOT_MODELLED, Result
from topowise_scheduler.overlay.plan.values import ResourceResult
from topowise_scheduler.report.nrt_report import Precision
from topowise_scheduler.verdicts.kube_scheduler import to_text

# Drawings of each scenario: nodes whose contents differ most tell most, and a drawing is 30 KB.
_MOST_DRAWN: Final = 3
_PERCENT: Final = 100
_HEAD: Final = (
    '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
    'img-src data:">'
)
STYLE: Final = """\
/* The colours are those of the pictures (explain/picture/svg.py). */
:root {
  color-scheme: light dark;
  --canvas: #f4f6f8; --frame: #fff; --line: #d3dae1; --text: #1c2530; --dim: #566270; --accent: #6a3fa0;
  --good: #1d6f5c; --bad: #b03a24; --used: #5fb5a2; --lost: #d98a7a; --free: #e2e8ee;
}
@media (prefers-color-scheme: dark) {
  :root {
    --canvas: #0f141a; --frame: #181f27; --line: #313c48; --text: #e3e9ef; --dim: #98a5b3; --accent: #c3a5ec;
    --good: #6cc7b1; --bad: #ef8371; --used: #1d7265; --lost: #93493c; --free: #28323d;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--canvas); color: var(--text); font: 15px/1.45 system-ui, -apple-system, "Segoe UI",
  Roboto, "Helvetica Neue", Arial, "DejaVu Sans", sans-serif; }
header, main { max-width: 1280px; margin: 0 auto; padding: 0 20px; }
header { padding-top: 18px; }
main { padding-bottom: 24px; }
h1 { font-size: 20px; margin: 0; }
h2 { font-size: 16px; margin: 0 0 10px; }
h3 { font-size: 14px; margin: 14px 0 6px; overflow-wrap: anywhere; }
section { background: var(--frame); border: 1px solid var(--line); border-radius: 10px; padding: 16px 18px;
  margin: 14px 0; }
.verdict { font-size: 17px; margin: 6px 0 0; overflow-wrap: anywhere; }
.verdict.good { color: var(--good); } .verdict.bad { color: var(--bad); }
.note { color: var(--dim); font-size: 13px; margin: 8px 0 0; }
.scroll { overflow-x: auto; }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; }
th, td { text-align: left; padding: 5px 14px 5px 0; vertical-align: top; font-weight: 400; }
thead th { color: var(--dim); font-size: 12.5px; border-bottom: 1px solid var(--line); min-width: 110px;
  max-width: 260px; overflow-wrap: anywhere; }
tbody th { min-width: 150px; }
tbody tr + tr > * { border-top: 1px solid color-mix(in srgb, var(--line) 55%, transparent); }
td { font-variant-numeric: tabular-nums; }
td.bad { color: var(--bad); font-weight: 600; }
.bars { display: grid; grid-template-columns: 220px 1fr 270px; gap: 6px 12px;
  align-items: center; font-size: 13.5px; }
.bars > span { overflow-wrap: anywhere; }
.bar { display: flex; height: 16px; border-radius: 4px; overflow: hidden; background: var(--free);
  border: 1px solid var(--line); }
.bar i { display: block; height: 100%; }
.used { background: var(--used); }
.lost { background: repeating-linear-gradient(-45deg, var(--lost) 0 5px, var(--free) 5px 8px); }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 4px 16px; padding: 0; margin: 12px 0 0;
  color: var(--dim); font-size: 12.5px; }
.legend i { display: inline-block; width: 22px; height: 12px; border-radius: 3px; margin-right: 6px;
  vertical-align: -1px; border: 1px solid var(--line); }
summary { cursor: pointer; padding: 4px 0; overflow-wrap: anywhere; }
.picture { overflow-x: auto; margin: 6px 0 14px; }
.picture svg { display: block; }
ul.why { margin: 0; padding-left: 18px; font-size: 13.5px; overflow-wrap: anywhere; }
@media (max-width: 720px) {
  header, main { padding-left: 12px; padding-right: 12px; }
  section { padding: 12px; }
  .bars { grid-template-columns: 1fr; gap: 2px; }
  .bars > span:nth-child(3n) { margin-bottom: 10px; color: var(--dim); }
}
"""


def text(planned: Planned) -> str:
    """Returns the page."""
    is_good = planned.results[-1].fits if planned.found is None else planned.found.result is not None
    incomplete = "" if all(result.is_complete for result in planned.results) else " The plan was stopped: incomplete."
    kind = f"verdict {'good' if is_good else 'bad'}"
    parts = [
        f"{_HEAD}<title>topowise plan</title><style>\n{STYLE}</style></head><body>",
        f"<header><h1>Plan</h1>{_paragraph(kind, verdict(planned) + incomplete)}</header><main>",
        _section("Comparison", _table(planned)),
        _section("Resources, before and after", "".join(_bars(planned))),
        *_reasons(planned),
        *_drawings(planned),
        _paragraph("note", f"Not modelled: {'; '.join(NOT_MODELLED)}."),
        "</main></body></html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _section(heading: str, content: str) -> str:
    name = heading.partition(",")[0].lower().replace(" ", "-")
    return f'<section aria-labelledby="{name}"><h2 id="{name}">{heading}</h2>{content}</section>' if content else ""


def _paragraph(kind: str, content: str) -> str:
    return f'<p class="{kind}">{_escaped(content)}</p>'


def _table(planned: Planned) -> str:
    heads = "".join(f'<th scope="col">{_escaped(title(result))}</th>' for result in planned.results)
    body = []
    for row in rows(planned):
        bad = [*row.is_bad, *[False] * (len(row.cells) - len(row.is_bad))]
        cells = "".join(
            f"<td{' class=bad' if is_bad else ''}>{_escaped(cell or '-')}</td>"
            for cell, is_bad in zip(row.cells, bad, strict=True)
        )
        body.append(f'<tr><th scope="row">{_escaped(row.title)}</th>{cells}</tr>')
    table = f"<table><thead><tr><td></td>{heads}</tr></thead><tbody>{''.join(body)}</tbody></table>"
    return f'<div class="scroll" tabindex="0" role="region" aria-label="Comparison">{table}</div>'


def _bars(planned: Planned) -> Iterator[str]:
    """Yields the bars of each resource: a bar for today and one for each change."""
    names = dict.fromkeys(entry.name for result in planned.results for entry in result.resources)
    for name in names:
        yield f'<h3>{_escaped(short(name))}</h3><div class="bars">'
        for result in planned.results:
            entry = next((entry for entry in result.resources if entry.name == name), None)
            if entry is not None:
                yield _bar(title(result), entry)
        yield "</div>"
    if names:
        kinds = (("used", "used"), ("lost", "stranded: free, but no planned pod fits there"), ("", "free"))
        keys = "".join(f'<li><i class="{kind}"></i>{words}</li>' for kind, words in kinds)
        yield f'<ul class="legend">{keys}</ul>'


def _bar(name: str, entry: ResourceResult) -> str:
    stranded = entry.stranded or 0
    shares = [_PERCENT * amount / max(1, entry.allocatable) for amount in (entry.used, stranded)]
    words = f"{to_text(entry.name, entry.used)} of {to_text(entry.name, entry.allocatable)} used"
    if stranded:
        words += f", {to_text(entry.name, stranded)} stranded"
    parts = "".join(
        f'<i class="{kind}" style="width:{share:.2f}%"></i>'
        for kind, share in zip(("used", "lost"), shares, strict=True)
    )
    label = _escaped(f"{name}: {words}")
    return (
        f'<span>{_escaped(name)}</span><div class="bar" role="img" aria-label="{label}">{parts}</div>'
        f"<span>{_escaped(words)}</span>"
    )


def _reasons(planned: Planned) -> Iterator[str]:
    lists = []
    for result in planned.results:
        details = [*refusals(result), *bad_restarts(result)]
        if result.error:
            details = [("not possible", result.error)]
        if details:
            entries = "".join(f"<li><b>{_escaped(name)}</b>: {_escaped(why)}</li>" for name, why in details)
            lists.append(f'<h3>{_escaped(title(result))}</h3><ul class="why">{entries}</ul>')
    yield _section("Why not", "".join(lists))


def _drawings(planned: Planned) -> Iterator[str]:
    """Yields the drawings of a few nodes, the same nodes for every scenario where they exist."""
    chosen = _chosen(planned)
    drawn = []
    for name in chosen:
        for result in planned.results:
            kubelet = result.kubelets.get(name)
            if kubelet is not None:
                drawn.append(_drawing(name, kubelet, result, is_open=name == chosen[0]))
    yield _section("Nodes, before and after", "".join(drawn))


def _chosen(planned: Planned) -> list[str]:
    """Returns the nodes that the changes change most, by the number of their pods."""
    names = dict.fromkeys(name for result in planned.results for name in result.kubelets)
    counts = {
        name: [len(result.kubelets[name].active) if name in result.kubelets else 0 for result in planned.results]
        for name in names
    }
    return sorted(counts, key=lambda name: (min(counts[name]) - max(counts[name]), -max(counts[name]), name))[
        :_MOST_DRAWN
    ]


def _drawing(name: str, kubelet: Kubelet, result: Result, *, is_open: bool) -> str:
    precision: Precision = "counts" if name in result.by_amounts else "exact"
    drawn = picture.read(kubelet, result.pod_names, node=name, precision=precision)
    heading = _escaped(f"{name}, {title(result)}")
    return (
        f"<details{' open' if is_open else ''}><summary>{heading}</summary>"
        f'<div class="picture" tabindex="0" role="region" aria-label="{heading}">{picture.svg(drawn)}</div></details>'
    )


def _escaped(content: str) -> str:
    return html.escape(visible(content), quote=True)
