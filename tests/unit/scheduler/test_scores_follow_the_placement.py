"""The predicted placement of a pod on each node decides its scores (POST /prioritize).

Each test is a published or observed situation: the LeastNUMANodes proposal (KEP-454 of
scheduler-plugins), scheduler-plugins' own example, busy best-effort nodes on which the merged hint is one NUMA node
while the CPUs come from two.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from scheduling import GIB, Service, call, counts, decoded, pod, topology_of
from topowise import nrt
from topowise_scheduler.configuration import Scoring
from topowise_scheduler.kubelet import (
    Core,
    Device,
    DevicePlugin,
    Kubelet,
    KubeletConfiguration,
    Machine,
    MemoryReservation,
    NumaNode,
)
from topowise_scheduler.ledger.answers import Answers
from topowise_scheduler.serve.extender import http
from topowise_scheduler.serve.extender.callers import Callers
from topowise_scheduler.verdicts import kube_scheduler, strategies
from topowise_scheduler.verdicts.strategies import scale as scales

GPU: Final = "example.com/gpu"
EVERY = pytest.mark.parametrize("strategy", strategies.NAMES)
MEMORY = pytest.mark.parametrize("memory", ["None", "Static"])


def scores(
    service: Service,
    document: dict[str, Any],
    *names: str,
    strategy: str = "TightFit",
    scale: int = 100,
) -> list[int]:
    """Returns the scores of POST /prioritize, in the order of the names."""
    made = strategies.make(strategy, {}, Scoring())
    service.answers = Answers(service.ledger, service.records, made, top_score=scale)
    app = http.Application(service.served(), http.Metrics(CollectorRegistry()), 1 << 20, Callers(()))
    body = msgspec.json.encode({"Pod": document, "Nodes": None, "NodeNames": names})
    answered = {score["Host"]: score["Score"] for score in json.loads(call(app, "/v1/prioritize", body)[1])}
    return [answered[name] for name in names]


def containers(name: str, *amounts: Mapping[str, str | int]) -> dict[str, Any]:
    """A Guaranteed pod of such containers."""
    specs = [
        {"name": f"c{number}", "resources": {"requests": dict(requests), "limits": dict(requests)}}
        for number, requests in enumerate(amounts)
    ]
    return pod(name, containers=specs)


def machine(
    cpus: Sequence[int],
    gpus: Sequence[int] = (),
    distances: Sequence[Sequence[int]] = (),
    memory: int = 16 * GIB,
) -> Machine:
    """Returns NUMA nodes with these CPUs, GPUs and memory for pods. CPU 0 and a GiB each are reserved and added."""
    numa, first = [], 1
    for zone, count in enumerate(cpus):
        ids = ([0] if zone == 0 else []) + list(range(first, first + count))
        first += count
        costs = (
            tuple(distances[zone]) if distances else tuple(10 if zone == column else 20 for column in range(len(cpus)))
        )
        cores = tuple(Core(socket=zone, threads=(cpu,)) for cpu in ids)
        numa.append(NumaNode(id=zone, memory=memory + GIB, cores=cores, distances=costs))
    near = [zone for zone, count in enumerate(gpus) for _ in range(count)]
    plugins = (DevicePlugin(GPU, tuple(Device(f"gpu{at}", (zone,)) for at, zone in enumerate(near))),) if near else ()
    return Machine(numa=tuple(numa), devices=plugins)


def configuration(
    zones: int, policy: str = "best-effort", memory: str = "Static", **fields: Any
) -> KubeletConfiguration:
    reserved = tuple(MemoryReservation(zone, {"memory": "1Gi"}) for zone in range(zones)) if memory == "Static" else ()
    return KubeletConfiguration(
        topologyManagerPolicy=policy,
        cpuManagerPolicy="static",
        reservedSystemCPUs="0",
        memoryManagerPolicy=memory,
        reservedMemory=reserved,
        systemReserved={"memory": f"{zones}Gi"},
        evictionHard={},
        **fields,
    )


def node(
    name: str,
    built: Machine,
    config: KubeletConfiguration,
    residents: Sequence[Mapping[str, str | int]] = (),
    removed: Sequence[int] = (),
) -> nrt.NodeResourceTopology:
    """Returns a node that has admitted the residents in this order, and then removed some of them."""
    kubelet = Kubelet(built, config)
    for number, requests in enumerate(residents):
        document = containers(f"{name}-{number}", requests)
        assert kubelet.admit(decoded(document)).admitted
    for number in removed:
        assert kubelet.remove(f"uid-{name}-{number}")
    return topology_of(built, config, kubelet, name=name)


def reported(*topologies: nrt.NodeResourceTopology) -> Service:
    service = Service()
    for topology in topologies:
        service.report(topology)
    return service


def busy(memory: str, policy: str = "best-effort") -> Service:
    """Two nodes of 8 + 8 CPUs with four free CPUs: two in each NUMA node, or four in one NUMA node.

    Memory is allocated on every NUMA node, so a hint for memory has one NUMA node.
    """
    config = configuration(2, policy, memory)
    two, built = {"cpu": "2", "memory": "1Gi"}, machine([8, 8])
    return reported(
        node("split", built, config, [two] * 8, removed=[3, 7]),
        node("aligned", built, config, [two] * 8, removed=[6, 7]),
    )


@EVERY
@MEMORY
@pytest.mark.parametrize("scale", [10, 100])
def test_a_busy_node_that_would_split_the_pod_is_below_an_aligned_node(strategy: str, memory: str, scale: int) -> None:
    """As reported: 4 CPUs and 1Gi. The split node got 100 and the aligned node 0, or both got the same score."""
    split, aligned = scores(busy(memory), pod("p", "4"), "split", "aligned", strategy=strategy, scale=scale)
    assert aligned > split


@MEMORY
@pytest.mark.parametrize(
    ("split", "whole", "running", "cpus"),
    [
        # Free CPUs 2 + 4 and 8 + 8.
        pytest.param([2, 4], [8, 8], [], ("3", "3"), id="the proposal"),
        pytest.param([4, 5], [10, 10], [{"cpu": "1", "memory": "8Gi"}] * 3, ("3", "3"), id="memory in use everywhere"),
        # The second container takes both zones of 2 CPUs.
        pytest.param([2, 2], [4, 4], [], ("1", "3"), id="scheduler-plugins"),
    ],
)
def test_the_examples_of_the_least_numa_nodes_proposal(
    memory: str, split: list[int], whole: list[int], running: list[dict[str, str]], cpus: tuple[str, str]
) -> None:
    """Two containers on two NUMA nodes of the first node, and on a NUMA node each of the second: 82 and 94."""
    config = configuration(2, memory=memory)
    service = reported(node("n1", machine(split), config, running), node("n2", machine(whole), config, running))
    document = containers("p", *({"cpu": cpu, "memory": "20Mi"} for cpu in cpus))
    assert scores(service, document, "n1", "n2", strategy="LeastNUMANodes") == [82, 94]


def test_the_example_of_scheduler_plugins_as_other_exporters_count() -> None:
    """Reports without ids: the simplest machine with the counts is looked at."""
    service = Service()
    for name, each in (("small", "2"), ("large", "4")):
        service.report(counts(name, (each, each), allocatable=each, policy="best-effort", included=()))
    document = containers("p", {"cpu": "1", "memory": "20Mi"}, {"cpu": "3", "memory": "20Mi"})
    assert scores(service, document, "small", "large", strategy="LeastNUMANodes") == [82, 94]


@pytest.mark.parametrize(
    ("strategy", "percents"),
    [("MostAllocated", (27, 70, 33.33)), ("LeastAllocated", (73, 30, 66.67)), ("BalancedAllocation", (89.42, 82, 100))],
)
def test_the_figures_of_kep_119(strategy: str, percents: tuple[float, float, float]) -> None:
    """defaultNUMANodes of scheduler-plugins and a pod of 2 CPUs and 20Mi: its scores, spread over the scale."""
    service = Service()
    for number, (cpus, mebibytes) in enumerate([(4, 500), (2, 50), (6, 60)]):
        built = machine([cpus, cpus], memory=mebibytes << 20)
        service.report(node(f"n{number}", built, configuration(2, "single-numa-node")))
    document = containers("p", {"cpu": "2", "memory": "20Mi"})
    raw = np.array([round(100 * percent) for percent in percents])
    expected = scales.spread(raw, np.zeros(3, np.int64), 100).tolist()
    assert scores(service, document, "n0", "n1", "n2", strategy=strategy) == expected


def test_the_number_that_scores_0_is_the_nodes_own() -> None:
    """`topologyManagerMaxNUMANodes`: of 16 a NUMA node costs 6, of 8 it costs 12."""
    options = {"max-allowable-numa-nodes": "16"}
    service = reported(
        node("eight", machine([8, 8]), configuration(2)),
        node("sixteen", machine([8, 8]), configuration(2, topologyManagerPolicyOptions=options)),
    )
    counted = counts("counted", ("8", "8"), policy="best-effort", included=())
    named = nrt.attributes_of(counted.attributes) | {"topologyManagerMaxNUMANodes": "4"}
    service.report(
        msgspec.structs.replace(counted, attributes=[nrt.Attribute(key, value) for key, value in named.items()])
    )
    document = pod("p", "4")
    assert scores(service, document, "eight", "sixteen", "counted", strategy="LeastNUMANodes") == [94, 97, 87]


@EVERY
@pytest.mark.parametrize("cpus", [(4, 4), (1, 8)])
@pytest.mark.parametrize("scale", [10, 100])
def test_the_node_whose_gpu_has_its_cpus_beside_it_wins(strategy: str, cpus: tuple[int, int], scale: int) -> None:
    """6 CPUs and the only GPU, which is near the first NUMA node."""
    config = configuration(2, memory="None")
    service = reported(node("whole", machine([8, 8], [1, 0]), config), node("spoiled", machine(cpus, [1, 0]), config))
    document = containers("p", {"cpu": "6", "memory": "1Gi", GPU: "1"})
    whole, spoiled = scores(service, document, "whole", "spoiled", strategy=strategy, scale=scale)
    assert whole > spoiled
    assert (whole, spoiled) == (10, 0) or scale == 100


@EVERY
@pytest.mark.parametrize("scale", [10, 100])
def test_a_node_that_does_not_fit_is_never_above_a_fitting_node(strategy: str, scale: int) -> None:
    """kube-scheduler asks about fitting nodes only, but the nodes may change before prioritize."""
    service = reported(
        node("full", machine([8, 8]), configuration(2, "single-numa-node"), [{"cpu": "8", "memory": "1Gi"}] * 2),
        node("fits", machine([8, 8]), configuration(2, "single-numa-node")),
        node("splits", machine([3, 3]), configuration(2)),
    )
    full, fits, splits = scores(service, pod("p", "4"), "full", "fits", "splits", strategy=strategy, scale=scale)
    assert full <= splits < fits
    assert full == 0


BY_CHANCE = "may refuse the pod by chance"


def chancy(policy: str = "single-numa-node", scope: str = "container") -> nrt.NodeResourceTopology:
    """Three GPUs near NUMA node 0, two near node 1 and a GPU near both, as on the lab's machine dual."""
    return node("chancy", chancy_machine(), configuration(2, policy, topologyManagerScope=scope))


