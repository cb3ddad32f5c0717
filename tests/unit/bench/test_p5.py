"""The scenario p5 in small: nobody is refused, nobody's pods run away, and the GPUs are in use."""

from __future__ import annotations

import pytest

from bench.density import schedulers
from bench.p5 import choosing, jobs, scenario
from bench.p5.timeline import Timeline
from bench.results import Churned

MACHINES, HOURS = 12, 6.0


@pytest.fixture(scope="module")
def found() -> dict[str, Churned]:
    return {name: scenario.run(name, MACHINES, HOURS, 1) for name in (choosing.ALIGNED, schedulers.BLIND[0])}


def test_nobody_is_refused_and_95_percent_of_the_bound_are_in_use(found: dict[str, Churned]) -> None:
    """In small an end of a job is a larger part of it all, and the fleet is empty at first."""
    day = found[choosing.ALIGNED]
    assert (day.refused, day.most_refused) == (0, 0)
    assert day.of_bound > 0.95
    assert day.jobs > 100
    assert day.joined > MACHINES


def test_without_topowise_owners_make_pods_again_and_again(found: dict[str, Churned]) -> None:
    blind = found[schedulers.BLIND[0]]
    assert blind.refused > 10
    assert blind.most_refused > 3


def test_both_had_the_same_jobs_and_machines(found: dict[str, Churned]) -> None:
    one, other = found.values()
    assert (one.jobs, one.joined) == (other.jobs, other.joined)


def test_a_run_can_be_repeated(found: dict[str, Churned]) -> None:
    again = scenario.run(schedulers.BLIND[0], MACHINES, HOURS, 1)
    assert again == found[schedulers.BLIND[0]]


def test_no_pod_of_8_gpus_could_be_aligned() -> None:
    """Which is why a job of 8 is two pods."""
    fleet = scenario.Fleet(1, Timeline(), 0, lambda _: None, lambda _: None, lambda *_: None)
    trial = fleet.empty.fork()
    assert trial.admit_view(trial.view("p", jobs.needs(8))).reason == "TopologyAffinityError"
    assert jobs.Job(1, 8, 0.0, 60.0, "Job").pods == [4, 4]


def test_owners_wait_longer_and_longer() -> None:
    job = jobs.Job(1, 4, 0.0, 60.0, "Job")
    pauses = []
    for _ in range(8):
        job.refused += 1
        pauses.append(job.pause())
    assert pauses == [10, 20, 40, 80, 160, 320, 360, 360]


def test_time_passes_in_order() -> None:
    timeline = Timeline()
    seen: list[tuple[str, float]] = []
    timeline.after(2, lambda: seen.append(("late", timeline())))
    timeline.after(1, lambda: timeline.after(0.5, lambda: seen.append(("early", timeline()))))
    timeline.after(9, lambda: seen.append(("never", timeline())))
    timeline.run(3)
    assert seen == [("early", 1.5), ("late", 2.0)]
    assert timeline() == 3
