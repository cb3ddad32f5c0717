"""Checks running pods with claims (DRA): whether their CPUs and memory are on the NUMA nodes of the claimed devices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from topowise import documents
from topowise.claimed_devices import Location, location
from topowise.errors import ParseError
from topowise_scheduler.kubectl.doctor.finding import Finding
from topowise_scheduler.kubectl.source import decoded
from topowise_scheduler.kubelet import Kubelet, Placement
from topowise_scheduler.kubelet.allocated_nodes import nodes_of_cpus
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.options.claims import objects
from topowise_scheduler.options.claims.devices import named, numa_nodes_of
from topowise_scheduler.options.claims.objects import DeviceID, ResourceClaim
from topowise_scheduler.report import Report

SLICES: Final = "/apis/resource.k8s.io/v1/resourceslices"
CLAIMS: Final = "/apis/resource.k8s.io/v1/resourceclaims"

Locations = Mapping[tuple[str, DeviceID], Location]
"""The location of each device by node and device."""


def locations(answer: bytes) -> Locations:
    """Returns the devices of ResourceSlices. A slice that cannot be read is left out. Raises SourceError."""
    found: dict[tuple[str, DeviceID], Location] = {}
    for item in _items(answer, SLICES):
        try:
            spec = objects.decode_slice(item).spec
        except ParseError:
            continue
        for device in spec.devices or ():
            key = spec.nodeName or "", DeviceID(spec.driver, spec.pool.name, device.name)
            found[key] = location(device.attributes or {}, spec.driver)
    return found


def claims(answer: bytes) -> dict[str, ResourceClaim]:
    """Returns the claims by namespace/name. A claim that cannot be read is left out. Raises SourceError."""
    found: dict[str, ResourceClaim] = {}
    for item in _items(answer, CLAIMS):
        try:
            claim = objects.decode_claim(item)
        except ParseError:
            continue
        found[claim.key] = claim
    return found


def _items(answer: bytes, path: str) -> Iterable[bytes]:
    for item in decoded(answer, path).get("items") or ():
        try:
            yield msgspec.json.encode(item)
        except documents.UNREADABLE:
            continue


def check(
    records: Sequence[PodRecord],
    reports: Sequence[Report],
    by_key: Mapping[str, ResourceClaim],
    devices: Locations,
) -> Iterator[Finding]:
    """Checks the pods that run. A pod whose devices have no NUMA node, or whose node reports no ids, is left out."""
    by_node = {report.name: report for report in reports}
    for record in records:
        report = by_node.get(record.node)
        if not record.claims or record.status.stage != "assigned" or report is None:
            continue
        near = _near(record, report, by_key, devices)
        placements = report.held.get((record.namespace, record.name), {})
        placed = {node for placement in placements.values() for node in _nodes(report.empty, placement)}
        if near and not placed <= near:
            yield Finding(
                "claims", "warning", "pod", (f"{record.namespace}/{record.name}",),
                f"CPUs or memory are on {named(placed)}, its claimed devices on {named(near)}",
                "the kubelet places pods without regard to claims, so traffic to the device crosses NUMA nodes",
                "delete the pod, so that it is placed anew; with resourceClaims.enabled and steering it is placed near "
                "its devices (docs/how-to/dra.md)",
            )  # fmt: skip


def _near(record: PodRecord, report: Report, by_key: Mapping[str, ResourceClaim], devices: Locations) -> frozenset[int]:
    numa_nodes = numa_nodes_of(report.empty.node_ids, report.pcie_roots)
    found: set[int] = set()
    for name in record.claims:
        claim = by_key.get(f"{record.namespace}/{name}")
        allocation = None if claim is None else claim.status.allocation
        for result in () if allocation is None else allocation.devices.results or ():
            where = devices.get((record.node, result.id))
            node = None if where is None or result.adminAccess else numa_nodes.of(where)
            found |= set() if node is None else {node}
    return frozenset(found)


def _nodes(node: Kubelet, placement: Placement) -> set[int]:
    """Returns the NUMA nodes of the CPUs and of the memory on a single NUMA node."""
    cpus = 0 if placement.cpus is None else placement.cpus
    nodes = set(node.ids(nodes_of_cpus(node, cpus))) if cpus else set()
    for block in placement.memory:
        nodes |= set(block.numa)
    return nodes
