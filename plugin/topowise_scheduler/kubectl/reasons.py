"""Explanations of many nodes, grouped by reason: the number of nodes, and the nearest node.

A reason is a value (`refusal`, and the kubelet's own reason). Texts have the amounts of a node and are shown for one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from topowise_scheduler.explain.explanation import NodeExplanation
from topowise_scheduler.explain.text import first_of

if TYPE_CHECKING:
    # Not at run time: the list of nodes starts without numpy.
    from topowise_scheduler.explain.cluster_view import Room

MOST_ROWS: Final = 20
"""The most nodes with a row each."""

_MOST_TEXT: Final = 400
"""The most characters of a cell."""

# The kubelet's messages, as its pods' status has them, in words for people.
_PLAIN: Final = (
    (re.compile(r"UnexpectedAdmissionError: (?:Allocate failed due to )?([^;]*?)(?:, which is unexpected)?(?=;|$)"),
     r"the kubelet cannot allocate: \1"),
    (re.compile(r"SMTAlignmentError: SMT Alignment Error: requested (\d+) cpus not multiple cpus per core = (\d+)"),
     r"the kubelet allocates whole cores: asks for \1 CPUs, expected a multiple of \2"),
    (re.compile(r"EmptyPodSharedPoolError: (?:pod rejected, )?"), "the kubelet has no shared CPUs for the pod: "),
    (re.compile(r"KubeletWouldPanic: "), ""),
)  # fmt: skip

ALL: Final = "--all has a row for each node, -o wide too."


def cell(text: str, *, is_wide: bool = False) -> str:
    """The text of a cell in plain words, cut after `_MOST_TEXT` characters; unchanged with -o wide."""
    if is_wide:
        return text
    for pattern, words in _PLAIN:
        text = pattern.sub(words, text)
    if len(text) <= _MOST_TEXT:
        return text
    return f"{text[:_MOST_TEXT].rsplit(' ', 1)[0].rstrip(';,:')} ... (-o wide has all)"


def rows(nodes: Sequence[NodeExplanation]) -> list[list[str]]:
    """VERDICT, NODES and WHY: a row for each reason, in the order in which its first node comes."""
    groups: dict[tuple[object, ...], list[NodeExplanation]] = {}
    for node in nodes:
        groups.setdefault((node.verdict, node.refusal, node.reason, _is_unaligned(node)), []).append(node)
    return [[same[0].verdict, str(len(same)), cell(_why(same))] for same in groups.values()]


def without_room(rooms: Sequence[Room]) -> list[list[str]]:
    """NODE, FITS, FIRST ON NUMA and THEN of `fits`: a row for each reason for which nodes have no room at all."""
    groups: dict[str, list[Room]] = {}
    for room in rooms:
        if not room.count:
            groups.setdefault(room.refusal, []).append(room)
    return [
        [_number(same), "0", "-", cell(_of_first([room.node for room in same], same[0].limit))]
        for same in groups.values()
    ]


def notes(problems: Iterable[tuple[str, str]]) -> list[str]:
    """A warning for each problem, with the names of the nodes."""
    having: dict[str, list[str]] = {}
    for name, problem in problems:
        having.setdefault(problem, []).append(name)
    return [f"warning: {first_of(dict.fromkeys(names))}: {problem}" for problem, names in having.items()]


def _is_unaligned(node: NodeExplanation) -> bool:
    return node.verdict == "fits" and any(step.resources and not step.preferred for step in node.steps)


def _why(same: Sequence[NodeExplanation]) -> str:
    first = same[0]
    if first.verdict == "fits":
        scored = first_of(f"{node.node} ({node.score})" for node in same)
        return f"{scored}; {'not aligned; ' if _is_unaligned(first) else ''}on {first.node} {first.text}"
    if len(same) == 1:
        return f"{first.node}: {first.text}"
    return _of_first([node.node for node in same], first.text)


def _number(same: Sequence[Room]) -> str:
    return same[0].node if len(same) == 1 else f"({len(same)} nodes)"


def _of_first(nodes: Sequence[str], text: str) -> str:
    return text if len(nodes) == 1 else f"{first_of(nodes)}; on {nodes[0]} {text}"
