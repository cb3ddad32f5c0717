"""Client of the kubelet's podresources API on its unix socket.

Decoding is separate from the calls, so that tests can use recorded bytes. Quirks of the API: lists are unordered; a
device has an entry for each of its NUMA nodes; plug-ins report ids such as -1; pod-level CPUs and memory overlap with
those of the containers; all clients share 100 requests a second. Markers of steering are left out: they are no
hardware, and their labels change with each steered pod. API: k8s.io/kubelet/pkg/apis/podresources/v1.

Every kubelet from 1.28 on serves List and GetAllocatableResources. List differs by version: devices of resource claims
(`lists_claims`), ended pods, which it names up to 1.33, and pod-level resources from 1.37 on
(docs/development/kubelet-versions.md; entry_owners.py reads them from the state files of 1.36). Get is not needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import grpc
from google.protobuf.message import DecodeError

from topowise import feature_gates, kubeletconfig, steering
from topowise.attributes.devices import NOWHERE
from topowise.errors import SourceError
from topowise.runtime import clock
from topowise.wire import podresources_pb2 as pb
from topowise.wire.podresources_frames_pb2 import ListFrames
from topowise_exporter.kubelet.allocations import (
    Allocatable,
    Claim,
    ContainerAllocation,
    Device,
    MemoryBlock,
    PodAllocation,
)

DEFAULT_SOCKET: Final = "/var/lib/kubelet/pod-resources/kubelet.sock"

_SERVICE: Final = "/v1.PodResourcesLister/"

_CLAIMS: Final = "KubeletPodResourcesDynamicResources"

Message = TypeVar("Message", pb.AllocatableResourcesResponse, pb.PodResources, ListFrames)

# What is allocatable changes with the state of device plug-ins, which the checkpoint of the device manager shows at
# once, except the end of a plug-in. The kubelet's own Node shows that end after up to 10 s.
_ALLOCATABLE_S: Final = 5.0

# A List of 250 pods has 43 KB. The kubelet's own clients raise gRPC's limit of 4 MiB to 16 MiB as well.
_MAX_MESSAGE = 16 << 20


def socket_path(socket: str) -> str:
    """The path of a socket that may be written as a gRPC target: "unix:///run/kubelet.sock", "unix:/run/kubelet.sock".
    Derive further paths (the kubelet's root, names of watched files) from this result only."""
    return socket.removeprefix("unix:").removeprefix("//") if socket.startswith("unix:") else socket


TIMEOUT_S: Final = 10.0
"""Limit of a call to the kubelet, in seconds."""


def lists_claims(version: str | None, gates: Mapping[str, bool]) -> bool:
    """Whether the kubelet's List names the devices of resource claims; `gates` are the feature gates set on the
    kubelet. An unreadable version counts as the newest: there the gate has been on for long."""
    major, minor = kubeletconfig.release_of(version)
    return major != 1 or feature_gates.is_on(_CLAIMS, feature_gates.lives(minor), gates)


class PodResources:
    """Client of a kubelet. The channel reconnects by itself when the kubelet recreates its socket."""

    def __init__(
        self, socket: str = DEFAULT_SOCKET, *, timeout: float = TIMEOUT_S, clock: Callable[[], float] = clock.monotonic
    ) -> None:
        self._socket = socket_path(socket)
        self._timeout = timeout
        self._clock = clock
        self._channel: grpc.aio.Channel | None = None
        self._calls: dict[str, Any] = {}
        self._last_allocatable: tuple[bytes | None, Allocatable] = None, Allocatable()
        self._allocatable_due = float("-inf")
        self._socket_file: tuple[int, ...] = ()
        self._decoder = PodDecoder(self._socket)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._drop()

    def expire(self) -> None:
        """Makes the next `allocatable` ask the kubelet."""
        self._allocatable_due = float("-inf")

    async def allocatable(self) -> Allocatable:
        """Returns the answer to GetAllocatableResources, at most five seconds old and from the present socket file.
        Raises SourceError."""
        await self._look_for_socket()
        if self._clock() < self._allocatable_due:
            return self._last_allocatable[1]
        answer = await self._call("GetAllocatableResources")
        last_answer, allocatable = self._last_allocatable
        if answer != last_answer:
            decoded = decode_allocatable(_parse(pb.AllocatableResourcesResponse, answer, self._socket))
            # Later stages compare by identity: the same object means that there is nothing to do.
            allocatable = allocatable if decoded == allocatable else decoded
            self._last_allocatable = answer, allocatable
        self._allocatable_due = self._clock() + _ALLOCATABLE_S
        return allocatable

    async def allocatable_message(self) -> pb.AllocatableResourcesResponse:
        """As `allocatable`, but undecoded: with the markers of steering. Raises SourceError."""
        return _parse(pb.AllocatableResourcesResponse, await self._call("GetAllocatableResources"), self._socket)

    async def pods(self) -> tuple[PodAllocation, ...]:
        """Calls List; the pods are sorted by namespace and name. Raises SourceError."""
        await self._look_for_socket()
        return self._decoder.decode(await self._call("List"))

    async def _call(self, method: str) -> bytes:
        """Returns the answer as bytes: most answers equal the previous answer and need no decoding."""
        if self._channel is None:
            options = [("grpc.max_receive_message_length", _MAX_MESSAGE), ("grpc.enable_http_proxy", 0)]
            self._channel = grpc.aio.insecure_channel(f"unix://{self._socket}", options=options)
            self._calls.clear()
        call = self._calls.get(method)
        if call is None:
            # Both requests are empty messages, which protobuf encodes as zero bytes.
            call = self._calls[method] = self._channel.unary_unary(_SERVICE + method)
        try:
            answer: bytes = await call(b"", timeout=self._timeout)
        except grpc.aio.AioRpcError as exc:
            # A channel in back-off fails calls although the socket exists again. A new channel connects at once.
            await self._drop()
            details = " ".join((exc.details() or "no details").split())
            raise SourceError(self._socket, f"{method}: {exc.code().name}: {details}") from exc
        return answer

    async def _look_for_socket(self) -> None:
        # gRPC reports a missing socket as an unreachable address, and only after its back-off. This error names the
        # cause at once.
        try:
            status = Path(self._socket).stat()
        except FileNotFoundError:
            await self._drop()
            raise SourceError(
                self._socket, "no such socket (is the kubelet running, is the directory mounted?)"
            ) from None
        except OSError as exc:
            await self._drop()
            raise SourceError(self._socket, f"cannot be accessed: {exc.strerror}; is its directory mounted?") from exc
        # A kubelet that starts creates its socket again.
        socket_file = (status.st_dev, status.st_ino, status.st_mtime_ns)
        if socket_file != self._socket_file:
            self._socket_file = socket_file
            self.expire()

    async def _drop(self) -> None:
        self.expire()
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()


def _parse(kind: type[Message], answer: bytes, socket: str) -> Message:
    try:
        return kind.FromString(answer)
    except DecodeError as exc:
        raise SourceError(socket, f"the answer is not a {kind.__name__}: {exc}") from exc


def decode_allocatable(answer: pb.AllocatableResourcesResponse) -> Allocatable:
    """Converts an answer to plain values."""
    return Allocatable(cpus=frozenset(answer.cpu_ids), memory=_memory(answer.memory), devices=_devices(answer.devices))


class PodDecoder:
    """Decodes List answers of a kubelet. Equal bytes give the same object, for each pod and for all pods: a pod whose
    bytes have not changed is not decoded again, and later stages compare by identity."""

    def __init__(self, socket: str) -> None:
        self._socket = socket
        self._answer: bytes | None = None
        self._by_frame: dict[bytes, PodAllocation] = {}
        self._pods: tuple[PodAllocation, ...] = ()

    def decode(self, answer: bytes) -> tuple[PodAllocation, ...]:
        """Returns all pods by namespace and name; duplicates are kept. Raises SourceError."""
        if answer != self._answer:
            frames = _parse(ListFrames, answer, self._socket).pod_resources
            self._by_frame = {frame: self._by_frame.get(frame) or self._decode_pod(frame) for frame in frames}
            pods = tuple(sorted((self._by_frame[frame] for frame in frames), key=attrgetter("key")))
            self._pods = self._pods if pods == self._pods else pods
            self._answer = answer
        return self._pods

    def _decode_pod(self, frame: bytes) -> PodAllocation:
        return _pod(_parse(pb.PodResources, frame, self._socket))


def _pod(pod: pb.PodResources) -> PodAllocation:
    return PodAllocation(
        namespace=pod.namespace,
        name=pod.name,
        containers=tuple(
            _container(container)
            for container in pod.containers
            if container.cpu_ids or container.memory or container.devices or container.dynamic_resources
        ),
        own_cpus=frozenset(pod.cpu_ids),
        own_memory=_memory(pod.memory),
    )


def _container(container: pb.ContainerResources) -> ContainerAllocation:
    claims = (
        Claim(device.driver_name, device.pool_name, device.device_name)
        for claim in container.dynamic_resources
        for device in claim.claim_resources
    )
    return ContainerAllocation(
        name=container.name,
        cpus=frozenset(container.cpu_ids),
        memory=_memory(container.memory),
        devices=_devices(container.devices),
        claims=tuple(sorted(claims)),
    )


def _nodes(topology: pb.TopologyInfo) -> tuple[int, ...]:
    return tuple(sorted({node.ID for node in topology.nodes if node.ID >= 0}))


def _memory(blocks: Iterable[pb.ContainerMemory]) -> tuple[MemoryBlock, ...]:
    return tuple(
        sorted(MemoryBlock(block.memory_type, _nodes(block.topology), block.size) for block in blocks if block.size)
    )


def _devices(entries: Iterable[pb.ContainerDevices]) -> tuple[Device, ...]:
    nodes_by_device: dict[tuple[str, str], set[int]] = {}
    for entry in entries:
        if entry.resource_name == steering.RESOURCE:
            continue
        nodes = {node.ID if 0 <= node.ID < NOWHERE else NOWHERE for node in entry.topology.nodes}
        for device_id in entry.device_ids:
            nodes_by_device.setdefault((entry.resource_name, device_id), set()).update(nodes)
    return tuple(
        Device(resource, device_id, tuple(sorted(nodes)))
        for (resource, device_id), nodes in sorted(nodes_by_device.items())
    )
