"""Writes an object of this node: server-side apply under our own field manager, only when it says something new.

Apply creates or patches in one request and leaves other writers' annotations and labels alone. It has to carry all
that we own, as what it leaves out it gives up; so the smallest request is no request, and the last object written is
remembered for that. Now and then the server's object is compared with it, because others can write too.
https://kubernetes.io/docs/reference/using-api/server-side-apply/
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

import msgspec

from topowise import nrt
from topowise.errors import ApiError
from topowise.kube.api import APPLY_PATCH, Api

FIELD_MANAGER: Final = "topowise-exporter"

Object = TypeVar("Object")

# What another writer must not touch; labels, annotations and owner references are anybody's.
_CONTENT_FIELDS: Final = frozenset(("f:zones", "f:attributes", "f:topologyPolicies", "f:spec"))


class Answer(msgspec.Struct, frozen=True):
    """What matters of the server's answer to a write or a read."""

    class Metadata(msgspec.Struct, frozen=True):
        class Manager(msgspec.Struct, frozen=True):
            manager: str = ""
            fieldsV1: dict[str, Any] = {}

        uid: str = ""
        managedFields: tuple[Manager, ...] | None = None

    metadata: Metadata

    def foreign_writers(self) -> frozenset[str]:
        """Field managers other than ours that own content."""
        return frozenset(
            entry.manager
            for entry in self.metadata.managedFields or ()
            if entry.manager != FIELD_MANAGER and not _CONTENT_FIELDS.isdisjoint(entry.fieldsV1)
        )


class Writer(Generic[Object]):
    """The one writer of an object at `path`. `same` tells whether two objects say the same."""

    def __init__(
        self, api: Api, path: str, same: Callable[[Object, Object], bool], decode: Callable[[bytes], Object], kind: str
    ) -> None:
        self._api = api
        self._path = path
        self._same = same
        self._decode = decode
        self._kind = kind
        self._written: Object | None = None
        self.foreign_writers: frozenset[str] = frozenset()
        """Others that own content of the object, as of the last answer."""

    @property
    def has_written(self) -> bool:
        """Whether the server is believed to have what was written last."""
        return self._written is not None

    async def publish(self, wanted: Object) -> bool:
        """Makes the server's object say what `wanted` says; False if it already does. Raises ApiError."""
        if self._written is not None and self._same(self._written, wanted):
            return False
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        body = msgspec.json.encode(wanted)
        try:
            answer = await self._api.request("PATCH", self._path, query=query, body=body, content_type=APPLY_PATCH)
        except ApiError as exc:
            if not exc.status or exc.status >= 500:
                # The answer is lost, perhaps not the write: what the server has is not known any more.
                self._written = None
            if exc.status == 404:
                message = f"the {self._kind} CRD is not installed; the chart's crds folder has it"
                raise ApiError(404, exc.reason, message, request=exc.request) from exc
            raise
        self._note(answer)
        self._written = wanted
        return True

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
            self._written = None
            return "it was deleted"
        self._note(answer)
        try:
            found = self._decode(answer)
            is_same = self._same(found, self._written)
        except (msgspec.DecodeError, ValueError) as exc:
            self._written = None
            return f"it does not decode any more: {exc}"
        if is_same:
            return None
        self._written = None
        return f"it was changed by {', '.join(sorted(self.foreign_writers)) or 'another writer'}"

    def _note(self, answer: bytes) -> None:
        try:
            self.foreign_writers = msgspec.json.decode(answer, type=Answer).foreign_writers()
        except (msgspec.DecodeError, ValueError):
            # The write was taken; that its answer cannot be read harms nobody.
            self.foreign_writers = frozenset()


def topology_writer(api: Api, node_name: str) -> Writer[nrt.NodeResourceTopology]:
    """The writer of the node's NodeResourceTopology."""
    return Writer(api, f"{nrt.PATH}/{node_name}", same_topology, nrt.decode, nrt.KIND)


def same_topology(a: nrt.NodeResourceTopology, b: nrt.NodeResourceTopology) -> bool:
    """Content, our annotation and the owner; what others add to the metadata does not count."""
    return _ours(a) == _ours(b) and nrt.same_content(a, b)


def _ours(topology: nrt.NodeResourceTopology) -> tuple[object, object]:
    annotations = topology.metadata.annotations or {}
    owners = {(owner.kind, owner.uid) for owner in topology.metadata.ownerReferences or () if owner.kind == "Node"}
    return sorted(item for item in annotations.items() if item[0].startswith("topology.node.k8s.io/")), owners


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
    body = await api.request("GET", f"/api/v1/nodes/{node_name}")
    try:
        return msgspec.json.decode(body, type=OwnNode)
    except (msgspec.DecodeError, ValueError) as exc:
        raise ApiError(0, "BadAnswer", f"the answer is not a Node: {exc}", request=f"GET node {node_name}") from exc
