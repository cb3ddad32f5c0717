"""Decides a scenario: applies its change, places the pods that run again where necessary, then the planned pods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Final

import msgspec
import numpy as np

from topowise.errors import TopowiseError
from topowise.kubeletconfig import KubeletConfiguration
from topowise.steering import RESOURCE as MARKER
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.allocated_nodes import allocated_nodes
from topowise_scheduler.kubelet.masks import union
from topowise_scheduler.ledger.budgets import Budgets
from topowise_scheduler.overlay import defrag
from topowise_scheduler.overlay.plan import filling
from topowise_scheduler.overlay.plan.changes import ChangedNode, changed_nodes, restart_of
from topowise_scheduler.overlay.plan.filling import Control, Filled, Placed, go_on
from topowise_scheduler.overlay.plan.fleet import Fleet, Scheduler
from topowise_scheduler.overlay.plan.values import (
    Change,
    Inventory,
    PlannedNode,
    ResourceResult,
    Result,
    Scenario,
    Workload,
    WorkloadResult,
)
from topowise_scheduler.overlay.simulated_ledger import SimulatedLedger, reported_state
from topowise_scheduler.report import Report, kubelet_of
from topowise_scheduler.report.restart_forecast import NodeRestart, foresee_state
from topowise_scheduler.verdicts import kube_scheduler
from topowise_scheduler.verdicts.kube_scheduler import Pod, is_daemon, unbound, unexamined
from topowise_scheduler.verdicts.strategies import scale

_replace = msgspec.structs.replace
_RESOURCES: Final = ("cpu", "memory")
_LEFT_OUT: Final = ("pods", "ephemeral-storage")
# Refused pods of a workload for which a plan moves pods at once.
_DEFRAG_PODS: Final = 8
# The age of the pods that run, in seconds: no placement of theirs is in doubt.
_LONG_AGO: Final = 1e6
_NO_REQUESTS: Final[Mapping[str, int]] = {}


class _Site(msgspec.Struct):
    """The nodes after the change: pods that keep their nodes, and pods to place again."""

    nodes: list[ChangedNode]
    staying: list[Pod]
    leaving: list[Pod]
    restarts: list[NodeRestart] = []
    without_forecast: int = 0


def decide(scenario: Scenario, control: Control = go_on) -> Result:
    """Returns the outcome of a scenario. A change that is not possible is an error in the result.

    Raises ParseError for a planned pod that cannot be read.
    """
    change = scenario.change
    try:
        site = _site(scenario)
        scheduler = Scheduler(change.scheduler or "TightFit")
    except TopowiseError as exc:
        return Result(change, error=str(exc))
    fleet = _fleet(site, scenario, scheduler)
    again = _workloads_of(site.leaving)
    before = filling.place_all(fleet, again, control, prefix="again")
    displaced = tuple(result.name for result in before.workloads if not result.placed)
    workloads = [_steered(workload, change) for workload in scenario.workloads]
    filled = filling.place_all(fleet, workloads, control) if before.is_complete else _nothing(workloads)
    moves = 0
    if change.moves and filled.is_complete:
        moves, filled = _moved(fleet, site, scenario, workloads, filled, change.moves)
    played = None
    if scenario.trace and filled.is_complete:
        trace = [_replace(arrival, workload=_steered(arrival.workload, change)) for arrival in scenario.trace]
        played = filling.play(fleet, trace, control)
    planned = [*workloads, *({arrival.workload.name: arrival.workload for arrival in scenario.trace}).values()]
    placed = [*filled.placed, *(played.placed if played else ())]
    return Result(
        change,
        nodes=len(fleet.names),
        nodes_used=len({entry.node for entry in placed}),
        spread=sum(numa_nodes_of(fleet, entry) > 1 for entry in placed),
        workloads=(*filled.workloads, *(played.workloads if played else ())),
        resources=_resources(fleet, planned, None if played is None else (played.busy, played.waits.end)),
        replaced=len(before.placed),
        displaced=displaced,
        kubelet_refusals=fleet.kubelet_refusals,
        restarts=tuple(site.restarts),
        without_forecast=site.without_forecast,
        waits=None if played is None else played.waits,
        moves=moves,
        unexamined=_unexamined(planned),
        kubelets={name: kubelet for name in fleet.names if (kubelet := fleet.ledger.kubelet(name)) is not None},
        by_amounts=frozenset(name for name in fleet.names if fleet.ledger.trial.precision(name) == "counts"),
        pod_names=_names(fleet),
        is_complete=before.is_complete and filled.is_complete and (played is None or played.is_complete),
    )


def _nothing(workloads: Sequence[Workload]) -> Filled:
    return Filled([WorkloadResult(workload.name, workload.count, 0) for workload in workloads], [], is_complete=False)


def _site(scenario: Scenario) -> _Site:
    """Returns the nodes and pods after the change. Raises PlanError and KubeletStartError."""
    inventory, change = scenario.inventory, scenario.change
    nodes = changed_nodes(inventory, change)
    running = [pod for pod in inventory.pods if not pod.is_terminal]
    if scenario.existing == "ignore":
        return _Site([_emptied(changed) for changed in nodes], [], [])
    by_node: dict[str, list[Pod]] = {}
    for pod in running:
        by_node.setdefault(pod.spec.nodeName, []).append(pod)
    names = {changed.node.name for changed in nodes}
    # Pods without a node wait; they are not part of the plan unless they are its workload.
    leaving = list(chain.from_iterable(pods for name, pods in by_node.items() if name and name not in names))
    site = _Site([], [], [pod for pod in leaving if not is_daemon(pod)])
    originals = {node.name: node for node in inventory.nodes}
    for changed in nodes:
        name = changed.node.name
        there = by_node.get(name, [])
        original = originals.get(name)
        report = None if original is None else original.report
        if scenario.existing == "replace":
            changed = _emptied(changed)
        forecast = None
        if changed.empty is not None and original is not None and report is not None:
            forecast = _forecast(_configuration(original), report, there, change)
        if forecast is not None:
            site.restarts.append(forecast[0])
        elif changed.empty is not None and report is not None and change.is_of_kubelets:
            site.without_forecast += 1
        if changed.empty is None:
            site.staying += there
        elif scenario.existing == "restart" and forecast is not None and forecast[1] is not None:
            changed = _restarted(changed, forecast[1], forecast[0], there, site)
        else:
            site.staying += [pod for pod in there if is_daemon(pod)]
            site.leaving += [pod for pod in there if not is_daemon(pod)]
        site.nodes.append(changed)
    return site


def _configuration(node: PlannedNode) -> KubeletConfiguration | None:
    configuration = None if node.type is None else node.type.configuration
    return configuration if isinstance(configuration, KubeletConfiguration) else None


def _emptied(changed: ChangedNode) -> ChangedNode:
    """Returns the node without pods, also if it does not change."""
    report = changed.node.report
    if changed.empty is not None or report is None:
        return changed
    empty = report.empty
    bare = Report(name=report.name, version="plan", precision="exact", empty=empty, places=report.places)
    return ChangedNode(_replace(changed.node, report=bare), empty)


def _forecast(
    configuration: KubeletConfiguration | None, report: Report, there: Sequence[Pod], change: Change
) -> tuple[NodeRestart, Kubelet | None] | None:
    """Returns what a restart with the change does to a node and its pods, None if that is not known."""
    if not change.is_of_kubelets or change.numa is not None or configuration is None:
        return None
    uids = {(pod.metadata.namespace, pod.metadata.name): (pod.metadata.uid, _NO_REQUESTS) for pod in there}
    try:
        return foresee_state(report, kubelet_of(report, uids.get), there, restart_of(configuration, change))
    except (TopowiseError, ValueError) as exc:
        return NodeRestart(report.name, error=str(exc)), None


def _restarted(
    changed: ChangedNode, after: Kubelet, restart: NodeRestart, there: Sequence[Pod], site: _Site
) -> ChangedNode:
    """Returns the node as its kubelet restarts with its pods; refused pods are placed again."""
    refused = {pod.pod for pod in restart.refused}
    names: dict[str, tuple[str, str]] = {}
    for pod in there:
        name = (pod.metadata.namespace, pod.metadata.name)
        if "/".join(name) in refused:
            site.leaving += [] if is_daemon(pod) else [pod]
        else:
            names[pod.metadata.uid] = name
            site.staying.append(pod)
    report = changed.node.report
    assert report is not None
    return ChangedNode(_replace(changed.node, report=reported_state(report, after, names)), changed.empty)


def fleet_of(inventory: Inventory, scheduler: Scheduler, *, top_score: int = scale.RAW_MAX) -> Fleet:
    """Returns the nodes without pods, to be filled by the caller. Raises PlanError and KubeletStartError."""
    scenario = Scenario(inventory, existing="ignore")
    return _fleet(_site(scenario), scenario, scheduler, top_score)


def _fleet(site: _Site, scenario: Scenario, scheduler: Scheduler, top_score: int = scale.RAW_MAX) -> Fleet:
    """Returns the fleet with the pods that keep their nodes."""
    strategy = "TightFit" if scheduler.is_blind else scheduler.strategy
    ledger = SimulatedLedger(strategy, top_score=top_score)
    objects = [changed.node.object for changed in site.nodes if changed.node.object is not None]
    # Pods that wait are no part of the nodes, unless they are nominated; a plan has its own pods.
    ledger.fill(site.staying, objects, scenario.inventory.now, lambda _: _LONG_AGO)
    for changed in site.nodes:
        if changed.node.report is not None:
            ledger.put_report(changed.node.report)
    ledger.ledger.tick()
    fleet = Fleet(ledger, scheduler, is_steering=scenario.change.steering is not False)
    names = set(fleet.names)
    for pod in site.staying:
        record = ledger.records.record(pod)
        if record.needs is not None and record.node in names:
            fleet.adopt(record.uid, record.node, record.needs)
    return fleet


def _workloads_of(leaving: Sequence[Pod]) -> list[Workload]:
    """Returns the pods that are placed again, the oldest first: their controllers make new pods in that order."""
    in_order = sorted(leaving, key=lambda pod: (pod.metadata.creationTimestamp or "", pod.metadata.name))
    return [
        Workload(f"{pod.metadata.namespace}/{pod.metadata.name}", _replace(unbound(pod), status=None))
        for pod in in_order
    ]


def _steered(workload: Workload, change: Change) -> Workload:
    """Returns the workload with a marker in each container, if the change switches steering on."""
    return _replace(workload, pod=with_markers(workload.pod)) if change.steering else workload


def with_markers(pod: Pod) -> Pod:
    """Returns the pod with a request for a marker in each container that has limits."""
    spec = pod.spec

    def marked(containers: tuple[kube_scheduler.Container, ...] | None) -> tuple[kube_scheduler.Container, ...]:
        return tuple(
            container
            if container.resources is None or not container.resources.limits
            else _replace(
                container,
                resources=_replace(
                    container.resources,
                    limits={**container.resources.limits, MARKER: "1"},
                    requests={**(container.resources.requests or container.resources.limits), MARKER: "1"},
                ),
            )
            for container in containers or ()
        )

    return _replace(pod, spec=_replace(spec, containers=marked(spec.containers)))


def _moved(
    fleet: Fleet, site: _Site, scenario: Scenario, workloads: Sequence[Workload], filled: Filled, most: int
) -> tuple[int, Filled]:
    """Moves pods that run, at most `most`, so that more of the refused pods fit; returns the number of moves."""
    records = {
        pod.metadata.uid: (pod, fleet.ledger.records.record(pod))
        for pod in site.staying
        if fleet.ledger.trial.precision(pod.spec.nodeName) == "exact"
    }
    by_name = {f"{record.namespace}/{record.name}": uid for uid, (_, record) in records.items()}
    moves, results, placed = 0, list(filled.workloads), list(filled.placed)
    budgets = Budgets(scenario.inventory.budgets)
    for index, workload in enumerate(workloads):
        missing = min(results[index].refused, _DEFRAG_PODS)
        movable, _ = defrag.sort(records.values(), budgets, workload.priority)
        for count in range(missing, 0, -1):
            if most <= moves:
                break
            plan = defrag.plan(fleet.ledger.trial, workload.pod, count, movable, most - moves)
            if plan.why:
                continue
            for number, step in enumerate(plan.steps):
                uid = f"moved/{index}/{number}"
                namespace, _, name = step.pod.partition("/")
                if step.kind == "new":
                    fleet.bind(fleet.kind(workload.pod), uid, (namespace, f"{name}-moved-{number}"), step.node)
                    placed.append(Placed(index, step.node, uid))
                    continue
                old = by_name.pop(step.pod)
                pod, _ = records.pop(old)
                fleet.bind(fleet.kind(_replace(unbound(pod), status=None)), uid, (namespace, name), step.node)
                fleet.end(old)
            moves += plan.moves
            results[index] = _replace(results[index], placed=results[index].placed + count)
            break
    return moves, Filled(results, placed, filled.is_complete)


def _resources(
    fleet: Fleet, planned: Iterable[Workload], time: tuple[Mapping[str, float], float] | None
) -> tuple[ResourceResult, ...]:
    """Returns CPUs, memory and devices in sum; `time` has unit seconds by resource, and the seconds of a trace."""
    sums = fleet.sums
    fits: dict[str, np.ndarray[tuple[int], np.dtype[np.bool_]]] = {}
    for workload in planned:
        kind = fleet.kind(workload.pod)
        takes = fleet.fits_on(kind)
        for name, amount in (kind.needs.requests if kind.needs else {}).items():
            if amount > 0:
                fits[name] = fits.get(name, np.zeros_like(takes)) | takes
    known = np.array([node is not None for node in fleet.nodes], np.bool_)
    results = []
    for name in sorted(sums.allocatable, key=lambda name: (name not in _RESOURCES, name)):
        allocatable = sums.allocatable[name][known]
        if name in _LEFT_OUT or name == MARKER or not allocatable.any():
            continue
        requested = sums.requested.get(name, np.zeros(len(fleet.names), np.int64))[known]
        used = int(requested.sum())
        if time is not None:
            unit_seconds, seconds = time
            used += round(unit_seconds.get(name, 0.0) / seconds) if seconds else 0
        free = np.maximum(0, allocatable - requested)
        stranded = int(free[~fits[name][known]].sum()) if name in fits and time is None else None
        results.append(ResourceResult(name, int(allocatable.sum()), used, stranded))
    return tuple(results)


def numa_nodes_of(fleet: Fleet, pod: Placed) -> int:
    """Returns the number of NUMA nodes that have exclusive resources of the pod, 0 for a pod without any."""
    kubelet = fleet.ledger.kubelet(pod.node)
    if kubelet is None or pod.uid not in kubelet.active:
        return 0
    return union(where.mask for where in allocated_nodes(kubelet, pod.uid).values()).bit_count()


def _unexamined(planned: Iterable[Workload]) -> dict[str, tuple[str, ...]]:
    """Returns the terms of each workload that the plan does not check."""
    return {workload.name: terms for workload in planned if (terms := unexamined(workload.pod.spec))}


def _names(fleet: Fleet) -> dict[str, str]:
    """Returns namespace and name of each pod on the nodes, by UID."""
    names = {}
    for name in fleet.names:
        node_state = fleet.ledger.ledger.node_states.of(name)
        for entry in () if node_state is None else node_state.history.entries():
            names[entry.uid] = f"{entry.record.namespace}/{entry.record.name}"
    return names
