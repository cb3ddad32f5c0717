"""Which nodes a table has and in which order: names, `-l`, `--sort-by`."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from topowise.errors import SourceError
from topowise_scheduler.kube_scheduler import NodeObject
from topowise_scheduler.presentation.kubectl import names, zones
from topowise_scheduler.presentation.kubectl.objects import Objects, Reported
from topowise_scheduler.report import read

Labels = Mapping[str, str]

_REQUIREMENT: Final = re.compile(
    r"\s*(?:(?P<key>[^\s,!=()]+)\s*(?:(?P<operator>==?|!=)\s*(?P<value>[^\s,!=()]*)"
    r"|\s(?P<set>in|notin)\s*\((?P<values>[^()]*)\))?|!\s*(?P<absent>[^\s,!=()]+))\s*(?:,|$)"
)


def selected(options: argparse.Namespace, there: Objects) -> list[Reported]:
    """The reports that were asked for, in the order that was asked for. Raises SourceError."""
    found = list(there.reports)
    if options.names:
        known = [one.topology.metadata.name for one in found]
        wanted = names.existing_nodes(options.names, known, ", ".join(options.file) or "the cluster")
        found = [one for one in found if one.topology.metadata.name in wanted]
    among = set(labelled([one.topology.metadata.name for one in found], options.selector, there.nodes))
    return sorted((one for one in found if one.topology.metadata.name in among), key=KEYS[options.sort_by])


def labelled(found: Sequence[str], text: str, nodes: Sequence[NodeObject] | None) -> Sequence[str]:
    """Those names whose Nodes have the labels; all without a selector. Raises SourceError."""
    if not text:
        return found
    if nodes is None:
        raise SourceError("-l", "labels are those of Nodes, which the saved objects lack")
    matches = selector(text)
    labels = {node.metadata.name: node.metadata.labels or {} for node in nodes}
    return [name for name in found if matches(labels.get(name, {}))]


def selector(text: str) -> Callable[[Labels], bool]:
    """A label selector as kubectl takes it. Raises SourceError."""
    tests: list[Callable[[Labels], bool]] = []
    at = 0
    while at < len(text):
        one = _REQUIREMENT.match(text, at)
        if one is None:
            expected = "expected a selector such as a=b,c!=d,e in (f,g),h,!i"
            raise SourceError("-l", f"{text!r:.260} cannot be read at {text[at:]!r:.60}, {expected}")
        tests.append(_test(one))
        at = one.end()
    return lambda labels: all(test(labels) for test in tests)


def _test(one: re.Match[str]) -> Callable[[Labels], bool]:
    key, absent, operator, among = one["key"], one["absent"], one["operator"], one["set"]
    if absent:
        return lambda labels: absent not in labels
    if not operator and not among:
        return lambda labels: key in labels
    values = {one["value"]} if operator else {value.strip() for value in one["values"].split(",")}
    if operator == "!=" or among == "notin":
        return lambda labels: labels.get(key) not in values
    return lambda labels: labels.get(key) in values


def _free(resource: str) -> Callable[[Reported], tuple[int, str]]:
    """Most free first; devices by the number of all of them."""

    def key(one: Reported) -> tuple[int, str]:
        amounts = [
            amount.available or 0
            for _, zone in zones.zones_of(one.topology)
            for name, amount in zone.items()
            if name == resource or (resource == "devices" and "/" in name)
        ]
        return -sum(amounts), one.topology.metadata.name

    return key


def _fragmentation(one: Reported) -> tuple[int, str]:
    """The worst first."""
    lost = zones.lost(read(one.topology), [zone for _, zone in zones.zones_of(one.topology)])
    return -(lost or 0), one.topology.metadata.name


KEYS: Final[dict[str, Callable[[Reported], tuple[int, str] | tuple[str, ...]]]] = {
    "name": lambda one: (one.topology.metadata.name,),
    "cpu": _free("cpu"),
    "memory": _free("memory"),
    "devices": _free("devices"),
    "fragmentation": _fragmentation,
    # The oldest first.
    "changed": lambda one: (one.changed, one.topology.metadata.name),
}
