"""Plans for small clusters: every step is what the kubelets would do, and no plan is shorter."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any

import msgspec
import pytest

from sandbox.exported import exported
from scheduling import Service, configuration, machine, pod
from steering_pods import requiring
from topowise import pods
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.ledger.budgets import Budgets
from topowise_scheduler.overlay import defrag
from topowise_scheduler.overlay.defrag import Movable, Plan
from topowise_scheduler.verdicts import kube_scheduler

POLICIES = ("best-effort", "restricted", "single-numa-node", "single-numa-node", "single-numa-node")
OWNER = [{"kind": "ReplicaSet", "controller": True}]


class Clusters:
    """Some nodes with pods on them: as the service knows them, and the kubelets themselves."""

    def __init__(self) -> None:
        self.service = Service("TightFit")
        self.nodes: dict[str, Kubelet] = {}
        self.pods: dict[str, dict[str, Any]] = {}

    def add(self, name: str, running: Sequence[dict[str, Any]], **changed: Any) -> None:
        """A node on which these pods were admitted in this order."""
        settings = configuration(**changed)
        node = Kubelet(machine(), settings)
        for document in running:
            document["spec"]["nodeName"] = name
            if node.admit(typed(document)).admitted:
                self.pods[document["metadata"]["uid"]] = document
        made = exported(machine(), settings, node, lambda uid: ("default", uid.removeprefix("uid-")))
        self.service.report(msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, name=name)))
        self.service.put_node(name)
        for uid in node.active:
            self.service.put({**self.pods[uid], "status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"}})
        self.service.clock.now += 1000
        self.service.ledger.tick()
        self.nodes[name] = node

    def movable(self, budgets: Budgets | None = None, priority: int = 0) -> tuple[list[Movable], Counter[str]]:
        running = [(found, self.service.records.record(found)) for found in map(asked, self.pods.values())]
        return defrag.sort(running, budgets or Budgets(), priority)

    def plan(self, wanted: dict[str, Any], count: int = 1, most: int = 3, budgets: Budgets | None = None) -> Plan:
        movable, _ = self.movable(budgets)
        return defrag.plan(self.service.trial, asked(wanted), count, movable, most)


def typed(document: dict[str, Any]) -> pods.Pod:
    return pods.decode(msgspec.json.encode(document))


def asked(document: dict[str, Any]) -> kube_scheduler.Pod:
    return kube_scheduler.decode(json.dumps(document).encode())


def running(name: str, cpu: int = 1, gib: int = 1, **fields: Any) -> dict[str, Any]:
    document = pod(name, str(cpu), f"{gib}Gi", **fields)
    document["metadata"].setdefault("ownerReferences", OWNER)
    return document


def tight(rng: Random, most_nodes: int, most_pods: int, most: int) -> tuple[Clusters, dict[str, Any], int, Plan]:
    """A cluster without room for so many wanted pods as it is, and the plan."""
    while True:
        clusters = random_cluster(rng, most_nodes, most_pods)
        wanted = pod("wanted", str(rng.randint(2, 4)), f"{rng.choice((1, 4, 10))}Gi")
        count = rng.randint(1, 3)
        found = clusters.plan(wanted, count, most)
        if found.already < count:
            return clusters, wanted, count, found


def random_cluster(rng: Random, most_nodes: int, most_pods: int) -> Clusters:
    made = Clusters()
    for number in range(rng.randint(2, most_nodes)):
        here = [
            running(f"p{number}{at}", rng.randint(1, 3), rng.randint(1, 5)) for at in range(rng.randint(1, most_pods))
        ]
        for document in here:
            if rng.random() < 0.15:
                document["metadata"]["ownerReferences"] = []
        made.add(
            f"n{number}",
            here,
            topologyManagerPolicy=rng.choice(POLICIES),
            topologyManagerScope=rng.choice(("container", "pod")),
        )
    return made


def replay(clusters: Clusters, wanted: dict[str, Any], found: Plan) -> None:
    """Does the steps with the kubelets themselves; each must be admitted."""
    nodes = {name: node.fork() for name, node in clusters.nodes.items()}
    there = {f"default/{one['metadata']['name']}": uid for uid, one in clusters.pods.items()}
    documents = {name: clusters.pods[uid] for name, uid in there.items()}
    for serial, step in enumerate(found.steps):
        document = documents[step.pod] if step.kind == "move" else wanted
        again = typed({**document, "metadata": {**document["metadata"], "uid": f"new-{serial}"}})
        admission = nodes[step.node].admit(again)
        assert admission.admitted, (step, admission.reason)
        if step.kind == "move":
            assert nodes[step.origin].remove(there[step.pod])
            there[step.pod] = f"new-{serial}"


def test_a_moved_pod_goes_to_the_numa_node_that_it_requires() -> None:
    """It fits on both NUMA nodes of n2; its kubelet alone would take NUMA node 0."""
    clusters = Clusters()
    mover = requiring("mover", 1, "2")
    mover["metadata"]["ownerReferences"] = OWNER
    clusters.add("n1", [mover, pod("stays", "3")])
    clusters.add("n2", [pod("a", "1", "5Gi"), pod("b", "1", "11Gi")])
    found = clusters.plan(pod("wanted", "2", "12Gi"))
    move, new = found.steps
    assert (move.pod, move.node, new.node) == ("default/mover", "n2", "n1")
    assert move.containers["c0"].numa == (1,)


class BruteForce:
    """Moves and arrivals in any order, arrivals are free: the least number of moves after which so many are there."""

    def __init__(self, clusters: Clusters, wanted: dict[str, Any], count: int) -> None:
        self._nodes = clusters.nodes
        self._movable = {one.uid: typed(clusters.pods[one.uid]) for one in clusters.movable()[0]}
        self._wanted = [typed({**wanted, "metadata": {"uid": f"w{serial}"}}) for serial in range(count)]

    def fewest(self, most: int) -> int | None:
        return next((moves for moves in range(most + 1) if self._do(self._nodes, moves, 0)), None)

    def _do(self, nodes: Mapping[str, Kubelet], moves: int, arrived: int) -> bool:
        if arrived == len(self._wanted):
            return True
        for name, node in nodes.items():
            copy = node.fork()
            if copy.admit(self._wanted[arrived]).admitted and self._do({**nodes, name: copy}, moves, arrived + 1):
                return True
        return moves > 0 and any(self._do(after, moves - 1, arrived) for after in self._moved(nodes))

    def _moved(self, nodes: Mapping[str, Kubelet]) -> Iterator[Mapping[str, Kubelet]]:
        for uid, document in self._movable.items():
            origin = next(name for name, node in nodes.items() if uid in node.active)
            for name, node in nodes.items():
                copy = node.fork()
                if name != origin and copy.admit(document).admitted:
                    left = nodes[origin].fork()
                    left.remove(uid)
                    yield {**nodes, name: copy, origin: left}


SEEDS = (*range(6), *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(6, 15)))


@pytest.mark.parametrize("seed", SEEDS)
def test_every_step_of_a_plan_is_admitted_by_the_kubelets(seed: int) -> None:
    clusters, wanted, count, found = tight(Random(seed), 5, 6, 4)
    if found.why:
        assert not found.steps
        return
    assert sum(step.kind == "new" for step in found.steps) == count
    assert 1 <= found.moves <= 4
    replay(clusters, wanted, found)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_plan_of_a_small_cluster_is_shorter(seed: int) -> None:
    clusters, wanted, count, found = tight(Random(1000 + seed), 3, 3, 2)
    fewest = BruteForce(clusters, wanted, count).fewest(2)
    assert (None if found.why else found.moves) == fewest, found
    assert found.is_least
