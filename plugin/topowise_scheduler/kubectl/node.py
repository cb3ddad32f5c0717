"""`kubectl topowise node NAME`: a machine as a picture, with the allocations of its pods.

Below it the distances of its devices, like `nvidia-smi topo -m`: a row for each PCI position.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import quote

import msgspec

from topowise import attributes, nrt, quantity
from topowise.attributes import devices
from topowise.attributes.pci_devices import Located
from topowise.attributes.pci_devices import read as read_places
from topowise.errors import ParseError, SourceError
from topowise.kube import paths
from topowise.pci import Place, distance
from topowise.text import Line
from topowise_scheduler.explain import picture
from topowise_scheduler.explain.picture import Picture, captions
from topowise_scheduler.kubectl import json_output, nodes, objects, selection
from topowise_scheduler.kubectl.console import Console, Output, age, columns, paragraphs
from topowise_scheduler.kubectl.source import Kubectl, MissingError, decoded
from topowise_scheduler.kubelet import Kubelet, Machine, NumaNode
from topowise_scheduler.ledger.node.node_state import NodeState
from topowise_scheduler.report import Report, read
from topowise_scheduler.report.texts import distances
from topowise_scheduler.verdicts.kube_scheduler import Pod

_MOST: Final = 16
"""The most positions with a column each; more columns would be wider than a screen."""


def run(options: argparse.Namespace, console: Console) -> Output:
    """The command."""
    reported, pods_of_it = _find(options)
    report = read(reported.topology, size=reported.size)
    notes = tuple([f"warning: {report.name}: {problem}" for problem in report.problems])
    drawn = picture.with_claimed(picture_of(report, reported, pods_of_it, console.now), reported.topology)
    document = json_output.machine(drawn, reported.changed)
    body = picture.svg(drawn) if options.output == "svg" else json_output.printed(options.output, document)
    if body is not None:
        return Output(body, notes=notes)
    if options.output == "wide":
        distances_table, problems = _pci_distances(report, reported.topology)
        notes += problems
        tables = [
            nodes.wide_table([reported.topology])[0],
            *([distances_table] if distances_table else []),
            _holdings(drawn),
        ]
        return Output(paragraphs(tables), notes=notes)
    lines = picture.lines(drawn, width=console.columns, ascii_only=console.is_ascii, colour=console.is_colour)
    return Output(lines, notes=notes)


def _pci_distances(report: Report, topology: nrt.NodeResourceTopology) -> tuple[list[Line], tuple[str, ...]]:
    """The table of PCI distances, and a warning if the attribute cannot be read."""
    named = nrt.attributes_of(topology.attributes)
    try:
        located = read_places(named.get(attributes.PCI, "[]"))
        return table(located, named.get(attributes.DEVICES, "{}")), ()
    except ParseError as exc:
        # The problems of an exact report include it.
        if any(attributes.PCI in problem for problem in report.problems):
            return [], ()
        return [], (f"warning: {report.name}: {exc}; the PCI distances are left out",)


def picture_of(report: Report, reported: objects.Reported, pods_of_it: Sequence[Pod], now: float) -> Picture:
    """The machine as reported, with these pods as the kubelet will have placed them since."""
    state = _now(reported, pods_of_it) if pods_of_it else _as_reported(report)
    drawn = picture.read(
        state,
        {pod.metadata.uid: f"{pod.metadata.namespace}/{pod.metadata.name}" for pod in pods_of_it},
        node=report.name,
        machine=_machine(reported.topology),
        precision=report.precision,
        age=f"changed {age(reported.changed, now)} ago" if reported.changed else "",
    )
    return msgspec.structs.replace(drawn, policy=report.policy)


def _as_reported(report: Report) -> Kubelet:
    node_state = NodeState()
    node_state.put_report(report, 0.0)
    return _known(node_state)


def _now(reported: objects.Reported, pods_of_it: Sequence[Pod]) -> Kubelet:
    # The ledger brings the engine along, which takes 0.15 s to load.
    from topowise_scheduler.kubectl.cluster import Cluster

    now = Cluster(objects.Objects(reports=(reported,), pods=tuple(pods_of_it)), 0.0)
    return _known(now.ledger.node_states.of(reported.topology.metadata.name))


def _known(node_state: NodeState | None) -> Kubelet:
    if node_state is None or node_state.kubelet is None:
        raise AssertionError("a node with a report has a kubelet")
    return node_state.kubelet


def _find(options: argparse.Namespace) -> tuple[objects.Reported, tuple[Pod, ...]]:
    """The report of the node, and the pods to include."""
    name = selection.node_name(options.name)
    if options.file:
        saved = objects.from_files(options.file)
        report = saved.report(name)
        if report is None:
            raise SourceError(", ".join(options.file), f"has no NodeResourceTopology {name!r}, {_instead(saved)}")
        if options.pods and saved.pods is None:
            raise SourceError(", ".join(options.file), "has no Pods, expected some with --pods")
        return report, (saved.pods or ()) if options.pods else ()
    kubectl = Kubectl(options.kubectl)
    path, pods_path = paths.path(nrt.PATH, name), f"/api/v1/pods?fieldSelector=spec.nodeName%3D{quote(name, safe='')}"
    try:
        answer_, *rest = kubectl.get(path, *([pods_path] if options.pods else []))
    except MissingError:
        answer = kubectl.served(paths.path(nrt.OLD_PATH, name))
        if isinstance(answer, MissingError):
            there = objects.from_cluster(kubectl)
            raise SourceError(f"node {name}", f"no such node is reported, {_instead(there)}") from answer
        if isinstance(answer, SourceError):
            raise answer from None
        answer_, rest = answer, kubectl.get(pods_path) if options.pods else []
    (report,) = objects.reports([decoded(answer_, path)], path)
    return report, objects.pods_in(rest[0], pods_path) if options.pods else ()


def _instead(there: objects.Objects) -> str:
    return selection.instead([report.topology.metadata.name for report in there.reports])


def _machine(topology: nrt.NodeResourceTopology) -> Machine | None:
    """The parts of the machine that a kubelet does not have: distances, and memory sizes."""
    zones = nrt.numa_zones(topology)
    ids = [numa_id for numa_id, _ in zones]
    if not zones:
        return None
    return Machine(
        numa=tuple(
            NumaNode(id=numa_id, memory=_memory(zone), distances=distances(zone.costs or (), ids))
            for numa_id, zone in zones
        )
    )


def _memory(zone: nrt.Zone) -> int:
    for resource in zone.resources or ():
        if resource.name == "memory":
            try:
                return max(0, quantity.value(resource.capacity))
            except ParseError:
                return 0
    return 0


def _holdings(drawn: Picture) -> list[Line]:
    """A row for each pod with exclusive resources."""
    zone_of = {thread.id: zone.id for zone in drawn.zones for thread in zone.threads if thread.id is not None}
    rows = []
    for owner in drawn.owners:
        on = {zone_of[cpu] for cpu in owner.cpus if cpu in zone_of}
        on.update(zone for block in owner.memory for zone in block.zones)
        rows.append([owner.name, captions.nodes(sorted(on)) or "-", ", ".join(captions.holds(owner))])
    more = captions.pods_without_resources(drawn)
    return [*columns(["POD", "NUMA NODES", "HOLDS"], rows), *([more] if more else [])]


def table(located: Mapping[str, Located], devices_text: str) -> list[Line]:
    """The table, empty if no device has a position. Raises ParseError."""
    at: dict[Place, list[str]] = {}
    for name, device in located.items():
        at.setdefault(device.place, []).append(name)
    if not at:
        return []
    resources = {device.id: device.resource for device in devices.read(devices_text)}
    labels = [f"P{number}" for number in range(len(at))] if len(at) <= _MOST else []
    rows = [
        [
            f"P{number}",
            " > ".join(place.path),
            "-" if place.numa_node is None else str(place.numa_node),
            _devices(names, resources, located),
            *(distance(place, column) or "?" for column in at if labels),
        ]
        for number, (place, names) in enumerate(at.items())
    ]
    return columns(["", "PLACE", "NUMA NODE", "DEVICES", *labels], rows)


def _devices(names: Sequence[str], resources: Mapping[str, str], located: Mapping[str, Located]) -> str:
    """A single device by its id, with a different PCI address of its function; several devices by their number."""
    by_resource: dict[str, list[str]] = {}
    for name in names:
        by_resource.setdefault(resources.get(name, "unknown"), []).append(name)
    facts = []
    for resource, ids in sorted(by_resource.items()):
        if len(ids) > 1:
            facts.append(f"{len(ids)} {resource}")
        else:
            address = located[ids[0]].address
            facts.append(f"{resource} {ids[0]}" + ("" if address == ids[0] else f" ({address})"))
    return ", ".join(facts)
