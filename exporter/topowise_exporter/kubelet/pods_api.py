"""Watches the kubelet's Pods API as a source of events. Any event triggers a sync; its content is not used.

The kubelet writes no file when a pod ends. Without this API the next timed sync finds that the pod's CPUs and devices
are free. KEP-4188, feature gate PodsAPI: alpha in 1.36, beta and on in 1.37 (kubernetes#140286). From 1.37 on the
socket exists with the gate off too, and calls fail. A node without the API is no problem. From 1.38 on streams count
for the API's rate limit of 100 requests a second (kubernetes#142458).
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError

from topowise.runtime import clock
from topowise.runtime.backoff import Backoff
from topowise.runtime.log import OncePerChange, kv
from topowise.wire import pods_pb2 as pb
from topowise_exporter.triggers import Trigger

log = logging.getLogger(__name__)

SOCKET: Final = "pods-api/pods-api.sock"
"""Relative to the kubelet's root directory."""
REASON: Final = "pods-api"

_WATCHING: Final = "Watching the kubelet's Pods API"
_WATCH: Final = "/v1alpha1.Pods/WatchPods"
# A pod may be as large as etcd allows; the podresources client uses the same limit.
_MAX_MESSAGE: Final = 16 << 20
# Detects a kubelet that hangs without closing its socket. gRPC servers in Go accept a ping every five minutes.
_KEEPALIVE_MS: Final = 310_000
_KEEPALIVE_TIMEOUT_MS: Final = 20_000
# A stream is reopened regularly, as client-go does with its watches: this ends any stuck state.
_LIFETIME_S: Final = 3600.0
# A stream that breaks earlier will break again, for example on an event that exceeds the message limit.
_LASTED_S: Final = 60.0
# The directory of a missing socket is watched; this interval is for nodes where the directory cannot be watched.
_LOOK_FOR_SOCKET_S: Final = 60.0


def is_change(event: bytes) -> bool:
    """Whether an event of WatchPods shows a change. Raises DecodeError."""
    return bool(pb.WatchPodsEvent.FromString(event).type != pb.INITIAL_SYNC_COMPLETE)


class PodsWatch:
    """Notifies a trigger at every event of WatchPods. The socket may appear and disappear."""

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
        self._logged, self._problem = "", OncePerChange()
        self.appeared = Trigger()
        """Notified when the socket is created."""

    async def run(self) -> None:
        """Watches until cancelled."""
        while True:
            # Path.exists raises an error for a directory without search permission.
            if not os.path.exists(self._socket):  # noqa: PTH110
                self._say("No Pods API: a pod's end is noticed at the next interval", why=f"no socket {self._socket}")
                await self.appeared.wait(_LOOK_FOR_SOCKET_S, quiet=0.01)
                continue
            started, at_least = clock.monotonic(), 0.0
            try:
                await self._watch()
            except grpc.aio.AioRpcError as exc:
                at_least = self._after(exc)
            except DecodeError as exc:
                self._say("The Pods API has an unknown message format, not watching it", why=str(exc))
                at_least = _LIFETIME_S
            if clock.monotonic() - started > _LASTED_S:
                self._backoff.reset()
            delay = self._backoff.next_delay(at_least)
            # A kubelet that restarts creates its socket again, which ends this wait.
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
            # The request is an empty message, which protobuf encodes as zero bytes.
            async for event in watch(b"", timeout=lifetime):
                self._say(_WATCHING, socket=self._socket)
                if is_change(event):
                    self._trigger.notify(REASON)

    def _after(self, exc: grpc.aio.AioRpcError) -> float:
        """Returns the minimum seconds until the next try."""
        if exc.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            return 0.0
        details = " ".join((exc.details() or "no details").split())
        if exc.code() is grpc.StatusCode.UNIMPLEMENTED:
            self._say("The kubelet serves another version of the Pods API, not watching it", why=details)
            return _LIFETIME_S
        # The details of a broken connection vary, the code does not.
        self._say("The kubelet's Pods API cannot be watched, trying again", why=exc.code().name)
        return 0.0

    def _say(self, what: str, **details: object) -> None:
        """Logs a state once, and not again while states alternate: nothing depends on this API."""
        is_change = self._problem.is_change(what)
        if what != self._logged and (is_change or what == _WATCHING):
            self._logged = what
            log.info(what, extra=kv(**details))
