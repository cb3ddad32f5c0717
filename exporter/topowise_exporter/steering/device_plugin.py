"""The device plug-in (deviceplugin/v1beta1) of the markers: serves the kubelet, and registers with each kubelet.

The socket is in a directory of its own below the kubelet's directory of device plug-ins: a kubelet that starts removes
the sockets of its directory, not those of directories in it (CleanupPluginDirectory). So the plug-in serves before the
kubelet does, and the first registration needs a single call. That matters: until then the kubelet refuses pods with a
marker whose containers have never run (devicesToAllocate, "no healthy devices present").
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from math import inf
from pathlib import Path
from typing import Final

import grpc

from topowise import steering
from topowise.errors import SourceError
from topowise.runtime import clock
from topowise.runtime.backoff import Backoff
from topowise.runtime.log import V2, OncePerChange, kv
from topowise.wire import deviceplugin_pb2 as pb
from topowise.wire.deviceplugin_pb2_grpc import (
    DevicePluginServicer,
    RegistrationStub,
    add_DevicePluginServicer_to_server,
)
from topowise_exporter.steering.labels import Label
from topowise_exporter.triggers import FileWatch, Trigger

log = logging.getLogger(__name__)

KUBELET_SOCKET: Final = "kubelet.sock"
_ENDPOINT: Final = "topowise.io/numa.sock"
_VERSION: Final = "v1beta1"
_REGISTER_S: Final = 10.0
# Also without an event the kubelet's socket is looked at this often.
_INTERVAL_S: Final = 1.0
# The socket exists an instant before the kubelet listens.
_FIRST_RETRY_S: Final = 0.005
_QUIET_S: Final = 0.001
_STREAM: Final = "stream"
# A kubelet that notices the end of a stream disconnects the plug-in's newest connection (runClient). A registration
# before that would be lost.
_PAUSE_S: Final = 0.1
# A kubelet connects after its answer to the registration. A second registration would close the connection.
_CONNECT_S: Final = 5.0


def marker_ids(count: int) -> list[str]:
    """Returns the ids of the markers: the same for each start, so that the kubelet's checkpoint stays valid."""
    return [f"marker-{number:04}" for number in range(count)]


def device_list(count: int, label: Label) -> pb.ListAndWatchResponse:
    """Returns all markers with a label. Without a label a marker has no topology, so the kubelet gets no hint."""
    topology = None if label is None else pb.TopologyInfo(nodes=[pb.NUMANode(ID=label)])
    return pb.ListAndWatchResponse(
        devices=[pb.Device(ID=marker, health="Healthy", topology=topology) for marker in marker_ids(count)]
    )


class DevicePlugin(DevicePluginServicer):
    """Serves the markers. `connected` and `disconnected` are called for a kubelet's stream, `allocated` for the number
    of containers of an Allocate call."""

    def __init__(
        self,
        markers: int,
        connected: Callable[[], None],
        disconnected: Callable[[], None],
        allocated: Callable[[int], None],
    ) -> None:
        self._markers = markers
        self._connected, self._disconnected, self._allocated = connected, disconnected, allocated
        self._stream: asyncio.Queue[Label] | None = None

    @property
    def is_connected(self) -> bool:
        """Whether a kubelet has an open stream."""
        return self._stream is not None

    def send(self, label: Label) -> None:
        """Sends the list with this label to the kubelet, if it is connected."""
        if self._stream is not None:
            # A kubelet that does not read gets the last list alone.
            while not self._stream.empty():
                self._stream.get_nowait()
            self._stream.put_nowait(label)

    async def GetDevicePluginOptions(  # noqa: N802 - the name in the contract
        self, request: pb.Empty, context: grpc.aio.ServicerContext[pb.Empty, pb.DevicePluginOptions]
    ) -> pb.DevicePluginOptions:
        """Implements the service: no call before a container starts, no preferred markers."""
        return pb.DevicePluginOptions()

    async def ListAndWatch(  # noqa: N802
        self, request: pb.Empty, context: grpc.aio.ServicerContext[pb.Empty, pb.ListAndWatchResponse]
    ) -> AsyncIterator[pb.ListAndWatchResponse]:
        """Implements the service: a list without a label first, then a list for each label."""
        stream = self._stream = asyncio.Queue[Label]()
        self._connected()
        try:
            yield device_list(self._markers, None)
            while self._stream is stream:
                yield device_list(self._markers, await stream.get())
        finally:
            # A later stream of another kubelet has taken over otherwise.
            if self._stream is stream:
                self._stream = None
                self._disconnected()

    async def Allocate(  # noqa: N802
        self, request: pb.AllocateRequest, context: grpc.aio.ServicerContext[pb.AllocateRequest, pb.AllocateResponse]
    ) -> pb.AllocateResponse:
        """Implements the service: the container gets nothing."""
        containers = len(request.container_requests)
        self._allocated(containers)
        return pb.AllocateResponse(container_responses=[pb.ContainerAllocateResponse()] * containers)


