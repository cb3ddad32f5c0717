"""How bad a cluster's day is, and the API server as it shows itself then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from random import Random
from typing import Any

import msgspec

from sandbox.apiserver import ApiServer
from sandbox.apiserver.direct import DirectApi
from soak.heard import Heard
from topowise import nrt
from topowise.errors import ApiError

PODS = "/api/v1/namespaces/default/pods"


class Weather(msgspec.Struct, frozen=True):
    """How bad a cluster's day is. Shares are of pods, or of Bindings; `lag` is the most that a watch of the service is
    late, in seconds, and `troubles` how many things go wrong."""

    nodes: int
    pods: int
    blind: float
    lag: float
    lost_answers: float
    troubles: int
    slow: bool

    @classmethod
    def drawn(cls, rng: Random, pods: int) -> Weather:
        return cls(
            nodes=rng.choice((1, 2, 3, 4, 6)),
            pods=rng.randint(pods // 2, pods),
            blind=rng.choice((0.0, 0.0, 0.0, 0.05)),
            lag=rng.choice((0.0, 0.05, 0.15, 0.15, 1.0)),
            lost_answers=rng.choice((0.0, 0.0, 0.05)),
            troubles=rng.choice((0, 0, 2, 5)),
            slow=rng.random() < 0.15,
        )


class ServiceApi(DirectApi):
    """The service's API client: some answers to Bindings are lost, so that their outcome is unknown to the service."""

    def __init__(self, server: ApiServer, weather: Weather, rng: Random, heard: Heard) -> None:
        super().__init__(
            server, "service", latency=lambda: rng.uniform(0.0005, 0.01), lag=lambda _: rng.uniform(0, weather.lag)
        )
        self._share = weather.lost_answers
        self._random = rng
        self._heard = heard

    async def request(self, method: str, path: str, **how: Any) -> bytes:
        if path.endswith("/binding"):
            self._heard.binding_sent(path)
        answer = await super().request(method, path, **how)
        if method == "GET":
            self._heard.page(path, how.get("query") or {}, answer)
        if path.endswith("/binding") and self._random.random() < self._share:
            await asyncio.sleep(1.3)
            raise ApiError(0, "Timeout", "no answer in time", request=f"{method} {path}")
        return answer

    @asynccontextmanager
    async def stream(self, path: str, **how: Any) -> AsyncIterator[AsyncIterator[bytes]]:
        async with super().stream(path, **how) as pieces, aclosing(self._told(path, pieces)) as events:
            yield events

    async def _told(self, path: str, pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        async for piece in pieces:
            self._heard.events(path, piece)
            yield piece


class OthersApi(DirectApi):
    """The API client of all other components. `deletions` has the times of pod deletions, by name."""

    def __init__(self, server: ApiServer, rng: Random) -> None:
        super().__init__(server, "world", latency=lambda: rng.uniform(0.0005, 0.01))
        self.deletions: dict[str, float] = {}
        self.reported: Callable[[str, bytes], None] = lambda name, body: None
        """Called with each written report: its node, and the object."""

    async def request(self, method: str, path: str, **how: Any) -> bytes:
        is_deletion = method == "DELETE" and path.startswith(PODS)
        if is_deletion:
            self.deletions[path.rpartition("/")[2]] = asyncio.get_running_loop().time()
        answer = await super().request(method, path, **how)
        if is_deletion:
            self.deletions[path.rpartition("/")[2]] = asyncio.get_running_loop().time()
        if method in ("POST", "PUT", "PATCH") and path.startswith(nrt.PATH):
            self.reported(path.rpartition("/")[2], answer)
        return answer
