"""The scheduling queue of the sandbox's kube-scheduler: who is tried when."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from sandbox.kubescheduler.cache import NodeInfo, PodInfo, decode
from sandbox.kubescheduler.extender import PLUGIN as EXTENDER
from sandbox.kubescheduler.fit import EXCLUDING
from sandbox.kubescheduler.fit import PLUGIN as FIT
from sandbox.kubescheduler.queue import Event, QueuedPod, SchedulingQueue
from topowise_scheduler.verdicts.kube_scheduler import Node


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def queue(clock: Clock) -> SchedulingQueue:
    return SchedulingQueue(clock)


def pod(name: str, priority: int = 0) -> PodInfo:
    return decode(
        msgspec.json.encode(
            {
                "metadata": {"name": name, "namespace": "d", "uid": name},
                "spec": {"priority": priority, "containers": [{"name": "c"}]},
            }
        )
    )


async def taken(queue: SchedulingQueue) -> QueuedPod | None:
    try:
        async with asyncio.timeout(0.02):
            return await queue.pop()
    except TimeoutError:
        return None


async def refused_by(queue: SchedulingQueue, plugin: str) -> QueuedPod:
    queue.put(pod("p"))
    queued = await queue.pop()
    queue.refuse(queued, frozenset((plugin,)))
    assert await taken(queue) is None
    return queued


async def test_the_most_important_goes_first_then_the_oldest(queue: SchedulingQueue, clock: Clock) -> None:
    for name, priority in (("old", 0), ("young", 0), ("vip", 9)):
        queue.put(pod(name, priority))
        clock.now += 1
    assert [(await queue.pop()).info.uid for _ in range(3)] == ["vip", "old", "young"]


@pytest.mark.parametrize("kind", ["AssignedPodAdd", "AssignedPodUpdate", "NodeUpdate", "UnscheduledPodUpdate"])
async def test_any_event_wakes_a_pod_that_the_extender_refused(queue: SchedulingQueue, kind: str) -> None:
    await refused_by(queue, EXTENDER)
    queue.tell(Event(kind))  # type: ignore[arg-type]
    assert await taken(queue) is not None


async def test_a_pod_that_lacks_resources_wakes_when_an_assigned_pod_goes(queue: SchedulingQueue) -> None:
    await refused_by(queue, FIT)
    queue.tell(Event("AssignedPodAdd"))
    queue.put(pod("p"))
    assert await taken(queue) is None
    queue.tell(Event("AssignedPodDelete"))
    assert await taken(queue) is not None


async def test_a_pod_that_every_node_excludes_wakes_when_a_node_accepts_it(queue: SchedulingQueue) -> None:
    await refused_by(queue, EXCLUDING)
    node = NodeInfo("n")
    for is_cordoned in (True, False):
        queue.tell(Event("AssignedPodDelete"))
        node.object = Node("n", is_cordoned=is_cordoned)
        queue.tell(Event("NodeUpdate", node))
        assert (await taken(queue) is None) is is_cordoned


async def test_an_update_of_itself_wakes_a_pod_that_the_extender_refused(queue: SchedulingQueue) -> None:
    await refused_by(queue, EXTENDER)
    queue.put(pod("p"))
    assert await taken(queue) is not None


async def test_an_event_during_the_attempt_counts(queue: SchedulingQueue) -> None:
    queue.put(pod("p"))
    queued = await queue.pop()
    queue.tell(Event("AssignedPodUpdate"))
    queue.refuse(queued, frozenset((EXTENDER,)))
    assert await taken(queue) is queued


async def test_a_backoff_is_cut_short_when_there_is_nothing_else_to_do(queue: SchedulingQueue) -> None:
    queued = await refused_by(queue, EXTENDER)
    queue.put(pod("other"))
    queue.tell(Event("NodeUpdate"))
    assert queue.counts()["backoff"] == 1
    assert (await queue.pop()).info.uid == "other"
    assert await taken(queue) is queued


async def test_the_backoff_after_an_error_is_kept_and_grows(queue: SchedulingQueue, clock: Clock) -> None:
    queue.put(pod("p"))
    for seconds in (1, 2, 4, 8, 10, 10):
        queued = await queue.pop()
        queue.fail(queued)
        queue.tell(Event("NodeUpdate"))
        clock.now += seconds - 0.5
        assert not (queued.backoff_ends <= clock.now)
        clock.now += 0.5
        assert queued.backoff_ends <= clock.now


async def test_a_pod_that_is_deleted_during_its_attempt_does_not_come_back(queue: SchedulingQueue) -> None:
    queue.put(pod("p"))
    queued = await queue.pop()
    queue.drop("p")
    queue.refuse(queued, frozenset((EXTENDER,)))
    queue.tell(Event("NodeUpdate"))
    assert await taken(queue) is None
    assert queue.is_quiet
