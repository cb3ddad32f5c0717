"""A TLS port before a plain HTTP port, whose certificate and client CA a test replaces."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from pathlib import Path
from types import TracebackType
from typing import Final, Self

_CHUNK: Final = 1 << 16


class TlsFront:
    """An async context. Every client must show a certificate of the CA, if there is a client CA."""

    def __init__(self, upstream: tuple[str, int], host: str = "127.0.0.1") -> None:
        self._upstream = upstream
        self._host = host
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"https://{host}:{self.port}"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def serve(self, certificate: Path, key: Path, client_ca: Path | None = None) -> None:
        """Listens at the same port as before with these files; connections of before are reset."""
        await self.stop()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        if client_ca is not None:
            context.load_verify_locations(client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        self._server = await asyncio.start_server(self._connected, self._host, self.port, ssl=context)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Closes the port."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            inner, outer = await asyncio.open_connection(*self._upstream)
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(_copy(reader, outer))
                    group.create_task(_copy(inner, writer))
            finally:
                outer.transport.abort()
        except* (OSError, ssl.SSLError):
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while content := await reader.read(_CHUNK):
        writer.write(content)
        await writer.drain()
    with contextlib.suppress(OSError, NotImplementedError):
        writer.write_eof()
    raise ConnectionResetError
