"""Which kubelet a report is of, and the same report once that is known better.

Two tell: our exporter, which asks the kubelet itself, in an attribute, and the Node. Either may come first, a kubelet
that is upgraded in place is seen by one before the other, and other producers' reports have the Node's word alone.
Where the two disagree, the newer one is taken, as hardly anybody goes back, and nobody takes the answer for proven.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from topowise import attributes
from topowise_scheduler.kubelet.versions import NEWEST_RECORDED, KubeletVersion, is_release, version_of
from topowise_scheduler.report.nrt_report import PageSizes, Report


class Found(NamedTuple):
    """The kubelet, and what is odd about what was reported of it ("" if nothing is)."""

    kubelet: KubeletVersion
    problem: str = ""


def choose(reported: str, node: str) -> Found:
    """The kubelet by what its exporter tells and by what its Node does; both "" if nobody has."""
    if not reported or (node and not is_release(reported)):
        found = version_of(node) if node else NEWEST_RECORDED
        return Found(found, _no_release(reported, node) if reported else "")
    mine = version_of(reported)
    if not is_release(reported):
        return Found(mine, f"{_attribute(reported)}, expected one as v1.33.5; judged as 1.{mine.minor}")
    other = version_of(node) if node and is_release(node) else mine
    if mine == other:
        return Found(mine)
    newer = max(mine, other, key=lambda one: one.minor)
    problem = f"{_attribute(reported)}, the Node says {node!r:.80}; judged as the newer, {newer.name}"
    return Found(msgspec.structs.replace(newer, certainty="assumed", remark=problem), problem)


def of_node(report: Report, node_version: str, page_sizes: PageSizes = ()) -> Report:
    """The report as it reads with this version on its Node, and these hugepages; the same object if that is what it was
    read with.

    A kubelet that would not start there is no reason to lose the report: it is judged as before, and says so.
    """
    as_read = node_version == report.node_version and page_sizes == report.page_sizes
    if as_read or report.source is None:
        return report
    kubelet, problem = choose(report.reported_version, node_version)
    empty = report.empty
    if kubelet != report.kubelet or page_sizes != report.page_sizes:
        made = report.source.empty(kubelet, page_sizes)
        if made is None:
            problem = f"kubelet {kubelet.name} would not start with what is reported; judged as {report.kubelet.name}"
            kubelet = msgspec.structs.replace(report.kubelet, certainty="assumed", remark=problem)
        else:
            empty = made
    others = [one for one in report.problems if one != report.version_problem]
    return msgspec.structs.replace(
        report,
        empty=empty,
        kubelet=kubelet,
        node_version=node_version,
        page_sizes=page_sizes,
        version_problem=problem,
        problems=(*([problem] if problem else []), *others),
    )


def _attribute(reported: str) -> str:
    return f"attribute {attributes.KUBELET_VERSION}: {reported!r:.80}"


def _no_release(reported: str, node: str) -> str:
    return f"{_attribute(reported)}, expected one as v1.33.5; the Node's {node!r:.80} is taken"
