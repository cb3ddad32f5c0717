"""`kubectl topowise explain --hints`: what each manager of a kubelet proposes, and what is made of it.

Two tables for each merge: the hints by resource, and what combinations of them come to, the best first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from topowise.text import Line, Styled
from topowise_scheduler.presentation.explain.explanation import NodeExplanation, Step
from topowise_scheduler.presentation.explain.merge_table import Merged, MergeTable, ResourceHints
from topowise_scheduler.presentation.kubectl import console as colours
from topowise_scheduler.presentation.kubectl.console import Console
from topowise_scheduler.presentation.kubectl.table import columns, paragraphs

# With four NUMA nodes a resource has 15 hints; nobody reads all of 255.
_MOST_HINTS: Final = 32
_MOST_MERGES: Final = 16
_TAKEN, _REFUSED = "taken", "refused"


def text(node: NodeExplanation, console: Console) -> list[Line]:
    """Lines of one node, none if it was not asked."""
    if node.verdict == "not reported":
        return []
    merges = [(step, step.merge) for step in node.steps if step.merge is not None]
    if not merges:
        why = "policy none asks for no hints" if node.policy == "none" else "no hints were merged"
        return [f"{node.node}: {why}"]
    return paragraphs([_step(node, step, merge, console) for step, merge in merges])


def _step(node: NodeExplanation, step: Step, merge: MergeTable, console: Console) -> list[Line]:
    who = f"container {step.container}" if step.container else "the pod"
    title = f"{node.node}, {who}, policy {node.policy}"
    if merge.too_many:
        return [f"{title}: more NUMA nodes than hints can be listed for"]
    if not merge.resources:
        return [f"{title}: no manager has a hint, so it may lie anywhere"]
    parts: list[Line] = [f"{title}: hints (* is preferred)", *_hints(merge.resources, console)]
    if merge.merges:
        parts += ["  merged, the best first", *_merges(node, step, merge, console)]
    else:
        parts.append("  merged: no combination has a NUMA node in common; all nodes are taken, not preferred")
    return parts


def _hints(resources: Sequence[ResourceHints], console: Console) -> list[Line]:
    rows = []
    for one in resources:
        shown = [f"{_set(hint.numa)}{'*' if hint.preferred else ''}" for hint in one.hints[:_MOST_HINTS]]
        more = [f"and {len(one.hints) - _MOST_HINTS} more"] if len(one.hints) > _MOST_HINTS else []
        rows.append([one.manager, one.resource, "  ".join([*shown, *more]) or "none: it fits nowhere"])
    return columns(["MANAGER", "RESOURCE", "HINTS"], rows, indent="    ", width=console.width)


def _merges(node: NodeExplanation, step: Step, merge: MergeTable, console: Console) -> list[Line]:
    verdict = _REFUSED if node.policy in ("restricted", "single-numa-node") and not step.preferred else _TAKEN
    rows = [_row(one, verdict if not at else "") for at, one in enumerate(merge.merges[:_MOST_MERGES])]
    if len(merge.merges) > _MOST_MERGES:
        blank = [""] * (len(rows[0]) - 1)
        rows.append([f"and {len(merge.merges) - _MOST_MERGES} more", *blank])
    header = ["MERGED", "PREFERRED", "VERDICT", "WAYS", *(f"OF {one.resource}" for one in merge.resources)]

    def paint(column: int, cell: str) -> str | Styled:
        return console.paint(cell, {_TAKEN: colours.GOOD, _REFUSED: colours.BAD}.get(cell, "")) if column == 2 else cell

    return columns(header, rows, indent="    ", paint=paint)


def _row(one: Merged, verdict: str) -> list[str]:
    return [
        _set(one.numa),
        "yes" if one.preferred else "no",
        verdict,
        str(one.ways),
        *("none" if numa is None else _set(numa) for numa in one.hints),
    ]


def _set(numa: Sequence[int]) -> str:
    return "+".join(map(str, numa))
