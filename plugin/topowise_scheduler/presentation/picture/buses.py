"""The PCI buses in a frame of their own: bridges by what is above them, with the devices that hang on each."""

from __future__ import annotations

from typing import Final

from topowise_scheduler.presentation.picture import devices
from topowise_scheduler.presentation.picture.contents import Branch
from topowise_scheduler.presentation.picture.flow import Flow
from topowise_scheduler.presentation.picture.plan import Plan
from topowise_scheduler.presentation.picture.scene import Box
from topowise_scheduler.presentation.picture.zone import frame, framed
from topowise_scheduler.presentation.text import plural

_INDENTED: Final = 3
"""At most this part of the width is left free before a line, however deep it is."""


def place(plan: Plan, x: int, y: int, width: int) -> Box:
    """The frame, as high as it needs."""
    flow = framed(plan, "PCI", x, y, width)
    for number, branch in enumerate(plan.picture.pci):
        flow.skip(plan.measures.section if number and not branch.depth else 0)
        _branch(flow, plan, branch)
    if plan.picture.unplaced:
        flow.skip(plan.measures.section)
        facts = [f"{plural(count, 'device')} of {resource}" for resource, count in plan.picture.unplaced]
        flow.lines("note", ["place not known", *facts])
    return frame(plan, "zone", flow, x, y, width)


def _branch(flow: Flow, plan: Plan, branch: Branch) -> None:
    figure = "" if branch.numa_node is None else f"NUMA node {branch.numa_node}"
    flow.line("name", " > ".join(branch.bridges), figure, indent=_indent(flow, plan, branch.depth))
    indent = _indent(flow, plan, branch.depth + 1)
    inner = Flow(plan.measures, flow.x + indent, flow.y, flow.width - indent)
    for one in branch.devices:
        devices.place(inner, plan, one)
        inner.skip(plan.measures.after_caption)
    flow.texts += inner.texts
    flow.boxes += inner.boxes
    flow.y = inner.y


def _indent(flow: Flow, plan: Plan, depth: int) -> int:
    return min(depth * plan.measures.space, flow.width // _INDENTED)
