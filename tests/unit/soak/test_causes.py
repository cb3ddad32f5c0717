"""What the soak takes for a cause has happened."""

from __future__ import annotations

from scheduling import kubelet
from soak import causes

HISTORY = [
    (1.0, "default/a assigned"),
    (2.0, "default/a admitted: c numa=(0,)"),
    (3.0, "default/a is Running in the API"),
    (9.0, "default/a ended"),
    (9.5, "default/b assigned"),
]


def test_an_end_is_the_last_that_was_heard_of() -> None:
    assert causes.last_end(HISTORY) == 9.0
    assert causes.last_end(HISTORY[:3]) == 3.0
    assert causes.last_end(HISTORY[:2]) == 0.0


def test_a_pod_is_unseen_that_ended_between_the_last_report_and_the_start_of_the_service() -> None:
    assert causes.ended_unseen("default/a", HISTORY, looked=8.0, began=10.0)
    # The report was made afterwards; the service heard of it; it still runs.
    assert not causes.ended_unseen("default/a", HISTORY, looked=9.1, began=10.0)
    assert not causes.ended_unseen("default/a", HISTORY, looked=8.0, began=8.5)
    assert not causes.ended_unseen("default/b", HISTORY, looked=8.0, began=10.0)
    assert not causes.ended_unseen("a", HISTORY, looked=8.0, began=10.0)


def test_memory_is_back_of_pods_with_init_containers_that_have_started_or_ended() -> None:
    history = [(1.0, "default/c admitted: i0 numa=(0,); c0 numa=(0,)"), (2.0, "default/c started"), *HISTORY]
    assert causes.gave_init_memory_back(history, since=1.5)
    # It was seen; the others have none.
    assert not causes.gave_init_memory_back(history, since=2.5)
    assert not causes.gave_init_memory_back(HISTORY, since=0.0)


def test_a_cpu_that_two_have_or_that_is_free_as_well_was_given_twice() -> None:
    node = kubelet()
    assert node.cpu is not None
    node.cpu.hold("a", "c", 0b0110)
    assert not causes.gives_twice(node)
    node.cpu.hold("b", "c", 0b0100)
    assert causes.gives_twice(node)
    node.cpu.release("b")
    assert causes.gives_twice(node)
    node.cpu.release("a")
    assert not causes.gives_twice(node)
