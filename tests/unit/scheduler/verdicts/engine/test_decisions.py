"""The engine's verdict, reason and placement for many nodes equal the kubelet model's for each node."""

from __future__ import annotations

from random import Random

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import random_nodes
from examples import examples
from kubelets import kubelet_of, machine_of, pod_of
from sandbox.judging import Judgement, candidates, judge
from servers import GPU, server_of
from topowise import pods
from topowise_scheduler.kubelet import Device, Kubelet
from topowise_scheduler.kubelet.allocated_nodes import allocated_nodes
from topowise_scheduler.kubelet.pod import view
from topowise_scheduler.kubelet.versions import NEWEST_RECORDED
from topowise_scheduler.report.shape import PodRequests, Shape
from topowise_scheduler.verdicts.engine import Engine, Outcome

NODES, PODS = 12, 5
Verdict = tuple[Outcome, str, list[tuple[int, bool]]]

clusters = settings(max_examples=examples(4), deadline=None)


@pytest.mark.parametrize("policy", random_nodes.POLICIES)
@given(seed=st.integers(0, 1 << 32))
@example(seed=13)
@example(seed=85943)
@example(seed=25905)
@example(seed=8167111)
@example(seed=12)
@clusters
def test_every_node_gets_the_verdict_of_its_model(policy: str, seed: int) -> None:
    rng = Random(seed)
    nodes = [random_nodes.node(rng, policy) for _ in range(NODES)]
    engine = Engine()
    for number, node in enumerate(nodes):
        engine.put(f"n{number}", node.kubelet)
    for _ in range(PODS):
        pod = random_nodes.pod(rng)
        numbers = list(range(NODES))
        rng.shuffle(numbers)
        rows = engine.rows([f"n{number}" for number in numbers])
        requests = PodRequests(pods.needs(pod), pods.needs(pod, pod_level_resources=False))
        rough = list(candidates(engine, requests, rows))
        judgement = judge(engine, requests, rows, located=True)
        for place, number in enumerate(numbers):
            assert verdict(judgement, place) == expected(nodes[number], pod), f"node {number}"
        # Zones of candidates for scores include every predicted zone, and may include more.
        for indices, nearby in rough:
            assert not (judgement.zones[:, indices] & ~nearby.placed).any()
            assert (judgement.aligned[:, indices] == nearby.aligned).all()


@given(seed=st.integers(0, 1 << 32))
@example(seed=4)
@example(seed=26)
@example(seed=29)
@example(seed=65)
@example(seed=66)
@clusters
def test_later_containers_reuse_the_cpus_of_init_containers_as_in_the_model(seed: int) -> None:
    rng = Random(seed)
    nodes = [random_nodes.even_node(rng) for _ in range(NODES)]
    engine = Engine()
    for number, node in enumerate(nodes):
        engine.put(f"n{number}", node.kubelet)
    for _ in range(PODS):
        pod = random_nodes.pod_of_cpus(rng)
        judgement = judge(engine, PodRequests(pods.needs(pod)), located=True)
        for number, node in enumerate(nodes):
            assert verdict(judgement, number) == expected(node, pod), f"node {number}"


def _limits(cpu: str, memory: str, **devices: str) -> dict[str, str]:
    return {"cpu": cpu, "memory": memory, **({"x.io/nic": devices["nic"]} if devices else {})}


@pytest.mark.parametrize(
    ("policy", "init", "containers"),
    [
        pytest.param(
            "none", [], [_limits("2", "64Mi"), _limits("4", "64Mi")], id="cores beside reserved CPUs are left"
        ),
        pytest.param("best-effort", [], [_limits("2", "5Gi"), _limits("4", "5Gi")], id="memory is gone for the second"),
        pytest.param(
            "single-numa-node",
            [_limits("4", "5Gi", nic="2")],
            [_limits("4", "9Gi", nic="2"), _limits("1", "8Gi")],
            id="devices of an init container on a single NUMA node",
        ),
    ],
)
def test_a_later_container_finds_what_earlier_containers_leave(
    policy: str, init: list[dict[str, str]], containers: list[dict[str, str]]
) -> None:
    machine = machine_of(4, devices={"x.io/nic": [Device(f"d{at}", (0,)) for at in range(4)]})
    options = {"full-pcpus-only": "true"} if policy == "none" else {}
    kubelet = kubelet_of(
        machine, topologyManagerPolicy=policy, cpuManagerPolicyOptions=options, reservedSystemCPUs="0,1"
    )
    pod = pod_of("p", *containers, init=init)
    engine = Engine()
    engine.put("n", kubelet)
    assert judge(engine, PodRequests(pods.needs(pod))).reason_of(0) == kubelet.admit(pod).reason


