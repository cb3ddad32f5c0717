"""What a test can do to the server: read what it was asked, and inject the faults of production API servers.

"An unchanged node makes no API call" is a promise about what is *not* sent; it is tested by counting at the server.
A rule selects requests (globs over method or verb, path, user agent), and has a fault, a count and a duration. Rules
apply in the order of their creation; delays add up, the first answer or drop decides. A stalled watch is the worst
fault and the reason for the deadline of reflectors: the TCP connection stays open and no event arrives.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final, NamedTuple, Protocol

WRITES: Final = frozenset({"create", "update", "patch", "delete", "deletecollection"})
# Distinct (verb, resource, user agent) kept apart; a client that invents user agents lands in the last bucket.
_DISTINCT: Final = 10_000


class RequestInfo(NamedTuple):
    """A request as rules and counters see it. `verb` is the API's (list, watch), `resource` may be "pods/binding"."""

    method: str
    path: str
    user_agent: str
    verb: str = ""
    resource: str = ""


class Entry(NamedTuple):
    """A request that was served: `status` 0 means its connection was dropped, `at` is the wall clock."""

    request: RequestInfo
    query: str
    status: int
    at: float


class Journal:
    """Counters since the start or the last `clear()`, and the last `kept` requests. Sandbox paths are not counted."""

    def __init__(self, limit: int = 1000) -> None:
        self.log: deque[Entry] = deque(maxlen=limit)
        self._counts: Counter[tuple[str, str, str]] = Counter()

    def count(self, info: RequestInfo) -> None:
        """Counts a request on arrival."""
        key = (info.verb, info.resource, info.user_agent)
        if key not in self._counts and len(self._counts) >= _DISTINCT:
            key = (info.verb, info.resource, "")
        self._counts[key] += 1

    def note(self, info: RequestInfo, query: str, status: int) -> None:
        """Logs a request when its answer (for a watch: its head) is sent."""
        self.log.append(Entry(info, query, status, time.time()))

    def requests(self) -> Counter[tuple[str, str, str]]:
        """Requests by (verb, resource, user agent)."""
        return Counter(self._counts)

    def total(self, *, verb: str = "*", resource: str = "*", user_agent: str = "*") -> int:
        """Requests whose verb, resource and user agent match the globs."""
        patterns = (verb, resource, user_agent)
        return sum(n for key, n in self._counts.items() if all(map(fnmatchcase, key, patterns)))

    def writes(self, *, resource: str = "*", user_agent: str = "*") -> int:
        """Requests that change something."""
        return sum(self.total(verb=verb, resource=resource, user_agent=user_agent) for verb in WRITES)

    def clear(self) -> None:
        self._counts.clear()
        self.log.clear()


@dataclass(frozen=True)
class Answer:
    """Answer with this status and a matching `Status` body."""

    status: int
    retry_after: int | None = None


@dataclass(frozen=True)
class Delay:
    """Wait before handling; when `handled`, after the request took effect, so that only its answer is late."""

    seconds: float
    handled: bool = False


@dataclass(frozen=True)
class Drop:
    """Reset the connection; when `handled`, after the request took effect, so that only its answer is lost."""

    handled: bool = False


@dataclass(frozen=True)
class Stall:
    """Send nothing (more) and keep the connection: watches in the middle, other requests before their answer."""


Action = Answer | Delay | Drop | Stall


@dataclass
class Rule:
    """A rule in force. `hits` counts its requests; `remaining` None is no limit; `until` is clock time."""

    id: int
    action: Action
    method: str
    path: str
    user_agent: str
    remaining: int | None
    until: float | None
    hits: int = 0

    def matches(self, info: RequestInfo) -> bool:
        return (
            (fnmatchcase(info.method, self.method.upper()) or fnmatchcase(info.verb, self.method))
            and fnmatchcase(info.path, self.path)
            and fnmatchcase(info.user_agent, self.user_agent)
        )

    def is_spent(self, now: float) -> bool:
        return self.remaining == 0 or (self.until is not None and now >= self.until)


class Streams(Protocol):
    """What levers need of the open watch streams."""

    def end(self, chosen: Callable[[RequestInfo], bool], *, abort: bool) -> int: ...


class Window(Protocol):
    """What levers need of the store."""

    def expire(self, resource_key: str | None = None) -> None: ...


