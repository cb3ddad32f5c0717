"""Writes an object of this node: server-side apply under our own field manager, only when it says something new.

Apply creates or patches in one request and leaves other writers' annotations and labels alone. It has to carry all
that we own, as what it leaves out it gives up; so the smallest request is no request, and the last object written is
remembered for that. Now and then the server's object is compared with it, because others can write too.
https://kubernetes.io/docs/reference/using-api/server-side-apply/
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Final, Generic, Literal, TypeVar

import msgspec

from topowise import nrt
from topowise.errors import ApiError
from topowise.kube import paths
from topowise.kube.api import APPLY_PATCH, Api
from topowise_exporter.publish.other_writers import FIELD_MANAGER, Answer, OtherWriters, product

Object = TypeVar("Object")

WriteResult = Literal["written", "unchanged", "held-back"]

# etcd's words (above 1.5 MiB) and those of the API server's client of it (2 MiB), both with a 500; above its own limit
# (3 MiB) the API server answers 413.
_TOO_LARGE: Final = ("request is too large", "larger than max")


class TooLargeError(ApiError):
    """The server does not take an object of `size` bytes."""

    def __init__(self, exc: ApiError, size: int) -> None:
        super().__init__(413, "TooLarge", f"{size} bytes: {exc.message}", request=exc.request)
        self.size = size


class Writer(Generic[Object]):
    """The one writer of an object at `path`. `same` tells whether the first object says all that the second, wanted one
    says."""

    def __init__(
        self,
        api: Api,
        path: str,
        same: Callable[[Object, Object], bool],
        decode: Callable[[bytes], Object],
        kind: str,
        clock: Callable[[], float] = time.monotonic,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._api = api
        self._path = path
        self._same = same
        self._decode = decode
        self._kind = kind
        self._written: Object | None = None
        self.is_lost = False
        """Whether the object was found deleted and has not been written again."""
        self.version = ""
        """The resourceVersion of the last answer."""
        self._other_writers = OtherWriters(clock, uniform)

    @property
    def has_written(self) -> bool:
        """Whether the server is believed to have what was written last."""
        return self._written is not None

    @property
    def was_remade(self) -> bool:
        """Whether the last answer told that the object had been deleted and made anew since the one before."""
        return self._other_writers.was_remade

    @property
    def foreign_writers(self) -> frozenset[str]:
        """Others that wrote content of the object not long ago."""
        return self._other_writers.names()

    async def publish(self, wanted: Object) -> WriteResult:
        """Makes the server's object say what `wanted` says, unless the last write went against somebody else not long
        ago: then it is to be tried again later. Raises ApiError."""
        if self._written is not None and self._same(self._written, wanted):
            return "unchanged"
        if self._other_writers.wait() > 0:
            return "held-back"
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        body = msgspec.json.encode(wanted)
        self._other_writers.sending()
        try:
            answer = await self._api.request("PATCH", self._path, query=query, body=body, content_type=APPLY_PATCH)
        except ApiError as exc:
            if exc.status == 413 or any(words in exc.message for words in _TOO_LARGE):
                self._other_writers.refused()
                raise TooLargeError(exc, len(body)) from exc
            if not exc.status or exc.status >= 500:
                # The answer is lost, perhaps not the write: what the server has is not known any more.
                self._written = None
                self._other_writers.lost()
            else:
                self._other_writers.refused()
            if exc.status == 404:
                message = f"the {self._kind} CRD is not installed or lacks this version; the chart's crds folder has it"
                raise ApiError(404, exc.reason, message, request=exc.request) from exc
            raise
        noted = _answer(answer)
        if noted is None:
            # The write was taken; that its answer cannot be read harms nobody.
            self._other_writers.unreadable()
        else:
            self._other_writers.answered(noted)
            self.version = noted.metadata.resourceVersion
        self._written, self.is_lost = wanted, False
        return "written"

    async def read(self) -> Object | None:
        """The object on the server, None if there is none that decodes. Raises ApiError."""
        try:
            return self._decode(await self._api.request("GET", self._path))
        except ApiError as exc:
            if exc.status != 404:
                raise
        except (msgspec.DecodeError, ValueError):
            pass
        return None

    async def check(self) -> str | None:
        """Reads the object back. None if it is what was written, else what became of it; then the next publish writes
        again. Raises ApiError."""
        if self._written is None:
            return None
        try:
            answer = await self._api.request("GET", self._path)
        except ApiError as exc:
            if exc.status != 404:
                raise
            self._written, self.is_lost = None, True
            return "it was deleted"
        problem = ""
        try:
            is_same = self._same(self._decode(answer), self._written)
        except (msgspec.DecodeError, ValueError) as exc:
            is_same, problem = False, f"it does not decode any more: {exc}"
        noted = _answer(answer)
        if noted is None:
            self._other_writers.unreadable()
        else:
            self._other_writers.read(noted, differs=not is_same)
            self.version = noted.metadata.resourceVersion
        if is_same:
            return None
        self._written = None
        return problem or f"it was changed by {', '.join(map(product, sorted(self.foreign_writers)))}"


def _answer(text: bytes) -> Answer | None:
    try:
        return msgspec.json.decode(text, type=Answer)
    except (msgspec.DecodeError, ValueError):
        return None


def is_newer(version: str, than: str) -> bool:
    """Of two resourceVersions of an object; an event of ours may come before the answer, or long after it."""
    if version.isdigit() and than.isdigit():
        return int(version) > int(than)
    return version != than


def topology_writer(api: Api, node_name: str) -> Writer[nrt.NodeResourceTopology]:
    """The writer of the node's NodeResourceTopology."""
    return Writer(api, paths.path(nrt.PATH, node_name), same_topology, nrt.decode, nrt.KIND)


def same_topology(there: nrt.NodeResourceTopology, wanted: nrt.NodeResourceTopology) -> bool:
    """Content, our annotations and the owner; what others add to the metadata stays whatever we write."""
    return _metadata(wanted) <= _metadata(there) and nrt.same_content(there, wanted)


def _metadata(topology: nrt.NodeResourceTopology) -> set[tuple[str, str]]:
    owners = {(owner.kind, owner.uid) for owner in topology.metadata.ownerReferences or ()}
    return owners | set((topology.metadata.annotations or {}).items())


class OwnNode(msgspec.Struct, frozen=True):
    """What is used of this node's v1.Node."""

    class Status(msgspec.Struct, frozen=True):
        class Info(msgspec.Struct, frozen=True):
            kubeletVersion: str = ""

        nodeInfo: Info = Info()

    metadata: nrt.Metadata
    status: Status = Status()

    def owner(self) -> nrt.OwnerReference:
        """As owner of our objects, so that they go when the node goes."""
        return nrt.OwnerReference(apiVersion="v1", kind="Node", name=self.metadata.name, uid=self.metadata.uid)


async def read_own_node(api: Api, node_name: str) -> OwnNode:
    """One GET. Raises ApiError."""
    body = await api.request("GET", paths.path(paths.NODES, node_name))
    try:
        return msgspec.json.decode(body, type=OwnNode)
    except (msgspec.DecodeError, ValueError) as exc:
        raise ApiError(0, "BadAnswer", f"the answer is not a Node: {exc}", request=f"GET node {node_name}") from exc
