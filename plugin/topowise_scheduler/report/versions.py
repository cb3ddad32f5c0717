"""Chooses the kubelet version of a report, and rebuilds the report when the version becomes known.

There are two sources: an attribute, for which our exporter asks the kubelet, and the Node. Either may arrive first, and
one may see an in-place upgrade before the other. Reports of other exporters have the Node's version alone. If the two
differ, the newer version counts, because downgrades are rare, and the report's certainty is "assumed".
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from topowise import attributes
from topowise_scheduler.kubelet.versions import NEWEST_RECORDED, KubeletVersion, is_release, version_of
from topowise_scheduler.report.nrt_report import PageSizes, Report


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
