"""While the placement of pods is uncertain, no pod is sent to resources that they may have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from scheduling import (
    GIB,
    Service,
    configuration,
    container,
    decoded,
    exact,
    kubelet,
    machine,
    pod,
)
from stories import table, tell
from topowise import pods
from topowise_scheduler.kubelet import Device, DevicePlugin, Kubelet
from topowise_scheduler.kubelet.pod import PodView
from topowise_scheduler.ledger.node.exact_placements import EXACT
from topowise_scheduler.ledger.node.pod_parts import holds_anything
from topowise_scheduler.ledger.node.possible_placements import possible_placements


def view(node: Kubelet, name: str, cpu: str, memory: str = "1Gi") -> PodView:
    needs = pods.needs(decoded(pod(name, cpu, memory)))
    return node.view(f"uid-{name}", needs)


def of_containers(node: Kubelet, name: str, *cpus: str, init: int = 0) -> PodView:
    """A pod with a container for each number of CPUs; the first `init` containers are init containers."""
    amounts = [{"cpu": cpu, "memory": "1Gi"} for cpu in cpus]
    containers = [container(each, f"c{at}") for at, each in enumerate(amounts)]
    document = pod(name, containers=containers[init:], initContainers=containers[:init])
    return node.view(f"uid-{name}", pods.needs(decoded(document)))


def of_device(numa: tuple[int, ...] | None, cpu: str = "2", **changed: Any) -> tuple[Kubelet, PodView]:
    """Returns a node with a device near these NUMA nodes, and the pod that has the device."""
    hardware = msgspec.structs.replace(machine(), devices=(DevicePlugin("kvm", (Device("d0", numa),)),))
    node = Kubelet(hardware, configuration(**changed))
    document = pod("a", containers=[container({"cpu": cpu, "memory": "1Gi", "kvm": "1"})])
    pod_view = node.view("uid-a", pods.needs(decoded(document)))
    assert node.admit_view(pod_view).admitted
    return node, pod_view


def free(node: Kubelet) -> tuple[list[int], list[int]]:
    assert node.cpu is not None
    assert node.memory is not None
    cpus = [(cpus & node.cpu.available).bit_count() for cpus in node.topology.numa_cpus]
    return cpus, [amount // GIB for amount in node.memory.tables.free["memory"]]


def possible_cpus(node: Kubelet, views: Sequence[PodView], *bounds: Any) -> list[list[int]]:
    """Admits the pods, and returns the free CPUs by NUMA node of each of their possible placements."""
    assert all(node.admit_view(pod_view).admitted for pod_view in views)
    return [free(possible)[0] for possible in possible_placements(node, views, *bounds)]


class TestPossiblePlacements:
    def test_each_possible_numa_node_of_the_pod_is_a_placement(self) -> None:
        node = kubelet()
        pod_view = view(node, "a", "2", "4Gi")
        assert node.admit_view(pod_view).admitted
        assert free(node) == ([1, 4], [11, 16])
        assert [free(possible) for possible in possible_placements(node, [pod_view])] == [
            ([1, 4], [11, 16]),
            ([3, 2], [15, 12]),
        ]
        assert free(node) == ([1, 4], [11, 16])

    def test_impossible_numa_nodes_are_no_placement(self) -> None:
        """A CPU of the first NUMA node is reserved."""
        node = kubelet()
        assert possible_cpus(node, [view(node, "a", "4")]) == [[3, 0]]

    def test_a_pod_that_was_predicted_not_to_fit_may_be_placed(self) -> None:
        node = kubelet()
        assert node.admit_view(view(node, "other", "4")).admitted
        assert [free(possible)[0] for possible in possible_placements(node, [view(node, "a", "2")])] == [[1, 0], [3, 0]]

    @pytest.mark.parametrize(
        ("policy", "cpus", "free_at_worst"),
        [("restricted", "5", [0, 0]), ("restricted", "8", [3, 4]), ("single-numa-node", "5", [3, 4])],
    )
    def test_a_pod_too_large_for_a_numa_node_is_on_several_or_none(
        self, policy: str, cpus: str, free_at_worst: list[int]
    ) -> None:
        """Three CPUs of the first NUMA node and four of the second are not the system's."""
        node = kubelet(topologyManagerPolicy=policy)
        wide = view(node, "a", cpus)
        node.admit_view(wide)
        assert [free(possible)[0] for possible in possible_placements(node, [wide])] == [free_at_worst]

    def test_two_pods_may_share_a_numa_node_or_not(self) -> None:
        """Which of the two has which NUMA node does not matter to a new pod."""
        node = kubelet()
        assert possible_cpus(node, [view(node, name, "1") for name in "ab"]) == [[1, 4], [2, 3], [3, 2]]

    def test_containers_of_a_pod_may_share_a_numa_node_or_not(self) -> None:
        """In no placement a container takes CPUs of both NUMA nodes."""
        node = kubelet()
        two = of_containers(node, "a", "1", "1")
        assert possible_cpus(node, [two]) == [[1, 4], [2, 3], [3, 2]]
        assert [free(state)[1] for state in possible_placements(node, [two])] == [[13, 16], [14, 15], [15, 14]]

    def test_containers_after_init_containers_may_have_any_placement(self) -> None:
        """The app container may get CPUs of the init container, or other CPUs, but never on both NUMA nodes at once."""
        node = kubelet()
        pod_with_init = of_containers(node, "a", "1", "2", init=1)
        assert possible_cpus(node, [pod_with_init]) == [[0, 4], [2, 2], [1, 3], [3, 1]]
        assert possible_cpus(node, [pod_with_init], {"uid-a": 0}, EXACT) == [[0, 4]]

    def test_init_containers_where_zones_do_not_decide_become_a_single_worst_case(self) -> None:
        node = kubelet(topologyManagerPolicy="none")
        pod_with_init = of_containers(node, "a", "1", "2", init=1)
        assert node.admit_view(pod_with_init).admitted
        (worst,) = possible_placements(node, [pod_with_init])
        assert free(worst)[1] == [14, 15]

    def test_many_pods_of_a_size_have_few_placements(self) -> None:
        """Only the number of pods on a NUMA node matters."""
        node = kubelet()
        many = [view(node, f"p{number}", "1") for number in range(5)]
        assert possible_cpus(node, many) == [[0, 4], [0, 3], [0, 2], [1, 1], [2, 0], [3, 0]]

    def test_too_many_placements_become_a_single_worst_case(self) -> None:
        node = kubelet()
        assert possible_cpus(node, [view(node, f"p{at}", "1", f"{at + 1}Gi") for at in range(5)]) == [[0, 0]]

    def test_where_only_ends_can_come_in_between_equal_pods_are_no_higher_than_predicted(self) -> None:
        node = kubelet()
        pair = [view(node, name, "2") for name in "ab"]
        assert possible_cpus(node, pair, {"uid-a": 0, "uid-b": 1}) == [[0, 4], [1, 2]]
        unlike = [pair[0], view(node, "b", "1")]
        assert len(possible_placements(node, unlike, {"uid-a": 0, "uid-b": 1})) == 4

    def test_where_zones_do_not_decide_only_memory_may_be_elsewhere(self) -> None:
        node = kubelet(topologyManagerPolicy="best-effort")
        moved = view(node, "a", "2", "4Gi")
        assert node.admit_view(moved).admitted
        highest = {moved.uid: 1}
        assert [free(possible)[1] for possible in possible_placements(node, [moved], highest)] == [
            [11, 16],
            [15, 12],
        ]

    @pytest.mark.parametrize("policy", ["single-numa-node", "restricted"])
    def test_the_next_pod_counts_on_the_numa_node_that_most_allocated_takes(self, policy: str) -> None:
        """No other pod has anything, so that no end can change the vote. Restricted ignores the option."""
        options = {"prefer-most-allocated-numa-node": "true"}
        changed = {"topologyManagerPolicy": policy, "topologyManagerPolicyOptions": options}
        service = Service()
        service.report(exact(kubelet(**changed), **changed))
        service.reserve(pod("first", "2"))
        service.put(pod("first", "2", node="n1"))
        assert service.fits(pod("second", "4"), "n1")

    def test_most_allocated_may_take_each_numa_node_that_was_fuller_before_an_end(self) -> None:
        node = kubelet(topologyManagerPolicyOptions={"prefer-most-allocated-numa-node": "true"})
        assert node.admit_view(view(node, "large", "3")).admitted
        assert node.admit_view(view(node, "small", "2")).admitted
        node.remove("uid-large")
        moved = view(node, "moved", "1")
        assert node.admit_view(moved).admitted
        assert free(node)[0] == [3, 1]
        # The small pod may have ended before the other pod was admitted.
        free_cpus = [free(possible)[0] for possible in possible_placements(node, [moved], {moved.uid: 1})]
        assert free_cpus == [[2, 2], [3, 1]]
        empty = node.without(["uid-small"])
        assert [free(possible)[0] for possible in possible_placements(empty, [moved], {moved.uid: 0})] == [[2, 4]]

    @pytest.mark.parametrize("numa", [None, ()])
    def test_devices_near_no_numa_node_keep_a_pod_from_none(self, numa: tuple[int, ...] | None) -> None:
        """As KubeVirt's kvm: every virtual machine has a device."""
        node, pod_view = of_device(numa)
        assert [free(possible)[0] for possible in possible_placements(node, [pod_view])] == [[1, 4], [3, 2]]
        # The placement of these devices does not matter.
        assert not holds_anything(*of_device(numa, cpu="500m", memoryManagerPolicy="None", reservedMemory=None))

    def test_a_device_that_failed_later_counts_for_an_earlier_pod(self) -> None:
        node, pod_view = of_device((1,))
        assert free(node)[0] == [3, 2]
        node.report_devices("kvm", [Device("d0", (1,), healthy=False)])
        assert [free(possible)[0] for possible in possible_placements(node, [pod_view])] == [[3, 2]]

    def test_a_pod_of_the_shared_pool_has_no_exclusive_resources(self) -> None:
        node = kubelet(memoryManagerPolicy="None", reservedMemory=None)
        assert not holds_anything(node, view(node, "a", "500m"))
        assert holds_anything(node, view(node, "a", "2"))


