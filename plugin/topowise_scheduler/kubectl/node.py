"""`kubectl topowise node NAME`: one machine drawn, with what its pods hold."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from urllib.parse import quote

import msgspec

from topowise import attributes, documents, nrt, quantity
from topowise.attributes.pci_devices import read as read_places
from topowise.errors import ParseError, SourceError
from topowise.kube import paths
from topowise.text import Line
from topowise_scheduler.cluster.node.node_state import NodeState
from topowise_scheduler.kube_scheduler import Pod
from topowise_scheduler.kubectl import names, nodes, objects, places, shown
from topowise_scheduler.kubectl.columns import columns, paragraphs
from topowise_scheduler.kubectl.console import Answer, Console
from topowise_scheduler.kubectl.durations import age
from topowise_scheduler.kubectl.source import Kubectl, MissingError, decoded
from topowise_scheduler.kubelet import Kubelet, Machine, NumaNode
from topowise_scheduler.report import Report, read
from topowise_scheduler.report.costs import distances
from topowise_scheduler.view import picture
from topowise_scheduler.view.picture import Picture, words


def run(options: argparse.Namespace, console: Console) -> Answer:
    """The command."""
    found, pods_of_it = _find(options)
    report = read(found.topology, size=found.size)
    notes = tuple([f"warning: {report.name}: {problem}" for problem in report.problems])
    drawn = picture.with_claimed(picture_of(report, found, pods_of_it, console.now), found.topology)
    named = nrt.attributes_of(found.topology.attributes)
    apart: list[Line] = []
    try:
        located = read_places(named.get(attributes.PCI, "[]"))
        drawn = picture.with_places(drawn, located)
        apart = places.table(located, named.get(attributes.DEVICES, "{}"))
    except ParseError as exc:
        # An exact report has said so already.
        if not any(attributes.PCI in problem for problem in report.problems):
            notes += (f"warning: {report.name}: {exc}; where devices are on the PCI buses is left out",)
    if options.output in ("json", "yaml"):
        return Answer(documents.spell(shown.machine(drawn, found.changed), options.output), notes=notes)
    if options.output == "svg":
        return Answer(picture.svg(drawn), notes=notes)
    key = documents.spell(shown.machine(drawn, found.changed), "json") if options.watch else ""
    if options.output == "wide":
        tables = [nodes.wide_table([found.topology])[0], *([apart] if apart else []), _holdings(drawn)]
        return Answer(paragraphs(tables), notes=notes, key=key)
    lines = picture.lines(drawn, width=console.columns, ascii_only=console.is_ascii, colour=console.is_colour)
    return Answer(lines, notes=notes, key=key)


def picture_of(report: Report, found: objects.Reported, pods_of_it: Sequence[Pod], now: float) -> Picture:
    """The machine as it was reported, with these pods where the kubelet will have put them since."""
    state = _now(found, pods_of_it) if pods_of_it else _as_reported(report)
    drawn = picture.read(
        state,
        {pod.metadata.uid: f"{pod.metadata.namespace}/{pod.metadata.name}" for pod in pods_of_it},
        node=report.name,
        machine=_machine(found.topology),
        precision=report.precision,
        age=f"changed {age(found.changed, now)} ago" if found.changed else "",
    )
    return msgspec.structs.replace(drawn, policy=report.policy)


def _as_reported(report: Report) -> Kubelet:
    node_state = NodeState()
    node_state.put_report(report, 0.0)
    return _known(node_state)


def _now(found: objects.Reported, pods_of_it: Sequence[Pod]) -> Kubelet:
    # The ledger brings the engine along, which takes 0.15 s to load.
    from topowise_scheduler.kubectl.cluster import Cluster

    now = Cluster(objects.Objects(reports=(found,), pods=tuple(pods_of_it)), 0.0)
    return _known(now.ledger.node_states.of(found.topology.metadata.name))


def _known(node_state: NodeState | None) -> Kubelet:
    if node_state is None or node_state.kubelet is None:
        raise AssertionError("a node with a report has a kubelet")
    return node_state.kubelet


def _find(options: argparse.Namespace) -> tuple[objects.Reported, tuple[Pod, ...]]:
    """The report, and the pods that are to be looked at."""
    name = names.node(options.name)
    if options.file:
        saved = objects.from_files(options.file)
        report = saved.report(name)
        if report is None:
            raise SourceError(", ".join(options.file), f"has no NodeResourceTopology {name!r}, {_instead(saved)}")
        if options.pods and saved.pods is None:
            raise SourceError(", ".join(options.file), "has no Pods, expected some with --pods")
        return report, (saved.pods or ()) if options.pods else ()
    kubectl = Kubectl(options.context, options.kubeconfig)
    path, pods_path = paths.path(nrt.PATH, name), f"/api/v1/pods?fieldSelector=spec.nodeName%3D{quote(name, safe='')}"
    try:
        found, *rest = kubectl.get(path, *([pods_path] if options.pods else []))
    except MissingError:
        answer = kubectl.served(paths.path(nrt.OLD_PATH, name))
        if isinstance(answer, MissingError):
            there = objects.from_cluster(kubectl)
            raise SourceError(f"node {name}", f"no such node is reported, {_instead(there)}") from answer
        if isinstance(answer, SourceError):
            raise answer from None
        found, rest = answer, kubectl.get(pods_path) if options.pods else []
    (report,) = objects.reports([decoded(found, path)], path)
    return report, objects.pods_in(rest[0], pods_path) if options.pods else ()


def _instead(there: objects.Objects) -> str:
    return names.instead([one.topology.metadata.name for one in there.reports])


def _machine(topology: nrt.NodeResourceTopology) -> Machine | None:
    """What a kubelet does not keep of its machine: how far the nodes are apart, and how much memory they have."""
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
    """A row for each pod that holds something."""
    zone_of = {thread.id: zone.id for zone in drawn.zones for thread in zone.threads if thread.id is not None}
    rows = []
    for owner in drawn.owners:
        on = {zone_of[cpu] for cpu in owner.cpus if cpu in zone_of}
        on.update(zone for block in owner.memory for zone in block.zones)
        rows.append([owner.name, words.nodes(sorted(on)) or "-", ", ".join(words.holds(owner))])
    more = words.others(drawn)
    return [*columns(["POD", "NUMA NODES", "HOLDS"], rows), *([more] if more else [])]