def chancy_machine() -> Machine:
    plugin = DevicePlugin(GPU, tuple(Device(f"gpu{at}", near) for at, near in enumerate(NEAR)))
    return msgspec.structs.replace(machine([8, 8]), devices=(plugin,))


NEAR = ((0,), (0,), (0,), (1,), (1,), (0, 1))


def gpus(*counts: int) -> dict[str, Any]:
    return containers("p", *[{"cpu": "1", "memory": "1Gi", GPU: str(count)} for count in counts])


def why(service: Service, document: dict[str, Any], name: str) -> str:
    text: str = service.view.explanations(msgspec.convert(document, kube_scheduler.Pod), [name])[0].text
    return text


@EVERY
@pytest.mark.parametrize("policy", ["restricted", "single-numa-node"])
def test_a_node_whose_kubelet_may_refuse_the_pod_by_its_choice_of_devices_comes_last(
    strategy: str, policy: str
) -> None:
    """A kubelet of the lab refused such a pod after all: its first container got the GPU that the second needed."""
    larger = node("sure", machine([16, 16], [8, 8]), configuration(2, policy))
    service = reported(chancy(policy), larger)
    may_fail, sure = scores(service, gpus(2, 3), "chancy", "sure", strategy=strategy)
    assert sure > may_fail
    assert BY_CHANCE in why(service, gpus(2, 3), "chancy")
    assert BY_CHANCE not in why(service, gpus(2, 3), "sure")


