"""A cloud for cluster-autoscaler's `externalgrpc` provider, which starts hollow nodes.

The messages have the field numbers of upstream's externalgrpc.proto, as far as cluster-autoscaler needs them. Methods
that a provider may leave out are not served.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Self

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from burst.nodes import Kind
from sandbox.hollow import Fleet
from topowise.kube.api import MERGE_PATCH, Api
from topowise_scheduler.ledger.nodes import STARTUP_TAINT

_PACKAGE: Final = "clusterautoscaler.cloudprovider.v1.externalgrpc"
_SERVICE: Final = f"{_PACKAGE}.CloudProvider"
_RUNNING: Final = 1
INSTANCE_TYPE: Final = "node.kubernetes.io/instance-type"

# Message -> fields: name, number, type ("s" string, "i" int32, or a message), "*" for repeated.
_MESSAGES: Final[Mapping[str, tuple[tuple[str, int, str], ...]]] = {
    "Empty": (),
    "NodeGroup": (("id", 1, "s"), ("minSize", 2, "i"), ("maxSize", 3, "i"), ("debug", 4, "s")),
    "NodeGroupsResponse": (("nodeGroups", 1, "*NodeGroup"),),
    "ExternalGrpcNode": (("providerID", 1, "s"), ("name", 2, "s")),
    "NodeRequest": (("node", 1, "ExternalGrpcNode"),),
    "NodeGroupForNodeResponse": (("nodeGroup", 1, "NodeGroup"),),
    "LabelResponse": (("label", 1, "s"),),
    "IdRequest": (("id", 1, "s"),),
    "TargetSizeResponse": (("targetSize", 1, "i"),),
    "DeltaRequest": (("delta", 1, "i"), ("id", 2, "s")),
    "DeleteNodesRequest": (("nodes", 1, "*ExternalGrpcNode"), ("id", 2, "s")),
    "InstanceStatus": (("instanceState", 1, "i"),),
    "Instance": (("id", 1, "s"), ("status", 2, "InstanceStatus")),
    "NodesResponse": (("instances", 1, "*Instance"),),
}
_SCALARS: Final = {"s": 9, "i": 5}


def _message_classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="fake_cloud.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            base = kind.removeprefix("*")
            added = message.field.add(name=field, number=number, label=3 if kind != base else 1)
            if base in _SCALARS:
                added.type = _SCALARS[base]
            else:
                added.type, added.type_name = 11, f".{_PACKAGE}.{base}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _MESSAGES
    }


_CLASSES: Final = _message_classes()


class FakeCloud:
    """A node group "pool" of at most `most` nodes. New nodes are of the `kind`; they register after `delay`
    seconds, and are Ready after as many more."""

    def __init__(self, api: Api, fleet: Fleet, kind: Kind, *, most: int, delay: float = 4.0) -> None:
        self._api, self._fleet = api, fleet
        self.kind = kind
        self._most, self._delay = most, delay
        self.instances: list[str] = []
        self.added: list[str] = []
        """Names of the nodes that the autoscaler has requested."""
        self.removed: list[str] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.address = ""

    async def adopt(self, name: str) -> None:
        """Makes an existing node a member of the group."""
        body = {"metadata": {"labels": {INSTANCE_TYPE: "pool"}}, "spec": {"providerID": f"fake://{name}"}}
        await self._api.request(
            "PATCH", f"/api/v1/nodes/{name}", body=json.dumps(body).encode(), content_type=MERGE_PATCH
        )
        self.instances.append(name)

    async def __aenter__(self) -> Self:
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, self._handlers()),))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(0)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def check(self) -> None:
        """Raises what ended the start of a node."""
        for task in self._tasks:
            if task.done():
                task.result()

    def _handlers(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        methods: dict[str, tuple[str, str, Callable[[Any], Awaitable[Any]]]] = {
            "NodeGroups": ("Empty", "NodeGroupsResponse", self._groups),
            "NodeGroupForNode": ("NodeRequest", "NodeGroupForNodeResponse", self._group_of),
            "GPULabel": ("Empty", "LabelResponse", self._label),
            "GetAvailableGPUTypes": ("Empty", "Empty", self._nothing),
            "Cleanup": ("Empty", "Empty", self._nothing),
            "Refresh": ("Empty", "Empty", self._nothing),
            "NodeGroupTargetSize": ("IdRequest", "TargetSizeResponse", self._size),
            "NodeGroupIncreaseSize": ("DeltaRequest", "Empty", self._increase),
            "NodeGroupDeleteNodes": ("DeleteNodesRequest", "Empty", self._delete),
            "NodeGroupDecreaseTargetSize": ("DeltaRequest", "Empty", self._nothing),
            "NodeGroupNodes": ("IdRequest", "NodesResponse", self._nodes),
        }
        return {name: _handler(*method) for name, method in methods.items()}

    @property
    def _group(self) -> Any:
        return _CLASSES["NodeGroup"](id="pool", minSize=0, maxSize=self._most)

    async def _nothing(self, _: Any) -> Any:
        return _CLASSES["Empty"]()

    async def _groups(self, _: Any) -> Any:
        return _CLASSES["NodeGroupsResponse"](nodeGroups=[self._group])

    async def _group_of(self, request: Any) -> Any:
        is_member = request.node.name in self.instances
        group = self._group if is_member else _CLASSES["NodeGroup"]()
        return _CLASSES["NodeGroupForNodeResponse"](nodeGroup=group)

    async def _label(self, _: Any) -> Any:
        return _CLASSES["LabelResponse"](label="fake.example/gpu")

    async def _size(self, _: Any) -> Any:
        return _CLASSES["TargetSizeResponse"](targetSize=len(self.instances))

    async def _nodes(self, _: Any) -> Any:
        status = _CLASSES["InstanceStatus"](instanceState=_RUNNING)
        instances = [_CLASSES["Instance"](id=f"fake://{name}", status=status) for name in self.instances]
        return _CLASSES["NodesResponse"](instances=instances)

    async def add(self, count: int) -> None:
        """Starts new nodes."""
        for _ in range(count):
            name = f"new-{len(self.added):02d}"
            self.added.append(name)
            self.instances.append(name)
            task = asyncio.create_task(self._start(name), name=name)
            self._tasks.add(task)

    async def _increase(self, request: Any) -> Any:
        await self.add(request.delta)
        return _CLASSES["Empty"]()

    async def _delete(self, request: Any) -> Any:
        for node in request.nodes:
            self.instances.remove(node.name)
            self.removed.append(node.name)
            await self._api.request("DELETE", f"/api/v1/nodes/{node.name}")
        return _CLASSES["Empty"]()

    async def _start(self, name: str) -> None:
        await asyncio.sleep(self._delay)
        labels = {"kubernetes.io/hostname": name, INSTANCE_TYPE: "pool"}
        document = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": labels},
            # As a node group registers its nodes (docs/how-to/new-nodes.md).
            "spec": {
                "providerID": f"fake://{name}",
                "taints": [{"key": STARTUP_TAINT, "effect": "NoSchedule"}],
            },
        }
        await self._api.request("POST", "/api/v1/nodes", body=json.dumps(document).encode())
        # A kubelet registers its Node some seconds before it is Ready.
        await asyncio.sleep(self._delay)
        await self._fleet.join(name, self.kind.machine, self.kind.config, [])


def _handler(request: str, response: str, method: Callable[[Any], Awaitable[Any]]) -> grpc.RpcMethodHandler[Any, Any]:
    async def serve(message: Any, _: Any) -> Any:
        return await method(message)

    return grpc.unary_unary_rpc_method_handler(
        serve,
        request_deserializer=_CLASSES[request].FromString,
        response_serializer=_CLASSES[response].SerializeToString,
    )
