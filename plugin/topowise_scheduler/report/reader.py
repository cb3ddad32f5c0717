"""Reads an NRT object of any exporter into a report, of the kubelet version that is known.

There are two sources of the version: an attribute, for which our exporter asks the kubelet, and the Node. Either may
arrive first, and one may see an in-place upgrade before the other; the report is rebuilt when the version becomes
known. Reports of other exporters have the Node's version alone. If the two differ, the newer version counts, because
downgrades are rare, and the report's certainty is "assumed".
"""

from __future__ import annotations

import contextlib
import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

import msgspec

from topowise import attributes, fingerprint, nrt, numaplacement
from topowise.attributes import confirmation, pci_devices
from topowise.errors import ParseError, TopowiseError
from topowise.fingerprint import Method
from topowise_scheduler.kubelet.versions import NEWEST_RECORDED, KubeletVersion, is_release, version_of
from topowise_scheduler.report import amounts_only, budget, exact, koordlet, synthetic_machine
from topowise_scheduler.report.nrt_report import PageSizes, Report, ReportError

_MAX_BOOT_ID_LENGTH: Final = 64
_MAX_PROBLEMS: Final = 16
_MAX_TEXT_LENGTH: Final = 500


class Choice(NamedTuple):
    """The kubelet version, and the problem with the reported versions, "" if there is none."""

    kubelet: KubeletVersion
    problem: str = ""


def choose(reported: str, node: str) -> Choice:
    """Returns the kubelet version by the exporter's and the Node's version, each "" if unreported."""
    if not reported or (node and not is_release(reported)):
        version = version_of(node) if node else NEWEST_RECORDED
        return Choice(version, _no_release(reported, node) if reported else "")
    from_report = version_of(reported)
    # A development build reports v0.0.0.
    if not is_release(reported):
        return Choice(
            from_report,
            f"{_attribute(reported)}, expected a version such as v1.33.5; predicted as 1.{from_report.minor}",
        )
    from_node = version_of(node) if node and is_release(node) else from_report
    if from_report == from_node:
        return Choice(from_report)
    newer = max(from_report, from_node, key=lambda version: version.minor)
    problem = f"{_attribute(reported)}, the Node says {node!r:.80}; predicted as the newer version, {newer.name}"
    return Choice(msgspec.structs.replace(newer, certainty="assumed", remark=problem), problem)


def of_node(report: Report, node_version: str, page_sizes: PageSizes = ()) -> Report:
    """Returns the report for this version and these hugepages of its Node; the same object if nothing has changed.

    If a kubelet of the version would not start there, the report keeps its previous version and says so.
    """
    as_read = node_version == report.node_version and page_sizes == report.page_sizes
    if as_read or report.source is None:
        return report
    kubelet, problem = choose(report.reported_version, node_version)
    empty = report.empty
    if kubelet != report.kubelet or page_sizes != report.page_sizes:
        # Built from `source`: the object is not read again.
        rebuilt = report.source.empty(kubelet, page_sizes)
        if rebuilt is None:
            problem = (
                f"kubelet {kubelet.name} would not start with what is reported; predicted as {report.kubelet.name}"
            )
            kubelet = msgspec.structs.replace(report.kubelet, certainty="assumed", remark=problem)
        else:
            empty = rebuilt
    other_problems = [entry for entry in report.problems if entry != report.version_problem]
    return msgspec.structs.replace(
        report,
        empty=empty,
        kubelet=kubelet,
        node_version=node_version,
        page_sizes=page_sizes,
        version_problem=problem,
        problems=(*([problem] if problem else []), *other_problems),
    )


def _attribute(reported: str) -> str:
    return f"attribute {attributes.KUBELET_VERSION}: {reported!r:.80}"


def _no_release(reported: str, node: str) -> str:
    return f"{_attribute(reported)}, expected a version such as v1.33.5; the Node's {node!r:.80} is taken"


class _Head(NamedTuple):
    """What the object has outside its zones, from any exporter. `report` makes a report with these fields."""

    named: Mapping[str, str]
    kubelet: KubeletVersion
    report: Callable[..., Report]


def read(
    topology: nrt.NodeResourceTopology,
    node_version: str = "",
    page_sizes: PageSizes = (),
    before: Report | None = None,
    zone_marks: bytes = b"",
    size: int = 0,
) -> Report:
    """Returns the report of a node from any exporter's object.

    `node_version` is the Node's kubeletVersion, "" for an unknown Node; `page_sizes` are the hugepages that the Node
    lists. `before` is the node's previous report, whose unchanged parts are reused, and `zone_marks` are the marks of
    the zones in order. `size` is the object's size in bytes, 0 if unknown. An invalid object raises nothing: `problems`
    lists the parts that were not used.
    """
    try:
        budget.check_size(size)
        budget.check_object(topology)
        return _read(topology, node_version, page_sizes, before, zone_marks)
    except budget.OverBudgetError as exc:
        return over_budget(topology.metadata.name, topology.metadata.resourceVersion, exc)


