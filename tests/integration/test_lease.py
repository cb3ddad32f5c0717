"""Candidates for the same Lease: at most one candidate leads at any time, under every API server fault."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from daemons import assert_eventually, plain
from sandbox import simulated_time
from sandbox.apiserver import ApiServer
from sandbox.apiserver.levers import Delay, Drop, Levers, Stall
from topowise.errors import ApiError
from topowise.kube.api import Api
from topowise.kube.lease import Elector, Timing
from topowise.runtime import clock

pytestmark = pytest.mark.own_time

# The shortest periods in which a busy machine renews reliably.
FAST = Timing(lease_duration=1.0, renew_deadline=0.65, retry_period=0.1)
LEASES = "leases.coordination.k8s.io"


class Candidate:
    """An elector with its own connection, and the times at which its work began and ended."""

    def __init__(self, api: Api, name: str, at_work: set[str]) -> None:
        self.name = name
        self.elector = Elector(api, "default", "scheduler", name, timing=FAST)
        self.began: list[float] = []
        self.ended: list[float] = []
        self._at_work = at_work

    async def work(self) -> None:
        assert not self._at_work, f"{self.name} begins while {self._at_work} is at work"
        self._at_work.add(self.name)
        self.began.append(clock.monotonic())
        try:
            await asyncio.Event().wait()
        finally:
            self._at_work.remove(self.name)
            self.ended.append(clock.monotonic())


class Candidates:
    """Several candidates; overlapping work raises AssertionError, which ends the test."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self.at_work: set[str] = set()
        self.tasks: dict[str, asyncio.Task[None]] = {}

    @asynccontextmanager
    async def candidate(self, name: str) -> AsyncIterator[Candidate]:
        async with Api(plain(self._server), name, timeout=2) as api:
            candidate = Candidate(api, name, self.at_work)
            task = self.tasks[name] = asyncio.create_task(candidate.elector.run(candidate.work))
            try:
                yield candidate
            finally:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    @asynccontextmanager
    async def two(self) -> AsyncIterator[tuple[Candidate, Candidate]]:
        """A leader, and a candidate that has seen it lead."""
        async with self.candidate("a") as first:
            await assert_eventually(lambda: first.elector.is_leader)
            async with self.candidate("b") as second:
                await assert_eventually(lambda: second.elector.holder == "a")
                yield first, second


@pytest.fixture
def candidates(server: ApiServer) -> Candidates:
    return Candidates(server)


def record(server: ApiServer) -> dict[str, Any]:
    (lease,) = server.store.objects(LEASES)
    spec: dict[str, Any] = lease["spec"]
    return spec


async def test_exactly_one_of_several_candidates_leads(candidates: Candidates) -> None:
    async with (
        candidates.candidate("a") as a,
        candidates.candidate("b") as b,
        candidates.candidate("c") as c,
        candidates.candidate("d") as d,
    ):
        everyone = (a, b, c, d)
        await assert_eventually(lambda: sum(candidate.elector.is_leader for candidate in everyone) == 1)
        await asyncio.sleep(FAST.lease_duration)
        assert sum(len(candidate.began) for candidate in everyone) == 1


Fault = Callable[[Levers], object]
FAULTS: dict[str, Fault] = {
    "down": lambda levers: levers.down(),
    "stalled": lambda levers: levers.pull(Stall()),
    "stalled writes": lambda levers: levers.pull(Stall(), method="PUT"),
    "conflicts": lambda levers: levers.answer(409, method="PUT"),
    "errors": lambda levers: levers.answer(500),
    "overload": lambda levers: levers.answer(429, retry_after=1),
    "forbidden": lambda levers: levers.answer(403),
    "too slow": lambda levers: levers.pull(Delay(FAST.retry_period)),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
async def test_a_leader_that_cannot_renew_stops_in_time_and_a_candidate_leads_afterwards(
    server: ApiServer, candidates: Candidates, fault: Fault
) -> None:
    async with candidates.two() as (first, second):
        broken = clock.monotonic()
        fault(server.levers)
        await assert_eventually(lambda: first.ended)
        assert not first.elector.is_leader
        assert first.ended[0] - broken < FAST.lease_duration
        await asyncio.sleep(FAST.lease_duration)
        assert candidates.at_work == set()
        server.levers.clear()
        await assert_eventually(lambda: candidates.at_work)
        await asyncio.sleep(FAST.lease_duration)
        assert sum(candidate.elector.is_leader for candidate in (first, second)) == 1
        assert not any(task.done() for task in candidates.tasks.values())


@pytest.mark.parametrize("name", [name for name in FAULTS if name != "overload"])
async def test_a_fault_shorter_than_the_deadline_changes_nothing(
    server: ApiServer, candidates: Candidates, name: str
) -> None:
    async with candidates.two() as (first, second):
        before = record(server)["renewTime"]
        await assert_eventually(lambda: record(server)["renewTime"] != before)
        FAULTS[name](server.levers)
        await asyncio.sleep(FAST.renew_deadline / 3)
        server.levers.clear()
        await asyncio.sleep(FAST.lease_duration)
        assert len(first.began) == 1
        assert second.began == []
        assert record(server)["leaseTransitions"] == 0


async def test_at_most_one_leads_through_a_series_of_faults(server: ApiServer, candidates: Candidates) -> None:
    async with candidates.two() as (first, second):
        for number, fault in enumerate(FAULTS.values()):
            fault(server.levers)
            end = clock.monotonic() + FAST.renew_deadline * (0.6, 1.4)[number % 2]
            while clock.monotonic() < end:
                assert not (first.elector.is_leader and second.elector.is_leader)
                await asyncio.sleep(0.02)
            server.levers.clear()
            server.levers.pull(Drop(), user_agent=("a/*", "b/*")[number % 2], seconds=FAST.lease_duration)
            await assert_eventually(lambda: candidates.at_work)
        assert not any(task.done() for task in candidates.tasks.values())


async def test_a_leader_that_was_stopped_past_its_deadline_writes_nothing(server: ApiServer) -> None:
    """Work that continues in the event loop turn in which the process resumes, before its cancellation."""
    async with Api(plain(server), "a", timeout=2) as api:
        elector = Elector(api, "default", "scheduler", "a", timing=FAST)
        fenced = api.fenced(lambda: elector.is_leader)
        tries: list[str] = []

        async def work() -> None:
            if tries:
                await asyncio.Event().wait()
            await fenced.request("POST", "/api/v1/namespaces", body=b'{"metadata":{"name":"before"}}')
            # SIGSTOP, or a virtual machine that is paused.
            simulated_time.skip(FAST.lease_duration)
            try:
                await fenced.request("POST", "/api/v1/namespaces", body=b'{"metadata":{"name":"after"}}')
            except ApiError as exc:
                tries.append(exc.reason)

        task = asyncio.create_task(elector.run(work))
        await assert_eventually(lambda: tries)
        assert tries == ["NotLeader"]
        names = {namespace["metadata"]["name"] for namespace in server.store.objects("namespaces")}
        assert "before" in names
        assert "after" not in names
        # What is not written may be asked.
        await fenced.request("GET", "/api/v1/namespaces")
        task.cancel()
        await asyncio.wait({task})
