"""Answers of an overlay are those of a ledger in which the same pods were really bound and removed."""

from __future__ import annotations

import json
from collections import Counter
from random import Random
from typing import Any

import msgspec
import pytest

from scheduling import Service, exact, kubelet, pod
from steering_pods import marked, requiring
from topowise.steering import RESOURCE
from topowise_scheduler import report
from topowise_scheduler.kubelet import Kubelet, free_amounts
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.options.steering.annotation import NO_DEMAND
from topowise_scheduler.overlay.overlay import NodeCopy, Overlay, Placement, Unfit
from topowise_scheduler.overlay.simulated_ledger import SimulatedLedger
from topowise_scheduler.verdicts import kube_scheduler
from topowise_scheduler.verdicts.kube_scheduler import NodeObject

POLICIES = ("none", "best-effort", "restricted", "single-numa-node", "single-numa-node", "single-numa-node")
NOW = 1_700_000_000.0


class Clusters:
    """The same random nodes twice: in a ledger that never changes, under an overlay, and in one where pods really come
    and go."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.base, self.real = SimulatedLedger(), SimulatedLedger()
        self.names = [f"n{number}" for number in range(rng.randint(2, 3))]
        for name in self.names:
            changed = {
                "topologyManagerPolicy": rng.choice(POLICIES),
                "topologyManagerScope": rng.choice(("container", "pod")),
            }
            # Fewer pods or less memory than the kubelet has: kube-scheduler's sums refuse as well.
            amounts = {
                "cpu": "7",
                "memory": rng.choice(("31Gi", "31Gi", "9Gi")),
                "pods": rng.choice(("110", "110", "4")),
            }
            if rng.random() < 0.7:
                amounts[RESOURCE] = "64"
            taints = [{"key": "only", "effect": "NoSchedule"}] if rng.random() < 0.1 else []
            document = {
                "metadata": {"name": name},
                "spec": {"taints": taints},
                "status": {"allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]},
            }
            topology = exact(kubelet(**changed), name=name, **changed)
            for ledger in (self.base, self.real):
                ledger.fill((), [msgspec.convert(document, NodeObject)], NOW, lambda _: 0.0)
                ledger.put_report(report.read(topology, *ledger.kubelet_of_node(name)))
        self.serial = 0
        self.answers: Counter[str] = Counter()
        # By UID on the overlay: the pod, its node, and the UID that it really has there.
        self.running: dict[str, tuple[PodRecord, str, str]] = {}
        for _ in range(rng.randint(2, 6)):
            record, name = self.made(), rng.choice(self.names)
            if self.takes(record, name):
                for ledger in (self.base, self.real):
                    ledger.bind(record, name, steered=record.demand(NO_DEMAND).numa_node)
                self.running[record.uid] = record, name, record.uid
        self.overlay = Overlay(self.base.trial)

    def made(self) -> PodRecord:
        self.serial += 1
        name, cpu = f"p{self.serial}", self.rng.choice(("1", "2", "3", "500m"))
        fields: dict[str, Any] = {"tolerations": [{"operator": "Exists"}] if self.rng.random() < 0.5 else []}
        if self.rng.random() < 0.25:
            document = requiring(name, self.rng.choice((0, 1)), cpu, **fields)
        else:
            if self.rng.random() < 0.2:
                fields["annotations"] = {"topowise.io/numa-policy": "restricted"}
            document = pod(name, cpu, f"{self.rng.choice((1, 3))}Gi", **fields)
        return self.base.trial.record(kube_scheduler.decode(json.dumps(document).encode()))

    def takes(self, record: PodRecord, name: str) -> bool:
        """Whether the node really takes the pod."""
        ((_, refusal),) = self.real.trial.refusals(record, [name])
        return refusal is None and not self.real.ledger.gates.all(record, name)

    def step(self) -> None:
        """A pod comes, goes or moves, on the overlay and really."""
        kind = self.rng.choice(("place", "place", "remove", "move")) if self.running else "place"
        if kind == "place":
            record, name = self.made(), self.rng.choice(self.names)
            self.check(record)
            placed = self.overlay.place(record, name, record.uid)
            if isinstance(placed, Placement):
                self.overlay = placed.overlay
                self.real.bind(record, name, steered=placed.record.steered)
                self.running[record.uid] = record, name, record.uid
            return
        uid = self.rng.choice(sorted(self.running))
        record, origin, real_uid = self.running.pop(uid)
        if kind == "remove":
            self.overlay = self.overlay.remove([record], origin)
            self.real.end(real_uid)
            return
        name = self.rng.choice([other for other in self.names if other != origin])
        replacement = msgspec.structs.replace(record, uid="")
        placed = self.overlay.move(replacement, uid, origin, name)
        assert isinstance(placed, Placement) == self.takes(replacement, name), (name, placed)
        if isinstance(placed, Unfit):
            self.running[uid] = record, origin, real_uid
            return
        self.overlay = placed.overlay
        self.serial += 1
        self.running[uid] = record, name, f"again-{self.serial}"
        self.real.bind(msgspec.structs.replace(record, uid=f"again-{self.serial}"), name, steered=placed.record.steered)
        self.real.end(real_uid)

    def check(self, record: PodRecord) -> None:
        for name in self.names:
            placed = self.overlay.place(record, name)
            assert isinstance(placed, Placement) == self.takes(record, name), (name, placed)
            self.answers["fits" if isinstance(placed, Placement) else placed.check] += 1


@pytest.mark.parametrize("seed", range(60))
def test_an_overlay_answers_as_the_ledger_in_which_the_same_pods_came_and_went(seed: int) -> None:
    clusters = Clusters(Random(seed))
    for _ in range(15):
        clusters.step()
    for _ in range(3):
        clusters.check(clusters.made())


def test_random_clusters_have_every_answer() -> None:
    answers: Counter[str] = Counter()
    for seed in range(10):
        clusters = Clusters(Random(seed))
        for _ in range(15):
            clusters.step()
        answers += clusters.answers
    assert answers.keys() == {"fits", "kube-scheduler", "gates", "kubelet"}
    assert min(answers.values()) >= 5, answers


@pytest.mark.parametrize("seed", range(30))
def test_a_new_node_answers_as_a_node_of_the_cluster_that_is_like_it(seed: int) -> None:
    clusters = Clusters(Random(seed))
    trial = clusters.base.trial
    for name in clusters.names:
        states = Overlay(trial).node(name).states
        node = trial.node(name)
        assert node is not None
        # A new node is not asked for its markers.
        is_steering = RESOURCE in node.allocatable
        copy = NodeCopy(states, trial.used(clusters.made(), name), like=name, node=node)
        known, new = Overlay(trial), Overlay(trial, {"\0new": copy})
        for record in [clusters.made() for _ in range(8)]:
            if record.demand(NO_DEMAND).numa_node is not None and not is_steering:
                continue
            on_known, on_new = known.place(record, name), new.place(record, "\0new")
            if isinstance(on_known, Placement) and isinstance(on_new, Placement):
                known, new = on_known.overlay, on_new.overlay
                assert seen(known.node(name))[:2] != seen(copy)[:2]
                continue
            assert isinstance(on_known, Unfit) and isinstance(on_new, Unfit), (on_known, on_new)
            # The gate of NUMA nodes may refuse a node before its kubelet is asked.
            if record.demand(NO_DEMAND).numa_node is None:
                assert (on_new.check, on_new.reason, on_new.text) == (on_known.check, on_known.reason, on_known.text)


def seen(copy: NodeCopy) -> tuple[Any, ...]:
    """What decides about further pods on a node."""
    free = [(free_amounts.by_position(state), state.cpu and state.cpu.available) for state in copy.states]
    requested = {resource: amount for resource, amount in copy.requested.items() if amount}
    return free, [sorted(state.active) for state in copy.states], requested, copy.placed


@pytest.mark.parametrize("seed", range(20))
def test_a_pod_that_comes_and_goes_leaves_no_trace(seed: int) -> None:
    clusters = Clusters(Random(seed))
    for _ in range(8):
        clusters.step()
    before = clusters.overlay
    for record in [clusters.made() for _ in range(4)]:
        for name in clusters.names:
            placed = before.place(record, name)
            if isinstance(placed, Placement):
                after = placed.overlay.remove([placed.record], name)
                assert seen(after.node(name, record)) == seen(before.node(name, record))


def test_a_change_costs_what_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of kubelets are counted: placing, moving and removing a pod takes as many on 40 nodes as on 2."""
    forks = 0
    fork = Kubelet.fork

    def counting(self: Kubelet) -> Kubelet:
        nonlocal forks
        forks += 1
        return fork(self)

    def cost(number: int) -> int:
        service = Service("TightFit")
        for at in range(number):
            service.report(exact(kubelet(), name=f"n{at}"))
            service.put_node(f"n{at}")
        there = service.put(pod("there", node="n0"))
        record = service.trial.record(kube_scheduler.decode(json.dumps(pod("new")).encode()))
        overlay, before = Overlay(service.trial), forks
        for name in ("n0", "n1"):
            placed = overlay.place(record, name)
            assert isinstance(placed, Placement)
            untouched = {other: copy for other, copy in overlay.changed.items() if other != name}
            overlay = placed.overlay
            assert all(overlay.changed[other] is copy for other, copy in untouched.items()), "shared"
        moved = overlay.move(msgspec.structs.replace(there, uid="", node=""), there.uid, "n0", "n1")
        assert isinstance(moved, Placement)
        assert moved.overlay.changed.keys() == {"n0", "n1"}
        assert there.uid in overlay.changed["n0"].states[0].active, "the overlay before is as it was"
        return forks - before

    monkeypatch.setattr(Kubelet, "fork", counting)
    assert cost(40) == cost(2) > 0


def test_what_an_overlay_tries_does_not_change_the_ledger() -> None:
    clusters = Clusters(Random(3))
    changes = clusters.base.trial.changes
    for _ in range(10):
        clusters.step()
    assert clusters.base.trial.changes == changes


def test_a_node_without_a_report_takes_what_its_sums_allow() -> None:
    service = Service("TightFit")
    service.put_node("n1", allocatable={"cpu": "3", "memory": "64Gi", "pods": "110", RESOURCE: "64"})
    service.put(pod("there", "1", node="n1"))
    record = service.trial.record(kube_scheduler.decode(json.dumps(marked("new", "1")).encode()))
    first = Overlay(service.trial).place(record, "n1")
    assert isinstance(first, Placement)
    second = first.overlay.place(record, "n1")
    assert isinstance(second, Placement)
    third = second.overlay.place(record, "n1")
    assert isinstance(third, Unfit) and third.reason == "Insufficient cpu"
