"""The kubelet's podresources API over its unix socket.

Decoding is separate from asking, so that recorded bytes can be tested. Quirks: lists are unordered; a device comes in
an entry of its own for each NUMA node; plug-ins report ids such as -1; pod-level CPUs and memory overlap with those of
the containers; all clients share 100 requests a second. API: k8s.io/kubelet/pkg/apis/podresources/v1.

List and GetAllocatableResources are served by every kubelet from 1.28 on. What differs by version is in List: devices
of resource claims (`lists_claims`), pods that have ended, which it names up to 1.33, and what pods hold as a whole,
from 1.37 on (docs/development/kubelet-versions.md; entry_owners.py takes it from the files of 1.36). Get is not needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import grpc
from google.protobuf.message import DecodeError

from topowise import feature_gates, kubeletconfig
from topowise.errors import SourceError
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

# 250 pods are 43 KB; the kubelet's own clients raise gRPC's 4 MiB to this.
_MAX_MESSAGE = 16 << 20


def socket_path(socket: str) -> str:
    """The path of a socket that may be spelled as gRPC spells it: "unix:///run/kubelet.sock", "unix:/run/kubelet.sock".

    Whatever is derived from the path (the kubelet's root, names of watched files) is derived from this."""
    return socket.removeprefix("unix:").removeprefix("//") if socket.startswith("unix:") else socket


def lists_claims(version: str | None, gates: Mapping[str, bool]) -> bool:
    """Whether List of a kubelet names the devices of resource claims; `gates` are those it was given.

    A version that is none counts as the newest: there it has been on for long.
    """
    major, minor = kubeletconfig.release_of(version)
    return major != 1 or feature_gates.is_on(_CLAIMS, feature_gates.lives(minor), gates)


class PodResources:
    """A client of one kubelet. The channel reconnects by itself when the kubelet makes its socket anew."""

    def __init__(self, socket: str = DEFAULT_SOCKET, *, timeout: float = 10.0) -> None:
        self._socket = socket_path(socket)
        self._timeout = timeout
        self._channel: grpc.aio.Channel | None = None
        self._calls: dict[str, Any] = {}
        self._last_allocatable: tuple[bytes | None, Allocatable] = None, Allocatable()
        self._decoder = PodDecoder(self._socket)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._drop()

    @property
    def socket(self) -> str:
        """Path of the socket."""
        return self._socket

    async def allocatable(self) -> Allocatable:
        """One GetAllocatableResources. Raises SourceError."""
        answer = await self._call("GetAllocatableResources")
        held, known = self._last_allocatable
        if answer != held:
            read = decode_allocatable(_parse(pb.AllocatableResourcesResponse, answer, self._socket))
            # The same value stays the same object, by which later stages know that there is nothing to do.
            known = known if read == known else read
            self._last_allocatable = answer, known
        return known

    async def pods(self) -> tuple[PodAllocation, ...]:
        """One List, by namespace and name. Raises SourceError."""
        return self._decoder.decode(await self._call("List"))

    async def _call(self, method: str) -> bytes:
        """The answer as bytes: most syncs find the same as the one before, and need no decoding."""
        # gRPC reports a missing file as an unreachable address after its own back-off; say what is the matter at once.
        try:
            exists = Path(self._socket).exists()
        except OSError as exc:
            await self._drop()
            raise SourceError(self._socket, f"cannot be looked for: {exc.strerror}") from exc
        if not exists:
            await self._drop()
            raise SourceError(self._socket, "no such socket (is the kubelet running, is the directory mounted?)")
        if self._channel is None:
            options = [("grpc.max_receive_message_length", _MAX_MESSAGE), ("grpc.enable_http_proxy", 0)]
            self._channel = grpc.aio.insecure_channel(f"unix://{self._socket}", options=options)
            self._calls.clear()
        call = self._calls.get(method)
        if call is None:
            # Both requests are empty messages, which are no bytes at all.
            call = self._calls[method] = self._channel.unary_unary(_SERVICE + method)
        try:
            answer: bytes = await call(b"", timeout=self._timeout)
        except grpc.aio.AioRpcError as exc:
            # A channel in back-off refuses calls although the socket is back; a new one tries at once.
            await self._drop()
            details = " ".join((exc.details() or "no details").split())
            raise SourceError(self._socket, f"{method}: {exc.code().name}: {details}") from exc
        return answer

    async def _drop(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()


def _parse(kind: type[Message], answer: bytes, socket: str) -> Message:
    try:
        return kind.FromString(answer)
    except DecodeError as exc:
        raise SourceError(socket, f"the answer is not a {kind.__name__}: {exc}") from exc


def decode_allocatable(answer: pb.AllocatableResourcesResponse) -> Allocatable:
    """Plain values of an answer."""
    return Allocatable(cpus=frozenset(answer.cpu_ids), memory=_memory(answer.memory), devices=_devices(answer.devices))


class PodDecoder:
    """List answers of one kubelet as plain values.

    What has not changed since the last one stays the same object, pod by pod and as a whole: it is not decoded again,
    and later stages know by it that there is nothing to do.
    """

    def __init__(self, socket: str) -> None:
        self._socket = socket
        self._answer: bytes | None = None
        self._by_frame: dict[bytes, PodAllocation] = {}
        self._pods: tuple[PodAllocation, ...] = ()

    def decode(self, answer: bytes) -> tuple[PodAllocation, ...]:
        """All pods by namespace and name, duplicates kept. Raises SourceError."""
        if answer != self._answer:
            frames = _parse(ListFrames, answer, self._socket).pod_resources
            self._by_frame = {frame: self._by_frame.get(frame) or self._decode_pod(frame) for frame in frames}
            pods = tuple(sorted((self._by_frame[frame] for frame in frames), key=_by_name))
            self._pods = self._pods if pods == self._pods else pods
            self._answer = answer
        return self._pods

    def _decode_pod(self, frame: bytes) -> PodAllocation:
        return _pod(_parse(pb.PodResources, frame, self._socket))


def _by_name(pod: PodAllocation) -> tuple[str, str]:
    return pod.namespace, pod.name


def _pod(pod: pb.PodResources) -> PodAllocation:
    return PodAllocation(
        namespace=pod.namespace,
        name=pod.name,
        containers=tuple(
            _container(one)
            for one in pod.containers
            if one.cpu_ids or one.memory or one.devices or one.dynamic_resources
        ),
        own_cpus=frozenset(pod.cpu_ids),
        own_memory=_memory(pod.memory),
    )


def _container(container: pb.ContainerResources) -> ContainerAllocation:
    claims = (
        Claim(part.driver_name, part.pool_name, part.device_name)
        for claim in container.dynamic_resources
        for part in claim.claim_resources
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
    found: dict[tuple[str, str], set[int]] = {}
    for entry in entries:
        nodes = _nodes(entry.topology)
        for device_id in entry.device_ids:
            found.setdefault((entry.resource_name, device_id), set()).update(nodes)
    return tuple(
        Device(resource, device_id, tuple(sorted(nodes))) for (resource, device_id), nodes in sorted(found.items())
    )
