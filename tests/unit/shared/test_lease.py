"""Leader election: what stands in the record, and that nothing is left behind. Faults are an integration test."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from sandbox import simulated_time
from topowise.errors import ApiError, ConfigError
from topowise.kube.api import Api
from topowise.kube.lease import Elector, Timing
from topowise.runtime import clock

pytestmark = pytest.mark.own_time

FAST = Timing(lease_duration=0.3, renew_deadline=0.2, retry_period=0.04)
# A lease that a busy machine does not lose.
LONG = Timing(lease_duration=60, renew_deadline=40, retry_period=0.04)
COLLECTION = "/apis/coordination.k8s.io/v1/namespaces/system/leases"
PATH = f"{COLLECTION}/scheduler"


class FakeApi(Api):
    """A Lease with optimistic concurrency; every request takes a few turns of the event loop."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0
        self.timeouts: list[float | None] = []
        self.writes: list[str] = []
        self.before: Callable[[str], None] = lambda method: None

    async def request(self, method: str, path: str, *, body: bytes | None = None, **options: Any) -> bytes:  # type: ignore[override]
        self.timeouts.append(options["timeout"])
        await asyncio.sleep(0)
        self.before(method)
        if method != "GET":
            self._write(method, path, json.loads(body or b""))
        elif self.lease is None:
            raise ApiError(404, "NotFound", "none", request=path)
        answer = json.dumps(self.lease).encode()
        await asyncio.sleep(0)
        return answer

    def _write(self, method: str, path: str, lease: dict[str, Any]) -> None:
        assert path == (COLLECTION if method == "POST" else PATH)
        version = None if self.lease is None else self.lease["metadata"]["resourceVersion"]
        if lease["metadata"].get("resourceVersion") != version:
            raise ApiError(409, "Conflict", "the object has been modified", request=path)
        self.put(lease["spec"], **lease["metadata"])
        self.writes.append(method)

    def put(self, spec: dict[str, Any], **metadata: Any) -> None:
        self.version += 1
        metadata = {"name": "scheduler", "namespace": "system"} | metadata | {"resourceVersion": str(self.version)}
        self.lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}

    @property
    def spec(self) -> dict[str, Any]:
        assert self.lease is not None
        spec: dict[str, Any] = self.lease["spec"]
        return spec


def candidate(api: Api, identity: str = "a", timing: Timing = LONG) -> Elector:
    return Elector(api, "system", "scheduler", identity, timing=timing)


async def for_ever() -> None:
    await asyncio.Event().wait()


async def until(check: Callable[[], Any]) -> None:
    async with asyncio.timeout(5):
        while not check():
            await asyncio.sleep(0.002)


@asynccontextmanager
async def running(elector: Elector, work: Callable[[], Any] = for_ever) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(elector.run(work))
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "topowise.kube.lease"]


async def test_a_missing_lease_is_created_with_the_whole_record() -> None:
    api = FakeApi()
    async with running(elector := candidate(api, timing=FAST)):
        await until(lambda: elector.is_leader)
        assert elector.holder == "a"
        spec = api.spec
        assert spec["holderIdentity"] == "a"
        assert spec["leaseDurationSeconds"] == 1  # whole seconds, and never the 0 the API server refuses
        assert spec["leaseTransitions"] == 0
        assert spec["acquireTime"] == spec["renewTime"]
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", spec["renewTime"])


async def test_a_renewal_changes_the_time_of_renewal_only() -> None:
    api = FakeApi()
    async with running(candidate(api)):
        await until(lambda: api.writes == ["POST"])
        first = api.spec
        await until(lambda: len(api.writes) == 3)
        assert api.spec["renewTime"] > first["renewTime"]
        assert {**api.spec, "renewTime": ""} == {**first, "renewTime": ""}
    assert "GET" not in api.writes[1:3]


async def test_the_rest_of_the_lease_is_kept() -> None:
    api = FakeApi()
    api.put({"strategy": "OldestEmulationVersion", "preferredHolder": "b"}, labels={"team": "x"}, uid="u")
    async with running(elector := candidate(api)):
        await until(lambda: elector.is_leader)
        assert api.lease is not None
        assert api.lease["metadata"]["labels"] == {"team": "x"}
        assert api.spec["strategy"] == "OldestEmulationVersion"
        assert api.spec["preferredHolder"] == "b"