class TestWithMoreEffort:
    """The model decides where a pod may lie after ends, and only orders of admissions are unknown."""

    def test_unlike_pods_lie_where_some_order_puts_them(self) -> None:
        node = kubelet()
        unlike = [view(node, "a", "2", "4Gi"), view(node, "b", "1")]
        assert all(node.admit_view(pod_view).admitted for pod_view in unlike)
        assert free(node) == ([0, 4], [10, 16])
        # Both find room on the first NUMA node, whatever comes first, and after each end.
        bounded = {"uid-a": 0, "uid-b": 0}
        assert [free(state) for state in possible_placements(node, unlike, bounded, EXACT)] == [free(node)]
        assert len(possible_placements(node, unlike, bounded)) == 4

    def test_each_order_of_unlike_pods_is_tried(self) -> None:
        node = kubelet()
        unlike = [view(node, "a", "3"), view(node, "b", "2")]
        cpus = possible_cpus(node, unlike, {"uid-a": 0, "uid-b": 1}, EXACT)
        # If the smaller pod comes first, the larger pod takes the second NUMA node, or a part of the first after ends.
        assert [0, 2] in cpus and [1, 1] in cpus

    def test_a_pod_that_the_prediction_does_not_bound_may_have_any_placement(self) -> None:
        """A pod has ended without a report, beside which the pod may have been placed."""
        node = kubelet()
        unlike = [view(node, "a", "2"), view(node, "b", "1")]
        assert len(possible_cpus(node, unlike, {"uid-a": 2, "uid-b": 0}, EXACT)) == 4

    def test_memory_over_several_numa_nodes_is_where_some_ends_put_it(self) -> None:
        changed = {"topologyManagerPolicy": "none"}
        node = Kubelet(machine(4), configuration(**changed))
        assert node.admit_view(view(node, "low", "1", "4Gi")).admitted
        wide = view(node, "wide", "1", "20Gi")
        assert node.admit_view(wide).admitted
        assert node.memory is not None
        assert node.memory.tables.cells == [1, 6, 6, 8]
        placements = possible_placements(node, [wide], {wide.uid: 2}, EXACT)
        cells = [state.memory.tables.cells for state in placements if state.memory is not None]
        assert cells == [[1, 6, 6, 8], [3, 3, 4, 8]]
        assert all(state.requested == node.requested for state in placements)

    def test_cpus_are_where_some_end_puts_them_though_memory_is_the_same(self) -> None:
        node = Kubelet(machine(3), configuration(topologyManagerPolicy="best-effort"))
        views = [view(node, "ending", "5"), view(node, "wide", "3", "20Gi")]
        assert all(node.admit_view(pod_view).admitted for pod_view in views)
        placements = possible_placements(node, views[1:], {"uid-wide": 1}, EXACT)
        assert [free(state)[0] for state in placements] == [[0, 0, 3], [0, 4, 4]]

    def test_many_pods_with_memory_remain_a_worst_case(self) -> None:
        node = Kubelet(machine(4), configuration(topologyManagerPolicy="best-effort"))
        for number in range(9):
            assert node.admit_view(view(node, f"p{number}", "500m", "1Gi")).admitted
        wide = view(node, "wide", "1", "20Gi")
        assert node.admit_view(wide).admitted
        (worst,) = possible_placements(node, [wide], {wide.uid: 2}, EXACT)
        assert free(worst)[1] == [0, 0, 0, 0]


