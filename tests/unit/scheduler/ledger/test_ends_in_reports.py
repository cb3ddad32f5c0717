"""The end of a pod is applied to a report only if the report is from before the end.

A report that lists a pod is from before its end. Of a pod that no report has listed, the times tell.
"""

from __future__ import annotations

import pytest

from living_node import LivingNode
from scheduling import GIB, Service, configuration, decoded, exact, kubelet, machine, pod, topology_of
from topowise import nrt
from topowise_scheduler.kubelet import Kubelet, MemoryBlock, Placement

# Each of them had a wrong state for up to 120 s while a newer report did not end an older end.
SEEDS = (20, 60, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (35, 42, 64, 66, 72)))


def came_and_went(service: Service, name: str = "short") -> None:
    """A pod of which no report tells; three seconds after its end it is of the past."""
    service.clock.now += 1
    service.put(pod(name, "1", "1Gi", node="n1", phase="Running"))
    service.clock.now += 1
    service.ledger.drop_pod(f"uid-{name}")
    service.clock.now += 3


def with_unlisted_block() -> Kubelet:
    """Returns a node on which an init container has the only block of NUMA node 0."""
    node = Kubelet(machine(8), configuration())
    assert node.memory is not None
    for number, zone in enumerate((1, 2, 3, 4, 4, 5, 5, 6, 6)):
        memory = (MemoryBlock("memory", (zone,), GIB),)
        placement = Placement("app", None, False, 1 << (4 * zone + number % 2), memory, {})
        node.hold(f"uid-b{number}", {"cpu": 1000, "memory": GIB}, {"c": placement})
    node.memory.tables.take("memory", 1, GIB)
    return node


def wide_report(node: Kubelet, version: str) -> nrt.NodeResourceTopology:
    """Returns what the exporter publishes of a node of eight NUMA nodes."""
    return topology_of(
        machine(8), configuration(), node, version, "n1", lambda uid: ("default", uid.removeprefix("uid-"))
    )


def test_an_end_before_the_report_takes_no_block_of_another_pod() -> None:
    service = Service()
    first = {"name": "i", "resources": pod("first", "1", "1Gi")["spec"]["containers"][0]["resources"]}
    for number in range(9):
        more = {"initContainers": [first]} if number == 0 else {}
        service.put(pod(f"b{number}", "1", "1Gi", node="n1", **more))
    service.report(wide_report(Kubelet(machine(8), configuration()), "1"))
    came_and_went(service)
    service.report(wide_report(with_unlisted_block(), "2"))
    assert service.memory().assignments == [1, 1, 1, 1, 2, 2, 2, 0]


def test_an_end_before_the_report_moves_no_memory_within_a_group() -> None:
    """A kubelet takes memory from the lowest NUMA node that has any, and gives it back to the lowest that lacks any."""
    policy = {"topologyManagerPolicy": "best-effort"}
    service, node = Service(), kubelet(**policy)
    service.put(pod("wide", "1", "20Gi", node="n1", phase="Running"))
    service.report(exact(node, **policy))
    came_and_went(service)
    assert node.admit(decoded(pod("wide", "1", "20Gi"))).admitted
    assert node.memory is not None
    service.report(exact(node, version="2", **policy))
    assert service.memory().cells == [3, 3]
    assert service.memory().free == node.memory.tables.free


def test_memory_groups_stay_as_they_were_when_the_kubelet_admitted_the_pod() -> None:
    """A report from before the admission comes after the end of another pod."""
    service, hardware, config = Service(), machine(4), configuration(topologyManagerPolicy="best-effort")
    before, admitted = Kubelet(hardware, config), {"phase": "Running", "startTime": "2026-11-23T12:00:00Z"}
    ended, late = pod("ended", "1", "14Gi", node="n1", **admitted), pod("late", "1", "20Gi", node="n1", **admitted)
    assert before.admit(decoded(ended)).admitted
    service.put(ended)
    service.report(topology_of(hardware, config, before, "1"))
    service.put(late)
    truth = before.fork()
    assert truth.admit(decoded(late)).admitted
    truth.remove("uid-ended")
    service.clock.now += 10
    service.ledger.drop_pod("uid-ended")
    for version in ("2", "3"):
        service.clock.now += 0.1
        service.report(topology_of(hardware, config, before, version))
    assert truth.memory is not None
    assert (service.memory().free, service.memory().cells) == (truth.memory.tables.free, truth.memory.tables.cells)
    # The pod has memory of the second and the third NUMA node, as the first was allocated.
    assert truth.memory.tables.cells == [0b0001, 0b0110, 0b0110, 0b1000]


@pytest.mark.parametrize("seed", SEEDS)
def test_after_each_report_the_state_is_that_of_the_report(seed: int) -> None:
    node = LivingNode(seed)
    assert node.play() == []
    assert node.counts["a service that starts"] > 2
    assert node.counts["the kubelet"] > 0
