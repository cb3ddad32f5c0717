"""The podresources service of an emulated kubelet, with the quirks of the real one.

Every device comes in an entry of its own for each of its NUMA nodes, plain init containers are not listed, and pods
appear in no particular order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import grpc

from sandbox.kubelet.holdings import Block, ContainerHoldings, NodeHoldings, PodHoldings
from topowise.wire import podresources_pb2 as pb
from topowise.wire import podresources_pb2_grpc as rpc

DeviceNodes = dict[tuple[str, str], tuple[int, ...] | None]


class PodResourcesServicer(rpc.PodResourcesListerServicer):
    """Answers from `holdings()`, asked anew for each call."""

    def __init__(self, holdings: Callable[[], NodeHoldings]) -> None:
        self._holdings = holdings
        self.calls = 0

    async def List(self, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> pb.ListPodResourcesResponse:  # noqa: N802
        """All pods that hold or may hold something."""
        self.calls += 1
        held = self._holdings()
        return pb.ListPodResourcesResponse(pod_resources=[_pod(pod, held.device_nodes) for pod in held.pods])

    async def GetAllocatableResources(  # noqa: N802
        self, request: Any, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.AllocatableResourcesResponse:
        """What could be given out at all."""
        self.calls += 1
        held = self._holdings()
        return pb.AllocatableResourcesResponse(
            cpu_ids=sorted(held.allocatable_cpus),
            memory=list(map(_memory, held.allocatable_memory)),
            devices=list(_devices(held.device_nodes, held.device_nodes)),
        )


def _pod(pod: PodHoldings, device_nodes: DeviceNodes) -> pb.PodResources:
    containers = [_container(one, device_nodes) for one in pod.containers if one.kind != "init"]
    return pb.PodResources(name=pod.name, namespace=pod.namespace, containers=containers)


def _container(container: ContainerHoldings, device_nodes: DeviceNodes) -> pb.ContainerResources:
    keys = [(resource, one) for resource, ids in container.devices.items() for one in ids]
    return pb.ContainerResources(
        name=container.name,
        cpu_ids=sorted(container.cpus),
        memory=list(map(_memory, container.memory)),
        devices=list(_devices(keys, device_nodes)),
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
