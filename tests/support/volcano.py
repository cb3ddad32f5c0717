"""Requests of Volcano's extender plug-in: recorded requests, with the pods and nodes of a test."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from scheduling import Service, sent
from topowise_scheduler.configuration import Scoring
from topowise_scheduler.ledger.budgets import Budgets
from topowise_scheduler.serve.extender.replies import NotReady, Verb
from topowise_scheduler.serve.volcano.allocations import Allocations, Victims
from topowise_scheduler.serve.volcano.verbs import Verbs, table
from topowise_scheduler.verdicts import strategies

RECORDED: Final = Path(__file__).parents[1] / "unit" / "scheduler" / "serve" / "volcano" / "recorded"
_SENT: Final = json.loads((RECORDED / "02-predicate.json").read_bytes())

PENDING, ALLOCATED, PIPELINED, RUNNING, RELEASING = 1, 2, 4, 32, 64


def task(pod: dict[str, Any], *, node: str = "", status: int = PENDING) -> dict[str, Any]:
    """TaskInfo of a pod."""
    document: dict[str, Any] = copy.deepcopy(_SENT["task"])
    meta = pod["metadata"]
    document.update(
        UID=meta["uid"], Name=meta["name"], Namespace=meta["namespace"], NodeName=node, Status=status, Pod=pod
    )
    if status == ALLOCATED:
        # As Statement.Allocate does.
        document["Pod"] = {**pod, "spec": {**pod["spec"], "nodeName": node}}
    return document


def node_info(name: str, tasks: Iterable[dict[str, Any]] = ()) -> dict[str, Any]:
    """NodeInfo of a node."""
    document: dict[str, Any] = copy.deepcopy(_SENT["node"])
    document["Name"] = document["Node"]["metadata"]["name"] = name
    document["Tasks"] = {task_of_node["UID"]: task_of_node for task_of_node in tasks}
    return document


def serving(service: Service, *, strategy: str = "NUMAAware", not_ready: NotReady = lambda: None) -> dict[str, Verb]:
    """Returns the verbs put together as the daemon does."""
    allocations = Allocations(service.ledger, service.clock)
    victims = Victims(service.trial, allocations, Budgets())
    chosen = strategies.make(strategy, {}, Scoring())
    return table(Verbs(service.trial, service.records, allocations, victims, chosen, not_ready))


class Volcano:
    """A session that says what it does as the plug-in does."""

    def __init__(self, service: Service, **options: Any) -> None:
        self._verbs = serving(service, **options)

    def ask(self, verb: str, document: Any) -> Any:
        handled = self._verbs[verb].now
        assert handled is not None
        return sent(handled(json.dumps(document).encode()))

    def predicate(self, pod: dict[str, Any], name: str) -> tuple[int, str]:
        """Returns the status code and the message."""
        answer = self.ask("predicate", {"task": task(pod), "node": node_info(name)})
        return answer["code"], answer["status"]

    def fits(self, pod: dict[str, Any], name: str) -> bool:
        return self.predicate(pod, name) == (0, "")

    def scores(self, pod: dict[str, Any], *names: str) -> dict[str, float]:
        answer = self.ask("prioritize", {"task": task(pod), "nodes": [node_info(name) for name in names]})
        assert answer["errorMessage"] == ""
        return dict(answer["nodeScore"])

    def allocate(self, pod: dict[str, Any], name: str, status: int = ALLOCATED) -> str:
        return str(self.ask("allocateFunc", {"task": task(pod, node=name, status=status)})["errorMessage"])

    def deallocate(self, pod: dict[str, Any], name: str, status: int = PENDING) -> str:
        return str(self.ask("deallocateFunc", {"task": task(pod, node=name, status=status)})["errorMessage"])

    def evictable(self, pod: dict[str, Any], name: str, *evictees: dict[str, Any]) -> tuple[int, list[str]]:
        """Returns the vote and the names of the victims."""
        offered = [task(evictee, node=name, status=RUNNING) for evictee in evictees]
        answer = self.ask("preemptable", {"evictor": task(pod), "evictees": offered})
        assert all(victim in offered for victim in answer["victims"])
        return answer["status"], [victim["Name"] for victim in answer["victims"]]
