"""The podresources service of an emulated kubelet, with the quirks of the real kubelet.

Every device comes in an entry of its own for each of its NUMA nodes, plain init containers are not listed, and pods
appear in no particular order. A device whose topology has no NUMA node is not among the allocatable devices; List names
it without a topology, as the checkpoint of the device manager does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import grpc

from sandbox.kubelet.holdings import Block, ContainerHoldings, NodeHoldings, PodHoldings
from topowise.wire import podresources_pb2 as pb
from topowise.wire import podresources_pb2_grpc as rpc

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
    return pb.ListPodResourcesResponse(pod_resources=[_pod(pod, state.device_nodes) for pod in state.pods])


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


def _pod(pod: PodHoldings, device_nodes: DeviceNodes) -> pb.PodResources:
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
