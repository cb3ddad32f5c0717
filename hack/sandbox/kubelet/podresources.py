"""The gRPC services of an emulated kubelet: podresources with the quirks of the real kubelet, and the Pods API.

Every device comes in an entry of its own for each of its NUMA nodes, plain init containers are not listed, and pods
appear in no particular order. A device whose topology has no NUMA node is not among the allocatable devices; List names
it without a topology, as the checkpoint of the device manager does.

The Pods API is a watch of the node's pods, as KEP-4188's of Kubernetes 1.36. A pod has its metadata only, the least
that the real API promises (of a deleted pod).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import grpc

from sandbox.kubelet.holdings import Block, ContainerHoldings, NodeHoldings, PodHoldings
from topowise.wire import podresources_pb2 as pb
from topowise.wire import podresources_pb2_grpc as rpc
from topowise.wire import pods_pb2, pods_pb2_grpc

DeviceNodes = dict[tuple[str, str], tuple[int, ...] | None]


class _ById:
    """A holdings object as a key of a cache: the same object has the same answer, which saves building it."""

    def __init__(self, value: NodeHoldings) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ById) and other.value is self.value


@lru_cache(maxsize=4)
def listed(holdings: _ById) -> pb.ListPodResourcesResponse:
    """Returns all pods that have or may have allocations."""
    state = holdings.value
    return pb.ListPodResourcesResponse(pod_resources=[_listed_pod(pod, state.device_nodes) for pod in state.pods])


@lru_cache(maxsize=4)
def allocatable(holdings: _ById) -> pb.AllocatableResourcesResponse:
    """What could be given out at all."""
    state = holdings.value
    return pb.AllocatableResourcesResponse(
        cpu_ids=sorted(state.allocatable_cpus),
        memory=list(map(_memory, state.allocatable_memory)),
        devices=list(
            _devices(
                (key for key, nodes in state.device_nodes.items() if key not in state.unhealthy and nodes != ()),
                state.device_nodes,
            )
        ),
    )


class PodResourcesServicer(rpc.PodResourcesListerServicer):
    """Answers from `holdings()`, asked anew for each call."""

    def __init__(self, holdings: Callable[[], NodeHoldings]) -> None:
        self._holdings = holdings
        self.calls = 0

    async def List(  # noqa: N802
        self, request: Any, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.ListPodResourcesResponse:
        self.calls += 1
        return listed(_ById(self._holdings()))

    async def GetAllocatableResources(  # noqa: N802
        self, request: Any, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.AllocatableResourcesResponse:
        self.calls += 1
        return allocatable(_ById(self._holdings()))


def prepare(holdings: NodeHoldings) -> None:
    """Builds the answers before the calls, so that a measurement of the caller excludes them."""
    listed(_ById(holdings))
    allocatable(_ById(holdings))


def _listed_pod(pod: PodHoldings, device_nodes: DeviceNodes) -> pb.PodResources:
    containers = [_container(container, device_nodes) for container in pod.containers if container.kind != "init"]
    return pb.PodResources(name=pod.name, namespace=pod.namespace, containers=containers)


def _container(container: ContainerHoldings, device_nodes: DeviceNodes) -> pb.ContainerResources:
    keys = [(resource, device) for resource, ids in container.devices.items() for device in ids]
    return pb.ContainerResources(
        name=container.name,
        cpu_ids=sorted(container.cpus),
        memory=list(map(_memory, container.memory)),
        devices=list(_devices(keys, device_nodes)),
        dynamic_resources=[_claim(container.name, at, claim) for at, claim in enumerate(container.claims)],
    )


def _claim(container: str, position: int, device: tuple[str, str, str]) -> pb.DynamicResource:
    """Returns a claim with a device; the CDI name follows kubernetes-sigs/dra-example-driver."""
    driver, pool, name = device
    return pb.DynamicResource(
        claim_name=f"{container}-{position}",
        claim_namespace="default",
        claim_resources=[
            pb.ClaimResource(
                cdi_devices=[pb.CDIDevice(name=f"k8s.{driver}/gpu={name}")],
                driver_name=driver,
                pool_name=pool,
                device_name=name,
            )
        ],
    )


def _memory(block: Block) -> pb.ContainerMemory:
    return pb.ContainerMemory(memory_type=block.type, size=block.size, topology=_topology(block.numa))


def _devices(keys: Iterable[tuple[str, str]], device_nodes: DeviceNodes) -> Iterator[pb.ContainerDevices]:
    for resource, device_id in keys:
        nodes = device_nodes.get((resource, device_id))
        for node in [None] if not nodes else [(node,) for node in nodes]:
            yield pb.ContainerDevices(
                resource_name=resource,
                device_ids=[device_id],
                topology=None if node is None else _topology(node),
            )


def _topology(nodes: Iterable[int]) -> pb.TopologyInfo:
    return pb.TopologyInfo(nodes=[pb.NUMANode(ID=node) for node in nodes])


async def start(socket: Path, holdings: Callable[[], NodeHoldings]) -> grpc.aio.Server:
    """A serving server; `await server.stop(None)` ends it. A left-over socket is replaced, as the kubelet does."""
    socket.parent.mkdir(parents=True, exist_ok=True)
    socket.unlink(missing_ok=True)
    server = grpc.aio.server()
    rpc.add_PodResourcesListerServicer_to_server(PodResourcesServicer(holdings), server)  # type: ignore[no-untyped-call]
    if not server.add_insecure_port(f"unix://{socket}"):
        raise OSError(f"cannot listen on {socket}")
    await server.start()
    return server


_QUEUED = 100


class PodsApi(pods_pb2_grpc.PodsServicer):
    """Serves until `stop`; `changed` tells the watchers what differs since the last time."""

    def __init__(self, holdings: Callable[[], NodeHoldings]) -> None:
        self._holdings = holdings
        self._sent: dict[str, PodHoldings] = {}
        self._watchers: set[asyncio.Queue[pods_pb2.WatchPodsEvent]] = set()
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
        pods_pb2_grpc.add_PodsServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
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
                self._tell(pods_pb2.ADDED, pod)
            elif pod != self._sent[uid]:
                self._tell(pods_pb2.MODIFIED, pod)
        for uid in self._sent.keys() - now.keys():
            self._tell(pods_pb2.DELETED, self._sent[uid])
        self._sent = now

    async def WatchPods(  # noqa: N802
        self, request: Any, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pods_pb2.WatchPodsEvent]:
        queue: asyncio.Queue[pods_pb2.WatchPodsEvent] = asyncio.Queue(_QUEUED)
        self._sent = _by_uid(self._holdings())
        self._watchers.add(queue)
        try:
            for pod in self._sent.values():
                yield _event(pods_pb2.ADDED, pod)
            yield pods_pb2.WatchPodsEvent(type=pods_pb2.INITIAL_SYNC_COMPLETE)
            while True:
                yield await queue.get()
        finally:
            self._watchers.discard(queue)

    def _tell(self, kind: pods_pb2.EventType, pod: PodHoldings) -> None:
        for queue in self._watchers:
            # A slow client misses events, as with the kubelet.
            if not queue.full():
                queue.put_nowait(_event(kind, pod))


def _by_uid(holdings: NodeHoldings) -> dict[str, PodHoldings]:
    return {pod.uid: pod for pod in holdings.pods}


def _event(kind: pods_pb2.EventType, pod: PodHoldings) -> pods_pb2.WatchPodsEvent:
    return pods_pb2.WatchPodsEvent(type=kind, pod=_pod(pod))


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
