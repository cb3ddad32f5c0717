"""App containers do not always reuse the CPUs of init containers, so a pod's placement and amount are known late."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import msgspec
import pytest

from examples import examples
from sandbox.exported import exported
from scheduling import GIB, Service, configuration, container, decoded, kubelet, machine, pod
from topowise import pods
from topowise_scheduler.kubelet import Core, Kubelet, Machine, NumaNode
from topowise_scheduler.kubelet.pod import PodView
from topowise_scheduler.ledger.node.pod_parts import holds_anything, is_of_any_size
from topowise_scheduler.ledger.node.possible_placements import possible_placements

Json = dict[str, Any]
Amounts = tuple[int, str]


def document(name: str, apps: list[Amounts], before: list[tuple[str, Amounts]], **fields: Any) -> Json:
    """A Guaranteed pod; `before` are its init containers, "Always" for sidecars."""

    def built(name: str, counts: Amounts, restart: str = "") -> Json:
        more = {"restartPolicy": restart} if restart else {}
        return container({"cpu": str(counts[0]), "memory": counts[1]}, name, **more)

    containers = [built(f"c{at}", counts) for at, counts in enumerate(apps)]
    first = [built(f"i{at}", counts, kind) for at, (kind, counts) in enumerate(before)]
    return pod(name, containers=containers, initContainers=first, **fields)


def seen(node: Kubelet, spec: Json) -> PodView:
    return node.view(spec["metadata"]["uid"], pods.needs(decoded(spec)))


def small(count: int) -> Amounts:
    return count, "64Mi"


class TestHowManyCpusItHas:
    def test_at_most_the_sum_where_zones_do_not_decide(self) -> None:
        node = kubelet(topologyManagerPolicy="none", memoryManagerPolicy="None", reservedMemory=None)
        pod_view = seen(node, document("a", [small(2)], [("", small(1))]))
        assert node.admit_view(pod_view).admitted
        assert node.cpu is not None
        assert node.cpu.available.bit_count() == 5
        (placement,) = possible_placements(node, [pod_view])
        assert placement.cpu is not None
        assert placement.cpu.available.bit_count() == 4

    def test_what_asks_for_the_same_as_an_init_container_before_it_is_given_the_same(self) -> None:
        node = kubelet(topologyManagerPolicy="none", memoryManagerPolicy="None", reservedMemory=None)
        same = seen(node, document("a", [small(2)], [("", small(2))]))
        assert not is_of_any_size(node, same)
        assert not holds_anything(node, same)
        assert is_of_any_size(node, seen(node, document("b", [small(2), small(2)], [("", small(3))])))
        assert not is_of_any_size(node, seen(node, document("c", [small(2)], [("Always", small(1))])))


def histories() -> Iterator[tuple[Kubelet, Kubelet, PodView]]:
    """Yields a node that admitted a pod before other pods ended, the prediction in which the other pods end first, and
    the pod."""
    for seed in range(examples(200)):
        rng = Random(seed)
        zones, cores, shared, threads = rng.choice((1, 2, 2, 4)), rng.choice((2, 4, 6)), rng.choice((1, 2, 3)), 2
        numa = [
            NumaNode(
                id=zone,
                memory=16 * GIB,
                cores=tuple(
                    Core(zone, tuple(core + thread * zones * cores for thread in range(threads)), core // shared)
                    for core in range(zone * cores, (zone + 1) * cores)
                ),
            )
            for zone in range(zones)
        ]
        option = rng.choice(("", "distribute-cpus-across-numa", "prefer-align-cpus-by-uncorecache"))
        config = configuration(
            topologyManagerPolicy=rng.choice(("none", "best-effort", "restricted", "single-numa-node")),
            topologyManagerScope=rng.choice(("container", "pod")),
            cpuManagerPolicyOptions={option: "true"} if option else {},
        )
        node = Kubelet(Machine(numa=tuple(numa)), config)

        def amounts(rng: Random = rng) -> Amounts:
            return rng.randint(1, 4), rng.choice(("64Mi", "64Mi", "3Gi", "9Gi", "20Gi"))

        for number in range(rng.choice((0, 1, 2))):
            node.admit_view(seen(node, document(f"l{number}", [amounts()], [])))
        truth, predicted = node.fork(), node.fork()
        before = [(rng.choice(("", "", "Always")), amounts()) for _ in range(rng.choice((1, 1, 2)))]
        view = seen(node, document("a", [amounts() for _ in range(rng.choice((1, 1, 2)))], before))
        gone = seen(node, document("gone", [amounts()], []))
        if truth.admit_view(gone).admitted and truth.admit_view(view).admitted and predicted.admit_view(view).admitted:
            truth.remove(gone.uid)
            yield truth, predicted, view


def test_no_pod_is_sent_to_a_node_that_refuses_it_after_any_ended_pod() -> None:
    tried = otherwise = 0
    for truth, predicted, view in histories():
        tried += 1
        states = [predicted, *(possible_placements(predicted, [view]) if holds_anything(predicted, view) else ())]
        assert truth.cpu is not None
        assert predicted.cpu is not None
        otherwise += truth.cpu.allocations.get(view.uid) != predicted.cpu.allocations.get(view.uid)
        for count in range(1, 13):
            newcomer = seen(truth, document("next", [small(count)], []))
            if all(state.fork().admit_view(newcomer).admitted for state in states):
                assert truth.fork().admit_view(newcomer).admitted, (truth.settings, view.containers, count)
    assert tried > 50
    assert otherwise > 10


def reported(machine: Machine, **changed: Any) -> Service:
    """A service that knows such a node, without pods. CPU 0 is reserved."""
    config = configuration(memoryManagerPolicy="None", reservedMemory=None, **changed)
    topology = exported(machine, config, Kubelet(machine, config), lambda uid: ("default", uid))
    service = Service()
    service.report(msgspec.structs.replace(topology, metadata=msgspec.structs.replace(topology.metadata, name="n1")))
    return service


class TestTheLedger:
    @pytest.mark.parametrize("zones", [1, 2])
    def test_no_pod_is_sent_where_its_cpus_may_be_allocated(self, zones: int) -> None:
        service = reported(machine(zones), topologyManagerPolicy="none")
        service.put(pod("other", "1", node="n1", phase="Running"))
        service.put(document("a", [small(2)], [("", small(1))], node="n1"))
        service.ledger.drop_pod("uid-other")
        left = 4 * zones - 1
        assert not service.fits(pod("next", str(left - 2)), "n1")
        assert service.fits(pod("next", str(left - 3)), "n1")

    def test_a_pod_is_not_bound_before_the_pods_that_make_it_fit(self) -> None:
        """While another pod has two CPUs of node 0, the init container and the containers after it go to node 1."""
        service = reported(machine())
        truth = kubelet(memoryManagerPolicy="None", reservedMemory=None)
        service.reserve(pod("other", "2"))
        spec = document("a", [small(4)], [("", small(2))])
        assert service.fits(spec, "n1")
        record = service.put(spec)
        assert not truth.admit_view(record.view(truth)).admitted
        assert "before pods that are only expected there" in service.assume(record)
        service.put(pod("other", "2", node="n1", phase="Running"))
        service.wait(3)
        assert service.assume(record) == ""
