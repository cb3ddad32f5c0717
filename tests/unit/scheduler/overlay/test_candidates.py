"""Placing pods on an overlay equals asking the extender pod by pod, with each pod booked before the next question."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest

import random_nodes
from decision_trace import nodes_of
from examples import examples
from scheduling import Service, configuration, container, exact, kubelet, pod
from switched import GPU, NIC, hardware, published
from topowise import nrt
from topowise.nrt import NodeResourceTopology
from topowise_scheduler import report
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.ledger.gates.gate import FITS
from topowise_scheduler.options.device_affinity.affinity_terms import ANNOTATION
from topowise_scheduler.overlay.candidates import Classes
from topowise_scheduler.overlay.overlay import Overlay, Placement
from topowise_scheduler.overlay.simulated_ledger import SimulatedLedger
from topowise_scheduler.verdicts import kube_scheduler
from topowise_scheduler.verdicts.engine import Engine
from topowise_scheduler.verdicts.kube_scheduler import NodeObject, Pod
from topowise_scheduler.verdicts.strategy_names import NAMES

NOW = 1_700_000_000.0


def random_cluster(rng: Random) -> Iterator[NodeResourceTopology]:
    """Some nodes, of which some are alike."""
    nodes = [node for _, node in nodes_of(rng, 3)]
    for number in range(rng.randint(2, 8)):
        topology = nrt.decode(rng.choice(nodes).report())
        yield msgspec.structs.replace(topology, metadata=nrt.Metadata(f"n{number}"))


def switched_nodes(rng: Random) -> Iterator[NodeResourceTopology]:
    """Nodes with GPUs and NICs at PCIe switches."""
    devices = {f"{letter}{number}": number % 2 for number in range(4) for letter in "gn"}
    for number in range(rng.randint(2, 5)):
        config = configuration(topologyManagerPolicy=rng.choice(("best-effort", "single-numa-node")))
        switches = {device: rng.randrange(2) + 2 * numa for device, numa in devices.items()}
        node = Kubelet(hardware(devices), config)
        yield published(node, config, devices, switches, f"n{number}")


def placed_by(placing: Generator[None, None, Placement | None]) -> Placement | None:
    """Takes all steps."""
    while True:
        try:
            next(placing)
        except StopIteration as end:
            placed: Placement | None = end.value
            return placed


class Clusters:
    """The same random nodes twice: under an overlay, and in a ledger in which each pod is really bound."""

    def __init__(self, rng: Random, strategy: str) -> None:
        self.rng = rng
        self.base, self.real = SimulatedLedger(strategy), SimulatedLedger(strategy)
        self.names = []
        for topology in switched_nodes(rng) if rng.random() < 0.3 else random_cluster(rng):
            name = topology.metadata.name
            amounts = {"cpu": "64", "memory": rng.choice(("900Gi", "900Gi", "9Gi")), "pods": "110"}
            amounts |= dict.fromkeys((random_nodes.GPU, random_nodes.NIC, random_nodes.FPGA, GPU, NIC), "64")
            status = {"allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
            document = msgspec.convert({"metadata": {"name": name}, "status": status}, NodeObject)
            for ledger in (self.base, self.real):
                ledger.fill((), [document], NOW, lambda _: 0.0)
                ledger.put_report(report.read(topology, *ledger.kubelet_of_node(name)))
            self.names.append(name)
        self.classes = Classes(self.base.trial, self.names)
        self.overlay = Overlay(self.base.trial)
        self.kinds = [self.kind(number) for number in range(3)]
        self.placed = 0

    def kind(self, number: int) -> Pod:
        document = msgspec.to_builtins(random_nodes.pod(self.rng, ""))
        document["metadata"]["name"] = f"kind{number}"
        if self.rng.random() < 0.5:
            amounts = {"cpu": "1", "memory": "1Gi", GPU: "1", NIC: "1"}
            document["spec"] = {"containers": [container(amounts)]}
            document["metadata"]["annotations"] = {ANNOTATION: f"prefer {GPU},{NIC}: pcie-switch"}
        return msgspec.convert(document, Pod)

    def chosen(self, wanted: Pod) -> Placement | None:
        """Where the candidates place a pod."""
        record = self.base.trial.record(wanted)
        return placed_by(self.classes.of(wanted, record).placing(self.overlay, record))

    def try_in_vain(self) -> None:
        """Places some pods on an overlay that is thrown away."""
        kept = self.overlay
        for _ in range(self.rng.randint(1, 5)):
            placed = self.chosen(self.rng.choice(self.kinds))
            self.overlay = kept if placed is None else placed.overlay
        self.overlay = kept

    def best(self, wanted: Pod) -> str:
        """The best node by the verdicts and scores of a ledger with all pods before, "" if no node takes the pod."""
        trial = self.real.trial
        question = trial.question(wanted, self.names)
        accepted = np.array([refusal is None for _, refusal in trial.refusals(question.record, self.names)], np.bool_)
        fits = (trial.answers.verdicts(question).outcomes == FITS) & accepted
        best = trial.answers.best(question, np.flatnonzero(fits), 1)
        assert best.size == fits.any(), "every node has a report"
        return self.names[int(best[0])] if best.size else ""

    def bind(self, placed: Placement) -> None:
        self.placed += 1
        record = msgspec.structs.replace(placed.record, uid=f"pod{self.placed}", name=f"pod{self.placed}")
        self.real.bind(record, placed.node, steered=placed.record.steered)


@pytest.mark.parametrize("strategy", NAMES)
@pytest.mark.parametrize("seed", range(examples(6)))
def test_each_pod_goes_to_the_node_that_is_best_after_the_pods_before(strategy: str, seed: int) -> None:
    clusters = Clusters(Random(f"{strategy}{seed}"), strategy)
    for _ in range(24):
        if clusters.rng.random() < 0.2:
            clusters.try_in_vain()
        wanted = clusters.rng.choice(clusters.kinds)
        placed = clusters.chosen(wanted)
        assert clusters.best(wanted) == ("" if placed is None else placed.node)
        if placed is not None:
            clusters.overlay = placed.overlay
            clusters.bind(placed)


def test_a_pod_of_a_batch_costs_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first verdicts of all nodes, a pod is tried on its node, and that node is judged again."""
    judged = tried = 0
    verdicts, forks = Engine._renewing, Kubelet.fork

    def judging(self: Engine, cached: Any, requests: Any, rows: Any) -> Any:
        nonlocal judged
        judged += len(rows)
        return verdicts(self, cached, requests, rows)

    def forking(self: Kubelet) -> Kubelet:
        nonlocal tried
        tried += 1
        return forks(self)

    service = Service("TightFit")
    for number in range(100):
        service.report(exact(kubelet(), name=f"n{number}"))
    wanted = kube_scheduler.decode(msgspec.json.encode(pod("new")))
    record = service.trial.record(wanted)
    monkeypatch.setattr(Engine, "_renewing", judging)
    monkeypatch.setattr(Kubelet, "fork", forking)
    candidates, overlay = Classes(service.trial, service.trial.names).of(wanted, record), Overlay(service.trial)
    assert judged == 100
    tried = 0
    for number in range(30):
        placed = placed_by(candidates.placing(overlay, record))
        assert placed is not None
        overlay = placed.overlay
        assert judged == 100 + number
    assert tried <= 3 * 30, "two copies of the state, and the trial"
