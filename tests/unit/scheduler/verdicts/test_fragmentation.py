"""Fragmentation of a node: the largest aligned pod now, against the largest one if the free amounts were together."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest

import random_nodes
from lives import GPU, guaranteed
from scheduling import GIB, configuration, counts, decoded
from topowise import nrt
from topowise_scheduler import report
from topowise_scheduler.kubelet import (
    Core,
    Device,
    DevicePlugin,
    Kubelet,
    Machine,
    NumaNode,
)
from topowise_scheduler.ledger.pods.records import Records
from topowise_scheduler.report.shape import PodRequests
from topowise_scheduler.verdicts import fragmentation
from topowise_scheduler.verdicts.fragmentation import Figure

PAGES = "hugepages-2Mi"


def machine(threads: int = 1) -> Machine:
    """Returns two NUMA nodes with 16 CPUs, 32 GiB of memory, 2 GiB more in hugepages, and two GPUs each.

    The first NUMA node has another core and another GiB for the system.
    """
    return Machine(
        numa=tuple(
            NumaNode(
                id=zone,
                memory=(35 if zone == 0 else 34) * GIB,
                cores=tuple(
                    Core(zone, tuple(range(first, first + threads)))
                    for first in range(32 * zone, 32 * zone + 16 + (threads if zone == 0 else 0), threads)
                ),
                hugepages={2048: 1024},
                distances=(10, 21) if zone == 0 else (21, 10),
            )
            for zone in range(2)
        ),
        devices=(DevicePlugin(GPU, tuple(Device(f"gpu{zone}-{n}", (zone,)) for zone in range(2) for n in range(2))),),
    )


def node(*pods: dict[str, Any], threads: int = 1, **changed: Any) -> Kubelet:
    """Returns a node that has admitted the pods in this order."""
    kubelet = Kubelet(
        machine(threads), configuration(**{"reservedSystemCPUs": "0" if threads == 1 else "0,1", **changed})
    )
    for pod in pods:
        admission = kubelet.admit(decoded(pod))
        assert admission.admitted, admission.message
    return kubelet


def figures(kubelet: Kubelet) -> dict[str, Figure]:
    return dict(fragmentation.of_node(kubelet, {}).resources)


def pods(*waiting: dict[str, Any]) -> dict[str, PodRequests]:
    records = Records()
    return {pod["metadata"]["name"]: records.requests(decoded(pod)) for pod in waiting}


def spread(**changed: Any) -> Kubelet:
    """Returns a node with 8 free CPUs, 12 GiB of memory, 1 GiB of hugepages and a GPU on each NUMA node."""
    amounts: dict[str, Any] = {"cpu": "8", "memory": "20Gi", "gpus": 1, PAGES: "1Gi"}
    return node(guaranteed("a", **amounts), guaranteed("b", **amounts), **changed)


def packed() -> Kubelet:
    """Returns a node with 16 free CPUs, 32 GiB of memory, 2 GiB of hugepages and two GPUs on a single NUMA node."""
    return node(guaranteed("a", cpu="16", memory="32Gi", gpus=2, **{PAGES: "2Gi"}))


def test_the_obviously_fragmented_node() -> None:
    """The same amounts are free: on one node in halves, on the other together."""
    halves, whole = figures(spread()), figures(packed())
    assert (halves["cpu"], whole["cpu"]) == (Figure(8, 16), Figure(16, 16))
    assert (halves[GPU], whole[GPU]) == (Figure(1, 2), Figure(2, 2))
    assert [fragmentation.of_node(kubelet, {}).loss for kubelet in (spread(), packed())] == [50, 0]


@pytest.mark.parametrize("policy", ["single-numa-node", "restricted", "best-effort"])
def test_memory_and_hugepages_are_fragmented_too(policy: str) -> None:
    """Sizes are 128ths of the largest NUMA node: 256 MiB of memory, and 16 MiB of hugepages."""
    resources = figures(spread(topologyManagerPolicy=policy))
    assert resources["memory"] == Figure(12 * GIB, 24 * GIB)
    assert resources[PAGES] == Figure(GIB, 2 * GIB)
    assert [resources[name].loss for name in ("cpu", "memory", PAGES, GPU)] == [50, 50, 50, 50]


def test_policy_none_loses_nothing() -> None:
    """No pod is aligned, so the NUMA nodes of free amounts make no difference."""
    kubelet = node(topologyManagerPolicy="none", memoryManagerPolicy="None", reservedMemory=())
    for name in ("a", "b", "c"):
        assert kubelet.admit(decoded(guaranteed(name, cpu="5", gpus=1))).admitted
    assert figures(kubelet) == {"cpu": Figure(16, 16), GPU: Figure(1, 1)}
    assert fragmentation.of_node(kubelet, {}).loss == 0


def test_a_node_without_free_amounts_has_no_figure() -> None:
    full = guaranteed("a", cpu="16", memory="32Gi", gpus=2, **{PAGES: "2Gi"})
    kubelet = node(full, {**full, "metadata": {"name": "b", "uid": "uid-b"}})
    assert set(figures(kubelet).values()) == {Figure(0, 0)}
    assert fragmentation.of_node(kubelet, {}).loss is None


def test_shared_cpus_that_pods_request_are_not_free() -> None:
    """A Burstable pod has no exclusive CPUs, but the predicates count its request: 32 CPUs less 20."""
    burstable = guaranteed("shared", cpu="20")
    burstable["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "20"}}
    assert figures(node(burstable))["cpu"] == Figure(12, 12)


@pytest.mark.parametrize(("options", "figure"), [({}, Figure(9, 16)), ({"full-pcpus-only": "true"}, Figure(8, 16))])
def test_sizes_are_whole_cores_where_the_kubelet_requires_them(options: dict[str, str], figure: Figure) -> None:
    """7 and 8 CPUs are allocated where the policy permits odd numbers; whole cores otherwise."""
    first = "8" if options else "7"
    kubelet = node(
        guaranteed("a", cpu=first, memory="20Gi"),
        guaranteed("b", cpu="8", memory="20Gi"),
        threads=2,
        cpuManagerPolicyOptions=options,
    )
    assert figures(kubelet)["cpu"] == figure


def test_the_loss_of_waiting_pods_replaces_the_loss_of_resources() -> None:
    """A CPU and a GPU are free on different NUMA nodes: each resource alone loses nothing."""
    kubelet = node(guaranteed("cpus", cpu="16", memory="1Gi"), guaranteed("gpus", cpu="1", memory="25Gi", gpus=2))
    assert kubelet.placements("uid-cpus")["c"].numa != kubelet.placements("uid-gpus")["c"].numa
    assert {name: figures(kubelet)[name].loss for name in ("cpu", GPU)} == {"cpu": 0, GPU: 0}
    found = fragmentation.of_node(kubelet, pods(guaranteed("joint", cpu="4", gpus=1), guaranteed("easy", cpu="4")))
    assert found.pods == {"joint": Figure(0, 2), "easy": Figure(3, 3)}
    assert found.loss == 100


def test_pods_that_no_free_amounts_would_suffice_for_do_not_decide() -> None:
    found = fragmentation.of_node(spread(), pods(guaranteed("wide", cpu="17"), guaranteed("many", cpu="1", gpus=3)))
    assert found.pods == {"wide": Figure(0, 0), "many": Figure(0, 0)}
    assert found.loss == 50


def test_copies_of_a_pod_are_counted_up_to_eight() -> None:
    found = fragmentation.of_node(spread(), pods(guaranteed("small", cpu="1"), guaranteed("large", cpu="5")))
    assert found.pods == {"small": Figure(8, 8), "large": Figure(2, 3)}
    assert found.loss == 33


def test_the_node_stays_as_it_is() -> None:
    kubelet = spread()
    before = kubelet.placements("uid-a"), kubelet.requested.copy(), set(kubelet.active)
    fragmentation.of_node(kubelet, pods(guaranteed("waits", cpu="5")))
    assert (kubelet.placements("uid-a"), kubelet.requested, set(kubelet.active)) == before


def test_resources_that_reports_make_up_are_bounded() -> None:
    plugins = tuple(DevicePlugin(f"example.com/r{number}", (Device("d", (0,)),)) for number in range(100))
    kubelet = Kubelet(Machine(numa=machine().numa, devices=plugins), configuration())
    assert len(figures(kubelet)) == fragmentation.MAX_RESOURCES


def test_memory_that_a_report_does_not_list_has_no_figure() -> None:
    """The model gives such a node more memory than pods request, which is no amount of the node."""
    document = msgspec.json.decode(msgspec.json.encode(counts("n1", ("4", "4"))))
    for zone in document["zones"]:
        zone["resources"].append({**zone["resources"][0], "name": PAGES, "allocatable": "4Gi", "available": "2Gi"})
    listed = report.read(nrt.decode(msgspec.json.encode(document)))
    resources = figures(report.kubelet_of(listed, lambda _: None))
    assert resources == {"cpu": Figure(4, 8), PAGES: Figure(2 * GIB, 4 * GIB)}


def test_the_most_frequent_pods_represent_the_waiting_pods() -> None:
    def named(count: int) -> list[tuple[str, PodRequests]]:
        return [(f"p{count}-{number}", requests) for number in range(count) for requests in kinds[str(count)]]

    records = Records()
    kinds = {str(count): [records.requests(decoded(guaranteed("p", cpu=str(count))))] for count in range(1, 11)}
    waiting = [pod for count in range(1, 11) for pod in named(count)]
    assert list(fragmentation.most_frequent(waiting)) == [f"p{count}-0" for count in range(10, 2, -1)]


def test_every_node_has_figures_from_nothing_to_everything() -> None:
    """Random machines, policies and pods: the state never admits more than the empty node."""
    records = Records()
    for seed in range(60):
        rng = Random(seed)
        kubelet = random_nodes.node(rng).kubelet
        waiting = {f"p{number}": records.requests(random_nodes.pod(rng)) for number in range(3)}
        resources, copies = fragmentation.of_node(kubelet, waiting)
        assert all(0 <= figure.now <= figure.together for figure in (*resources.values(), *copies.values())), seed
        assert all(figure.together <= fragmentation.MAX_PODS for figure in copies.values()), seed
