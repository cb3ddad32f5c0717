"""An NRT object of any exporter becomes a report."""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from topowise import attributes, fingerprint, nrt, placement
from topowise.attributes import doubts
from topowise.errors import ParseError, TopowiseError
from topowise.fingerprint import Method
from topowise_scheduler.kubelet.versions import NEWEST_RECORDED, KubeletVersion
from topowise_scheduler.report import amounts_only, budget, exact, free_resources, koordlet, synthetic_machine, versions
from topowise_scheduler.report.nrt_report import PageSizes, Report, ReportError

_LONGEST_BOOT_ID: Final = 64
_MAX_PROBLEMS: Final = 16
_MAX_LENGTH: Final = 500


class _Head(NamedTuple):
    """What an object tells on top, whoever wrote it. `problem` is that of the version."""

    named: Mapping[str, str]
    metadata: nrt.Metadata
    reported_version: str
    node_version: str
    page_sizes: PageSizes
    kubelet: KubeletVersion
    problem: str
    digest: str
    method: Method


def read(
    topology: nrt.NodeResourceTopology,
    node_version: str = "",
    page_sizes: PageSizes = (),
    before: Report | None = None,
    zone_marks: bytes = b"",
    size: int = 0,
) -> Report:
    """The node as the object tells it; `node_version` is the Node's kubeletVersion, "" if it is not known yet,
    `page_sizes` the hugepages that it lists, and `before` the node's last report, whose parts are taken over as far as
    they are the same. `zone_marks` are those of its zones, in their order.

    Nothing in an object is an error; `problems` say what could not be used. `size` is the object's in bytes, 0 if it is
    not known.
    """
    try:
        budget.check_size(size)
        budget.check_object(topology)
        return _read(topology, node_version, page_sizes, before, zone_marks)
    except budget.OverBudgetError as exc:
        return over_budget(topology.metadata.name, topology.metadata.resourceVersion, exc)


def over_budget(name: str, version: str, why: budget.OverBudgetError) -> Report:
    """What is left of an object that is more than a report may be."""
    source = amounts_only.Source(*synthetic_machine.NOTHING)
    return Report(
        name=name,
        version=version,
        precision="counts",
        empty=source.empty(NEWEST_RECORDED),
        problems=(str(why),),
        over_budget=str(why),
    )


def _read(
    topology: nrt.NodeResourceTopology,
    node_version: str,
    page_sizes: PageSizes,
    before: Report | None,
    zone_marks: bytes,
) -> Report:
    """The same. Raises OverBudgetError."""
    problems: list[str] = []
    if koordlet.wrote(topology):
        topology = koordlet.translated(topology, problems)
    head = _head(topology.metadata, topology.attributes, node_version, page_sizes, problems)
    named, zones = head.named, nrt.numa_zones(topology)
    if exact.is_ours(named):
        try:
            found = exact.read(named, zones, head.kubelet, before)
            assert found is not None
        except (TopowiseError, ValueError) as exc:
            problems.append(f"{exc}; the node is predicted from counts")
        else:
            in_order = [zone for _, zone in zones] == list(topology.zones or ())
            return _exact(head, found, problems, zone_marks if in_order else b"")
    problems += [
        f"zone {zone.name!r:.80}: expected a name node-<id>; the zone is left out"
        for zone in topology.zones or ()
        if zone.type == nrt.ZONE_TYPE and nrt.zone_id(zone.name) is None
    ]
    simple = amounts_only.read(topology, named, zones, head.kubelet, page_sizes, problems)
    return Report(
        name=head.metadata.name,
        version=head.metadata.resourceVersion,
        precision="counts",
        empty=simple.empty,
        occupants=simple.occupants,
        offsets=_offsets(named, zones, problems),
        fingerprint=head.digest,
        fingerprint_method=head.method,
        admitting=doubts.read_pods(named),
        unconfirmed=doubts.read_reasons(named),
        boot_id=named.get(attributes.BOOT_ID, "")[:_LONGEST_BOOT_ID],
        problems=_bounded(problems),
        kubelet=head.kubelet,
        reported_version=head.reported_version,
        node_version=node_version,
        page_sizes=page_sizes,
        version_problem=head.problem,
        source=simple.source,
        knows_policy=simple.source.policies.is_known,
    )


def read_apart(
    topology: nrt.Apart, node_version: str = "", page_sizes: PageSizes = (), before: Report | None = None
) -> Report:
    """The same of an object whose zones have not been looked at: those of which the text is as in `before` are not.
    Raises msgspec.DecodeError for a zone that is none."""
    try:
        budget.check_object(topology)
    except budget.OverBudgetError as exc:
        return over_budget(topology.metadata.name, topology.metadata.resourceVersion, exc)
    marks = array("q", map(_mark, topology.zones or ())).tobytes()
    if before is not None and len(before.zone_marks) == len(marks):
        problems: list[str] = []
        head = _head(topology.metadata, topology.attributes, node_version, page_sizes, problems)
        with contextlib.suppress(TopowiseError, ValueError):
            found = exact.read(head.named, _changed(topology, marks, before), head.kubelet, before)
            if found is not None:
                return _exact(head, found, problems, marks)
    return read(topology.whole(), node_version, page_sizes, before, marks)


