"""A node is in one of the states that some order of the known events gives, and no other state keeps a pod away."""

from __future__ import annotations

import pytest

from courses import Course
from examples import examples
from scheduling import Service, decoded, exact, kubelet, pod
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.ledger.node.possible_placements import Possible

SEEDS = examples(24)


def outcome(seed: int) -> tuple[Course, bool | None, bool]:
    """Plays a course. Returns the answer about the newcomer, and whether the kubelet refuses the newcomer."""
    course, service = Course(seed), Service()
    truth = course.truth()
    course.heard(service)
    return course, course.is_let_on(service), course.refuses(truth)


def holding(*cpus: str) -> Kubelet:
    """Returns a kubelet with pods b0, b1 and so on of these CPUs. Zone 0 has 3 CPUs for pods, and zone 1 has 4."""
    node = kubelet()
    for number, cpu in enumerate(cpus):
        assert node.admit(decoded(pod(f"b{number}", cpu))).admitted
    return node


def free_cpus(state: Kubelet) -> tuple[int, ...]:
    """Returns the number of free CPUs by zone."""
    assert state.cpu is not None
    return tuple((cpus & state.cpu.available).bit_count() for cpus in state.topology.numa_cpus)


class Node:
    """A node as the service observes it."""

    def __init__(self, *cpus: str) -> None:
        self.service = Service()
        for number, cpu in enumerate(cpus):
            self.service.put(pod(f"b{number}", cpu, node="n1", phase="Running"), is_news=False)
        self.service.report(exact(holding(*cpus)))
        self.wait(10)

    def wait(self, seconds: float) -> None:
        self.service.wait(seconds)

    def admits(self, name: str, cpu: str) -> None:
        self.service.put(pod(name, cpu, node="n1", phase="Running"))

    def ends(self, name: str) -> None:
        self.service.ledger.drop_pod(f"uid-{name}")

    def fits(self, cpu: str) -> bool:
        return bool(self.service.fits(pod("newcomer", cpu), "n1"))

    def possible(self) -> Possible:
        state = self.service.state()
        possible = state.possible(self.service.clock.now)
        assert possible is not None
        return possible

    def free(self) -> set[tuple[int, ...]]:
        """Returns the free CPUs by zone in each state that is possible."""
        possible = self.possible()
        return {free_cpus(state) for state in (possible.node, *possible.states())}


class TestOrders:
    def test_alike_pods_that_came_together_leave_one_state(self) -> None:
        node = Node()
        for name in "abcde":
            node.admits(name, "1")
        assert node.possible().uncertain
        assert not node.fits("2")
        node.wait(3)
        assert node.possible().is_sure
        assert node.free() == {(0, 2)}
        assert node.fits("2")
        # The placement of each pod is not known.
        state = node.service.state()
        assert len(state.uncertain(node.service.clock.now)) == 5

    def test_a_pod_that_is_taken_off_the_node_may_be_any_of_alike_pods(self) -> None:
        """As in preemption: the state without a pod depends on the placement of each pod."""
        node = Node()
        for name in "ab":
            node.admits(name, "2")
        node.wait(3)
        states = node.service.ledger.node_states.states("n1", {"uid-a"})
        assert {free_cpus(state) for state in states} == {(3, 2), (1, 4)}

    def test_unlike_pods_that_came_together_leave_a_state_for_each_order(self) -> None:
        node = Node()
        node.admits("a", "3")
        node.admits("b", "1")
        node.wait(3)
        assert node.free() == {(0, 3), (2, 1)}
        assert node.fits("2")
        assert not node.fits("3")

    def test_an_order_in_which_an_acknowledged_pod_is_refused_is_left_out(self) -> None:
        node = Node("3")
        node.admits("a", "4")
        node.admits("b", "3")
        node.ends("b0")
        node.wait(3)
        # If b came before the end, one of the two pods would not fit.
        assert node.free() == {(0, 0)}
        assert node.possible().is_sure

    def test_an_end_observed_long_before_a_pod_precedes_the_pod(self) -> None:
        node = Node("2")
        node.ends("b0")
        node.wait(1)
        node.admits("a", "2")
        node.wait(3)
        assert node.possible().is_sure
        assert node.free() == {(1, 4)}

    def test_a_pod_that_ended_unreported_may_have_moved_a_pod_that_is_left(self) -> None:
        node = Node()
        node.admits("a", "3")
        node.admits("b", "2")
        node.wait(3)
        node.ends("a")
        node.wait(3)
        assert node.free() == {(1, 4), (3, 2)}

    def test_the_past_of_a_pod_without_allocations_contradicts_no_order(self) -> None:
        """The report is newer than such a pod, and another pod has the CPUs that its requests counted."""
        node = Node()
        requests = {"cpu": "5", "memory": "1Gi"}
        containers = [{"name": "c", "resources": {"requests": requests}}]
        node.service.put(pod("burstable", containers=containers, node="n1", phase="Running"))
        node.ends("burstable")
        node.admits("b0", "3")
        node.service.report(exact(holding("3"), version="2"))
        node.admits("a", "2")
        node.admits("b", "1")
        node.wait(3)
        assert not node.possible().uncertain
        assert node.fits("1")

    def test_a_pod_in_admission_may_have_any_placement_in_each_state(self) -> None:
        node = Node()
        node.admits("a", "3")
        node.admits("b", "1")
        node.wait(3)
        node.service.put(pod("c", "1", node="n1"))
        assert node.free() == {(0, 2), (0, 3), (1, 1), (2, 0)}


class TestRandomCourses:
    def test_no_newcomer_is_sent_to_a_node_that_refuses_it(self) -> None:
        """Also in the states that agree with what the service heard, and that the true course did not take."""
        answers = {True: 0, False: 0, None: 0}
        for seed in (*range(SEEDS), 163, 186):
            course, is_let_on, is_refused = outcome(seed)
            answers[is_let_on] += 1
            if is_let_on:
                assert not is_refused, f"seed {seed}"
                assert not any(course.refuses(state, in_flight=[]) for state in course.others()), f"seed {seed}"
        assert min(answers.values()) > 0, answers

    @pytest.mark.nightly
    def test_a_state_that_no_order_gives_is_found_to_be_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The courses of the first test do reach states by other orders than the predicted order."""

        monkeypatch.setattr("topowise_scheduler.ledger.node.node_state.possible_states", lambda *_: [])

        def is_wrong(seed: int) -> bool:
            course, is_let_on, is_refused = outcome(seed)
            return bool(is_let_on) and (
                is_refused or any(course.refuses(state, in_flight=[]) for state in course.others())
            )

        assert any(is_wrong(seed) for seed in range(400))


def test_too_many_orders_become_the_possible_placements_of_pods() -> None:
    node = Node()
    for name in "abcdefghij":
        node.admits(name, "500m" if name > "g" else "1")
    node.wait(3)
    assert node.possible().uncertain
    assert not node.fits("1")