@EVERY
def test_where_no_node_is_sure_a_node_that_may_refuse_is_chosen(strategy: str) -> None:
    """For ever to wait would be worse: on this machine the pod fits every second time."""
    service = reported(chancy(), node("other", machine([1]), configuration(1, "none")))
    assert service.fits(gpus(2, 3), "chancy", "other") == ["chancy"]
    may_fail, none = scores(service, gpus(2, 3), "chancy", "other", strategy=strategy)
    assert may_fail > none == 0


@pytest.mark.parametrize(
    ("document", "policy", "scope"),
    [
        (gpus(3, 2), "single-numa-node", "container"),
        (gpus(3), "single-numa-node", "container"),
        (gpus(2, 1), "single-numa-node", "pod"),
        (gpus(2, 3), "best-effort", "container"),
        (gpus(2, 3), "none", "container"),
        (containers("p", {"cpu": "1", GPU: "2"}, {"cpu": "3"}), "single-numa-node", "container"),
    ],
)
def test_what_no_choice_of_devices_can_spoil_is_not_put_last(document: dict[str, Any], policy: str, scope: str) -> None:
    service = reported(chancy(policy, scope))
    assert service.fits(document, "chancy") == ["chancy"]
    assert BY_CHANCE not in why(service, document, "chancy")