def read_bytes(raw: bytes | msgspec.Raw, known: Callable[[str], tuple[str, PageSizes, Report | None]]) -> Report:
    """The same of an object's JSON. `known` tells by the node's name its version, its hugepages, and its last report.
    Raises msgspec.DecodeError for what is no object."""
    try:
        budget.check_size(memoryview(raw).nbytes)
    except budget.OverBudgetError as exc:
        return over_budget(*nrt.decode_identity(raw), exc)
    topology = nrt.decode_apart(raw)
    return read_apart(topology, *known(topology.metadata.name))


def _mark(zone: nrt.ZoneApart) -> int:
    """Of all that is read of a zone of ours, as in container_allocations.py. Where containers lie changes in all zones with each pod."""
    told = [(one.name, one.value) for one in zone.attributes or () if one.name != placement.VECTOR_ATTRIBUTE]
    return hash((zone.name, zone.type, bytes(zone.costs), bytes(zone.resources), *told))


def _changed(topology: nrt.Apart, marks: bytes, before: Report) -> list[tuple[int, nrt.Zone | None]]:
    """The zones by id, None for those that are as before. Raises ReportError if others are there."""
    assert isinstance(before.source, exact.Source)
    now, last = memoryview(marks).cast("q"), memoryview(before.zone_marks).cast("q")
    found: list[tuple[int, nrt.Zone | None]] = []
    for zone, facts, mark, was in zip(topology.zones or (), before.source.facts.zones, now, last, strict=True):
        changed = zone.whole() if mark != was else None
        if changed is not None and not (nrt.is_numa_zone(changed) and changed.name == nrt.zone_name(facts.id)):
            raise ReportError(f"zone {changed.name!r:.80}: expected {nrt.zone_name(facts.id)}")
        found.append((facts.id, changed))
    return found


def _head(
    metadata: nrt.Metadata,
    given: Sequence[nrt.Attribute] | None,
    node_version: str,
    page_sizes: PageSizes,
    problems: list[str],
) -> _Head:
    named = nrt.attributes_of(given)
    reported_version = named.get(attributes.KUBELET_VERSION, "")[:_MAX_LENGTH]
    kubelet, problem = versions.choose(reported_version, node_version)
    if problem:
        problems.append(problem)
    digest, method = _fingerprint(metadata, named, problems)
    return _Head(named, metadata, reported_version, node_version, page_sizes, kubelet, problem, digest, method)


def _exact(head: _Head, found: exact.Exact, problems: Sequence[str], zone_marks: bytes) -> Report:
    named = head.named
    return Report(
        name=head.metadata.name,
        version=head.metadata.resourceVersion,
        precision="exact",
        empty=found.empty,
        held=found.held.pods,
        marks=found.held.marks,
        zone_marks=zone_marks if free_resources.is_whole(found.free, found.empty) else b"",
        free=found.free,
        places=found.places,
        fingerprint=head.digest,
        fingerprint_method=head.method,
        admitting=doubts.read_pods(named),
        unconfirmed=doubts.read_reasons(named),
        boot_id=named.get(attributes.BOOT_ID, "")[:_LONGEST_BOOT_ID],
        problems=_bounded((*problems, *found.problems)),
        kubelet=head.kubelet,
        reported_version=head.reported_version,
        node_version=head.node_version,
        page_sizes=head.page_sizes,
        version_problem=head.problem,
        source=found.source,
    )


def _bounded(problems: Sequence[str]) -> tuple[str, ...]:
    """The first problems, not too long: an object has room for thousands, and all of them go into the log."""
    first = tuple([problem[:_MAX_LENGTH] for problem in problems[:_MAX_PROBLEMS]])
    return first if len(problems) <= _MAX_PROBLEMS else (*first, f"and {len(problems) - _MAX_PROBLEMS} more")


def _offsets(
    named: Mapping[str, str], zones: Sequence[tuple[int, nrt.Zone]], problems: list[str]
) -> Mapping[int, tuple[int, ...]] | None:
    """Where containers lie, if the object tells (RTE from 0.25)."""
    metadata = named.get(placement.METADATA_ATTRIBUTE)
    if metadata is None:
        return None
    vectors = {
        numa_id: vector
        for numa_id, zone in zones
        if (vector := nrt.attributes_of(zone.attributes).get(placement.VECTOR_ATTRIBUTE)) is not None
    }
    try:
        return placement.decode(metadata, vectors)
    except ParseError as exc:
        problems.append(f"{exc}; where single pods lie is not known")
        return None


def _fingerprint(metadata: nrt.Metadata, named: Mapping[str, str], problems: list[str]) -> tuple[str, Method]:
    """Digest and method, by attribute, else by annotation. One that cannot be compared is as good as none."""
    method: Method = fingerprint.ALL
    match named.get(attributes.PODS_FINGERPRINT_METHOD):
        case None | fingerprint.ALL:
            pass
        case fingerprint.WITH_EXCLUSIVE_RESOURCES:
            method = fingerprint.WITH_EXCLUSIVE_RESOURCES
        case other:
            problems.append(
                f"attribute {attributes.PODS_FINGERPRINT_METHOD}: {other!r:.80}, expected {fingerprint.ALL} or "
                f"{fingerprint.WITH_EXCLUSIVE_RESOURCES}; {fingerprint.ALL} is taken"
            )
    annotations = metadata.annotations or {}
    digest = named.get(attributes.PODS_FINGERPRINT) or annotations.get(attributes.PODS_FINGERPRINT_ANNOTATION, "")
    if digest:
        try:
            fingerprint.check(digest)
        except ParseError as exc:
            problems.append(f"{exc}; the report is taken to have none")
            digest = ""
    return digest, method
