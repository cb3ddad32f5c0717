"""A device plug-in of a node (deviceplugin/v1beta1) for functions of a PCI class, or for emulated devices.

plugin.py RESOURCE --pci-class 0200           every function of that class with a NUMA node
plugin.py RESOURCE --near 0=3 --near 0,1=1    three devices near node 0, a device near both; --near =1 has no node

Devices whose ids are lines of the file UNHEALTHY are unhealthy.
The plug-in registers whenever no kubelet watches its devices.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import grpc

from lab import dra
from topowise.wire import deviceplugin_pb2 as pb
from topowise.wire.deviceplugin_pb2_grpc import (
    DevicePluginServicer,
    RegistrationStub,
    add_DevicePluginServicer_to_server,
)

FOLDER: Final = Path("/var/lib/kubelet/device-plugins")
UNHEALTHY: Final = Path("/var/lib/kubelet/lab-unhealthy")
VERSION: Final = "v1beta1"
# Seconds that a kubelet has for the watch after a registration.
_WATCHED_S: Final = 30.0


class Plugin(DevicePluginServicer):
    """The device plug-in service of a resource; `devices` are the NUMA node ids by device id."""

    def __init__(self, devices: dict[str, list[int]]) -> None:
        self._devices = devices
        self._watches = 0
        self._changed = threading.Condition()

    def listed(self, unhealthy: frozenset[str]) -> Any:
        """Returns the list of devices and their health."""
        answer = pb.ListAndWatchResponse()
        for name, nodes in self._devices.items():
            device = answer.devices.add(ID=name, health="Unhealthy" if name in unhealthy else "Healthy")
            for node in nodes:
                device.topology.nodes.add(ID=node)
        return answer

    def GetDevicePluginOptions(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        return pb.DevicePluginOptions()

    def ListAndWatch(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:  # noqa: N802
        """Yields the list whenever the health of a device has changed, until the kubelet closes the stream."""
        over, sent = threading.Event(), None

        def ended() -> None:
            self._count(-1)
            over.set()

        self._count(1)
        if not context.add_callback(ended):
            ended()
        while not over.is_set():
            unhealthy = frozenset(UNHEALTHY.read_text().split() if UNHEALTHY.exists() else ())
            if unhealthy != sent:
                yield self.listed(unhealthy)
                sent = unhealthy
            over.wait(0.5)

    def is_watched(self, seconds: float = 0.0) -> bool:
        """Returns whether a kubelet watches the devices; if none does, waits for it."""
        with self._changed:
            return self._changed.wait_for(lambda: self._watches > 0, seconds)

    def _count(self, more: int) -> None:
        with self._changed:
            self._watches += more
            self._changed.notify_all()

    def Allocate(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        """Returns an empty response per container: the devices are not real."""
        return pb.AllocateResponse(
            container_responses=[pb.ContainerAllocateResponse() for _ in request.container_requests]
        )


def made_up(resource: str, near: list[str]) -> dict[str, list[int]]:
    short, devices = resource.partition("/")[2], {}
    for numa in near:
        nodes, _, count = numa.partition("=")
        ids = [int(node) for node in nodes.split(",") if node]
        place = "-".join(map(str, ids)) or "none"
        devices.update({f"{short}-{place}-{number}": ids for number in range(int(count))})
    return devices


def register(resource: str, endpoint: str) -> None:
    request = pb.RegisterRequest(version=VERSION, endpoint=endpoint, resource_name=resource)
    # The kubelet's gRPC requires a valid authority; for a unix socket the default is the path.
    with grpc.insecure_channel(f"unix://{FOLDER}/kubelet.sock", [("grpc.default_authority", "localhost")]) as channel:
        RegistrationStub(channel).Register(request, timeout=30)  # type: ignore[no-untyped-call]


def serve(resource: str, plugin: Plugin) -> None:
    """Serves, also after the kubelet has emptied the directory of sockets, and registers while no kubelet watches.

    The kubelet's own socket does not tell whether to register: a registration may reach the kubelet that replaces the
    socket meanwhile. After a second registration the kubelet takes the end of the first one's watch for the end of the
    plug-in, and has no healthy device until its next start.
    """
    endpoint = resource.replace("/", "_") + ".sock"
    server = None
    while True:
        try:
            if server is None or not (FOLDER / endpoint).exists():
                if server is not None:
                    # Its end removes the path, which the next server has too.
                    server.stop(0).wait()
                (FOLDER / endpoint).unlink(missing_ok=True)
                server = grpc.server(ThreadPoolExecutor(8))
                add_DevicePluginServicer_to_server(plugin, server)  # type: ignore[no-untyped-call]
                server.add_insecure_port(f"unix://{FOLDER}/{endpoint}")
                server.start()
            if not plugin.is_watched():
                register(resource, endpoint)
                print("registered", resource, flush=True)
                plugin.is_watched(_WATCHED_S)
        except (OSError, grpc.RpcError) as exc:
            print("not registered yet:", repr(exc)[:200], flush=True)
        time.sleep(0.5)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("resource")
    parser.add_argument("--pci-class", default="")
    parser.add_argument("--near", action="append", default=[])
    args = parser.parse_args()
    of_class = (
        {function.address: [function.numa] for function in dra.functions(args.pci_class)} if args.pci_class else {}
    )
    inventory = of_class or made_up(args.resource, args.near)
    print("devices", inventory, flush=True)
    serve(args.resource, Plugin(inventory))