async def test_a_change_of_holder_counts_as_a_transition_and_a_release_does_not() -> None:
    api = FakeApi()
    for transitions, identity in enumerate("abca"):
        async with running(elector := candidate(api, identity)):
            await until(lambda: elector.is_leader)
            assert api.spec["leaseTransitions"] == transitions
        assert api.spec["holderIdentity"] == ""
        assert api.spec["leaseDurationSeconds"] == 1
        assert api.spec["leaseTransitions"] == transitions
        assert elector.holder == ""


async def test_who_finds_its_own_name_goes_on_where_it_was() -> None:
    api = FakeApi()
    record = {"holderIdentity": "a", "leaseDurationSeconds": 15, "leaseTransitions": 7}
    api.put({**record, "acquireTime": "2020-01-01T00:00:00.000000Z", "renewTime": "2020-01-01T00:00:00.000000Z"})
    async with running(elector := candidate(api)):
        await until(lambda: elector.is_leader)
        assert api.spec["leaseTransitions"] == 7
        assert api.spec["acquireTime"] == "2020-01-01T00:00:00.000000Z"


async def test_a_lost_answer_costs_one_conflict_and_no_leadership() -> None:
    api = FakeApi()
    starts = 0

    async def work() -> None:
        nonlocal starts
        starts += 1
        await for_ever()

    async with running(elector := candidate(api), work):
        await until(lambda: elector.is_leader)
        before = len(api.writes)
        api.put(dict(api.spec, renewTime="2020-01-01T00:00:00.000000Z"))
        await until(lambda: len(api.writes) >= before + 2)
        assert elector.is_leader
    assert starts == 1


async def test_a_deleted_lease_is_created_anew_by_its_leader() -> None:
    api = FakeApi()
    async with running(elector := candidate(api)):
        await until(lambda: elector.is_leader)
        acquired = api.spec["acquireTime"]
        api.lease = None
        await until(lambda: api.lease is not None)
        assert api.spec["holderIdentity"] == "a"
        assert api.spec["acquireTime"] == acquired
        assert elector.is_leader


async def test_a_lease_deleted_under_its_leader_is_not_free_before_its_time() -> None:
    api = FakeApi()
    api.put({"holderIdentity": "b", "leaseDurationSeconds": 1, "leaseTransitions": 4, "renewTime": "x"})
    started = clock.monotonic()
    async with running(elector := candidate(api)):
        await until(lambda: elector.holder == "b")
        api.lease = None
        await until(lambda: elector.is_leader)
        assert clock.monotonic() - started >= FAST.lease_duration
        assert api.spec["leaseTransitions"] == 5


async def test_a_lost_race_is_not_released() -> None:
    api = FakeApi()
    foreign_spec = {"holderIdentity": "b", "leaseDurationSeconds": 1, "renewTime": "x"}
    elector = candidate(api)

    def before(method: str) -> None:
        if method == "POST":
            api.put(foreign_spec)

    api.before = before
    async with running(elector):
        await until(lambda: api.lease is not None)
    assert elector.holder == "b"
    assert api.spec == foreign_spec


async def test_a_leader_that_finds_another_in_the_record_stops_at_once() -> None:
    api = FakeApi()
    ended: list[float] = []

    async def work() -> None:
        try:
            await for_ever()
        finally:
            ended.append(clock.monotonic())

    timing = Timing(lease_duration=60, renew_deadline=40, retry_period=0.04)
    async with running(elector := candidate(api, timing=timing), work):
        await until(lambda: elector.is_leader)
        taken = clock.monotonic()
        api.put({"holderIdentity": "b", "leaseDurationSeconds": 60, "leaseTransitions": 1, "renewTime": "x"})
        await until(lambda: ended)
        assert not elector.is_leader
        assert elector.holder == "b"
        assert ended[0] - taken < timing.renew_deadline
    assert api.spec["holderIdentity"] == "b"  # what is another's is not released