def test_devices_of_one_numa_node_each_are_taken_by_chance_where_a_container_needs_two_nodes() -> None:
    """`restricted`, three GPUs on each node. The first container takes 2 and 2 of its four, and the next container,
    which needs two on a NUMA node, finds a GPU on each."""
    service = reported(node("n1", machine([8, 8], [3, 3]), configuration(2, "restricted", "None")))
    large, small = (containers("p", {"cpu": "1", GPU: first}, {"cpu": "1", GPU: "2"}) for first in ("4", "2"))
    assert service.fits(large, "n1") == ["n1"]
    assert BY_CHANCE in why(service, large, "n1")
    assert BY_CHANCE not in why(service, small, "n1")


def test_whether_chance_decides_is_recomputed_when_the_node_has_changed() -> None:
    service = reported(chancy())
    record = service.put(gpus(2, 3))
    assert service.answers.may_be_refused(record, "chancy")
    service.report(msgspec.structs.replace(
        node("chancy", machine([8, 8], [3, 3]), configuration(2, "single-numa-node")),
        metadata=nrt.Metadata(name="chancy", resourceVersion="2"),
    ))  # fmt: skip
    assert not service.answers.may_be_refused(record, "chancy")


@EVERY
def test_in_a_fleet_of_such_nodes_the_strategy_decides_as_ever(strategy: str) -> None:
    """Only the best nodes are evaluated. If they scored below the rest, the worst nodes would win."""
    names = [f"n{number:02}" for number in range(20)]
    config = configuration(2, "single-numa-node")
    fleet = [node(name, chancy_machine(), config) for name in names]
    used = node("used", chancy_machine(), config, [{"cpu": "2", "memory": "1Gi"}])
    service = reported(*fleet, used)
    (first, *same, last) = scores(service, gpus(2, 3), *names, "used", strategy=strategy)
    alone = scores(reported(fleet[0], used), gpus(2), "n00", "used", strategy=strategy)
    assert {*same} == {first}
    assert (last > first, last < first) == (alone[1] > alone[0], alone[1] < alone[0])


SQUARE = [[10, 12, 32, 32], [12, 10, 32, 32], [32, 32, 10, 12], [32, 32, 12, 10]]


@EVERY
@pytest.mark.parametrize("scale", [10, 100])
def test_fewer_numa_nodes_come_first_then_near_numa_nodes(strategy: str, scale: int) -> None:
    """A pod of 12 CPUs, aligned on every node: in one NUMA node, in two near, in two distant, in three NUMA nodes."""
    config = configuration(4, "restricted", "None", topologyManagerPolicyOptions={"prefer-closest-numa-nodes": "true"})
    eight, four = (machine([each] * 4, distances=SQUARE) for each in (8, 4))
    taken = {"cpu": "8", "memory": "1Gi"}
    service = reported(
        node("one", machine([12] * 4, distances=SQUARE), config),
        node("near", eight, config),
        node("far", eight, config, [taken] * 4, removed=[0, 2]),
        node("three", four, config),
    )
    single, near, far, three = scores(
        service, pod("p", "12"), "one", "near", "far", "three", strategy=strategy, scale=scale
    )
    assert single > near > far > three


def cached(uncore: Sequence[int], memory: Sequence[tuple[Sequence[int], int, int]] = ()) -> Machine:
    """A NUMA node whose CPUs have these L3 caches, and NUMA nodes of memory alone: initiators, latency, bandwidth."""
    cores = tuple(Core(socket=0, threads=(cpu,), uncore=cache) for cpu, cache in enumerate(uncore))
    (first, *memory_only) = memory or [((), 0, 0)]
    ids = range(1 + len(memory_only))
    rows = [tuple(10 if row == column else 20 for column in ids) for row in ids]
    numa = [NumaNode(0, 17 * GIB, cores, {}, rows[0], *_speed(first))]
    numa += [NumaNode(at, 16 * GIB, (), {}, rows[at], *_speed(node)) for at, node in enumerate(memory_only, start=1)]
    return Machine(numa=tuple(numa))


