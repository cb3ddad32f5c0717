"""A service that places gated pods, with an API server of a dictionary: what is written to a pod comes back as its
event."""

from __future__ import annotations

from typing import Any

from ledger_check import check_ledger
from scheduling import Service, counts, pod
from topowise.placement import DECISION, GATE, PLACED_ON
from topowise_scheduler.controllers.placement.deciding import Decisions, Write
from topowise_scheduler.controllers.placement.writing import patch
from topowise_scheduler.ledger.pods.records import PodRecord

GATED = {"schedulingGates": [{"name": GATE}]}


class Placing:
    """Nodes n1, n2 … with a zone of so many free CPUs each."""

    def __init__(self, *free: str, strategy: str = "TightFit", **options: Any) -> None:
        self.service = Service(strategy, places=True)
        self.ledger = self.service.ledger
        self.clock = self.service.clock
        self.pods: dict[str, dict[str, Any]] = {}
        self._version = 100
        for number, cpus in enumerate(free, 1):
            self.service.report(counts(f"n{number}", cpus, included=(), version="1"))
            self.node(f"n{number}")
        self.decisions = Decisions(self.service.trial, self.clock, **options)

    def node(self, name: str, spec: dict[str, Any] | None = None, **fields: Any) -> None:
        self.service.put_node(name, spec, **fields)
        self.ledger.reports.put_node(name)

    def put(self, name: str, cpu: str = "2", **fields: Any) -> PodRecord:
        """Applies a new or changed pod, gated at first; fields that are not given stay as they were."""
        self._version += 1
        before = self.pods.get(name, {"cpu": cpu, "creationTimestamp": "2026-01-01T00:00:00Z", **GATED})
        self.pods[name] = {**before, **fields, "resourceVersion": str(self._version)}
        return self.event(name)

    def event(self, name: str) -> PodRecord:
        """Applies the pod's present state as a watch event again."""
        return self.service.put(pod(name, **self.pods[name]))

    def delete(self, name: str) -> None:
        del self.pods[name]
        self.ledger.drop_pod(f"uid-{name}")

    def bind(self, name: str, node: str) -> None:
        self.put(name, node=node)

    def next(self) -> list[Write]:
        """What is to be written, which it is not yet."""
        steps = self.decisions.steps()
        try:
            while True:
                next(steps)
        except StopIteration as end:
            check_ledger(self.ledger)
            writes: list[Write] = end.value
            return writes

    def apply(self, write: Write) -> bool:
        """Writes as the API server would. Returns whether it takes the write."""
        name = write.record.name
        if name not in self.pods or self.pods[name]["resourceVersion"] != write.record.status.version:
            self.ledger.retract(write.record.uid)
            return False
        body = patch(write, write.record.status.version)
        annotations = {**self.pods[name].get("annotations", {}), **body["metadata"]["annotations"]}
        changes = {"annotations": annotations, "schedulingGates": body["spec"]["schedulingGates"]}
        if "affinity" in body["spec"]:
            changes["affinity"] = {**self.pods[name].get("affinity", {}), **body["spec"]["affinity"]}
        self.put(name, **changes)
        check_ledger(self.ledger)
        return True

    def place_all(self) -> dict[str, str]:
        """Writes until there is nothing left to do; the node of each pod."""
        nodes = {}
        while writes := self.next():
            for write in writes:
                self.apply(write)
                nodes[write.record.name] = write.node
        return nodes

    def decisions_of(self, *names: str) -> set[str]:
        """The annotations by which pods of a group know each other."""
        return {self.pods[name]["annotations"].get(DECISION, "") for name in names}

    def placed(self) -> dict[str, str]:
        """By pod, the node in its annotation."""
        return {name: pod["annotations"][PLACED_ON] for name, pod in self.pods.items() if "annotations" in pod}
