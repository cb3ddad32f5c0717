"""`kubectl topowise explain --hints`: the hints of each manager of a kubelet, and their merges.

Two tables for each merge: the hints by resource, and the results of combinations of hints, the best first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from topowise.text import Line, Styled
from topowise_scheduler.explain.explanation import NodeExplanation, Step
from topowise_scheduler.explain.merge_table import Merged, MergeTable, ResourceHints
from topowise_scheduler.kubectl import console as colours
from topowise_scheduler.kubectl.console import Console
from topowise_scheduler.kubectl.table import columns, paragraphs

# A resource has up to 15 hints on four NUMA nodes, and 255 on eight.
_MOST_HINTS: Final = 32
_MOST_MERGES: Final = 16
_TAKEN, _REFUSED = "taken", "refused"


def text(node: NodeExplanation, console: Console) -> list[Line]:
    """Lines of a node, none if the node has no report."""
    if node.verdict == "not reported":
        return []
    merges = [(step, step.merge) for step in node.steps if step.merge is not None]
    if not merges:
        why = "policy none asks for no hints" if node.policy == "none" else "no hints were merged"
        return [f"{node.node}: {why}"]
    return paragraphs([_step(node, step, merge, console) for step, merge in merges])


def _step(node: NodeExplanation, step: Step, merge: MergeTable, console: Console) -> list[Line]:
    scope = f"container {step.container}" if step.container else "the pod"
    title = f"{node.node}, {scope}, policy {node.policy}"
    if merge.too_many:
        return [f"{title}: more NUMA nodes than hints can be listed for"]
    if not merge.resources:
        return [f"{title}: no manager has a hint, so any NUMA node is possible"]
    parts: list[Line] = [f"{title}: hints (* is preferred)", *_hints(merge.resources, console)]
    if merge.merges:
        parts += ["  merged, the best first", *_merges(node, step, merge, console)]
    else:
        parts.append("  merged: no combination has a NUMA node in common; all nodes are taken, not preferred")
    return parts


def _hints(resources: Sequence[ResourceHints], console: Console) -> list[Line]:
    rows = []
    for resource in resources:
        shown = [f"{_set(hint.numa)}{'*' if hint.preferred else ''}" for hint in resource.hints[:_MOST_HINTS]]
        more = [f"and {len(resource.hints) - _MOST_HINTS} more"] if len(resource.hints) > _MOST_HINTS else []
        rows.append([resource.manager, resource.resource, "  ".join([*shown, *more]) or "none: it fits nowhere"])
    return columns(["MANAGER", "RESOURCE", "HINTS"], rows, indent="    ", width=console.width)


def _merges(node: NodeExplanation, step: Step, merge: MergeTable, console: Console) -> list[Line]:
    verdict = _REFUSED if node.policy in ("restricted", "single-numa-node") and not step.preferred else _TAKEN
    rows = [_row(merged, verdict if not at else "") for at, merged in enumerate(merge.merges[:_MOST_MERGES])]
    if len(merge.merges) > _MOST_MERGES:
        blank = [""] * (len(rows[0]) - 1)
        rows.append([f"and {len(merge.merges) - _MOST_MERGES} more", *blank])
    header = ["MERGED", "PREFERRED", "VERDICT", "WAYS", *(f"OF {merged.resource}" for merged in merge.resources)]

    def paint(column: int, cell: str) -> str | Styled:
        return console.paint(cell, {_TAKEN: colours.GOOD, _REFUSED: colours.BAD}.get(cell, "")) if column == 2 else cell

    return columns(header, rows, indent="    ", paint=paint)


def _row(merged: Merged, verdict: str) -> list[str]:
    return [
        _set(merged.numa),
        "yes" if merged.preferred else "no",
        verdict,
        str(merged.ways),
        *("none" if numa is None else _set(numa) for numa in merged.hints),
    ]


def _set(numa: Sequence[int]) -> str:
    return "+".join(map(str, numa))