def test_a_pod_on_a_numa_node_of_a_group_came_after_the_group() -> None:
    """By best-effort the memory of the pods that formed the group is free then."""
    node = Kubelet(machine(4), configuration(topologyManagerPolicy="best-effort"))
    assert node.admit_view(view(node, "wide", "1", "20Gi")).admitted
    moved = view(node, "moved", "1", "4Gi")
    assert node.admit_view(moved).admitted
    assert free(node)[1] == [0, 11, 12, 16]
    memory = [free(state)[1] for state in possible_placements(node, [moved], {moved.uid: 2})]
    assert memory == [[11, 16, 16, 16], [15, 12, 16, 16], [0, 11, 12, 16]]


@table("""
until the kubelet has admitted the pod and nothing came in between
    exact; bound a 3; fits 4 not n1; uncertain 1; bound a 3 phase=Running; fits 4 not n1; wait 3; fits 4 n1; uncertain 0
until the report if a pod ended meanwhile
    exact; bound other 2 phase=Running; exact other:2; bound a 2; end other; bound a 2 phase=Running; wait 3
    # Zone 0 has a free CPU, so the pod is predicted on zone 1; but the other pod may have ended before.
    free 3 2; fits 3 n1; uncertain 1; exact a:2; free 1 4; fits 4 n1
until the report if two pods came together
    exact; bound a 3 phase=Running; bound b 1 phase=Running; wait 3; free 0 3
    # If the second pod came first, it would be on node 0 and the first pod on node 1.
    fits 3 not n1
a pod we sent to the first NUMA node is not expected on the second
    exact; reserve a 2; fits 4 n1; bound a 2; fits 4 n1; bound b 1; fits 4 not n1
pods that were there before us are uncertain for two minutes
    exact; bound a 3 phase=Running news=no; wait 3; fits 4 not n1; wait 120; fits 4 n1
a bind is checked against the worst
    exact; bound a 3; assume next 4 why=TopologyAffinityError
a pod on its way must not be refused if another comes first
    # On node 0 it would leave two CPUs, but the first pod still finds four on node 1.
    exact; bound a 3; assume next 1; assume large 3 why=TopologyAffinityError
a pod that fits either way does not wait
    exact; counts 8 8 of=-; bound a 8; fits 8 n1; fits 9 not n1
a nominated pod is not expected any more once its reservation has ended
    exact; pod a 2 nominated=n1; reserve a 2 nominated=n1; uncertain 1; release a; uncertain 0
on one NUMA node nothing is uncertain
    counts 8 of=-; bound a 3; fits 5 n1
""")
def test_a_pod_is_not_sent_where_another_pod_may_be(story: str) -> None:
    tell(story)
