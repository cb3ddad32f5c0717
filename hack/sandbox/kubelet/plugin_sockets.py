"""Device plug-ins: the devices that the usual plug-ins would advertise for a machine's PCI functions, which of them a
kubelet takes where any will do, and the device manager's sockets for plug-ins that are processes (v1beta1)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

import grpc

from topowise.wire import deviceplugin_pb2 as pb
from topowise.wire import deviceplugin_pb2_grpc as rpc
from topowise_exporter.machine import Machine, PciFunction
from topowise_scheduler.kubelet.device_manager import Choice, Chooser
from topowise_scheduler.kubelet.device_table import DeviceSet
from topowise_scheduler.kubelet.machine import Device, DevicePlugin
from topowise_scheduler.kubelet.masks import mask_of, members

GPU = "nvidia.com/gpu"
VIRTUAL_FUNCTION = "intel.com/e810_vf"


def plugins(machine: Machine) -> tuple[DevicePlugin, ...]:
    """GPUs by NVIDIA's plugin, virtual functions of NICs by the SR-IOV network device plugin."""
    by_resource: dict[str, list[Device]] = {}
    for function in machine.pci:
        resource = _resource(function)
        if resource:
            numa = None if function.numa_node is None else (function.numa_node,)
            by_resource.setdefault(resource, []).append(Device(function.address, numa))
    return tuple(DevicePlugin(resource, tuple(devices)) for resource, devices in sorted(by_resource.items()))


def any_of_them(seed: str) -> Chooser:
    """Returns a chooser that picks devices in arbitrary order, like a hash table; equal choices get equal devices."""

    def choose(choice: Choice) -> DeviceSet:
        order = Random(f"{seed} {choice.container} {choice.resource} {choice.among} {choice.taken}")
        return mask_of(order.sample(list(members(choice.among)), choice.number))

    return choose


def _resource(function: PciFunction) -> str | None:
    if function.class_code.startswith("0x0302"):
        return GPU
    if function.physfn is not None:
        return VIRTUAL_FUNCTION
    return None


# The kubelet's gRPC requires a valid authority; of a unix socket the default is the path.
_OPTIONS: Final = [("grpc.default_authority", "localhost")]


class PluginSockets(rpc.RegistrationServicer):
    """Serves `kubelet.sock` in a directory. `listed` receives each list of a resource, `gone` the resource of a plug-in
    that has closed its stream."""

    def __init__(
        self, directory: Path, listed: Callable[[str, list[Device]], None], gone: Callable[[str], None]
    ) -> None:
        self.directory = directory
        self._listed, self._gone = listed, gone
        self._server: grpc.aio.Server | None = None
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._followers: dict[str, asyncio.Task[None]] = {}
        self.registrations: list[pb.RegisterRequest] = []
        self.connects = asyncio.Event()
        """While not set, a plug-in that has registered waits for its connection."""
        self.connects.set()
        self.takes_lists = asyncio.Event()
        """While not set, lists wait."""
        self.takes_lists.set()

    async def start(self) -> None:
        """Starts as a new kubelet does, which removes the sockets in its directory (CleanupPluginDirectory)."""
        for path in self.directory.iterdir():
            if path.is_socket():
                path.unlink()
        self._server = grpc.aio.server()
        rpc.add_RegistrationServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        self._server.add_insecure_port(f"unix://{self.directory}/kubelet.sock")
        await self._server.start()

    async def stop(self) -> None:
        """Closes the connections and stops the server."""
        await self.drop()
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    async def drop(self) -> None:
        """Closes the connections to all plug-ins."""
        for resource in list(self._channels):
            follower = self._followers.pop(resource)
            follower.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await follower
            await self._channels.pop(resource).close()

    async def Register(self, request: pb.RegisterRequest, context: Any) -> pb.Empty:  # noqa: N802
        """Implements the service."""
        self.registrations.append(request)
        resource = request.resource_name
        if (follower := self._followers.pop(resource, None)) is not None:
            follower.cancel()
        channel = self._channels[resource] = grpc.aio.insecure_channel(
            f"unix://{self.directory / request.endpoint}", _OPTIONS
        )
        self._followers[resource] = asyncio.create_task(self._follow(resource, channel))
        return pb.Empty()

    async def allocate_all(self, containers: Mapping[str, Mapping[str, Sequence[str]]]) -> None:
        """Calls the plug-ins for devices by container and resource: a call for each container, as the kubelet does."""
        for devices in containers.values():
            for resource in devices.keys() & self._channels.keys():
                await self.allocate(resource, [list(devices[resource])])

    async def allocate(self, resource: str, containers: list[list[str]]) -> pb.AllocateResponse:
        """Asks the plug-in of a resource to allocate devices, by container. Raises AioRpcError."""
        plugin = rpc.DevicePluginStub(self._channels[resource])  # type: ignore[no-untyped-call]
        requests = [pb.ContainerAllocateRequest(devices_ids=ids) for ids in containers]
        answer: pb.AllocateResponse = await plugin.Allocate(pb.AllocateRequest(container_requests=requests))
        return answer

    async def _follow(self, resource: str, channel: grpc.aio.Channel) -> None:
        plugin = rpc.DevicePluginStub(channel)  # type: ignore[no-untyped-call]
        await self.connects.wait()
        with contextlib.suppress(grpc.aio.AioRpcError):
            options = await plugin.GetDevicePluginOptions(pb.Empty())
            assert not options.pre_start_required
            async for message in plugin.ListAndWatch(pb.Empty()):
                await self.takes_lists.wait()
                self._listed(resource, [_device(device) for device in message.devices])
        if self._channels.get(resource) is channel:
            del self._channels[resource], self._followers[resource]
            await channel.close()
            self._gone(resource)


def _device(device: pb.Device) -> Device:
    numa = tuple(node.ID for node in device.topology.nodes) if device.HasField("topology") else None
    return Device(device.ID, numa, healthy=device.health == "Healthy")