class Registration:
    """Registers the plug-in with each kubelet, and again if a kubelet closes its stream."""

    def __init__(self, directory: Path, plugin: DevicePlugin) -> None:
        self._directory = directory
        self._plugin = plugin
        self._trigger = Trigger()
        self._kubelet: tuple[int, int] | None = None
        self._failure = OncePerChange()
        self._backoff = Backoff(_FIRST_RETRY_S, _INTERVAL_S)
        self._connected: tuple[int, int] | None = None
        self._registered = -inf

    async def serve(self) -> grpc.aio.Server:
        """Starts the server of the plug-in. Raises SourceError."""
        path = self._directory / _ENDPOINT
        server = grpc.aio.server()
        add_DevicePluginServicer_to_server(self._plugin, server)  # type: ignore[no-untyped-call]
        try:
            path.parent.mkdir(mode=0o750, exist_ok=True)
            path.unlink(missing_ok=True)
            server.add_insecure_port(f"unix://{path}")
        except (OSError, RuntimeError) as exc:
            problem = "the socket of the plug-in cannot be made; is the directory mounted, and writable?"
            raise SourceError(str(path), f"{exc}: {problem}") from exc
        await server.start()
        return server

    def watch(self) -> FileWatch:
        """Returns the watch of the kubelet's socket."""
        return FileWatch(self._trigger, {self._directory: frozenset({KUBELET_SOCKET})}, retry=_INTERVAL_S)

    def connect(self) -> bool:
        """The kubelet has opened its stream. Returns whether it is another process than the kubelet before."""
        is_new, self._connected = self._kubelet != self._connected, self._kubelet
        return is_new

    def retry(self) -> None:
        """The kubelet has closed its stream."""
        self._registered = -inf
        self._trigger.notify(_STREAM)

    async def run(self) -> None:
        """Registers until cancelled. Raises SourceError if the socket of the plug-in is gone: the next kubelet could
        not connect, and a new process makes the socket again."""
        delay = _INTERVAL_S
        while True:
            reasons = await self._trigger.wait(delay, quiet=_QUIET_S)
            if reasons:
                self._backoff.reset()
            if _STREAM in reasons:
                await asyncio.sleep(_PAUSE_S)
            if not (self._directory / _ENDPOINT).exists():
                raise SourceError(
                    str(self._directory / _ENDPOINT),
                    "the socket of the plug-in is gone, expected until the process ends: the next kubelet could not "
                    "connect, so the process ends, to be started again",
                )
            kubelet, delay = self._identity(), _INTERVAL_S
            is_lost = not self._plugin.is_connected and clock.monotonic() - self._registered > _CONNECT_S
            if kubelet is not None and (kubelet != self._kubelet or is_lost):
                delay = _INTERVAL_S if await self._register(kubelet) else self._backoff.next_delay()

    def _identity(self) -> tuple[int, int] | None:
        """Returns the identity of the kubelet's socket, which each kubelet makes again; None without a socket.

        Not the time of the last change of status: the owner of a new socket sets its mode.
        """
        try:
            stat = (self._directory / KUBELET_SOCKET).stat()
        except OSError:
            return None
        return stat.st_ino, stat.st_mtime_ns

    async def _register(self, kubelet: tuple[int, int]) -> bool:
        """Returns whether the kubelet has accepted the registration; its stream follows."""
        # Before the call: the kubelet may connect before its answer is read.
        self._kubelet, self._registered, sent = kubelet, -inf, clock.monotonic()
        # The kubelet's gRPC requires a valid authority; of a unix socket the default is the path.
        options = [("grpc.default_authority", "localhost"), ("grpc.enable_http_proxy", 0)]
        target = f"unix://{self._directory / KUBELET_SOCKET}"
        request = pb.RegisterRequest(version=_VERSION, endpoint=_ENDPOINT, resource_name=steering.RESOURCE)
        try:
            async with grpc.aio.insecure_channel(target, options=options) as channel:
                stub = RegistrationStub(channel)  # type: ignore[no-untyped-call]
                await stub.Register(request, timeout=_REGISTER_S)
        except grpc.aio.AioRpcError as exc:
            problem = f"{exc.code().name}: {' '.join((exc.details() or 'no details').split())}"
            if self._failure.is_change(problem):
                log.warning("Cannot register with the kubelet, trying again", extra=kv(why=problem))
            return False
        self._registered = sent
        self._failure.clear()
        milliseconds = round(1000 * (clock.monotonic() - sent), 1)
        log.log(V2, "Registered with the kubelet", extra=kv(resource=steering.RESOURCE, milliseconds=milliseconds))
        return True