def over_budget(name: str, version: str, error: budget.OverBudgetError) -> Report:
    """Returns the report of an object that exceeds a limit of the object: it constrains nothing."""
    source = amounts_only.AmountsSource(*synthetic_machine.NOTHING)
    return Report(
        name=name,
        version=version,
        precision="counts",
        empty=source.empty(NEWEST_RECORDED),
        problems=(str(error),),
        over_budget=str(error),
    )


def _read(
    topology: nrt.NodeResourceTopology,
    node_version: str,
    page_sizes: PageSizes,
    before: Report | None,
    zone_marks: bytes,
) -> Report:
    """Implements `read`. Raises OverBudgetError."""
    problems: list[str] = []
    if koordlet.wrote(topology):
        topology = koordlet.translated(topology, problems)
    head = _head(topology.metadata, topology.attributes, node_version, page_sizes, problems)
    named, zones = head.named, nrt.numa_zones(topology)
    if exact.is_ours(named):
        try:
            parsed = exact.read(named, zones, head.kubelet, before)
            assert parsed is not None
        except (TopowiseError, ValueError) as exc:
            problems.append(f"{exc}; the node is predicted from counts")
        else:
            in_order = [zone for _, zone in zones] == list(topology.zones or ())
            return _exact(head, parsed, problems, zone_marks if in_order else b"")
    problems += [
        f"zone {zone.name!r:.80}: expected a name node-<id>; the zone is left out"
        for zone in topology.zones or ()
        if zone.type == nrt.ZONE_TYPE and nrt.zone_id(zone.name) is None
    ]
    amounts = amounts_only.read(topology, named, zones, head.kubelet, page_sizes, problems)
    return head.report(
        precision="counts",
        empty=amounts.empty,
        placeholders=amounts.placeholders,
        offsets=_offsets(named, zones, problems),
        problems=_bounded(problems),
        source=amounts.source,
        knows_policy=amounts.source.policies.is_known,
    )


def read_lazily(
    topology: nrt.LazyTopology, node_version: str = "", page_sizes: PageSizes = (), before: Report | None = None
) -> Report:
    """Implements `read` for an object whose zones are not decoded: zones with the same text as in `before` stay
    undecoded. Raises msgspec.DecodeError for an invalid zone."""
    try:
        budget.check_object(topology)
    except budget.OverBudgetError as exc:
        return over_budget(topology.metadata.name, topology.metadata.resourceVersion, exc)
    marks = array("q", map(_mark, topology.zones or ())).tobytes()
    if before is not None and len(before.zone_marks) == len(marks):
        problems: list[str] = []
        head = _head(topology.metadata, topology.attributes, node_version, page_sizes, problems)
        # A changed zone that cannot be read exactly raises, and `read` decides about the whole object.
        with contextlib.suppress(TopowiseError, ValueError):
            parsed = exact.read(head.named, _changed(topology, marks, before), head.kubelet, before)
            if parsed is not None:
                return _exact(head, parsed, problems, marks)
    return read(topology.whole(), node_version, page_sizes, before, marks)


def read_bytes(raw: bytes | msgspec.Raw, lookup: Callable[[str], tuple[str, PageSizes, Report | None]]) -> Report:
    """Implements `read` for JSON. `lookup` returns a node's version, hugepages and previous report by name.

    Raises msgspec.DecodeError.
    """
    try:
        budget.check_size(memoryview(raw).nbytes)
    except budget.OverBudgetError as exc:
        return over_budget(*nrt.decode_identity(raw), exc)
    topology = nrt.decode_lazily(raw)
    return read_lazily(topology, *lookup(topology.metadata.name))


def _mark(zone: nrt.LazyZone) -> int:
    """Returns a hash of a zone's text. The numaplacement vector is left out: it changes in every zone with each pod."""
    texts = [(item.name, item.value) for item in zone.attributes or () if item.name != numaplacement.VECTOR_ATTRIBUTE]
    return hash((zone.name, zone.type, bytes(zone.costs), bytes(zone.resources), *texts))


def _changed(topology: nrt.LazyTopology, marks: bytes, before: Report) -> list[tuple[int, nrt.Zone | None]]:
    """Returns the zones by id, None for a zone unchanged since `before`. Raises ReportError for different ids."""
    assert isinstance(before.source, exact.ExactSource)
    marks_now, marks_before = memoryview(marks).cast("q"), memoryview(before.zone_marks).cast("q")
    zones: list[tuple[int, nrt.Zone | None]] = []
    all_facts = before.source.facts.zones
    for zone, facts, now, last in zip(topology.zones or (), all_facts, marks_now, marks_before, strict=True):
        changed = zone.whole() if now != last else None
        if changed is not None and not (nrt.is_numa_zone(changed) and changed.name == nrt.zone_name(facts.id)):
            raise ReportError(f"zone {changed.name!r:.80}: expected {nrt.zone_name(facts.id)}")
        zones.append((facts.id, changed))
    return zones


