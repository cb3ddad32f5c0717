"""The Pods API of an emulated kubelet: a watch of the node's pods, as KEP-4188's of Kubernetes 1.36.

A pod has its metadata only, the least that the real API promises (of a deleted pod).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import grpc

from sandbox.kubelet.holdings import NodeHoldings, PodHoldings
from topowise.wire import pods_pb2 as pb
from topowise.wire import pods_pb2_grpc as rpc

_QUEUED = 100


class PodsApi(rpc.PodsServicer):
    """Serves until `stop`; `changed` tells the watchers what differs since the last time."""

    def __init__(self, holdings: Callable[[], NodeHoldings]) -> None:
        self._holdings = holdings
        self._sent: dict[str, PodHoldings] = {}
        self._watchers: set[asyncio.Queue[pb.WatchPodsEvent]] = set()
        self._server: grpc.aio.Server | None = None

    @property
    def watchers(self) -> int:
        """Streams that are open."""
        return len(self._watchers)

    async def start(self, socket: Path) -> None:
        """A left-over socket is replaced, as the kubelet does."""
        socket.parent.mkdir(parents=True, exist_ok=True)
        socket.unlink(missing_ok=True)
        self._server = grpc.aio.server()
        rpc.add_PodsServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        if not self._server.add_insecure_port(f"unix://{socket}"):
            raise OSError(f"cannot listen on {socket}")
        await self._server.start()

    async def stop(self) -> None:
        """Streams are broken off."""
        if self._server is not None:
            await self._server.stop(None)

    def changed(self) -> None:
        """Announces that the node's holdings may have changed."""
        now = _by_uid(self._holdings())
        for uid, pod in now.items():
            if uid not in self._sent:
                self._tell(pb.ADDED, pod)
            elif pod != self._sent[uid]:
                self._tell(pb.MODIFIED, pod)
        for uid in self._sent.keys() - now.keys():
            self._tell(pb.DELETED, self._sent[uid])
        self._sent = now

    async def WatchPods(  # noqa: N802
        self, request: Any, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.WatchPodsEvent]:
        queue: asyncio.Queue[pb.WatchPodsEvent] = asyncio.Queue(_QUEUED)
        self._sent = _by_uid(self._holdings())
        self._watchers.add(queue)
        try:
            for pod in self._sent.values():
                yield _event(pb.ADDED, pod)
            yield pb.WatchPodsEvent(type=pb.INITIAL_SYNC_COMPLETE)
            while True:
                yield await queue.get()
        finally:
            self._watchers.discard(queue)

    def _tell(self, kind: pb.EventType, pod: PodHoldings) -> None:
        for queue in self._watchers:
            # A slow client misses events, as with the kubelet.
            if not queue.full():
                queue.put_nowait(_event(kind, pod))


def _by_uid(holdings: NodeHoldings) -> dict[str, PodHoldings]:
    return {pod.uid: pod for pod in holdings.pods}


def _event(kind: pb.EventType, pod: PodHoldings) -> pb.WatchPodsEvent:
    return pb.WatchPodsEvent(type=kind, pod=_pod(pod))


def _pod(pod: PodHoldings) -> bytes:
    # k8s.io/api/core/v1/generated.proto: Pod.metadata = 1; ObjectMeta.name = 1, .namespace = 3, .uid = 5.
    return _field(1, b"".join((_field(1, pod.name), _field(3, pod.namespace), _field(5, pod.uid))))


def _field(number: int, value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return bytes(_varint(number << 3 | 2)) + bytes(_varint(len(data))) + data


def _varint(number: int) -> Iterable[int]:
    while number > 0x7F:
        yield number & 0x7F | 0x80
        number >>= 7
    yield number
