"""Victims of all nodes for a pod that waits for its alignment alone: against every set of pods on every node."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from itertools import combinations
from random import Random
from typing import Any

import msgspec
import pytest

from examples import examples
from sandbox.exported import exported
from scheduling import Service, configuration, machine, pod
from topowise import pods
from topowise_scheduler.controllers.alignment import AlignmentPreemption, Victims
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.ledger.budgets import Budgets
from topowise_scheduler.verdicts import kube_scheduler

POLICIES = ("best-effort", "restricted", "single-numa-node", "single-numa-node")
WAITS = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]
Harm = tuple[int, int, int, float]


class Nodes:
    """Some nodes with pods of several priorities on them: as the service knows them, and the kubelets themselves."""

    def __init__(self, rng: Random) -> None:
        self.service = Service("TightFit")
        self.kubelets: dict[str, Kubelet] = {}
        self.pods: dict[str, dict[str, Any]] = {}
        for number in range(rng.randint(2, 4)):
            self._add(rng, f"n{number}")
        self.service.clock.now += 1000
        self.service.ledger.tick()

    def _add(self, rng: Random, name: str) -> None:
        settings = configuration(
            topologyManagerPolicy=rng.choice(POLICIES), topologyManagerScope=rng.choice(("container", "pod"))
        )
        node = Kubelet(machine(), settings)
        for at in range(rng.randint(2, 7)):
            started = f"2026-01-0{rng.randint(1, 9)}T00:00:00Z"
            document = pod(f"{name}-{at}", str(rng.randint(1, 2)), "1Gi", node=name, priority=rng.randint(0, 3))
            document["status"] = {"phase": "Running", "startTime": started}
            if node.admit(typed(document)).admitted:
                self.pods[document["metadata"]["uid"]] = document
        made = exported(machine(), settings, node, lambda uid: ("default", uid.removeprefix("uid-")))
        self.service.report(msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, name=name)))
        self.service.put_node(name)
        for uid in node.active:
            self.service.put(self.pods[uid], is_news=False)
        self.kubelets[name] = node

    def choose(self, wanted: dict[str, Any]) -> Victims | None:
        service = self.service
        alignment = AlignmentPreemption(service.trial, Budgets())
        asked = kube_scheduler.decode(json.dumps(wanted).encode())
        return asyncio.run(alignment.choose(asked, 10, ()))

    def fits(self, name: str, wanted: dict[str, Any], without: tuple[str, ...] = ()) -> bool:
        copy = self.kubelets[name].fork()
        for uid in without:
            copy.remove(uid)
        return copy.admit(typed(wanted)).admitted

    def lacks_alignment_alone(self, name: str, wanted: dict[str, Any]) -> bool:
        used = sum(int(self._cpus(uid)) for uid in self.kubelets[name].active)
        return used + int(wanted["spec"]["containers"][0]["resources"]["limits"]["cpu"]) <= 8

    def _cpus(self, uid: str) -> str:
        return str(self.pods[uid]["spec"]["containers"][0]["resources"]["limits"]["cpu"])

    def harm(self, uids: tuple[str, ...]) -> Harm:
        """As kube-scheduler compares: less is better."""
        priorities = [self.pods[uid]["spec"]["priority"] for uid in uids]
        first = min(
            self.pods[uid]["status"]["startTime"]
            for uid in uids
            if self.pods[uid]["spec"]["priority"] == max(priorities)
        )
        return max(priorities), sum(one + (1 << 31) for one in priorities), len(uids), -int(first[8:10])

    def every_way(self, wanted: dict[str, Any]) -> Iterator[Harm]:
        """The harm of every set of less important pods without which it fits."""
        for name, node in self.kubelets.items():
            if not self.lacks_alignment_alone(name, wanted):
                continue
            lesser = [uid for uid in node.active if self.pods[uid]["spec"]["priority"] < wanted["spec"]["priority"]]
            for size in range(1, len(lesser) + 1):
                for uids in combinations(lesser, size):
                    if self.fits(name, wanted, uids):
                        yield self.harm(uids)


def typed(document: dict[str, Any]) -> pods.Pod:
    return pods.decode(msgspec.json.encode(document))


@pytest.mark.parametrize("seed", range(examples(2)))
def test_victims_are_never_worse_than_the_best_of_all_sets(seed: int) -> None:
    rng = Random(seed)
    for _ in range(30):
        nodes = Nodes(rng)
        wanted = pod("wanted", str(rng.randint(2, 4)), "1Gi", priority=rng.randint(1, 4), conditions=WAITS)
        found = nodes.choose(wanted)
        if any(nodes.lacks_alignment_alone(name, wanted) and nodes.fits(name, wanted) for name in nodes.kubelets):
            assert found is None
            continue
        best = min(nodes.every_way(wanted), default=None)
        if found is None:
            assert best is None
            continue
        uids = tuple(one.uid for one in found.pods)
        assert nodes.fits(found.node, wanted, uids)
        assert best is not None
        assert nodes.harm(uids) <= best