class Levers:
    """The rules in force. `clock` is monotonic seconds."""

    def __init__(self, streams: Streams, window: Window, clock: Callable[[], float] = time.monotonic) -> None:
        self._streams = streams
        self._window = window
        self._clock = clock
        self._ids = itertools.count(1)
        self._rules: list[Rule] = []
        self._changed = asyncio.Event()
        self._outage: Rule | None = None

    def pull(
        self,
        action: Action,
        *,
        method: str = "*",
        path: str = "*",
        user_agent: str = "*",
        count: int | None = None,
        seconds: float | None = None,
    ) -> Rule:
        """Sets a rule: for the next `count` matching requests, for `seconds`, or until `release`d."""
        until = None if seconds is None else self._clock() + seconds
        rule = Rule(next(self._ids), action, method, path, user_agent, count, until)
        self._rules.append(rule)
        self._announce()
        return rule

    def answer(
        self,
        status: int,
        *,
        retry_after: int | None = None,
        method: str = "*",
        path: str = "*",
        user_agent: str = "*",
        count: int | None = None,
        seconds: float | None = None,
    ) -> Rule:
        """`pull(Answer(...))`, the lever used most."""
        action = Answer(status, retry_after)
        return self.pull(action, method=method, path=path, user_agent=user_agent, count=count, seconds=seconds)

    def stall_watches(self, path: str = "*", *, user_agent: str = "*", seconds: float | None = None) -> Rule:
        """Open and new watches of the path go silent until the rule is released."""
        return self.pull(Stall(), method="watch", path=path, user_agent=user_agent, seconds=seconds)

    def close_watches(self, path: str = "*", *, user_agent: str = "*", abort: bool = False) -> int:
        """Ends open watches now, by a clean end of stream or (abort) by a reset. Returns how many."""

        def chosen(info: RequestInfo) -> bool:
            return fnmatchcase(info.path, path) and fnmatchcase(info.user_agent, user_agent)

        ended = self._streams.end(chosen, abort=abort)
        self._announce()
        return ended

    def expire_window(self, resource: str | None = None) -> None:
        """Watches resumed from any version so far get 410, continue tokens too. `resource` is `plural.group`."""
        self._window.expire(resource)

    def down(self, seconds: float | None = None) -> Rule:
        """Resets every connection, open watches included, until `up()`."""
        self.up()
        self._outage = self.pull(Drop(), seconds=seconds)
        self.close_watches(abort=True)
        return self._outage

    def up(self) -> None:
        if self._outage is not None:
            self.release(self._outage.id)
            self._outage = None

    def release(self, rule_id: int) -> None:
        """Takes a rule away; unknown ids are rules already spent."""
        self._rules = [rule for rule in self._rules if rule.id != rule_id]
        self._announce()

    def clear(self) -> None:
        """Takes every rule away."""
        self._rules.clear()
        self._outage = None
        self._announce()

    def rules(self) -> list[Rule]:
        now = self._clock()
        self._rules = [rule for rule in self._rules if not rule.is_spent(now)]
        return list(self._rules)

    def take(self, info: RequestInfo) -> list[Action]:
        """What happens to a request that arrives now, in order. Uses up counts. Stalls are asked for separately."""
        actions: list[Action] = []
        for rule in self.rules():
            if isinstance(rule.action, Stall) or not rule.matches(info):
                continue
            rule.hits += 1
            if rule.remaining is not None:
                rule.remaining -= 1
            actions.append(rule.action)
            if isinstance(rule.action, (Answer, Drop)):
                break
        return actions

    async def until_moving(self, info: RequestInfo, given_up: Callable[[], bool] = lambda: False) -> None:
        """Returns once no stall holds the request (at once, if none does), or when it was given up by other levers."""
        counted = False
        while not given_up() and (rule := self._stalling(info)) is not None:
            rule.hits += not counted
            counted = True
            with suppress(TimeoutError):
                async with asyncio.timeout(None if rule.until is None else rule.until - self._clock()):
                    await self._changed.wait()

    def _stalling(self, info: RequestInfo) -> Rule | None:
        stalling = (rule for rule in self.rules() if isinstance(rule.action, Stall) and rule.matches(info))
        return next(stalling, None)

    def _announce(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
