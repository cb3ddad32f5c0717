"""Where pods can be put and tried: the estate, with what kube-scheduler itself would look at."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from topowise import pods
from topowise_scheduler.kubectl import estate, manifests, objects
from topowise_scheduler.kubectl.estate import Estate
from topowise_scheduler.kubectl.explain import classes_for
from topowise_scheduler.kubectl.filters import Filters, overlooked
from topowise_scheduler.kubectl.manifests import Wanted


class Yard:
    """The nodes, and the wanted pods with their priorities."""

    def __init__(self, there: objects.Objects, now: float, wanted: Sequence[Wanted], strategy: str) -> None:
        self.estate = Estate(there, now, strategy, top_score=estate.FINEST)
        self.names: Sequence[str] = self.estate.names
        self.wanted = wanted
        self._serial = -1
        self._against: dict[str, str] = {}
        records = [self.estate.records.record(pod) for pod in there.pods or ()]
        self.filters = Filters(
            there.nodes,
            [
                (record.node, record.needs)
                for record in records
                if record.stage == "assigned" and record.needs is not None
            ],
        )

    def refusals(self, one: Wanted, pod: pods.Pod) -> dict[str, str]:
        """Why each node cannot have the pod, one of those wanted, "" for one that can."""
        if self._serial != one.serial:
            requests, _ = self.estate.records.requests(pod)
            self._serial = one.serial
            self._against = {name: self.filters.refusal(name, requests.needs, one.demands) for name in self.names}
        asked = [name for name, refusal in self._against.items() if not refusal]
        return {**self._against, **self.estate.refusals(pod, asked)}

    def put(self, one: Wanted, pod: pods.Pod, name: str) -> str:
        """The pod is on the node from now on; its uid there."""
        record = self.estate.assign(pod, name)
        if record.needs is not None:
            self.filters.add(name, record.needs)
            # The next one of its kind finds all other nodes as they were.
            self._against[name] = self.filters.refusal(name, record.needs, one.demands)
        return record.uid


def open_yard(options: argparse.Namespace, strategy: str = "TightFit") -> tuple[Yard, tuple[str, ...]]:
    """The yard that the options ask for, and lines for stderr. Raises SourceError."""
    wanted, notes = manifests.read(options.file, options.namespace or "default")
    there, now = estate.read(options)
    classes = classes_for(options, there, wanted)
    notes += [
        f"warning: priority class {name!r} is not known; its pods are taken to have priority 0"
        for name in manifests.unknown_classes(wanted, classes)
    ]
    notes += [
        f"note: {one.origin} asks for {', '.join(asked)}, which is not looked at here"
        for one in wanted
        if (asked := overlooked(one.spec))
    ]
    yard = Yard(there, now, [one.with_priority(classes) for one in wanted], strategy)
    if not yard.names:
        raise objects.no_nodes(options.nodes_file)
    return yard, (*notes, *yard.estate.notes)
