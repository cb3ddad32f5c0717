"""An NRT object of any exporter becomes a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from topowise import attributes, fingerprint, nrt, placement
from topowise.attributes import doubts
from topowise.errors import ParseError, TopowiseError
from topowise.fingerprint import Method
from topowise_scheduler.report import counted, exact, koordlet, versions
from topowise_scheduler.report.model import PageSizes, Report

_LONGEST_BOOT_ID: Final = 64
_MAX_PROBLEMS: Final = 16
_MAX_LENGTH: Final = 500


def read(
    topology: nrt.NodeResourceTopology,
    node_version: str = "",
    page_sizes: PageSizes = (),
    before: Report | None = None,
) -> Report:
    """The node as the object tells it; `node_version` is the Node's kubeletVersion, "" if it is not known yet,
    `page_sizes` the hugepages that it lists, and `before` the node's last report, whose parts are taken over as far as
    they are the same.

    Nothing in an object is an error; `problems` say what could not be used.
    """
    problems: list[str] = []
    if koordlet.wrote(topology):
        topology = koordlet.translated(topology, problems)
    named = nrt.attributes_of(topology.attributes)
    zones = nrt.numa_zones(topology)
    reported_version = named.get(attributes.KUBELET_VERSION, "")[:_MAX_LENGTH]
    kubelet, version_problem = versions.choose(reported_version, node_version)
    if version_problem:
        problems.append(version_problem)
    digest, method = _fingerprint(topology, named, problems)
    if exact.is_ours(named):
        try:
            found = exact.read(named, zones, kubelet, before)
        except (TopowiseError, ValueError) as exc:
            problems.append(f"{exc}; the node is predicted from counts")
        else:
            return Report(
                name=topology.metadata.name,
                version=topology.metadata.resourceVersion,
                precision="exact",
                empty=found.empty,
                held=found.held.pods,
                marks=found.held.marks,
                free=found.free,
                places=found.places,
                fingerprint=digest,
                fingerprint_method=method,
                admitting=doubts.read_pods(named),
                unconfirmed=doubts.read_reasons(named),
                boot_id=named.get(attributes.BOOT_ID, "")[:_LONGEST_BOOT_ID],
                problems=_bounded((*problems, *found.problems)),
                kubelet=kubelet,
                reported_version=reported_version,
                node_version=node_version,
                page_sizes=page_sizes,
                version_problem=version_problem,
                source=found.source,
            )
    problems += [
        f"zone {zone.name!r:.80}: expected a name node-<id>; the zone is left out"
        for zone in topology.zones or ()
        if zone.type == nrt.ZONE_TYPE and nrt.zone_id(zone.name) is None
    ]
    simple = counted.read(topology, named, zones, kubelet, page_sizes, problems)
    return Report(
        name=topology.metadata.name,
        version=topology.metadata.resourceVersion,
        precision="counts",
        empty=simple.empty,
        occupants=simple.occupants,
        offsets=_offsets(named, zones, problems),
        fingerprint=digest,
        fingerprint_method=method,
        admitting=doubts.read_pods(named),
        unconfirmed=doubts.read_reasons(named),
        boot_id=named.get(attributes.BOOT_ID, "")[:_LONGEST_BOOT_ID],
        problems=_bounded(problems),
        kubelet=kubelet,
        reported_version=reported_version,
        node_version=node_version,
        page_sizes=page_sizes,
        version_problem=version_problem,
        source=simple.source,
        knows_policy=simple.source.policies.is_known,
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


def _fingerprint(
    topology: nrt.NodeResourceTopology, named: Mapping[str, str], problems: list[str]
) -> tuple[str, Method]:
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
    annotations = topology.metadata.annotations or {}
    digest = named.get(attributes.PODS_FINGERPRINT) or annotations.get(attributes.PODS_FINGERPRINT_ANNOTATION, "")
    if digest:
        try:
            fingerprint.check(digest)
        except ParseError as exc:
            problems.append(f"{exc}; the report is taken to have none")
            digest = ""
    return digest, method
