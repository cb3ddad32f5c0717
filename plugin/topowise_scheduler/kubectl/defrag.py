"""`kubectl topowise defrag`: the fewest pods to move so that more pods like this one fit. It moves no pod."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, Final

from topowise import pods
from topowise.errors import SourceError
from topowise.runtime.output import Progress
from topowise.text import Line
from topowise_scheduler.explain.text import most_frequent_first, plural
from topowise_scheduler.kubectl import cluster, json_output, zones
from topowise_scheduler.kubectl import console as colours
from topowise_scheduler.kubectl.console import Console, Output, columns
from topowise_scheduler.kubectl.manifests import Workload, not_looked_at
from topowise_scheduler.kubelet import allocated_nodes
from topowise_scheduler.overlay import defrag
from topowise_scheduler.overlay.defrag import Change, Hindrance, Plan, Shortfall, Step

_NEW: Final = "(new)"
# Width of the bar of a NUMA node.
_CELLS: Final = 10
_TAKEN_AND_FREE: Final = ("█", "░")
_IN_ASCII: Final = ("#", ".")

_SHORTFALLS: Final = {
    "no room": "no node would have room if all movable pods left it",
    "nowhere else": "the pods whose leaving would make room fit on no other node",
}
_HINDRANCES: Final[Mapping[Hindrance, str]] = {
    "unreadable": "with amounts that cannot be read",
    "ends": "that end already",
    "static": "of their node (static pods)",
    "no controller": "without a controller",
    "daemon": "of a DaemonSet",
    "priority": "of a higher priority",
    "unsafe": "that say safe-to-evict=false",
    "budgets": "with more than one PodDisruptionBudget",
    "budget": "whose PodDisruptionBudget allows no eviction",
}


def run(options: argparse.Namespace, console: Console) -> Output:
    """The command."""
    known, workloads, notes = cluster.open_with_manifests(options)
    if len(workloads) != 1:
        where = ", ".join(options.file) or options.pod or "waiting pods"
        raise SourceError(where, f"asks for {len(workloads)} kinds of pods, expected one")
    workload = workloads[0]
    notes += not_looked_at(workloads)
    pod = workload.numbered(0)
    running = [
        (pod_, record) for pod_ in known.pods if (record := known.records.record(pod_)).status.stage == "assigned"
    ]
    movable, hindrances = defrag.sort(running, known.budgets, pod.spec.priority or 0)
    not_movable = {_hindrance(why): number for why, number in hindrances.items()}
    count = workload.count if options.count is None else options.count
    plan = defrag.plan(known.trial, pod, count, movable, options.max_moves, progress=Progress())
    notes += [f"note: {len(movable)} of {plural(len(running), 'pod')} may be moved{_not(not_movable)}"]
    status = 1 if plan.why else 0
    document = _document(workload, count, plan, not_movable)
    body = json_output.printed(options.output, document)
    return Output(_text(workload, count, plan, console) if body is None else body, status, notes)


def _why(why: Shortfall | None, count: int) -> str:
    if why is None:
        return ""
    so_far = f"room for {why.reached} of {count}: " if why.reached else ""
    if why.reason == "no node":
        return f"{so_far}no node would take such a pod, whatever pods left it"
    certain = "" if why.is_certain else "; not every plan was tried"
    return f"{so_far}with up to {plural(why.most, 'move')} there is no more: {_SHORTFALLS[why.reason]}{certain}"


def _hindrance(why: Hindrance) -> str:
    return _HINDRANCES.get(why) or f"with {why}, so that no new place can be confirmed"


def _not(not_movable: Mapping[str, int]) -> str:
    """Why the remaining pods are not movable."""
    counts = [f"{count} {why}" for why, count in most_frequent_first(not_movable)]
    return f"; not {', '.join(counts)}" if counts else ""


def _document(workload: Workload, count: int, plan: Plan, not_movable: Mapping[str, int]) -> dict[str, Any]:
    return {
        "pod": workload.name,
        "from": workload.origin,
        "count": count,
        "fits": not plan.why,
        "already": plan.already,
        "moves": plan.moves,
        "fewest": plan.is_least,
        "why": _why(plan.why, count),
        "steps": [_step(step) for step in plan.steps],
        "free": [_free(change) for change in plan.changes],
        "notMovable": dict(sorted(not_movable.items())),
    }


def _step(step: Step) -> dict[str, Any]:
    origin = {"from": step.origin} if step.kind == "move" else {}
    containers = {name: place.as_json() for name, place in step.containers.items()}
    return {"action": step.kind, "pod": step.pod, **origin, "to": step.node, "containers": containers}


def _free(change: Change) -> dict[str, Any]:
    return {"node": change.node, "numa": change.numa, "before": change.before, "after": change.after}


def _text(workload: Workload, count: int, plan: Plan, console: Console) -> list[Line]:
    if plan.why:
        return [
            [console.paint(f"{workload.name}: no room for {count} more", colours.BAD), f": {_why(plan.why, count)}"]
        ]
    title = f"{workload.name}: {plural(count, 'more pod')} {'fits' if count == 1 else 'fit'}"
    if not plan.moves:
        title += ", nothing has to be moved"
    else:
        least = "no plan has fewer" if plan.is_least else "a plan with fewer may exist"
        title += f" once {plural(plan.moves, 'pod')} {'is' if plan.moves == 1 else 'are'} moved ({least})"
    rows = [
        [str(number), step.pod, step.origin or _NEW, step.node, allocated_nodes.in_words(step.containers)]
        for number, step in enumerate(plan.steps, start=1)
    ]
    table = columns(["STEP", "POD", "FROM", "TO", "ON NUMA"], rows, width=console.width)
    text: list[Line] = [[console.paint(title, colours.BOLD)], "", *table]
    if plan.moves:
        text += ["", *_picture(workload, plan.changes, console), ""]
        text += [
            "Take one step at a time: evict the pod, make sure that its replacement goes to the node under TO,",
            "and wait until it is Ready. Budgets were checked as they are now.",
        ]
    return text


def _picture(workload: Workload, changes: Sequence[Change], console: Console) -> list[Line]:
    """The NUMA nodes of all changed nodes: a bar for each requested resource, before and after."""
    resources = [
        name for name in pods.needs(workload.numbered(0)).requests if any(name in change.whole for change in changes)
    ]
    rows = [
        [change.node, str(change.numa), *(_bars(change, name, is_ascii=console.is_ascii) for name in resources)]
        for change in changes
    ]
    heads = ["NODE", "NUMA", *(f"{zones.short(name).upper()} FREE, BEFORE AND AFTER" for name in resources)]
    return columns(heads, rows, width=console.width)


def _bars(change: Change, resource: str, *, is_ascii: bool) -> str:
    if resource not in change.whole:
        return "-"
    whole, before, after = (amounts[resource] for amounts in (change.whole, change.before, change.after))
    then, now = (f"{_bar(free, whole, is_ascii=is_ascii)} {_amount(resource, free)}" for free in (before, after))
    return f"{then} -> {now} of {_amount(resource, whole)}"


def _bar(free: int, whole: int, *, is_ascii: bool) -> str:
    """A bar; free cells are rounded down."""
    taken, empty = _IN_ASCII if is_ascii else _TAKEN_AND_FREE
    cells = _CELLS * free // whole if whole else 0
    return taken * (_CELLS - cells) + empty * cells


def _amount(resource: str, amount: int) -> str:
    # Whole CPUs.
    return str(amount) if resource == "cpu" else zones.to_text(resource, amount)
