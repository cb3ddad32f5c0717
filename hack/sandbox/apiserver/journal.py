"""What the server was asked: counters and the newest requests.

"An unchanged node makes no API call" is a promise about what is *not* sent; it is tested by counting at the server.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

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
