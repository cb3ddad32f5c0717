"""A node is in one of the states that some order of the known events gives, and no other state keeps a pod away."""

from __future__ import annotations

import pytest

from courses import Course
from examples import examples
from scheduling import Service, decoded, exact, kubelet, pod
from stories import table, tell

SEEDS = examples(24)


def outcome(seed: int) -> tuple[Course, bool | None, bool]:
    """Plays a course. Returns the answer about the newcomer, and whether the kubelet refuses the newcomer."""
    course, service = Course(seed), Service()
    truth = course.truth()
    course.heard(service)
    return course, course.is_let_on(service), course.refuses(truth)


RUNS = "phase=Running"


@table("""
alike pods that came together leave one state
    exact; wait 10; bound a 1 RUNS; bound b 1 RUNS; bound c 1 RUNS; bound d 1 RUNS; bound e 1 RUNS; uncertain 5
    fits 2 not n1; wait 3; sure; possible 0,2; fits 2 n1
unlike pods that came together leave a state for each order
    exact; wait 10; bound a 3 RUNS; bound b 1 RUNS; wait 3; possible 0,3 2,1; fits 2 n1; fits 3 not n1
a report of amounts does not tell which order gives which CPUs
    counts 3 4 of=-; wait 10; bound a 3 RUNS; bound b 1 RUNS; wait 3; possible 0,3 0,4 2,1 3,0
a pod that the amounts include came before a later pod, although it has ended since
    bound a 3 RUNS; counts 5 8 of=a; bound b 5; end a; free 0 8
an order in which an acknowledged pod is refused is left out
    bound b0 3 RUNS news=no; exact b0:3; wait 10; bound a 4 RUNS; bound b 3 RUNS; end b0; wait 3
    # If b came before the end, one of the two pods would not fit.
    possible 0,0; sure
an end observed long before a pod precedes the pod
    bound b0 2 RUNS news=no; exact b0:2; wait 10; end b0; wait 1; bound a 2 RUNS; wait 3; sure; possible 1,4
a pod that ended unreported may have moved a pod that is left
    exact; wait 10; bound a 3 RUNS; bound b 2 RUNS; wait 3; end a; wait 3; possible 1,4 3,2
a pod that the report still lists had ended before the pods that came after its end
    exact; wait 10; bound a 3 RUNS; end a; bound b 1 RUNS; bound c 3 RUNS; exact a:3; wait 3; possible 0,3 2,1
a pod in admission may have any placement in each state
    exact; wait 10; bound a 3 RUNS; bound b 1 RUNS; wait 3; bound c 1; possible 0,2 0,3 1,1 2,0
a reserved pod comes after bound pods in every order
    exact; wait 10; bound a 3 RUNS; bound b 1 RUNS; reserve c 3; wait 3; possible 0,3 0,0 0,1 2,0
too many orders become the possible placements of pods
    exact; wait 10; bound a 1 RUNS; bound b 1 RUNS; bound c 1 RUNS; bound d 1 RUNS; bound e 1 RUNS; bound f 1 RUNS
    bound g 1 RUNS; bound h 500m RUNS; bound i 500m RUNS; bound j 500m RUNS; wait 3; sure no; fits 1 not n1
""")
def test_orders_of_events_leave_states(story: str) -> None:
    tell(story.replace("RUNS", RUNS))


def test_placements_of_alike_pods_are_not_known() -> None:
    """As in preemption: the state without a pod depends on the placement of each pod."""
    service = tell("exact; wait 10; bound a 2 phase=Running; bound b 2 phase=Running; wait 3")
    assert len(service.state().uncertain(service.clock.now)) == 2
    states = service.ledger.node_states.states("n1", {"uid-a"})
    cpus = [(state.topology.numa_cpus, state.cpu.available) for state in states if state.cpu is not None]
    assert sorted([(zone & free).bit_count() for zone in zones] for zones, free in cpus) == [[1, 4], [3, 2]]


def test_the_past_of_a_pod_without_allocations_contradicts_no_order() -> None:
    """The report is newer than such a pod, and another pod has the CPUs that its requests counted."""
    service = tell("exact; wait 10")
    containers = [{"name": "c", "resources": {"requests": {"cpu": "5", "memory": "1Gi"}}}]
    service.put(pod("burstable", containers=containers, node="n1", phase="Running"))
    tell("end burstable; bound b0 3 phase=Running", service)
    node = kubelet()
    assert node.admit(decoded(pod("b0", "3"))).admitted
    service.report(exact(node, version="9"))
    tell("bound a 2 phase=Running; bound b 1 phase=Running; wait 3; fits 1 n1", service)
    possible = service.state().possible(service.clock.now)
    assert possible is not None and not possible.uncertain


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
