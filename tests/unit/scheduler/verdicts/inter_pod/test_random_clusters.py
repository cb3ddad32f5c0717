"""An index after random events gives kube-scheduler's answers, computed pod by pod from the objects alone."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from constrained_pods import NAMESPACES, apply, decode, node_json, pod_json, refusal
from examples import examples
from topowise_scheduler.ledger.nodes import Nodes
from topowise_scheduler.verdicts.inter_pod import InterPodIndex

Json = dict[str, Any]


class Cluster:
    """Nodes and pods as objects, and the index that saw each of their events."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.nodes: dict[str, Json] = {}
        self.pods: dict[str, Json] = {}
        self.ledger_nodes = Nodes()
        self.index = InterPodIndex(self.ledger_nodes, NAMESPACES.get)
        self._number = 0

    def event(self) -> None:
        """A random event of a node or a pod."""
        random = self.random
        if len(self.nodes) < 4 or random.random() < 0.1:
            name = f"n{random.randrange(8)}"
            self.nodes[name] = node_json(random, name)
            apply(self.ledger_nodes, self.nodes[name])
        elif random.random() < 0.05:
            apply(self.ledger_nodes, self.nodes.pop(random.choice(list(self.nodes))), "DELETED")
        elif self.pods and random.random() < 0.4:
            self._change(random.choice(list(self.pods)))
        else:
            self._number += 1
            self._create(f"p{self._number}")

    def _create(self, name: str) -> None:
        """A pod comes, is placed and is bound, or stays pending."""
        random, pod = self.random, pod_json(self.random, name, rate=0.3)
        self.index.put(decode(pod))
        if random.random() < 0.2:
            return
        node = random.choice([*self.nodes, "gone"])
        if random.random() < 0.5:
            self.index.place(name, node)
            self.index.put(decode(pod))
        pod["spec"]["nodeName"] = node
        self.pods[name] = pod
        if random.random() < 0.5:
            self.index.put(decode(pod))
        else:
            self.index.place(name, node)

    def _change(self, name: str) -> None:
        random, pod = self.random, self.pods[name]
        match random.randrange(5):
            case 0:
                pod["metadata"]["deletionTimestamp"] = "2026-11-28T12:00:00Z"
            case 1:
                pod["metadata"]["labels"] = pod_json(random, name)["metadata"]["labels"]
            case 2:
                self.index.drop(name)
                del self.pods[name]
                return
            case 3:
                self.index.withdraw(name)
                if self.index.request_of(name) is not None:
                    del self.pods[name]
                return
            case 4:
                pod["status"] = {"phase": "Succeeded"}
                del self.pods[name]
        self.index.put(decode(pod))

    def expected(self, pod: Json) -> list[str]:
        nodes, pods = list(self.nodes.values()), list(self.pods.values())
        return [refusal(pod, node, nodes, pods) for node in nodes]


@pytest.mark.parametrize("seed", range(examples(6)))
def test_the_answers_are_those_of_the_objects(seed: int) -> None:
    cluster = Cluster(seed)
    for number in range(150):
        cluster.event()
        pod = pod_json(cluster.random, f"q{number}", rate=0.6)
        request = cluster.index.request(decode(pod))
        verdicts = cluster.index.verdicts(request, list(cluster.nodes))
        objections = [verdicts.objection(at) for at in range(len(cluster.nodes))]
        assert ["" if found is None else found.words for found in objections] == cluster.expected(pod)
        assert verdicts.allowed() == [name for name, found in zip(cluster.nodes, objections, strict=True) if not found]
        some = cluster.random.sample(verdicts.allowed(), len(verdicts.allowed()) // 2)
        assert cluster.index.verdicts(request, some).allowed() == some
        assert verdicts.words().total() == len(cluster.nodes) - len(verdicts.allowed())


@pytest.mark.parametrize("seed", range(examples(4)))
def test_a_trial_is_an_index_with_its_pods(seed: int) -> None:
    cluster = Cluster(100 + seed)
    for _ in range(60):
        cluster.event()
    before = len(cluster.index)
    trial = cluster.index.trial()
    for number in range(40):
        pod, node = pod_json(cluster.random, f"t{number}"), cluster.random.choice(list(cluster.nodes))
        request = cluster.index.request(decode(pod))
        verdicts = trial.verdicts(request, list(cluster.nodes))
        found = [verdicts.objection(at) for at in range(len(cluster.nodes))]
        assert ["" if item is None else item.words for item in found] == cluster.expected(pod)
        match cluster.random.randrange(4):
            case 0 if assigned := [name for name in cluster.pods if not name.startswith("t")]:
                name = cluster.random.choice(assigned)
                trial.remove(name)
                del cluster.pods[name]
            case 1:
                trial.place(request, node)
                trial.take_back(request, node)
            case _:
                trial.place(request, node)
                cluster.pods[pod["metadata"]["name"]] = {**pod, "spec": {**pod["spec"], "nodeName": node}}
    assert len(cluster.index) == before
