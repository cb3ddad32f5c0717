"""Rows, cached verdicts, candidates, and nodes that the kubelet model decides."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

from kubelets import kubelet_of, machine_of, pod_of
from sandbox.judging import candidates, judge
from servers import GI, GPU, requests_of, server_of
from topowise import pods
from topowise_scheduler.kubelet import Device
from topowise_scheduler.report.shape import PodRequests
from topowise_scheduler.verdicts.engine import Candidates, Engine, Outcome, verdict_cache

POLICIES = ("best-effort", "restricted", "single-numa-node")


@pytest.fixture
def engine() -> Engine:
    """An empty node, a node without free CPUs on NUMA node 0, and a node with too few CPUs."""
    filled = Engine()
    busy = server_of()
    assert busy.admit(pod_of("p", {"cpu": "14", "memory": "20Gi", GPU: "1"})).admitted
    filled.put("empty", server_of())
    filled.put("busy", busy)
    filled.put("small", server_of(cores=2))
    return filled


def test_a_node_has_a_row_until_it_is_dropped(engine: Engine) -> None:
    assert engine.rows(["small", "nobody", "empty"]).tolist() == [2, -1, 0]
    engine.put("empty", server_of())
    assert engine.rows(["empty"]).tolist() == [0]
    engine.drop("empty")
    engine.drop("nobody")
    assert engine.rows(["empty", "busy"]).tolist() == [-1, 1]
    assert engine.names(engine.rows(["busy", "nobody"])) == ["busy", ""]
    assert len(engine) == 2


def test_an_outcome_distinguishes_unschedulable_from_unresolvable(engine: Engine) -> None:
    judgement = judge(engine, requests_of(*[{"cpu": "6", "memory": "1Gi", GPU: "1"}] * 4))
    assert judgement.outcome.tolist() == [Outcome.FITS, Outcome.UNSCHEDULABLE, Outcome.UNRESOLVABLE]
    assert [judgement.reason_of(index) for index in range(3)] == ["", "TopologyAffinityError", "TopologyAffinityError"]
    assert judgement.zones[:, 0].tolist() == [1, 2, 4, 8]


def test_a_shortage_is_a_reason(engine: Engine) -> None:
    judgement = judge(
        engine, requests_of({"cpu": "100m", "memory": "1Gi", "ephemeral-storage": "1Gi", "x.io/other": "3"})
    )
    assert judgement.outcome.tolist() == [Outcome.FITS] * 3
    judgement = judge(engine, PodRequests(pods.needs(pods.decode(b"""{"metadata": {}, "spec": {"containers": [
        {"name": "c", "resources": {"requests": {"cpu": "51"}}}]}}"""))))  # fmt: skip
    assert [judgement.reason_of(index) for index in range(3)] == ["", "OutOf", "OutOf"]
    assert judgement.outcome.tolist() == [Outcome.FITS, Outcome.UNSCHEDULABLE, Outcome.UNRESOLVABLE]


def test_rows_may_be_in_any_order_and_twice(engine: Engine) -> None:
    pod = requests_of({"cpu": "15", "memory": "1Gi", GPU: "1"})
    everything = judge(engine, pod)
    rows = engine.rows(["small", "busy", "empty", "busy"])
    judgement = judge(engine, pod, rows)
    assert judgement.outcome.tolist() == everything.outcome[[2, 1, 0, 1]].tolist()
    fits = np.flatnonzero(judgement.outcome == Outcome.FITS)
    assert judgement.zones[0, fits].tolist() == everything.zones[0, rows[fits]].tolist()
    assert judge(engine, pod, rows[:0]).outcome.tolist() == []


def test_only_changed_nodes_are_judged_again(engine: Engine) -> None:
    pod = requests_of({"cpu": "4", "memory": "1Gi"})
    judge(engine, pod)
    assert (engine.cache_hits, engine.cache_misses) == (0, 3)
    engine.put("busy", server_of())
    # Another pod of the same shape.
    assert judge(engine, requests_of({"cpu": "4", "memory": 1 << 30})).zones.tolist() == [[1, 1, 2]]
    assert (engine.cache_hits, engine.cache_misses) == (2, 4)


def test_cached_verdicts_stay_when_nodes_join(engine: Engine) -> None:
    pod, names, like = requests_of({"cpu": "6", "memory": "1Gi"}), ["empty", "busy", "small"], server_of()
    before = [array.tolist() for array in engine.verdicts(pod, engine.rows(names))]
    joined = [f"n{number}" for number in range(100)]
    for name in joined:
        engine.put(name, like.fork())
    after = [array.tolist() for array in engine.verdicts(pod, engine.rows([*names, *joined]))]
    assert after == [first + first[:1] * len(joined) for first in before]


def test_the_cache_is_bounded(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict_cache, "_MAX_SHAPES", 5)
    engine.cache = verdict_cache.VerdictCache()
    for amount in range(1, 9):
        judge(engine, requests_of({"cpu": "1", "memory": amount * GI}))
    assert len(engine.cache) == 5
    monkeypatch.setattr(verdict_cache, "_MAX_BYTES", 1)
    judge(engine, requests_of({"cpu": "2", "memory": GI}))
    assert len(engine.cache) == 1


def test_each_node_has_its_own_gate_of_pod_level_resources() -> None:
    level = pods.Resources(limits={"cpu": "20", "memory": "4Gi"})
    inner = pods.Container("c", pods.Resources(limits={"cpu": "2", "memory": "1Gi"}))
    pod = pods.Pod(pods.Metadata(uid="new"), pods.Spec(containers=(inner,), resources=level))
    engine = Engine()
    engine.put("on", server_of())
    engine.put("off", server_of(featureGates={"PodLevelResources": False}))
    engine.put("before", server_of(featureGates={"PodLevelResources": False}, version="v1.33.0"))
    judgement = judge(engine, PodRequests(pods.needs(pod), pods.needs(pod, pod_level_resources=False)))
    # The managers ignore a pod with pod-level resources; a kubelet before 1.34 reads its containers.
    assert judgement.outcome.tolist() == [Outcome.FITS, Outcome.UNRESOLVABLE, Outcome.FITS]
    assert judgement.reason_of(1) == "PodLevelResourcesNotSupported"
    assert judgement.zones[:, [0, 2]].tolist() == [[0, 1]]


def test_candidates_are_fitting_nodes_with_their_amounts(engine: Engine) -> None:
    app = {"cpu": "6", "memory": "2Gi", "hugepages-2Mi": "4Mi", GPU: "1"}
    pod = requests_of(app, init=[{"cpu": "1", "memory": "1Gi"}])
    [(indices, nodes)] = list(candidates(engine, pod, engine.rows(["small", "busy", "empty"])))
    assert isinstance(nodes, Candidates)
    assert indices.tolist() == [1, 2]
    assert nodes.rows.tolist() == [1, 0]
    assert nodes.zones == 4
    assert nodes.distances[:, :, 0].tolist()[0] == [10, 12, 32, 32]
    assert nodes.allocatable["cpu"].T.tolist() == [[14, 16, 16, 16]] * 2
    assert nodes.available["cpu"].T.tolist() == [[0, 16, 16, 16], [14, 16, 16, 16]]
    assert nodes.available[GPU].T.tolist() == [[0, 1, 1, 1], [1, 1, 1, 1]]
    assert nodes.allocatable["memory"][:, 0].tolist() == [29 * GI, 30 * GI, 30 * GI, 30 * GI]
    assert nodes.available["memory"][:, 0].tolist() == [9 * GI, 30 * GI, 30 * GI, 30 * GI]
    assert nodes.available["hugepages-2Mi"][:, 0].tolist() == [2 * GI] * 4
    assert [(container.name, container.kind) for container in nodes.containers] == [("i0", "init"), ("c0", "app")]
    assert nodes.containers[1].requests == {"cpu": 6, "memory": 2 * GI, "hugepages-2Mi": 4 << 20, GPU: 1}
    assert nodes.placed.tolist() == [[2, 1], [2, 1]]
    assert nodes.aligned.all()


def test_without_distances_all_other_numa_nodes_are_equally_distant() -> None:
    engine = Engine()
    engine.put("node", kubelet_of(machine_of(2, 2), topologyManagerPolicy="best-effort"))
    [(_, nodes)] = list(candidates(engine, requests_of({"cpu": "1", "memory": "1Gi"})))
    assert nodes.distances[:, :, 0].tolist() == [[10, 20], [20, 10]]


def test_nodes_of_different_sizes_and_policies_are_separate_candidates() -> None:
    engine = Engine()
    for zones in (2, 4, 8):
        for policy in POLICIES:
            engine.put(f"{policy}-{zones}", server_of(policy, zones=zones))
    parts = list(candidates(engine, requests_of({"cpu": "1", "memory": "1Gi"})))
    assert sorted(nodes.zones for _, nodes in parts) == [2, 2, 2, 4, 4, 4, 8, 8, 8]
    assert sorted(row for _, nodes in parts for row in nodes.rows.tolist()) == list(range(9))


def test_a_shortage_is_a_reason_under_either_gate() -> None:
    """Without the gate, the predicates ignore pod-level CPUs and memory."""
    level = pods.Resources(limits={"cpu": "2", "memory": "4Gi"})
    inner = pods.Container("c", pods.Resources(limits={"x.io/a": "1", "hugepages-1Gi": "1Gi"}))
    pod = pods.Pod(pods.Metadata(uid="new"), pods.Spec(containers=(inner,), resources=level))
    engine = Engine()
    off = {"featureGates": {"PodLevelResources": False}, "memoryManagerPolicy": "None", "reservedMemory": ()}
    engine.put("on", server_of())
    engine.put("off", server_of(**off))
    engine.put("asked-of-the-model", server_of(**off, zones=10, topologyManagerPolicy="none"))
    judgement = judge(engine, PodRequests(pods.needs(pod), pods.needs(pod, pod_level_resources=False)))
    assert [judgement.reason_of(index) for index in range(3)] == ["OutOf"] * 3
    assert engine.fallbacks == {"zones": 1}


def test_typical_pods_on_loaded_nodes_are_decided_by_counts() -> None:
    """The model decides 0 to 5 of 3,600 cases: devices of a resource on several NUMA nodes."""
    rng = Random(7)
    engine = Engine()
    for number in range(60):
        kubelet = server_of(POLICIES[number % 3], zones=rng.choice((2, 4, 8)))
        for index in range(rng.randint(0, 14)):
            kubelet.admit(_typical(rng, f"p{index}"))
        engine.put(f"n{number}", kubelet)
    for _ in range(60):
        judge(engine, PodRequests(pods.needs(_typical(rng, "new"))))
    assert sum(engine.fallbacks.values()) <= 0.005 * engine.cache_misses, engine.fallbacks


def _typical(rng: Random, uid: str) -> pods.Pod:
    def container() -> dict[str, Any]:
        limits = {"cpu": rng.choice(("1", "2", "4", "8", "500m")), "memory": rng.choice(("1Gi", "4Gi", "12Gi"))}
        if rng.random() < 0.2:
            limits[GPU] = "1"
        return limits

    init = [container() for _ in range(rng.choice((0, 0, 1)))]
    return pod_of(uid, *[container() for _ in range(rng.choice((1, 1, 2)))], init=init)


def test_fallbacks_to_the_model_are_counted() -> None:
    engine = Engine()
    bridged = server_of()
    bridged.report_devices(GPU, [Device("gpu0", (0, 1)), Device("gpu1", (2,))])
    engine.put("bridged", bridged)
    engine.put("plain", server_of())
    engine.put("by-socket", server_of("restricted", cpuManagerPolicyOptions={"align-by-socket": "true"}))
    judgement = judge(engine, requests_of({"cpu": "16", "memory": "1Gi", GPU: "1"}))
    assert judgement.outcome.tolist() == [Outcome.FITS] * 3
    assert judgement.zones.tolist() == [[2, 2, 2]]
    assert engine.fallbacks == {"devices-near-several-nodes": 1, "align-by-socket": 1}
    # Verdicts of the model are cached too.
    judge(engine, requests_of({"cpu": "16", "memory": "1Gi", GPU: "1"}))
    assert sum(engine.fallbacks.values()) == 2


def test_machines_beyond_eight_numa_nodes_are_left_to_the_model() -> None:
    options = {"max-allowable-numa-nodes": "12"}
    engine = Engine()
    engine.put("large", server_of(zones=10, topologyManagerPolicyOptions=options))
    engine.put("many", server_of("none", zones=20, memoryManagerPolicy="None", reservedMemory=()))
    pod = requests_of(*[{"cpu": "15", "memory": "1Gi", GPU: "1"}] * 9)
    judgement = judge(engine, pod)
    assert judgement.outcome.tolist() == [Outcome.FITS, Outcome.FITS]
    assert judgement.zones[:, 0].tolist() == [2, 4, 8, 16, 32, 64, 128, 256, 512]
    assert engine.fallbacks == {"zones": 2}
    assert sorted(nodes.zones for _, nodes in candidates(engine, pod)) == [10, 20]


def test_a_pod_without_containers_asks_for_nothing() -> None:
    """An API server rejects such a pod, but kubectl-topowise accepts wrong manifests."""
    engine = Engine()
    for scope in ("container", "pod"):
        engine.put(scope, server_of("best-effort", topologyManagerScope=scope))
    assert judge(engine, requests_of()).outcome.tolist() == [Outcome.FITS, Outcome.FITS]