def test_bounds_include_the_numa_nodes_behind_a_container_of_unknown_cpus() -> None:
    """The first container takes CPUs outside of its hint; by L3 cache, amounts do not tell on which NUMA nodes."""
    kubelet = kubelet_of(
        machine_of(4, 4, devices={GPU: [Device("gpu0", (0,))]}, cores_per_uncore=2),
        topologyManagerPolicy="best-effort",
        topologyManagerScope="pod",
        cpuManagerPolicyOptions={"prefer-align-cpus-by-uncorecache": "true"},
    )
    engine = Engine()
    engine.put("aligned", kubelet.fork())
    assert kubelet.admit(pod_of("first", {"cpu": "5", "memory": "64Mi"})).admitted
    pod = pod_of("new", {"cpu": "4", "memory": "64Mi", GPU: "1"}, {"cpu": "2", "memory": "64Mi"})
    engine.put("split", kubelet)
    [(_, nodes)] = list(candidates(engine, PodRequests(pods.needs(pod))))
    assert nodes.placed.tolist() == [[1, 3], [1, 3]]


@given(seed=st.integers(0, 1 << 32))
@clusters
def test_verdicts_after_changes_equal_verdicts_of_a_new_engine(seed: int) -> None:
    rng = Random(seed)
    engine = Engine()
    cluster: dict[str, Kubelet] = {}
    choices = [random_nodes.pod(rng) for _ in range(3)]
    for _ in range(6):
        for name in rng.sample("abcdefghijkl", 4):
            if rng.random() < 0.3:
                engine.drop(name)
                cluster.pop(name, None)
            else:
                cluster[name] = random_nodes.node(rng, load=2).kubelet
                engine.put(name, cluster[name])
        pod = rng.choice(choices)
        cold = Engine()
        for name, kubelet in cluster.items():
            cold.put(name, kubelet)
        names = rng.sample(sorted(cluster), rng.randint(0, len(cluster)))
        requests = PodRequests(pods.needs(pod))
        warm = judge(engine, requests, engine.rows(names), located=True)
        new = judge(cold, requests, cold.rows(names), located=True)
        for index in range(len(names)):
            assert verdict(warm, index) == verdict(new, index)


@pytest.mark.parametrize("init", [0, 1])
def test_a_container_with_shared_cpus_votes_by_the_cpus_of_earlier_containers(init: int) -> None:
    """Only the CPU of the first container makes NUMA node 1, which has the last GPU, the most allocated node."""
    options = {"prefer-most-allocated-numa-node": "true"}
    kubelet = server_of(zones=2, topologyManagerPolicyOptions=options)
    empty = kubelet.fork()
    assert kubelet.admit(pod_of("p", {"cpu": "500m", "memory": "64Mi", GPU: "1"})).admitted
    containers = [{"cpu": "1", "memory": "64Mi", GPU: "1"}, {"cpu": "1500m", "memory": "1Gi"}]
    pod = pod_of("new", *containers[init:], init=containers[:init])
    engine = Engine()
    engine.put("node", kubelet)
    judgement = judge(engine, PodRequests(pods.needs(pod)))
    assert verdict(judgement, 0) == expected(random_nodes.Node(kubelet, empty), pod)
    assert verdict(judgement, 0) == (Outcome.FITS, "", [(2, True), (2, True)])
    assert not engine.fallbacks


def verdict(judgement: Judgement, place: int) -> Verdict:
    outcome = Outcome(judgement.outcome[place])
    if outcome != Outcome.FITS:
        return outcome, judgement.reason_of(place), []
    return outcome, "", list(zip(judgement.zones[:, place].tolist(), judgement.aligned[:, place].tolist(), strict=True))


def expected(node: random_nodes.Node, pod: pods.Pod) -> Verdict:
    kubelet = node.kubelet.fork()
    needs = pods.needs(pod, pod_level_resources=kubelet.settings.pod_level_resources)
    seen = kubelet.view("new", needs)
    admission = kubelet.admit_view(seen)
    if admission.admitted:
        places = allocated_nodes(kubelet, "new")
        requests = dict(zip([container.name for container in needs.containers], Shape.of(seen).containers, strict=True))
        is_ignored = kubelet.settings.behaviour.pod_level_pods_are_not_aligned and not seen.by_pod_level
        unpinned = _pinned_elsewhere(pod) if needs.pod_level is not None and is_ignored else ()
        return (
            Outcome.FITS,
            "",
            [
                (
                    place.mask,
                    name not in unpinned and (place.preferred or not requests[name].can_be_aligned(pinned=seen.pinned)),
                )
                for name, place in ((container.name, places[container.name]) for container in needs.containers)
            ],
        )
    empty = node.empty.fork()
    ever = empty.admit_view(empty.view("new", needs)).admitted
    reason = "OutOf" if admission.shortages else admission.reason
    return Outcome.UNSCHEDULABLE if ever else Outcome.UNRESOLVABLE, reason, []


def _pinned_elsewhere(pod: pods.Pod) -> set[str]:
    """Returns the containers that get own CPUs or memory with other gates, or from a kubelet before 1.34."""
    gated = pods.needs(pod)
    before = msgspec.structs.replace(
        NEWEST_RECORDED.behaviour, pod_level_pods_are_not_aligned=False, pod_level_pods_are_never_aligned=False
    )
    views = [
        view("new", gated, pod_level_resource_managers=True),
        view("new", gated, behaviour=before),
        view("new", pods.needs(pod, pod_level_resources=False), behaviour=before),
    ]
    return {
        container.name
        for seen in views
        for container in seen.containers
        if seen.pinned and (container.cpus or container.memory)
    }
