"""Selects and sorts the nodes of a table: names, `-l`, `--sort-by`."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from topowise.errors import SourceError
from topowise_scheduler.kubectl import names, zones
from topowise_scheduler.kubectl.fragmentation import Losses
from topowise_scheduler.kubectl.objects import Objects, Reported
from topowise_scheduler.report import read
from topowise_scheduler.verdicts.kube_scheduler import NodeObject

Labels = Mapping[str, str]

_REQUIREMENT: Final = re.compile(
    r"\s*(?:(?P<key>[^\s,!=()]+)\s*(?:(?P<operator>==?|!=)\s*(?P<value>[^\s,!=()]*)"
    r"|\s(?P<set>in|notin)\s*\((?P<values>[^()]*)\))?|!\s*(?P<absent>[^\s,!=()]+))\s*(?:,|$)"
)


def selected(options: argparse.Namespace, there: Objects, losses: Losses) -> list[Reported]:
    """The selected reports in the requested order. Raises SourceError."""
    reports = list(there.reports)
    if options.names:
        known = [report.topology.metadata.name for report in reports]
        names_ = names.existing_nodes(options.names, known, ", ".join(options.file) or "the cluster")
        reports = [report for report in reports if report.topology.metadata.name in names_]
    among = set(labelled([report.topology.metadata.name for report in reports], options.selector, there.nodes))
    reports = [report for report in reports if report.topology.metadata.name in among]
    if options.sort_by == "fragmentation":
        # The most fragmented first; reports are in the order of names.
        return sorted(reports, key=lambda report: -(losses.of(read(report.topology)).loss or 0))
    return sorted(reports, key=KEYS[options.sort_by])


def labelled(node_names: Sequence[str], text: str, nodes: Sequence[NodeObject] | None) -> Sequence[str]:
    """The names of Nodes with the labels; all names without a selector. Raises SourceError."""
    if not text:
        return node_names
    if nodes is None:
        raise SourceError("-l", "the saved objects have no Nodes, whose labels it selects")
    matches = selector(text)
    labels = {node.metadata.name: node.metadata.labels or {} for node in nodes}
    return [name for name in node_names if matches(labels.get(name, {}))]


def selector(text: str) -> Callable[[Labels], bool]:
    """A label selector as kubectl takes it. Raises SourceError."""
    tests: list[Callable[[Labels], bool]] = []
    at = 0
    while at < len(text):
        requirement = _REQUIREMENT.match(text, at)
        if requirement is None:
            expected = "expected a selector such as a=b,c!=d,e in (f,g),h,!i"
            raise SourceError("-l", f"{text!r:.260} cannot be read at {text[at:]!r:.60}, {expected}")
        tests.append(_test(requirement))
        at = requirement.end()
    return lambda labels: all(test(labels) for test in tests)


def _test(requirement: re.Match[str]) -> Callable[[Labels], bool]:
    key, absent, operator, among = (
        requirement["key"],
        requirement["absent"],
        requirement["operator"],
        requirement["set"],
    )
    if absent:
        return lambda labels: absent not in labels
    if not operator and not among:
        return lambda labels: key in labels
    values = {requirement["value"]} if operator else {value.strip() for value in requirement["values"].split(",")}
    if operator == "!=" or among == "notin":
        return lambda labels: labels.get(key) not in values
    return lambda labels: labels.get(key) in values


def _free(resource: str) -> Callable[[Reported], tuple[int, str]]:
    """A sort key: most free first; devices by the number of all kinds."""

    def key(report: Reported) -> tuple[int, str]:
        amounts = [
            amount.available or 0
            for _, zone in zones.zones_of(report.topology)
            for name, amount in zone.items()
            if name == resource or (resource == "devices" and "/" in name)
        ]
        return -sum(amounts), report.topology.metadata.name

    return key


KEYS: Final[dict[str, Callable[[Reported], tuple[int, str] | tuple[str, ...]]]] = {
    "name": lambda report: (report.topology.metadata.name,),
    "cpu": _free("cpu"),
    "memory": _free("memory"),
    "devices": _free("devices"),
    # The oldest first.
    "changed": lambda report: (report.changed, report.topology.metadata.name),
}
