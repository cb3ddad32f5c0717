"""A service that nominates, with an API server of a dictionary: what is written to a pod comes back as its event."""

from __future__ import annotations

from typing import Any

from ledger_check import check_ledger
from scheduling import Service, counts, pod
from topowise_scheduler.controllers.nominator import Cluster, Decisions, Requested
from topowise_scheduler.controllers.nominator.deciding import Write
from topowise_scheduler.ledger.pods.records import NOMINATED_ANNOTATION, PodRecord

NAME = "topowise-scheduler"
TRIED = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes are available"}]


class Nominating:
    """Nodes n1, n2 … with a zone of eight CPUs each by default."""

    def __init__(self, *free: str, strategy: str = "TightFit", needs_burst: bool = False, ahead: int = 1000) -> None:
        self.service = Service(strategy, nominates=[NAME])
        self.ledger = self.service.ledger
        self.clock = self.service.clock
        self.pods: dict[str, dict[str, Any]] = {}
        self._version = 100
        for number, cpus in enumerate(free, 1):
            self.service.report(counts(f"n{number}", cpus, included=(), version="1"))
            self.node(f"n{number}")
        cluster = Cluster(self.ledger, self.service.answers, self.service.nodes, Requested(self.ledger))
        self.decisions = Decisions(cluster, self.clock, needs_burst=needs_burst, ahead=ahead)

    def node(self, name: str, spec: dict[str, Any] | None = None, **fields: Any) -> None:
        self.service.put_node(name, spec, **fields)
        self.ledger.reports.put_node(name)

    def put(self, name: str, cpu: str = "2", **fields: Any) -> PodRecord:
        """Applies a new or changed pod; fields that are not given stay as they were."""
        self._version += 1
        before = self.pods.get(name, {"cpu": cpu, "schedulerName": NAME, "creationTimestamp": "2026-01-01T00:00:00Z"})
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

    def next(self) -> tuple[str, str] | None:
        """What is to be written, which it is not yet."""
        write = self.decisions.next()
        check_ledger(self.ledger)
        return None if write is None else (write.record.name, write.node)

    def write(self) -> tuple[str, str] | None:
        """Writes the next nomination as the API server would, and returns its pod and node."""
        write = self.decisions.next()
        check_ledger(self.ledger)
        if write is None:
            return None
        self.apply(write)
        return write.record.name, write.node

    def apply(self, write: Write) -> bool:
        """Returns whether the API server takes it."""
        name = write.record.name
        if name not in self.pods or self.pods[name]["resourceVersion"] != write.record.version:
            return False
        self.put(name, nominatedNodeName=write.node, annotations={NOMINATED_ANNOTATION: write.node})
        return True

    def write_all(self) -> dict[str, str]:
        """Waits until there is nothing left to do."""
        claims_by_pod = {}
        while (written := self.write()) is not None:
            claims_by_pod[written[0]] = written[1]
        return claims_by_pod

    def nominated(self) -> dict[str, str]:
        """As the ledger believes."""
        return {uid.removeprefix("uid-"): state.nominated for uid, state in self.ledger.pods if state.nominated}
