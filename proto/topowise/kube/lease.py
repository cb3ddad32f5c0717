"""Leader election on a Lease (coordination.k8s.io/v1), by the rules of client-go's `tools/leaderelection`.

The Lease holds a record: the leader, the lease duration, the time of the last renewal. A leader renews it every retry
period; a candidate that has seen the record unchanged for a lease duration takes it over. Every write names the
resourceVersion that it is based on, so only one of two concurrent writes succeeds. Times in the record are informative
only. Each process measures with its own monotonic clock for how long it has seen no change. So clocks need not agree,
only run at about the same rate.

A leader counts from the time at which it sent its last successful renewal, candidates from the time at which they saw
it, which is later. So between the end of a leadership (renew deadline) and the beginning of the next there is at least
`lease_duration - renew_deadline`: the time for cancelled work to end. A process that was stopped for longer continues
where it was, so its work writes through `Api.fenced`, which checks `is_leader` before each write.

Stricter than client-go: The renew deadline counts from the last renewal, not from the first try after it. A leader
whose record names another process stops at once, not at the deadline. A Lease that was deleted under a running leader
is left to this leader to create again. Needs the verbs get, create and update on the Lease.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from topowise.errors import ApiError, ConfigError
from topowise.kube import paths
from topowise.kube.api import Api, decoded
from topowise.runtime import clock
from topowise.runtime.log import V2, OncePerChange, kv

log = logging.getLogger(__name__)

Result = TypeVar("Result")

_API_VERSION: Final = "coordination.k8s.io/v1"
# Candidates wait for up to this many additional retry periods, so that they do not synchronise.
_JITTER: Final = 1.2
# Share of the retry period for a request: a try with a conflict (write, read, write) has to fit into the period.
_REQUEST_SHARE: Final = 0.75
# Share of the retry period between two tries to release.
_RELEASE_SHARE: Final = 0.1


@dataclass(frozen=True)
class Timing:
    """Times in seconds, with the defaults of client-go and the control plane. Raises ConfigError. `lease_duration`: how
    long a candidate sees no change before it takes over. `renew_deadline`: how long a leader continues without a
    successful renewal. `retry_period`: time between two tries, each of which ends within it."""

    lease_duration: float = 15.0
    renew_deadline: float = 10.0
    retry_period: float = 2.0

    def __post_init__(self) -> None:
        if self.retry_period <= 0:
            raise ConfigError("leaderElection.retryPeriod", f"{self.retry_period:g}s is not longer than 0s")
        if self.renew_deadline <= self.retry_period * _JITTER:
            problem = f"{self.renew_deadline:g}s is not longer than {_JITTER:g} x retryPeriod"
            raise ConfigError("leaderElection.renewDeadline", f"{problem} ({self.retry_period:g}s)")
        if self.lease_duration <= self.renew_deadline:
            problem = f"{self.lease_duration:g}s is not longer than renewDeadline ({self.renew_deadline:g}s)"
            raise ConfigError("leaderElection.leaseDuration", problem)


class _Spec(msgspec.Struct, frozen=True, omit_defaults=True):
    """All fields of LeaseSpec, so that a write keeps the fields that this module does not use."""

    holderIdentity: str | None = None
    leaseDurationSeconds: int | None = None
    acquireTime: str | None = None
    renewTime: str | None = None
    leaseTransitions: int | None = None
    strategy: str | None = None
    preferredHolder: str | None = None


class _Lease(msgspec.Struct, frozen=True):
    """`metadata` is written back as read, including the resourceVersion."""

    metadata: msgspec.Raw
    spec: _Spec | None = None
    apiVersion: str = _API_VERSION
    kind: str = "Lease"


class Elector:
    """A candidate for a Lease. A single task runs `run()`. `identity` is unique to the process (host name and a random
    part): a process that reads its own identity in the record considers itself the holder. `holder` is the last
    observed holder, "" for none."""

    def __init__(self, api: Api, namespace: str, name: str, identity: str, *, timing: Timing | None = None) -> None:
        """Raises ConfigError for an empty identity: in a record it means that the lease has no holder."""
        if not identity:
            raise ConfigError("leaderElection.identity", "is empty")
        self._api = api
        self._collection = paths.path(f"/apis/{_API_VERSION}/namespaces", namespace, "leases")
        self._path = paths.path(self._collection, name)
        self._lease_metadata = {"name": name, "namespace": namespace}
        self._lease_name = f"{namespace}/{name}"
        self._timing = timing or Timing()
        self._seconds = max(1, math.ceil(self._timing.lease_duration))
        self.identity = identity
        self.holder = ""
        self._leading = False
        self._deadline = 0.0  # of leading without a further renewal
        self._lease: _Lease | None = None  # as last read or written
        self._record: _Spec | None = None  # the last one seen, its Lease may be gone
        self._observed = 0.0  # when _record was first seen
        self._may_be_holder = False  # the record may name us
        self._pause = 0.0  # the server's Retry-After
        self._failures = OncePerChange()

    @property
    def is_leader(self) -> bool:
        """Whether this process leads now; false after the renew deadline, even before the event loop has noticed it."""
        return self._leading and self._remaining() > 0

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Competes for the lease and runs `work()` while this process leads. Ends only by cancellation, or by an error
        of `work`. After work returns, the process leads without work.

        Cancelled work, after a loss or with `run` itself, is awaited before anything else happens. At the end the lease
        is kept until the work has ended and then released, within a retry period.
        """
        try:
            while True:
                await self._acquire()
                await self._lead(work)
        finally:
            await self._release()

    async def _acquire(self) -> None:
        while not await self._attempt():
            spread = random.uniform(1.0, 1.0 + _JITTER)
            await asyncio.sleep(max(self._timing.retry_period * spread, self._pause))
        self._leading = True
        transitions = self._record.leaseTransitions if self._record else 0
        log.info("Acquired the lease", extra=self._kv(identity=self.identity, transitions=transitions))

    async def _lead(self, work: Callable[[], Awaitable[None]]) -> None:
        async def working() -> None:
            await work()

        worker = asyncio.create_task(working(), name=f"{self._lease_name} work")
        keeper = asyncio.create_task(self._keep(), name=f"{self._lease_name} renewal")
        try:
            await asyncio.wait({worker, keeper}, return_when=asyncio.FIRST_COMPLETED)
            if worker.done():
                worker.result()
                await asyncio.wait({keeper})
        finally:
            # The lease is renewed until the work has ended; otherwise another leader might start while the work is
            # still being cancelled.
            try:
                await _end(worker)
            finally:
                await _end(keeper)
                self._leading = False
                for task in (keeper, worker):
                    if not task.cancelled():
                        task.result()

    async def _keep(self) -> None:
        """Renews the lease and returns when it is lost."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._remaining()) as limit:
                next_try = self._timing.retry_period
                while self._leading:
                    await asyncio.sleep(max(next_try, self._pause))
                    started = clock.monotonic()
                    if await self._attempt():
                        limit.reschedule(loop.time() + self._remaining())
                    next_try = started + self._timing.retry_period - clock.monotonic()
        except TimeoutError:
            why = self._failures.last or "no answer yet"
            self._lose(f"not renewed within {self._timing.renew_deadline:g}s: {why}")

    def _lose(self, why: str) -> None:
        self._leading = False
        log.warning("Lost the lease", extra=self._kv(identity=self.identity, why=why))

    async def _attempt(self) -> bool:
        """Makes a try of at most a retry period. Returns whether this process holds the lease after it."""
        self._pause = 0.0
        try:
            async with asyncio.timeout(self._timing.retry_period):
                is_holder = await _in_own_task(self._acquire_or_renew())
        except ApiError as exc:
            self._pause = exc.retry_after or 0.0
            if exc.status == 409 and not self._leading:
                log.log(V2, "Another candidate was faster", extra=self._kv(why=exc))
            else:
                self._log_failure(str(exc))
            return False
        except TimeoutError:
            self._log_failure(f"no answer within {self._timing.retry_period:g}s")
            return False
        if self._failures.clear():
            log.info("The lease is accessible again", extra=self._kv(holder=self.holder))
        return is_holder and self._remaining() > 0

    async def _acquire_or_renew(self) -> bool:
        if self._leading and self._lease is not None:
            try:
                await self._write(self._lease)
            except ApiError as exc:
                # The Lease has changed or is gone; possibly by our own write whose answer was lost.
                if exc.status not in (404, 409):
                    raise
            else:
                return True
        lease = await self._read()
        if self._leading and self.holder != self.identity:
            self._lose(f"the record names {self.holder!r}")
            return False
        if self._is_held():
            return False
        await self._write(lease)
        return True

    def _is_held(self) -> bool:
        """Whether another process holds the lease, as far as this process has observed."""
        record = self._record
        if record is None or self.holder in ("", self.identity):
            return False
        seconds: float = record.leaseDurationSeconds or self._seconds
        if seconds == self._seconds:
            # The record has whole seconds only: a value equal to our rounded duration stands for our exact duration.
            seconds = self._timing.lease_duration
        return clock.monotonic() < self._observed + seconds

    async def _read(self) -> _Lease | None:
        """Returns the Lease, None if there is none; then the last observed record stays valid. Raises ApiError."""
        try:
            self._observe(await self._request("GET", self._path))
        except ApiError as exc:
            if exc.status != 404:
                raise
            self._lease = None
        return self._lease

    async def _write(self, lease: _Lease | None) -> None:
        """Writes our identity into the Lease, or creates it. Raises ApiError, 409 if the Lease has changed since."""
        now = _micro_time()
        record = self._record or _Spec()
        if record.holderIdentity == self.identity:
            acquired, transitions = record.acquireTime or now, record.leaseTransitions or 0
        else:
            acquired, transitions = now, 0 if self._record is None else (record.leaseTransitions or 0) + 1
        spec = msgspec.structs.replace(
            record,
            holderIdentity=self.identity,
            leaseDurationSeconds=self._seconds,
            acquireTime=acquired,
            renewTime=now,
            leaseTransitions=transitions,
        )
        sent = clock.monotonic()
        self._may_be_holder = True
        if lease is None:
            metadata = msgspec.Raw(msgspec.json.encode(self._lease_metadata))
            written = await self._request("POST", self._collection, _Lease(metadata, spec))
        else:
            written = await self._request("PUT", self._path, msgspec.structs.replace(lease, spec=spec))
        self._observe(written)
        self._deadline = sent + self._timing.renew_deadline

    async def _release(self) -> None:
        """Empties the record if it names this process: the next leader need not wait for the end of the lease."""
        self._leading = False
        problem: Exception | None = None
        try:
            async with asyncio.timeout(self._timing.retry_period):
                while self._may_be_holder:
                    try:
                        await _in_own_task(self._empty())
                    except ApiError as exc:
                        problem = exc
                        await asyncio.sleep(self._timing.retry_period * _RELEASE_SHARE)
        except TimeoutError:
            why = problem or f"no answer within {self._timing.retry_period:g}s"
            log.warning("Cannot release the lease, it ends by itself", extra=self._kv(why=why))

    async def _empty(self) -> None:
        # Read first: a cancelled renewal may have been written.
        lease = await self._read()
        record = self._record
        if lease is None or record is None or record.holderIdentity != self.identity:
            self._may_be_holder = False
            return
        now = _micro_time()
        spec = msgspec.structs.replace(
            record, holderIdentity="", leaseDurationSeconds=1, acquireTime=now, renewTime=now
        )
        self._observe(await self._request("PUT", self._path, msgspec.structs.replace(lease, spec=spec)), quiet=True)
        log.info("Released the lease", extra=self._kv(identity=self.identity))

    async def _request(self, method: str, path: str, lease: _Lease | None = None) -> _Lease:
        """Returns the Lease of the answer. Raises ApiError."""
        body = None if lease is None else msgspec.json.encode(lease)
        timeout = self._timing.retry_period * _REQUEST_SHARE
        answer = await self._api.request(method, path, body=body, timeout=timeout)
        return decoded(answer, _Lease, "a Lease", f"{method} {path}")

    def _observe(self, lease: _Lease, *, quiet: bool = False) -> None:
        self._lease = lease
        record = lease.spec or _Spec()
        if record != self._record:
            self._record, self._observed = record, clock.monotonic()
        holder = record.holderIdentity or ""
        self._may_be_holder = holder == self.identity
        if holder not in (self.holder, self.identity) and not quiet:
            message = "Another process holds the lease" if holder else "The lease has no holder"
            log.info(message, extra=self._kv(holder=holder))
        self.holder = holder

    def _remaining(self) -> float:
        return self._deadline - clock.monotonic()

    def _log_failure(self, problem: str) -> None:
        if self._failures.is_change(problem):
            what = "Cannot renew the lease, trying again" if self._leading else "Cannot compete for the lease"
            log.warning(what, extra=self._kv(why=problem))

    def _kv(self, **values: object) -> dict[str, Any]:
        return kv(lease=self._lease_name, **values)


def _micro_time() -> str:
    """Returns the present time as meta/v1 MicroTime, which requires exactly six digits."""
    return clock.utc_now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")


async def _in_own_task(requests: Coroutine[Any, Any, Result]) -> Result:
    """Runs requests in their own task, which has ended when this returns or raises. aiohttp (3.14) loses a cancellation
    that arrives in the same iteration of the event loop as the timeout of a request; the candidate would then run
    forever. In its own task the cancellation only loses to the ApiError of the timeout, and the task ends."""
    task = asyncio.create_task(requests)
    try:
        await asyncio.wait({task})
        return task.result()
    finally:
        await _end(task)


async def _end(task: asyncio.Task[Any]) -> None:
    """Cancels a task and returns when it has ended, also if the caller is cancelled; the task keeps its result."""
    task.cancel()
    interrupted: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as exc:
            interrupted = exc
            task.cancel()
    if not task.cancelled():
        task.exception()  # so that asyncio does not log it as never retrieved
    if interrupted is not None:
        raise interrupted