def _speed(memory: tuple[Sequence[int], int, int]) -> tuple[tuple[int, ...], int, int]:
    return tuple(memory[0]), memory[1], memory[2]


BY_CACHE = {"prefer-align-cpus-by-uncorecache": "true"}
PLAIN = {"cpu": "1", "memory": "1Gi"}


@EVERY
@pytest.mark.parametrize("scale", [10, 100])
@pytest.mark.parametrize("options", [BY_CACHE, {}], ids=["aligned by cache", "caches do not count"])
def test_of_equal_nodes_the_node_with_enough_cpus_in_one_cache_wins(
    strategy: str, scale: int, options: dict[str, str]
) -> None:
    """Four CPUs are free on each: two and two, or four in one L3 cache. CPU 0 is the system's."""
    built = cached([0] * 5 + [1] * 4)
    config = configuration(1, "single-numa-node", "None", cpuManagerPolicyOptions=options)
    service = reported(
        node("parts", built, config, [PLAIN] * 8, removed=[0, 1, 5, 6]),
        node("whole", built, config, [PLAIN] * 8, removed=[4, 5, 6, 7]),
    )
    parts, whole = scores(service, pod("p", "4"), "parts", "whole", strategy=strategy, scale=scale)
    in_percent = strategy == "LeastNUMANodes" and scale == 100
    assert whole == parts if in_percent or not options else whole > parts


@EVERY
@pytest.mark.parametrize("scale", [10, 100])
@pytest.mark.parametrize("names", [("old", "new"), ("new", "old"), ("old", "new", "old-2")])
def test_of_equal_nodes_the_kubelet_that_takes_the_cpus_from_one_cache_wins(
    strategy: str, scale: int, names: Sequence[str]
) -> None:
    """A kubelet before 1.34 (kubernetes#131850) takes 7 CPUs from 2 caches, although 8 CPUs of a cache are free."""
    service = by_version({"old": "v1.33.5", "new": "v1.34.1", "old-2": "v1.33.5"})
    scored = dict(zip(names, scores(service, pod("p", "7"), *names, strategy=strategy, scale=scale), strict=True))
    in_percent = strategy == "LeastNUMANodes" and scale == 100
    new = scored.pop("new")
    assert {score == new if in_percent else score < new for score in scored.values()} == {True}


def test_a_changed_node_is_asked_again_for_its_cache() -> None:
    service = by_version({"old": "v1.33.5", "new": "v1.34.1"})
    document = pod("p", "7")
    old, new = scores(service, document, "old", "new")
    assert new > old
    service.ledger.reports.put_kubelet("old", "v1.34.1")
    old, new = scores(service, document, "old", "new")
    assert new == old


def test_later_calls_ask_the_model_about_the_rest_of_many_equal_nodes() -> None:
    service = by_version({"new": "v1.34.1", **{f"old-{number}": "v1.33.5" for number in range(40)}})
    names = ["new", *[f"old-{number}" for number in range(40)]]
    answers = Answers(service.ledger, service.records, strategies.make("TightFit", {}, Scoring()))
    question = answers.question(decoded(pod("p", "7")), names)
    new, *old = answers.scores(question).tolist()
    assert max(old) == new > min(old)
    new, *old = answers.scores(question).tolist()
    assert max(old) < new


def test_containers_take_their_cpus_one_after_the_other() -> None:
    """8 CPUs are free in 2 caches, 7 and 1 or 4 and 4: 2 containers of 4 CPUs have a cache each on the second node."""
    built = cached([0] * 9 + [1] * 8)
    config = configuration(1, "single-numa-node", "None", cpuManagerPolicyOptions=BY_CACHE)
    service = reported(
        node("uneven", built, config, [PLAIN] * 16, removed=[*range(7), 8]),
        node("even", built, config, [PLAIN] * 16, removed=[*range(4), *range(8, 12)]),
    )
    uneven, even = scores(service, containers("p", *[{"cpu": "4", "memory": "1Gi"}] * 2), "uneven", "even")
    assert even > uneven


