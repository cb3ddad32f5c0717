"""Writes the object: server-side apply under our own field manager, and only when it says something new.

Apply creates or patches in one request and leaves other writers' annotations and labels alone. The last object the
server returned is remembered, so a node on which nothing changes makes no API call.
https://kubernetes.io/docs/reference/using-api/server-side-apply/
"""

from __future__ import annotations

from typing import Final

import msgspec

from topowise import nrt
from topowise.errors import ApiError
from topowise.kube.api import APPLY_PATCH, Api

FIELD_MANAGER: Final = "topowise-exporter"


class Writer:
    """The one writer of this node's object."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._written: nrt.NodeResourceTopology | None = None

    async def publish(self, topology: nrt.NodeResourceTopology) -> bool:
        """Makes the server's object say what `topology` says; False if it already does. Raises ApiError."""
        if self._written is not None and _same(self._written, topology):
            return False
        path = f"{nrt.PATH}/{topology.metadata.name}"
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        body = msgspec.json.encode(topology)
        try:
            await self._api.request("PATCH", path, query=query, body=body, content_type=APPLY_PATCH)
        except ApiError as exc:
            if exc.status == 404:
                message = "the NodeResourceTopology CRD is not installed; the chart's crds folder has it"
                raise ApiError(404, exc.reason, message, request=exc.request) from exc
            raise
        self._written = topology
        return True

    def forget(self) -> None:
        """The next publish writes whatever it is given."""
        self._written = None


def _same(a: nrt.NodeResourceTopology, b: nrt.NodeResourceTopology) -> bool:
    return (
        a.metadata.annotations == b.metadata.annotations
        and a.metadata.ownerReferences == b.metadata.ownerReferences
        and nrt.same_content(a, b)
    )


class _Owner(msgspec.Struct, frozen=True):
    metadata: nrt.Metadata


async def owner_reference(api: Api, node_name: str) -> nrt.OwnerReference:
    """The Node as owner, so that the object goes when the node goes. One GET; raises ApiError."""
    body = await api.request("GET", f"/api/v1/nodes/{node_name}")
    try:
        node = msgspec.json.decode(body, type=_Owner)
    except msgspec.DecodeError as exc:
        raise ApiError(0, "BadAnswer", f"the answer is not a Node: {exc}", request=f"GET node {node_name}") from exc
    return nrt.OwnerReference(apiVersion="v1", kind="Node", name=node_name, uid=node.metadata.uid)
