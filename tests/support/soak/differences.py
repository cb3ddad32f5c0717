"""Where the service's idea of a node differs from the node: for people who look into what has no cause."""

from __future__ import annotations

from collections.abc import Iterator

from sandbox.hollow import HollowNode
from soak.replica import Replica
from topowise import pods
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.masks import members


def told(node: HollowNode, replica: Replica, pod: pods.Pod) -> str:
    """Returns a line for each difference."""
    state = replica.service.ledger.node_states.of(node.name)
    if state is None or state.kubelet is None or state.report is None:
        return f"  the service has no report of {node.name}"
    truth, believed = node.kubelet.model, state.without([pod.metadata.uid])
    assert believed is not None
    decision = believed.fork().admit(pod)
    bookings = {
        booking.record.name: (booking.state.name, state.is_reported(booking.uid), state.is_placed(booking.uid))
        for booking in state.history.entries()
    }
    return "\n".join(
        [
            f"  the service's model of it: {decision.admitted} {decision.reason} {decision.rejection}",
            f"  report: {state.report.precision} {state.report.problems}, version {state.report.version}, "
            f"admitting {state.report.admitting}, unconfirmed {state.report.unconfirmed}, "
            f"holding {[pod for _, pod in state.report.held]}",
            f"  reports (looked, written): {list(node.reporter.reports)[-4:]}",
            f"  bookings: {bookings}",
            *(f"  {line}" for line in _differences(truth, believed)),
        ]
    )


def _differences(truth: Kubelet, believed: Kubelet) -> Iterator[str]:
    here, there = set(truth.active), set(believed.active)
    if here != there:
        yield f"pods: only the node has {here - there}, only the service {there - here}"
    if truth.node_ids != believed.node_ids:
        yield f"NUMA nodes: {truth.node_ids}, the service has {believed.node_ids}"
    if truth.cpu is not None and believed.cpu is not None and truth.cpu.available != believed.cpu.available:
        yield (
            f"free CPUs: only the node {list(members(truth.cpu.available & ~believed.cpu.available))[:20]}, "
            f"only the service {list(members(believed.cpu.available & ~truth.cpu.available))[:20]}"
        )
    if truth.memory is not None and believed.memory is not None:
        true_tables, believed_tables = truth.memory.tables, believed.memory.tables
        tables = [
            (table_state.free, table_state.cells, table_state.assignments)
            for table_state in (true_tables, believed_tables)
        ]
        if tables[0] != tables[1]:
            yield f"free memory: {tables[0]}, the service has {tables[1]}"
    for resource, table in truth.devices.tables.items():
        other_table = believed.devices.tables.get(resource)
        if other_table is None:
            yield f"{resource}: {table.names(table.healthy)} are not known"
            continue
        free = set(table.names(table.healthy & ~truth.devices.allocated[resource]))
        known = set(other_table.names(other_table.healthy & ~believed.devices.allocated[resource]))
        if table.near != other_table.near:
            yield f"{resource}: near {table.near}, the service has {other_table.near}"
        if free != known or set(table.ids) != set(other_table.ids):
            yield f"{resource}: all {table.ids} free {free}, the service has {other_table.ids} free {known}"