def _head(
    metadata: nrt.Metadata,
    object_attributes: Sequence[nrt.Attribute] | None,
    node_version: str,
    page_sizes: PageSizes,
    problems: list[str],
) -> _Head:
    named = nrt.attributes_of(object_attributes)
    reported_version = named.get(attributes.KUBELET_VERSION, "")[:_MAX_TEXT_LENGTH]
    kubelet, problem = choose(reported_version, node_version)
    if problem:
        problems.append(problem)
    digest, method = _fingerprint(metadata, named, problems)
    report = partial(
        Report,
        name=metadata.name,
        version=metadata.resourceVersion,
        fingerprint=digest,
        fingerprint_method=method,
        admitting=confirmation.read_pods(named),
        unconfirmed=confirmation.read_reasons(named),
        boot_id=named.get(attributes.BOOT_ID, "")[:_MAX_BOOT_ID_LENGTH],
        # Nodes of a pool share the text. A longer text cannot be read.
        pcie_roots=sys.intern(named.get(attributes.PCIE_ROOTS, "")[: pci_devices.MOST_BYTES + 1]),
        kubelet=kubelet,
        reported_version=reported_version,
        node_version=node_version,
        page_sizes=page_sizes,
        version_problem=problem,
    )
    return _Head(named, kubelet, report)


def _exact(head: _Head, parsed: exact.Exact, problems: Sequence[str], zone_marks: bytes) -> Report:
    return head.report(
        precision="exact",
        empty=parsed.empty,
        held=parsed.allocations.pods,
        marks=parsed.allocations.marks,
        # Without all free resources a report can be booked only on an empty node, so its zones must not be reused.
        zone_marks=zone_marks if exact.is_whole(parsed.free, parsed.empty) else b"",
        free=parsed.free,
        places=parsed.places,
        problems=_bounded((*problems, *parsed.problems)),
        source=parsed.source,
    )


def _bounded(problems: Sequence[str]) -> tuple[str, ...]:
    """Returns the first problems, truncated: an object may cause thousands of problems, and all of them are logged."""
    first = tuple([problem[:_MAX_TEXT_LENGTH] for problem in problems[:_MAX_PROBLEMS]])
    return first if len(problems) <= _MAX_PROBLEMS else (*first, f"and {len(problems) - _MAX_PROBLEMS} more")


def _offsets(
    named: Mapping[str, str], zones: Sequence[tuple[int, nrt.Zone]], problems: list[str]
) -> Mapping[int, tuple[int, ...]] | None:
    """Returns the NUMA nodes of containers from numaplacement (RTE from 0.25), None without it."""
    metadata = named.get(numaplacement.METADATA_ATTRIBUTE)
    if metadata is None:
        return None
    vectors = {
        numa_id: vector
        for numa_id, zone in zones
        if (vector := nrt.attributes_of(zone.attributes).get(numaplacement.VECTOR_ATTRIBUTE)) is not None
    }
    try:
        return numaplacement.decode(metadata, vectors)
    except ParseError as exc:
        problems.append(f"{exc}; the NUMA nodes of pods are unknown")
        return None


def _fingerprint(metadata: nrt.Metadata, named: Mapping[str, str], problems: list[str]) -> tuple[str, Method]:
    """Returns digest and method, from the attribute or else the annotation. An invalid digest counts as missing."""
    method: Method = fingerprint.ALL
    match named.get(attributes.PODS_FINGERPRINT_METHOD):
        case None | fingerprint.ALL:
            pass
        case fingerprint.WITH_EXCLUSIVE_RESOURCES:
            method = fingerprint.WITH_EXCLUSIVE_RESOURCES
        case text:
            problems.append(
                f"attribute {attributes.PODS_FINGERPRINT_METHOD}: {text!r:.80}, expected {fingerprint.ALL} or "
                f"{fingerprint.WITH_EXCLUSIVE_RESOURCES}; {fingerprint.ALL} is taken"
            )
    annotations = metadata.annotations or {}
    digest = named.get(attributes.PODS_FINGERPRINT) or annotations.get(attributes.PODS_FINGERPRINT_ANNOTATION, "")
    if digest:
        try:
            fingerprint.check(digest)
        except ParseError as exc:
            problems.append(f"{exc}; the fingerprint is ignored")
            digest = ""
    return digest, method