async def test_the_holders_own_duration_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(clock, "monotonic", lambda: now)
    api = FakeApi()
    api.put({"holderIdentity": "b", "leaseDurationSeconds": 40, "leaseTransitions": 1, "renewTime": "x"})
    async with running(elector := candidate(api, timing=Timing(15, 10, 0.02))):
        await until(lambda: elector.holder == "b")
        now += 39.9
        reads = len(api.timeouts)
        await until(lambda: len(api.timeouts) > reads + 1)
        assert api.writes == []
        now += 0.2
        await until(lambda: elector.is_leader)
        assert api.spec["leaseDurationSeconds"] == 15
        assert api.spec["leaseTransitions"] == 2


async def test_every_request_ends_within_the_retry_period() -> None:
    api = FakeApi()
    async with running(elector := candidate(api)):
        await until(lambda: elector.is_leader)
    assert all(timeout is not None and 0 < timeout < FAST.retry_period for timeout in api.timeouts)


async def test_a_process_that_was_frozen_does_not_take_itself_for_the_leader() -> None:
    async with running(elector := candidate(FakeApi(), timing=FAST)):
        await until(lambda: elector.is_leader)
        simulated_time.skip(FAST.renew_deadline + 0.05)
        assert not elector.is_leader


async def test_a_lease_that_is_taken_while_the_loop_stands_still_is_lost_and_won_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Time limits of the renewal, of its request and of the deadline have all passed when the loop goes on."""
    api, begun, ended = FakeApi(), [], []

    async def work() -> None:
        begun.append(api.version)
        try:
            while True:
                await asyncio.sleep(0.001)
        finally:
            ended.append(api.version)

    async with running(elector := candidate(api, timing=FAST), work) as task:
        for stalls in range(1, 6):
            await until(lambda: elector.is_leader and len(begun) > len(ended))
            before = len(ended)
            # At another step of a renewal each time.
            for _ in range(7 * stalls):
                await asyncio.sleep(0)
            simulated_time.skip(FAST.lease_duration + 0.05)
            api.put({"holderIdentity": "b", "leaseDurationSeconds": 1, "leaseTransitions": stalls, "renewTime": "x"})
            assert not elector.is_leader
            await until(lambda: len(ended) > before)  # noqa: B023 - used at once
            assert not task.done()
            # The second candidate has gone, too.
            api.put({"holderIdentity": "", "leaseDurationSeconds": 1, "leaseTransitions": stalls, "renewTime": "y"})
    assert messages(caplog).count("Lost the lease") >= 5
    assert all("why" in record.kv for record in caplog.records if record.getMessage() == "Lost the lease")  # type: ignore[attr-defined]


async def test_an_exception_of_work_ends_the_run_after_the_release() -> None:
    api = FakeApi()

    async def work() -> None:
        raise OSError("broken")

    with pytest.raises(OSError, match="broken"):
        await candidate(api).run(work)
    assert api.spec["holderIdentity"] == ""
    assert len(asyncio.all_tasks()) == 1


async def test_work_that_returns_does_not_release_the_lease() -> None:
    api = FakeApi()
    runs = 0

    async def work() -> None:
        nonlocal runs
        runs += 1

    async with running(elector := candidate(api), work):
        await until(lambda: len(api.writes) == 4)
        assert elector.is_leader
    assert runs == 1


async def test_the_lease_is_renewed_until_cancelled_work_has_ended() -> None:
    api = FakeApi()
    writes: list[int] = []

    async def work() -> None:
        try:
            await for_ever()
        finally:
            writes.append(len(api.writes))
            await asyncio.sleep(FAST.lease_duration)
            assert elector.is_leader
            writes.append(len(api.writes))

    async with running(elector := candidate(api), work):
        await until(lambda: elector.is_leader)
    assert writes[1] - writes[0] >= 3
    assert api.spec["holderIdentity"] == ""


async def test_work_cancelled_twice_while_it_winds_up_is_still_awaited() -> None:
    api = FakeApi()
    ended = []

    async def work() -> None:
        try:
            await for_ever()
        finally:
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0.01)
                ended.append(True)

    task = asyncio.create_task((elector := candidate(api)).run(work))
    await until(lambda: elector.is_leader)
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [True]
    assert len(asyncio.all_tasks()) == 1
    assert api.spec["holderIdentity"] == ""


async def test_cancellation_at_any_await_leaves_no_task_and_no_holder_behind() -> None:
    started = 0
    for turns in range(60):
        api = FakeApi()
        at_work = 0

        async def work() -> None:
            nonlocal at_work
            at_work += 1
            try:
                await for_ever()
            finally:
                await asyncio.sleep(0)
                at_work -= 1

        task = asyncio.create_task(candidate(api, timing=Timing(0.3, 0.2, 0.03)).run(work))
        for turn in range(turns):
            await asyncio.sleep(0.03 if turn % 25 == 24 else 0)
        started += at_work
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert at_work == 0
        assert len(asyncio.all_tasks()) == 1, f"after {turns} turns"
        assert api.lease is None or api.spec["holderIdentity"] == "", f"after {turns} turns"
    assert started > 30


async def test_cancellation_of_a_cancellation_leaves_no_task_behind() -> None:
    for turns in range(12):
        api = FakeApi()
        task = asyncio.create_task((elector := candidate(api)).run(for_ever))
        await until(lambda: elector.is_leader)
        task.cancel()
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert len(asyncio.all_tasks()) == 1, f"after {turns} turns"


async def test_one_line_a_change(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    api = FakeApi()
    failing = False

    def before(method: str) -> None:
        if failing:
            raise ApiError(500, "InternalError", "broken", request=method)

    api.before = before
    api.put({"holderIdentity": "b", "leaseDurationSeconds": 1, "renewTime": "x"})
    async with running(elector := candidate(api, timing=FAST)):
        await until(lambda: elector.is_leader)
        await asyncio.sleep(0.1)
        failing = True
        await until(lambda: not elector.is_leader)
        await until(lambda: "Cannot compete for the lease" in messages(caplog))
        failing = False
        await until(lambda: elector.is_leader)
    assert messages(caplog) == [
        "Another process holds the lease",
        "Acquired the lease",
        "Cannot renew the lease, trying again",
        "Lost the lease",
        "Cannot compete for the lease",
        "The lease is accessible again",
        "Acquired the lease",
        "Released the lease",
    ]


async def test_a_lease_that_cannot_be_released_does_not_delay_the_exit(caplog: pytest.LogCaptureFixture) -> None:
    api = FakeApi()
    elector = candidate(api)
    async with running(elector):
        await until(lambda: elector.is_leader)

        def before(method: str) -> None:
            raise ApiError(0, "Unreachable", "refused", request=method)

        api.before = before
    assert messages(caplog)[-1] == "Cannot release the lease, it ends by itself"


async def test_what_is_no_lease_is_no_answer() -> None:
    class Garbled(FakeApi):
        async def request(self, method: str, path: str, **options: Any) -> bytes:  # type: ignore[override]
            return b'{"metadata":{},"spec":{"holderIdentity":5}}'

    with pytest.raises(ApiError, match="not a Lease"):
        await candidate(Garbled())._request("GET", PATH)


@pytest.mark.parametrize(
    ("values", "field"),
    [((15, 15, 2), "leaseDuration"), ((15, 2.4, 2), "renewDeadline"), ((15, 10, 0), "retryPeriod")],
)
def test_timings_that_cannot_work_are_refused(values: tuple[float, float, float], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        Timing(*values)


def test_an_identity_is_needed() -> None:
    with pytest.raises(ConfigError, match="identity"):
        candidate(FakeApi(), "")


async def test_a_try_that_hangs_outside_of_requests_is_given_up() -> None:
    class Hanging(FakeApi):
        async def request(self, method: str, path: str, **options: Any) -> bytes:  # type: ignore[override]
            if not self.timeouts:
                self.timeouts.append(0.01)
                await for_ever()  # as an exec plug-in for credentials may
            return await super().request(method, path, **options)

    async with running(elector := candidate(Hanging())):
        await until(lambda: elector.is_leader)
