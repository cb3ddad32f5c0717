"""Leader election on a Lease (coordination.k8s.io/v1), by the rules of client-go's `tools/leaderelection`.

The Lease holds a record: who leads, how long that lasts, when it was renewed. A holder renews it every retry period; a
candidate that has seen the record unchanged for a lease duration takes it over. Every write names the resourceVersion
it is based on, so of two that write only one succeeds. Times in the record are for people: what counts is for how long
*we* have seen no change, by our own monotonic clock, so clocks need not agree, only run at about the same rate.

A leader counts from the moment it sent its last successful renewal, candidates from the moment they saw it, which is
later. So between the end of the one (renew deadline) and the beginning of the other lies at least
`lease_duration - renew_deadline`: the time that cancelled work has to come to an end. A process that is stopped for
longer goes on where it was, so its work writes through `Api.fenced`, which asks `is_leader` before each write.

Stricter than client-go: the renew deadline counts from the last renewal (there, from the first try after it), a leader
whose record names another stops at once (there, at the deadline), and a Lease that was deleted under a living leader
is left to the leader to create anew. Needs the verbs get, create and update on the Lease.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import math
import random
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, TypeVar

import msgspec

from topowise.errors import ApiError, ConfigError
from topowise.kube import paths
from topowise.kube.api import Api
from topowise.runtime.log import V2, kv
from topowise.runtime.log_once import OncePerChange

log = logging.getLogger(__name__)

Result = TypeVar("Result")

_API_VERSION: Final = "coordination.k8s.io/v1"
# Candidates wait for up to this many retry periods more, so that they do not come in step.
_JITTER: Final = 1.2
# Of the retry period, for one request: a try that meets a conflict (write, read, write) has to fit into the whole.
_REQUEST_SHARE: Final = 0.75
# Of the retry period, between two tries to release.
_RELEASE_SHARE: Final = 0.1


@dataclass(frozen=True)
class Timing:
    """Seconds, with the defaults of client-go and the control plane. Raises ConfigError.

    `lease_duration`: how long a candidate sees no change before it takes over. `renew_deadline`: how long a leader goes
    on without a successful renewal. `retry_period`: between two tries, each of which ends within it.
    """

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
    """All of LeaseSpec, so that a write keeps what is not ours."""

    holderIdentity: str | None = None
    leaseDurationSeconds: int | None = None
    acquireTime: str | None = None
    renewTime: str | None = None
    leaseTransitions: int | None = None
    strategy: str | None = None
    preferredHolder: str | None = None


class _Lease(msgspec.Struct, frozen=True):
    """`metadata` goes back as it came, with the resourceVersion in it."""

    metadata: msgspec.Raw
    spec: _Spec | None = None
    apiVersion: str = _API_VERSION
    kind: str = "Lease"


_decode_lease = msgspec.json.Decoder(_Lease).decode


class Elector:
    """One candidate for one Lease. One task runs `run()`.

    `identity` is unique to the process (host name and a random part): who finds its own identity in the record takes
    itself for the holder. `holder` is the one last observed, "" for nobody.
    """

    def __init__(self, api: Api, namespace: str, name: str, identity: str, *, timing: Timing | None = None) -> None:
        """Raises ConfigError without an identity: an empty one means that nobody holds the lease."""
        if not identity:
            raise ConfigError("leaderElection.identity", "is empty")
        self._api = api
        self._collection = paths.path(f"/apis/{_API_VERSION}/namespaces", namespace, "leases")
        self._path = paths.path(self._collection, name)
        self._place = {"name": name, "namespace": namespace}
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
        self._named = False  # the record may name us
        self._pause = 0.0  # the server's Retry-After
        self._failures = OncePerChange()

    @property
    def is_leader(self) -> bool:
        """Whether we lead at this moment; false past the renew deadline, even before the event loop has noticed."""
        return self._leading and self._remaining() > 0

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Competes for ever and runs `work()` each time we lead, until the lease is lost; ends only by cancellation.

        Work that is cancelled, because of a loss or with `run` itself, is awaited before anything else happens; work
        that returns leaves us leading without work. Work that raises ends `run` with its exception. On the way out the
        lease is kept until the work has ended and then released, for which one retry period is taken at most.
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
            # Renewed until the work has ended, or another might begin while it winds up.
            try:
                await _end(worker)
            finally:
                await _end(keeper)
                self._leading = False
                for task in (keeper, worker):
                    if not task.cancelled():
                        task.result()

    async def _keep(self) -> None:
        """Renews until leadership is lost; then it returns."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._remaining()) as limit:
                next_try = self._timing.retry_period
                while self._leading:
                    await asyncio.sleep(max(next_try, self._pause))
                    started = monotonic()
                    if await self._attempt():
                        limit.reschedule(loop.time() + self._remaining())
                    next_try = started + self._timing.retry_period - monotonic()
        except TimeoutError:
            why = self._failures.last or "no answer yet"
            self._lose(f"not renewed within {self._timing.renew_deadline:g}s: {why}")

    def _lose(self, why: str) -> None:
        self._leading = False
        log.warning("Lost the lease", extra=self._kv(identity=self.identity, why=why))

    async def _attempt(self) -> bool:
        """One try of at most a retry period: whether the lease is ours after it."""
        self._pause = 0.0
        try:
            async with asyncio.timeout(self._timing.retry_period):
                ours = await _apart(self._acquire_or_renew())
        except ApiError as exc:
            self._pause = exc.retry_after or 0.0
            if exc.status == 409 and not self._leading:
                log.log(V2, "Another was faster", extra=self._kv(why=exc))
            else:
                self._log_failure(str(exc))
            return False
        except TimeoutError:
            self._log_failure(f"no answer within {self._timing.retry_period:g}s")
            return False
        if self._failures.clear():
            log.info("The lease is within reach again", extra=self._kv(holder=self.holder))
        return ours and self._remaining() > 0

    async def _acquire_or_renew(self) -> bool:
        if self._leading and self._lease is not None:
            try:
                await self._write(self._lease)
            except ApiError as exc:
                # Changed or gone; perhaps by a write of ours whose answer was lost.
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
        """Whether another holds the lease for all we know."""
        record = self._record
        if record is None or self.holder in ("", self.identity):
            return False
        seconds: float = record.leaseDurationSeconds or self._seconds
        if seconds == self._seconds:
            # The record has whole seconds only; one like ours stands for what ours stands for.
            seconds = self._timing.lease_duration
        return monotonic() < self._observed + seconds

    async def _read(self) -> _Lease | None:
        """The Lease, None if there is none. Then the record that was seen last goes on to count. Raises ApiError."""
        try:
            self._see(await self._request("GET", self._path))
        except ApiError as exc:
            if exc.status != 404:
                raise
            self._lease = None
        return self._lease

    async def _write(self, lease: _Lease | None) -> None:
        """Writes our name into the Lease, or creates it. Raises ApiError, 409 if it is not as we know it."""
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
        sent = monotonic()
        self._named = True
        if lease is None:
            metadata = msgspec.Raw(msgspec.json.encode(self._place))
            written = await self._request("POST", self._collection, _Lease(metadata, spec))
        else:
            written = await self._request("PUT", self._path, msgspec.structs.replace(lease, spec=spec))
        self._see(written)
        self._deadline = sent + self._timing.renew_deadline

    async def _release(self) -> None:
        """Empties the record if it names us, so that the next leader need not wait for its end."""
        self._leading = False
        problem: Exception | None = None
        try:
            async with asyncio.timeout(self._timing.retry_period):
                while self._named:
                    try:
                        await _apart(self._empty())
                    except ApiError as exc:
                        problem = exc
                        await asyncio.sleep(self._timing.retry_period * _RELEASE_SHARE)
        except TimeoutError:
            why = problem or f"no answer within {self._timing.retry_period:g}s"
            log.warning("Cannot release the lease, it ends by itself", extra=self._kv(why=why))

    async def _empty(self) -> None:
        # Read first: a renewal that was cancelled may have been written.
        lease = await self._read()
        record = self._record
        if lease is None or record is None or record.holderIdentity != self.identity:
            self._named = False
            return
        now = _micro_time()
        spec = msgspec.structs.replace(
            record, holderIdentity="", leaseDurationSeconds=1, acquireTime=now, renewTime=now
        )
        self._see(await self._request("PUT", self._path, msgspec.structs.replace(lease, spec=spec)), quiet=True)
        log.info("Released the lease", extra=self._kv(identity=self.identity))

    async def _request(self, method: str, path: str, lease: _Lease | None = None) -> _Lease:
        """The Lease of the answer. Raises ApiError."""
        body = None if lease is None else msgspec.json.encode(lease)
        timeout = self._timing.retry_period * _REQUEST_SHARE
        answer = await self._api.request(method, path, body=body, timeout=timeout)
        try:
            return _decode_lease(answer)
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            problem = f"the answer is not a Lease: {exc}"
            raise ApiError(0, "BadAnswer", problem, request=f"{method} {path}") from exc

    def _see(self, lease: _Lease, *, quiet: bool = False) -> None:
        self._lease = lease
        record = lease.spec or _Spec()
        if record != self._record:
            self._record, self._observed = record, monotonic()
        holder = record.holderIdentity or ""
        self._named = holder == self.identity
        if holder not in (self.holder, self.identity) and not quiet:
            log.info("Another holds the lease" if holder else "Nobody holds the lease", extra=self._kv(holder=holder))
        self.holder = holder

    def _remaining(self) -> float:
        return self._deadline - monotonic()

    def _log_failure(self, problem: str) -> None:
        if self._failures.is_change(problem):
            what = "Cannot renew the lease, trying again" if self._leading else "Cannot compete for the lease"
            log.warning(what, extra=self._kv(why=problem))

    def _kv(self, **values: object) -> dict[str, Any]:
        return kv(lease=self._lease_name, **values)


def _micro_time() -> str:
    """Now as meta/v1 MicroTime, which wants exactly six digits."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


async def _apart(requests: Coroutine[Any, Any, Result]) -> Result:
    """Runs requests in a task of their own, which has ended when this returns or raises.

    Inside aiohttp (3.14) a cancellation that meets the timeout of a request in one turn of the event loop is lost; the
    candidate would go on for ever. The task only loses it to the ApiError of the timeout, and ends.
    """
    task = asyncio.create_task(requests)
    try:
        await asyncio.wait({task})
        return task.result()
    finally:
        await _end(task)


async def _end(task: asyncio.Task[Any]) -> None:
    """Cancels a task and returns when it has ended, cancelled meanwhile or not; its result is left in it."""
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
