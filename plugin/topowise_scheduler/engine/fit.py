"""Whether a node's zones have room for a pod, and which zones it will take.

This predicts policy `single-numa-node` from counts: each container (scope container) or the pod (scope pod) must find
one NUMA node with all it asks for, and takes the lowest that has it, as the Topology Manager's merge prefers the
narrower mask (pkg/kubelet/cm/topologymanager/policy_single_numa_node.go). Other policies refuse nothing here.

Who takes part: CPUs of Guaranteed containers that ask for whole ones, memory and hugepages of Guaranteed pods, devices
of every pod that asks for one listed in some zone. Everything else is never aligned, so it never keeps a pod away.
"""

from __future__ import annotations

from collections.abc import Mapping

from topowise.pods import Amounts, ContainerNeeds, Needs
from topowise_scheduler.engine import verdict
from topowise_scheduler.engine.node import NodeTopology, is_native
from topowise_scheduler.engine.verdict import FITS_ANYWHERE, Outcome, Placement, Verdict

SINGLE_NUMA_NODE = "single-numa-node"

_Room = dict[int, dict[str, int]]


def judge(node: NodeTopology, needs: Needs) -> Verdict:
    """The verdict on one node; whether evictions can help is told by the same question to the empty node."""
    if node.policy != SINGLE_NUMA_NODE or not node.zones:
        return FITS_ANYWHERE
    asked = aligned_requests(node, needs)
    if not asked:
        return FITS_ANYWHERE
    placed, lacking = _place({zone.id: dict(zone.available) for zone in node.zones}, asked)
    if lacking is None:
        return Verdict(Outcome.FITS, placements=tuple(placed))
    _, never = _place({zone.id: dict(zone.allocatable) for zone in node.zones}, asked)
    outcome = Outcome.UNSCHEDULABLE if never is None else Outcome.UNRESOLVABLE
    return Verdict(outcome, _reason(outcome, pod_scope=node.scope == "pod"), lacking=lacking)


def aligned_requests(node: NodeTopology, needs: Needs) -> list[Placement]:
    """What has to lie on one NUMA node each, in the kubelet's order of admission; zone -1, as none is chosen yet."""
    if node.scope == "pod":
        amounts = _aligned(node, needs, needs.requests)
        return [Placement("", -1, amounts)] if amounts else []
    return [
        Placement(container.name, -1, amounts, is_kept=container.kind != "init")
        for container in needs.containers
        if (amounts := _aligned(node, needs, _asked_by(container)))
    ]


def _asked_by(container: ContainerNeeds) -> Amounts:
    # The device manager reads limits, CPU and memory manager read requests; for devices both are equal by validation.
    return {**container.limits, **container.requests}


def _aligned(node: NodeTopology, needs: Needs, amounts: Amounts) -> Amounts:
    guaranteed = needs.qos == "Guaranteed"
    return {
        resource: amount
        for resource, amount in amounts.items()
        if amount > 0
        and resource in node.aligned
        and (guaranteed or not is_native(resource))
        and not (resource == "cpu" and amount % 1000)
    }


def _place(room: _Room, asked: list[Placement]) -> tuple[list[Placement], str | None]:
    """The placements, and the first container that finds no room. Takes what it places out of `room`."""
    placed: list[Placement] = []
    for want in asked:
        zone = next((numa_id for numa_id, free in sorted(room.items()) if _has(free, want.amounts)), None)
        if zone is None:
            return placed, want.container
        if want.is_kept:
            for resource, amount in want.amounts.items():
                room[zone][resource] -= amount
        placed.append(Placement(want.container, zone, want.amounts, want.is_kept))
    return placed, None


def _has(free: Mapping[str, int], amounts: Mapping[str, int]) -> bool:
    return all(free.get(resource, 0) >= amount for resource, amount in amounts.items())


def _reason(outcome: Outcome, *, pod_scope: bool) -> str:
    if outcome is Outcome.UNRESOLVABLE:
        return verdict.ZONES_TOO_SMALL_FOR_POD if pod_scope else verdict.ZONES_TOO_SMALL_FOR_CONTAINER
    return verdict.NO_ZONE_FOR_POD if pod_scope else verdict.NO_ZONE_FOR_CONTAINER
