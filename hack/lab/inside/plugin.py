"""In a guest: a device plug-in (deviceplugin/v1beta1) for functions of a PCI class, or for emulated devices.

plugin.py RESOURCE --pci-class 0200           every function of that class with a NUMA node
plugin.py RESOURCE --near 0=3 --near 0,1=1    three devices near node 0, a device near both; --near =1 has no node

Devices whose ids are lines of the file UNHEALTHY are unhealthy.
The plug-in registers whenever no kubelet watches its devices. The few messages are described here instead of by
generated code.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

sys.path.insert(1, "/opt/topowise/lib")
import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

FOLDER: Final = Path("/var/lib/kubelet/device-plugins")
UNHEALTHY: Final = Path("/var/lib/kubelet/lab-unhealthy")
PCI: Final = Path("/host/sys/bus/pci/devices")
PACKAGE: Final = "v1beta1"
# Seconds that a kubelet has for the watch after a registration.
_WATCHED_S: Final = 30.0
# Fields by number; * repeats, and what is no scalar is another message. As k8s.io/kubelet's deviceplugin/v1beta1.
MESSAGES: Final = {
    "Empty": {},
    "DevicePluginOptions": {1: "pre_start_required bool", 2: "get_preferred_allocation_available bool"},
    "RegisterRequest": {
        1: "version string",
        2: "endpoint string",
        3: "resource_name string",
        4: "options DevicePluginOptions",
    },
    "NUMANode": {1: "ID int64"},
    "TopologyInfo": {1: "nodes *NUMANode"},
    "Device": {1: "ID string", 2: "health string", 3: "topology TopologyInfo"},
    "ListAndWatchResponse": {1: "devices *Device"},
    "ContainerAllocateRequest": {1: "devices_ids *string"},
    "AllocateRequest": {1: "container_requests *ContainerAllocateRequest"},
    "ContainerAllocateResponse": {},
    "AllocateResponse": {1: "container_responses *ContainerAllocateResponse"},
}
MESSAGE: Final[Any] = 11
SCALARS: Final[dict[str, Any]] = {"bool": 8, "string": 9, "int64": 3}


def messages() -> dict[str, Any]:
    """Returns the message classes by name."""
    file = descriptor_pb2.FileDescriptorProto(name="deviceplugin.proto", package=PACKAGE, syntax="proto3")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, spelt in fields.items():
            field, kind = spelt.split()
            added = message.field.add(name=field, number=number, label=3 if kind.startswith("*") else 1)
            kind = kind.removeprefix("*")
            added.type = SCALARS.get(kind, MESSAGE)
            if kind not in SCALARS:
                added.type_name = f".{PACKAGE}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    descriptors = {name: pool.FindMessageTypeByName(f"{PACKAGE}.{name}") for name in MESSAGES}
    return {name: message_factory.GetMessageClass(descriptor) for name, descriptor in descriptors.items()}


KINDS: Final = messages()


class Plugin:
    """The device plug-in service of a resource; `devices` are the NUMA node ids by device id."""

    def __init__(self, devices: dict[str, list[int]]) -> None:
        self._devices = devices
        self._watches = 0
        self._changed = threading.Condition()

    def listed(self, unhealthy: frozenset[str]) -> Any:
        """Returns the list of devices and their health."""
        answer = KINDS["ListAndWatchResponse"]()
        for name, nodes in self._devices.items():
            device = answer.devices.add(ID=name, health="Unhealthy" if name in unhealthy else "Healthy")
            for node in nodes:
                device.topology.nodes.add(ID=node)
        return answer

    def options(self, request: Any, context: grpc.ServicerContext) -> Any:
        return KINDS["DevicePluginOptions"]()

    def watch(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
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

    def allocate(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Returns an empty response per container: the devices are not real."""
        answer = KINDS["AllocateResponse"]()
        for _ in request.container_requests:
            answer.container_responses.add()
        return answer

    def handler(self) -> Any:
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
        methods = {
            "GetDevicePluginOptions": (unary, self.options, "Empty"),
            "ListAndWatch": (stream, self.watch, "Empty"),
            "Allocate": (unary, self.allocate, "AllocateRequest"),
        }
        handlers: dict[str, Any] = {
            name: kind(method, KINDS[request].FromString, lambda reply: reply.SerializeToString())
            for name, (kind, method, request) in methods.items()
        }
        return grpc.method_handlers_generic_handler(f"{PACKAGE}.DevicePlugin", handlers)


def of_class(pci_class: str) -> dict[str, list[int]]:
    """Functions whose class begins with these digits. The guest's own network device is near no node, and left out."""
    nodes = {
        path.name: int((path / "numa_node").read_text())
        for path in sorted(PCI.iterdir())
        if (path / "class").read_text().removeprefix("0x").startswith(pci_class)
    }
    return {name: [node] for name, node in nodes.items() if node >= 0}


def made_up(resource: str, near: list[str]) -> dict[str, list[int]]:
    short, devices = resource.partition("/")[2], {}
    for numa in near:
        nodes, _, count = numa.partition("=")
        ids = [int(node) for node in nodes.split(",") if node]
        place = "-".join(map(str, ids)) or "none"
        devices.update({f"{short}-{place}-{number}": ids for number in range(int(count))})
    return devices


def register(resource: str, endpoint: str) -> None:
    request = KINDS["RegisterRequest"](version=PACKAGE, endpoint=endpoint, resource_name=resource)
    # The kubelet's gRPC requires a valid authority; for a unix socket the default is the path.
    with grpc.insecure_channel(f"unix://{FOLDER}/kubelet.sock", [("grpc.default_authority", "localhost")]) as channel:
        call: Any = channel.unary_unary(
            f"/{PACKAGE}.Registration/Register",
            request_serializer=lambda sent: sent.SerializeToString(),
            response_deserializer=KINDS["Empty"].FromString,
        )
        call(request, timeout=30)


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
                server.add_generic_rpc_handlers((plugin.handler(),))
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
    inventory = of_class(args.pci_class) if args.pci_class else made_up(args.resource, args.near)
    print("devices", inventory, flush=True)
    serve(args.resource, Plugin(inventory))
