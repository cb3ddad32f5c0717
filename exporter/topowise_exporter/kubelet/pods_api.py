"""The kubelet's Pods API as a source of events: what happened to which pod does not matter, only that something did.

A pod's end writes none of the kubelet's files: without this API the CPUs and devices it held are found free by the next
timed sync. KEP-4188, feature gate PodsAPI: alpha in 1.36, beta and on in 1.37 (kubernetes#140286), where the socket is
there with the gate off too and calls fail. A node without it is no problem. From 1.38 on streams count for its rate
limit of 100 requests a second (kubernetes#142458).
"""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError

from topowise.runtime.backoff import Backoff
from topowise.runtime.log import kv
from topowise.runtime.log_once import OncePerChange
from topowise.wire import pods_pb2 as pb
from topowise_exporter.triggers import Trigger

log = logging.getLogger(__name__)

SOCKET: Final = "pods-api/pods-api.sock"
"""In the kubelet's root directory."""
REASON: Final = "pods-api"

_WATCHING: Final = "Watching the kubelet's Pods API"
_WATCH: Final = "/v1alpha1.Pods/WatchPods"
# A pod may be as large as etcd lets it be; podresources' clients take as much.
_MAX_MESSAGE: Final = 16 << 20
# A kubelet that hangs without closing its socket is noticed. Servers in Go put up with a ping every five minutes.
_KEEPALIVE_MS: Final = 310_000
_KEEPALIVE_TIMEOUT_MS: Final = 20_000
# A stream is made anew now and then, as client-go does with its watches: whatever got stuck is over by then.
_LIFETIME_S: Final = 3600.0
# One that breaks earlier will break again, as with an event that is too large for us.
_LASTED_S: Final = 60.0
# While there is no socket, its directory is watched; this is for nodes on which it cannot be.
_LOOK_FOR_SOCKET_S: Final = 60.0


class PodsWatch:
    """Notifies at every event of the watch. The socket may come, go and come back."""

    def __init__(
        self,
        socket: Path,
        trigger: Trigger,
        *,
        backoff: Backoff | None = None,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._socket = socket
        self._trigger = trigger
        self._backoff = backoff or Backoff(maximum=60.0)
        self._uniform = uniform
        self._said, self._problem = "", OncePerChange()
        self.appeared = Trigger()
        """To be notified when the socket is made."""

    async def run(self) -> None:
        """Watches until cancelled."""
        while True:
            # Path.exists raises for a directory that may not be looked into.
            if not os.path.exists(self._socket):  # noqa: PTH110
                self._say("No Pods API, the end of a pod is found at the interval", why=f"no socket {self._socket}")
                await self.appeared.wait(_LOOK_FOR_SOCKET_S, quiet=0.01)
                continue
            started, at_least = time.monotonic(), 0.0
            try:
                await self._watch()
            except grpc.aio.AioRpcError as exc:
                at_least = self._after(exc)
            except DecodeError as exc:
                self._say("The Pods API is not the one that is known here, not watching it", why=str(exc))
                at_least = _LIFETIME_S
            if time.monotonic() - started > _LASTED_S:
                self._backoff.reset()
            delay = self._backoff.next_delay(at_least)
            # A kubelet that comes back makes its socket anew.
            await self.appeared.wait(delay, quiet=0.01)

    async def _watch(self) -> None:
        options = [
            ("grpc.max_receive_message_length", _MAX_MESSAGE),
            ("grpc.enable_http_proxy", 0),
            ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
            ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
            ("grpc.http2.max_pings_without_data", 0),
        ]
        async with grpc.aio.insecure_channel(f"unix://{self._socket}", options=options) as channel:
            lifetime = self._uniform(0.5, 1.0) * _LIFETIME_S
            watch: Any = channel.unary_stream(_WATCH)
            # The request is an empty message, which is no bytes at all.
            async for event in watch(b"", timeout=lifetime):
                self._say(_WATCHING, socket=self._socket)
                if pb.WatchPodsEvent.FromString(event).type != pb.INITIAL_SYNC_COMPLETE:
                    self._trigger.notify(REASON)

    def _after(self, exc: grpc.aio.AioRpcError) -> float:
        """Seconds until the next try, at least."""
        if exc.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            return 0.0
        details = " ".join((exc.details() or "no details").split())
        if exc.code() is grpc.StatusCode.UNIMPLEMENTED:
            self._say("The kubelet's Pods API is another version, not watching it", why=details)
            return _LIFETIME_S
        # The details of a broken connection differ from time to time, the code does not.
        self._say("The kubelet's Pods API cannot be watched, trying again", why=exc.code().name)
        return 0.0

    def _say(self, what: str, **details: object) -> None:
        """Once for each change, and not each time that it comes and goes: nothing depends on this API."""
        is_news = self._problem.is_change(what)
        if what != self._said and (is_news or what == _WATCHING):
            self._said = what
            log.info(what, extra=kv(**details))
