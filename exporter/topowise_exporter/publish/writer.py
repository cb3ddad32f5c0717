"""Writes an object of this node by server-side apply with our own field manager, only when its content changes.

Apply creates or patches in one request and leaves annotations and labels of other writers alone. An apply request must
contain every field that we own, because a missing field is given up. So the cheapest request is no request: the writer
remembers the last object that it wrote. Now and then it compares the server's object with it, because other clients can
write too. https://kubernetes.io/docs/reference/using-api/server-side-apply/
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final, Generic, Literal, TypeVar

import msgspec

from topowise import digits, documents, nrt
from topowise.errors import ApiError
from topowise.kube import paths
from topowise.kube.api import APPLY_PATCH, Api, decoded
from topowise.runtime import clock
from topowise_exporter.publish.other_writers import FIELD_MANAGER, OtherWriters, StoredObject, product

Object = TypeVar("Object")

WriteResult = Literal["written", "unchanged", "held-back"]

# Error texts of etcd (above 1.5 MiB) and of the API server's etcd client (2 MiB), both with status 500. Above its own
# limit (3 MiB) the API server answers 413.
_TOO_LARGE: Final = ("request is too large", "larger than max")


# Numbers of an object that another client wrote may be no quantities (ParseError).
_UNUSABLE: Final = (*documents.UNREADABLE, ValueError)


class TooLargeError(ApiError):
    """The server refuses an object of `size` bytes because of its size."""

    def __init__(self, exc: ApiError, size: int) -> None:
        super().__init__(413, "TooLarge", f"{size} bytes: {exc.message}", request=exc.request)
        self.size = size


class Writer(Generic[Object]):
    """The writer of the object at `path`. `same` tells whether the first object contains the second, desired object."""

    def __init__(
        self,
        api: Api,
        path: str,
        same: Callable[[Object, Object], bool],
        decode: Callable[[bytes], Object],
        kind: str,
        clock: Callable[[], float] = clock.monotonic,
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
        """Whether the server is expected to have the object that was written last."""
        return self._written is not None

    @property
    def was_remade(self) -> bool:
        """Whether the object was deleted and recreated between the last two answers."""
        return self._other_writers.was_remade

    @property
    def foreign_writers(self) -> frozenset[str]:
        """Other field managers that wrote content of the object in the last minutes."""
        return self._other_writers.names()

    async def publish(self, desired: Object) -> WriteResult:
        """Writes `desired` unless the server has it already. Returns "held-back" if the last write overwrote another
        writer less than a minute ago; call it again later. Raises ApiError."""
        if self._written is not None and self._same(self._written, desired):
            return "unchanged"
        if self._other_writers.wait() > 0:
            return "held-back"
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        body = msgspec.json.encode(desired)
        self._other_writers.sending()
        try:
            answer = await self._api.request("PATCH", self._path, query=query, body=body, content_type=APPLY_PATCH)
        except ApiError as exc:
            if exc.status == 413 or any(words in exc.message for words in _TOO_LARGE):
                self._other_writers.refused()
                raise TooLargeError(exc, len(body)) from exc
            if not exc.status or exc.status >= 500:
                # The write may have been applied although its answer is lost, so the state on the server is unknown.
                self._written = None
                self._other_writers.lost()
            else:
                self._other_writers.refused()
            if exc.status == 404:
                message = f"the {self._kind} CRD is not installed or lacks this version; the chart's crds folder has it"
                raise ApiError(404, exc.reason, message, request=exc.request) from exc
            raise
        parsed = _answer(answer)
        if parsed is None:
            # The write succeeded; an unreadable answer has no further consequence.
            self._other_writers.unreadable()
        else:
            self._other_writers.answered(parsed)
            self.version = parsed.metadata.resourceVersion
        self._written, self.is_lost = desired, False
        return "written"

    async def read(self) -> Object | None:
        """Returns the object on the server, None if it is missing or does not decode. Raises ApiError."""
        try:
            return self._decode(await self._api.request("GET", self._path))
        except ApiError as exc:
            if exc.status != 404:
                raise
        except _UNUSABLE:
            pass
        return None

    async def check(self) -> str | None:
        """Reads the object back. Returns None if it is unchanged, else what happened to it; the next publish then
        writes it again. Raises ApiError."""
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
        except _UNUSABLE as exc:
            is_same, problem = False, f"it does not decode any more: {exc}"
        parsed = _answer(answer)
        if parsed is None:
            self._other_writers.unreadable()
        else:
            self._other_writers.read(parsed, differs=not is_same)
            self.version = parsed.metadata.resourceVersion
        if is_same:
            return None
        self._written = None
        return problem or f"it was changed by {', '.join(map(product, sorted(self.foreign_writers)))}"


def _answer(text: bytes) -> StoredObject | None:
    try:
        return msgspec.json.decode(text, type=StoredObject)
    except _UNUSABLE:
        return None


def is_newer(version: str, than: str) -> bool:
    """Whether a resourceVersion is newer. An event of our own write may arrive before its answer, or long after it."""
    new, old = digits.natural(version, digits.UINT64), digits.natural(than, digits.UINT64)
    return version != than if new is None or old is None else new > old


def topology_writer(api: Api, node_name: str) -> Writer[nrt.NodeResourceTopology]:
    """Returns the writer of the node's NodeResourceTopology."""
    return Writer(api, paths.path(nrt.PATH, node_name), same_topology, nrt.decode, nrt.KIND)


def same_topology(current: nrt.NodeResourceTopology, desired: nrt.NodeResourceTopology) -> bool:
    """Whether content, our annotations and the owner are equal; metadata of other writers does not count."""
    return _metadata(desired) <= _metadata(current) and nrt.same_content(current, desired)


def _metadata(topology: nrt.NodeResourceTopology) -> set[tuple[str, str]]:
    owners = {(owner.kind, owner.uid) for owner in topology.metadata.ownerReferences or ()}
    return owners | set((topology.metadata.annotations or {}).items())


class OwnNode(msgspec.Struct, frozen=True):
    """The fields of this node's v1.Node that are used."""

    class Status(msgspec.Struct, frozen=True):
        class Info(msgspec.Struct, frozen=True):
            kubeletVersion: str = ""

        nodeInfo: Info = Info()

    metadata: nrt.Metadata
    status: Status = Status()

    def owner(self) -> nrt.OwnerReference:
        """Returns the owner reference for our objects: they are garbage-collected with the Node."""
        return nrt.OwnerReference(apiVersion="v1", kind="Node", name=self.metadata.name, uid=self.metadata.uid)


async def read_own_node(api: Api, node_name: str) -> OwnNode:
    """Reads the Node. Raises ApiError."""
    body = await api.request("GET", paths.path(paths.NODES, node_name))
    return decoded(body, OwnNode, "a Node", f"GET node {node_name}")
