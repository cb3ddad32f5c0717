"""A kubelet's podresources socket that misbehaves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final

import grpc

from exporter_setup import FakeKubelet

_SERVICE: Final = "v1.PodResourcesLister"
_METHODS: Final = ("GetAllocatableResources", "List")

# Bytes instead of the answer, or a status with its details.
Behaviour = Callable[[], bytes | tuple[grpc.StatusCode, str]]


class SpoiltKubelet:
    """Replaces a FakeKubelet's socket by a new file. An async context; afterwards nothing listens on the socket."""

    def __init__(self, kubelet: FakeKubelet, behaviour: Behaviour | None = None, *, raw: bytes | None = None) -> None:
        """`behaviour` answers all methods; without it a client gets the `raw` bytes, or no answer at all."""
        self._socket = kubelet.socket
        self._behaviour = behaviour
        self._raw = raw
        self._close: Callable[[], Any] | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self.connections = 0
        self.calls = 0

    async def __aenter__(self) -> SpoiltKubelet:
        if self._behaviour is None:
            raw = await asyncio.start_unix_server(self._connected, str(self._socket))
            self._close = raw.close
            return self
        server = grpc.aio.server()
        handler = grpc.unary_unary_rpc_method_handler(self._answer)
        handlers = grpc.method_handlers_generic_handler(_SERVICE, dict.fromkeys(_METHODS, handler))
        server.add_generic_rpc_handlers((handlers,))
        assert server.add_insecure_port(f"unix://{self._socket}")
        await server.start()
        self._close = lambda: server.stop(None)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._close is not None
        closing = self._close()
        if closing is not None:
            await closing
        for writer in self._writers:
            writer.transport.abort()
        self._socket.unlink(missing_ok=True)

    async def _answer(self, request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        self.calls += 1
        assert self._behaviour is not None
        answer = self._behaviour()
        if isinstance(answer, bytes):
            return answer
        await context.abort(*answer)
        raise AssertionError("unreachable: abort raises")

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        with contextlib.suppress(ConnectionError):
            if self._raw is not None:
                writer.write(self._raw)
                await writer.drain()
                writer.close()
                return
            while await reader.read(1 << 16):
                pass
