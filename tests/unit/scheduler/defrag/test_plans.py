"""Plans for small clusters: every step is what the kubelets would do, and no plan is shorter."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from itertools import product
from random import Random
from typing import Any

import msgspec
import pytest

from sandbox.exported import exported
from scheduling import Service, configuration, machine, pod
from topowise import pods
from topowise_scheduler import defrag, kube_scheduler
from topowise_scheduler.defrag import Movable, Plan
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.preemption import Budgets, decode_budget

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
        running = [
            (found, self.service.records.record(found)) for found in map(asked, self.pods.values())
        ]
        return defrag.sort(running, budgets or Budgets(), priority)

    def plan(self, wanted: dict[str, Any], count: int = 1, most: int = 3, budgets: Budgets | None = None) -> Plan:
        movable, _ = self.movable(budgets)
        return defrag.plan(self.service.answers, self.service.view, asked(wanted), count, movable, most)


def typed(document: dict[str, Any]) -> pods.Pod:
    return pods.decode(msgspec.json.encode(document))


def asked(document: dict[str, Any]) -> kube_scheduler.Pod:
    return kube_scheduler.decode(json.dumps(document).encode())


def running(name: str, cpu: int = 1, gib: int = 1, **fields: Any) -> dict[str, Any]:
    document = pod(name, str(cpu), f"{gib}Gi", **fields)
    document["metadata"].setdefault("ownerReferences", OWNER)
    return document


def random_cluster(rng: Random, most_nodes: int, most_pods: int) -> Clusters:
    made = Clusters()
    for number in range(rng.randint(2, most_nodes)):
        here = [running(f"p{number}{at}", rng.randint(1, 3), rng.randint(1, 6)) for at in range(rng.randint(0, most_pods))]
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
    by_name = {f"default/{one['metadata']['name']}": uid for uid, one in clusters.pods.items()}
    for serial, step in enumerate(found.steps):
        document = clusters.pods[by_name[step.pod]] if step.kind == "move" else wanted
        again = typed({**document, "metadata": {**document["metadata"], "uid": f"new-{serial}"}})
        admission = nodes[step.node].admit(again)
        assert admission.admitted, (step, admission.reason)
        if step.kind == "move":
            uid = next(uid for uid in (f"{by_name[step.pod]}", *nodes[step.origin].active) if uid in nodes[step.origin].active)
            assert uid == by_name[step.pod]
            assert nodes[step.origin].remove(uid)


def fewest_by_brute_force(clusters: Clusters, wanted: dict[str, Any], count: int, most: int) -> int | None:
    """The least number of moves after which so many fit, of all there are."""
    movable = [one.uid for one in clusters.movable()[0]]

    def room(nodes: dict[str, Kubelet]) -> int:
        found = 0
        for node in nodes.values():
            copy = node.fork()
            while found < count and copy.admit(typed({**wanted, "metadata": {"uid": f"w{found}"}})).admitted:
                found += 1
        return found

    for moves in range(most + 1):
        for sequence in product(product(movable, clusters.nodes), repeat=moves):
            nodes = {name: node.fork() for name, node in clusters.nodes.items()}
            for uid, name in sequence:
                origin = next(one for one, node in nodes.items() if uid in node.active)
                if origin == name or not nodes[name].admit(typed(clusters.pods[uid])).admitted:
                    break
                nodes[origin].remove(uid)
            else:
                if room(nodes) >= count:
                    return moves
    return None


@pytest.mark.parametrize("seed", range(120))
def test_every_step_of_a_plan_is_admitted_by_the_kubelets(seed: int) -> None:
    rng = Random(seed)
    clusters = random_cluster(rng, 5, 7)
    wanted = pod("wanted", str(rng.randint(2, 4)), f"{rng.choice((1, 4, 10))}Gi")
    count = rng.randint(1, 3)
    found = clusters.plan(wanted, count, most=4)
    if found.why:
        assert not found.steps
        return
    assert sum(step.kind == "new" for step in found.steps) == count
    assert found.moves <= 4
    replay(clusters, wanted, found)


@pytest.mark.parametrize("seed", range(60))
def test_no_plan_of_a_small_cluster_is_shorter(seed: int) -> None:
    rng = Random(1000 + seed)
    clusters = random_cluster(rng, 3, 3)
    wanted = pod("wanted", str(rng.randint(2, 4)), f"{rng.choice((1, 4, 10))}Gi")
    count = rng.randint(1, 2)
    found = clusters.plan(wanted, count, most=2)
    fewest = fewest_by_brute_force(clusters, wanted, count, 2)
    assert (None if found.why else found.moves) == fewest, found
    assert found.is_least
