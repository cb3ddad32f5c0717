"""What the writer does with the API server's answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from placing import Placing
from scheduling import NoApi, pod
from topowise.errors import ApiError
from topowise_scheduler.controllers.placement import Placer

pytestmark = pytest.mark.own_time

TRIED = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes are available"}]
OWNED = [{"kind": "ReplicaSet", "controller": True}]


class Answering(NoApi):
    """Answers with the pods of `placing`, or with the status that `refuses` returns for a request."""

    def __init__(self, placing: Placing) -> None:
        self.placing = placing
        self.refuses: Callable[[str, str], int] = lambda method, path: 0
        self.sent: list[tuple[str, str]] = []

    async def request(self, method: str, path: str, **_: Any) -> bytes:  # type: ignore[override]
        name = path.rpartition("/")[2]
        self.sent.append((method, name))
        if status := self.refuses(method, name):
            raise ApiError(status, "Refused", "no", request=f"{method} {path}")
        if method == "GET":
            document = pod(name, **self.placing.pods[name])
            document["metadata"]["ownerReferences"] = OWNED
            return json.dumps(document).encode()
        return b"{}"

    def of(self, method: str) -> list[str]:
        return [name for sent, name in self.sent if sent == method]


@pytest.fixture
def placing() -> Placing:
    placing = Placing("4", "4")
    for name in "ab":
        placing.put(name, "1")
    return placing


def placer(placing: Placing) -> tuple[Placer, Answering]:
    api = Answering(placing)
    return Placer(api, placing.ledger, placing.decisions, settles=False, clock=placing.clock), api


async def write_all(placing: Placing, placer: Placer) -> None:
    """All that is decided now, at the same time."""
    writes = []
    while decided := placing.next():
        writes += decided
    for write in writes:
        await placer._writers.acquire()
        await placer._write(write)


async def test_a_write_whose_booking_has_ended_is_not_sent(placing: Placing) -> None:
    """The last writes of a large group begin late where the API server is slow, when the room may be another pod's."""
    writer, api = placer(placing)
    (write,) = placing.next()
    placing.clock.now += 16
    placing.ledger.tick()
    await writer._writers.acquire()
    await writer._write(write)
    assert not api.sent
    assert placing.ledger.placements.gated_count == 2


@pytest.mark.parametrize(("status", "again"), [(403, 0), (409, 0), (422, 0), (429, 6), (500, 0)])
async def test_what_a_refusal_of_all_writes_leaves(placing: Placing, status: int, again: int) -> None:
    """Nothing stays booked, unless the pod may be placed. Only what is no fault of the pod is tried again at once.
    Writes that fail at the same time make one pause."""
    for name in "cdef":
        placing.put(name, "1")
    writer, api = placer(placing)
    api.refuses = lambda method, name: status
    await write_all(placing, writer)
    assert sorted(api.of("PATCH")) == [*"abcdef"]
    assert len(dict(placing.ledger.pods)) == (6 if status == 500 else 0)
    assert writer._paused_until - placing.clock.now < 2
    assert bool(writer._paused_until) == (status not in (409, 422))
    assert len(placing.place_all()) == again


async def look_for(seconds: float, placing: Placing, api: Answering) -> None:
    """Ends lost placements for so long."""
    writer = Placer(api, placing.ledger, placing.decisions, settles=False, clock=asyncio.get_running_loop().time)
    looking = asyncio.create_task(writer._end_lost())
    await asyncio.sleep(seconds)
    looking.cancel()


@pytest.fixture
def lost(placing: Placing) -> Answering:
    """Both pods are placed, and cannot be bound."""
    placing.place_all()
    for name in "ab":
        placing.put(name, conditions=TRIED)
    return Answering(placing)


async def test_a_lost_pod_that_cannot_be_deleted_is_told_of_once_and_delays_no_other(
    placing: Placing, lost: Answering
) -> None:
    lost.refuses = lambda method, name: 403 if (method, name) == ("DELETE", "a") else 0
    await look_for(65, placing, lost)
    assert lost.of("POST") == ["events", "events"]
    assert lost.of("DELETE") == ["a", "b", "a"]


async def test_a_pod_that_changes_before_it_is_deleted_is_looked_at_again(placing: Placing, lost: Answering) -> None:
    answers = iter([409, 409])
    lost.refuses = lambda method, _: next(answers, 0) if method == "DELETE" else 0
    await look_for(34, placing, lost)
    assert sorted(lost.of("DELETE")) == ["a", "a", "b", "b"]


async def test_a_pod_for_which_kube_scheduler_evicts_is_not_deleted_until_that_was_in_vain(
    placing: Placing, lost: Answering
) -> None:
    """Also if no event has shown it yet."""
    pods, placing.pods = (
        placing.pods,
        {name: {**fields, "nominatedNodeName": "n1"} for name, fields in placing.pods.items()},
    )

    async def fail() -> None:
        await asyncio.sleep(40)
        assert not lost.of("DELETE")
        placing.pods = pods

    await asyncio.gather(look_for(45, placing, lost), fail())
    assert sorted(lost.of("DELETE")) == ["a", "b"]


async def test_a_nominated_pod_that_fits_nowhere_is_not_lost() -> None:
    """It may go to any node."""
    placing = Placing("4", form="nominated")
    placing.put("a", "4")
    placing.place_all()
    placing.put("a", conditions=TRIED)
    api = Answering(placing)
    await look_for(40, placing, api)
    assert {method for method, _ in api.sent} == {"GET"}
    assert len(api.sent) == 1