def by_version(versions: Mapping[str, str]) -> Service:
    """Returns equal nodes, but for their kubelets: 2 L3 caches of 4 cores with 2 threads, CPUs 0 and 1 reserved."""
    cores = tuple(Core(socket=0, threads=(2 * core, 2 * core + 1), uncore=core // 4) for core in range(8))
    built = Machine(numa=(NumaNode(0, 17 * GIB, cores, {}, (10,)),))
    config = configuration(
        1,
        "single-numa-node",
        "None",
        cpuManagerPolicyOptions=BY_CACHE,
        featureGates={"CPUManagerPolicyAlphaOptions": True},
    )
    config = msgspec.structs.replace(config, reservedSystemCPUs="0-1")
    service = reported(*[node(name, built, config) for name in versions])
    for name, version in versions.items():
        service.ledger.reports.put_kubelet(name, version)
    return service


@EVERY
@pytest.mark.parametrize("measures", [((100, 0), (130, 0), (300, 0)), ((0, 400), (0, 300), (0, 50))])
def test_memory_that_was_measured_to_be_faster_is_nearer(strategy: str, measures: Any) -> None:
    """The firmware's distances are the same; latency or bandwidth distinguish a CXL expander from a near NUMA node."""
    config = configuration(2)
    own, near, far = measures
    service = reported(
        node("far", cached([0] * 5, [((0,), *own), ((0,), *far)]), config),
        node("near", cached([0] * 5, [((0,), *own), ((0,), *near)]), config),
    )
    slow, fast = scores(service, pod("p", "2", "20Gi"), "far", "near", strategy=strategy)
    assert fast > slow


# The machines have 3 and 8 CPUs.
UNEVEN = "; its cores or sockets have different numbers of CPUs, so a CPU may belong to two pods"


def test_an_explanation_names_the_numa_nodes_of_the_actual_cpus() -> None:
    service = busy("Static")
    unbound = kube_scheduler.unbound(msgspec.convert(pod("p", "4"), kube_scheduler.Pod))
    split, aligned = service.view.explanations(unbound, ["split", "aligned"])
    not_aligned = "container c is not aligned: CPUs on NUMA nodes 0 and 1, memory on 0 (cpu 4, memory 1Gi)"
    assert split.text == not_aligned + UNEVEN
    assert aligned.text == f"container c goes to NUMA node 1 (cpu 4, memory 1Gi){UNEVEN}"
    assert split.score < aligned.score


def test_on_a_node_without_alignment_the_explanation_names_the_numa_nodes() -> None:
    config = configuration(2, "none")
    service = reported(node("n1", machine([3, 8]), config, [{"cpu": "1", "memory": "1Gi"}]))
    unbound = kube_scheduler.unbound(msgspec.convert(pod("p", "9"), kube_scheduler.Pod))
    [explanation] = service.view.explanations(unbound, ["n1"])
    assert explanation.text.endswith(f"; container c has CPUs on NUMA nodes 0 and 1, memory on 0{UNEVEN}")


@EVERY
@pytest.mark.parametrize("policy", ["best-effort", "restricted"])
def test_a_kubelet_that_pins_a_pod_with_pod_level_resources_wins(strategy: str, policy: str) -> None:
    """From 1.34 on the pod gets CPUs of the shared pool and no hint, unless PodLevelResourceManagers is on."""
    built = machine([8, 8])
    service = reported(
        node("shared", built, configuration(2, policy)),
        node("pinned", built, configuration(2, policy, featureGates={"PodLevelResourceManagers": True}), [PLAIN] * 2),
    )
    document = containers("p", {"cpu": "4", "memory": "1Gi"})
    document["spec"]["resources"] = {"requests": {"cpu": "4", "memory": "1Gi"}, "limits": {"cpu": "4", "memory": "1Gi"}}
    assert service.fits(document, "shared", "pinned") == ["shared", "pinned"]
    shared, pinned = scores(service, document, "shared", "pinned", strategy=strategy)
    assert pinned > shared


@pytest.mark.parametrize(("closest", "score"), [("false", 76), ("true", 82)])
def test_prefer_closest_numa_nodes_decides_the_placement_and_not_the_formula(closest: str, score: int) -> None:
    """Of the pairs of free NUMA nodes, {0, 1} has the lowest ids, and {0, 2} is the closest pair."""
    distances = [[10, 20, 12, 20], [20, 10, 20, 20], [12, 20, 10, 20], [20, 20, 20, 10]]
    config = configuration(4, topologyManagerPolicyOptions={"prefer-closest-numa-nodes": closest})
    service = reported(node("n", machine([4] * 4, distances=distances), config))
    assert scores(service, pod("p", "6"), "n", strategy="LeastNUMANodes") == [score]
