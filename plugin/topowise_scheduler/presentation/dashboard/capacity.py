"""What fits: how many more pods like one in a manifest each node has room for, now; and on which nodes at all.

The count is worked on in slices, so that kube-scheduler's questions come between, and for no longer than a bound: of
nodes that were not filled by then it only says that one more fits. The pod is kept for a while, so that the nodes of
the page can be those on which it fits whenever they change.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any, Final

import msgspec
import xxhash

from topowise import documents
from topowise.bounded import Bounded, size_of_json
from topowise.errors import ParseError
from topowise.runtime.turns import collected
from topowise_scheduler.kube_scheduler import Pod, unexamined
from topowise_scheduler.presentation.explain.capacity import Room
from topowise_scheduler.presentation.explain.cluster_view import ClusterView
from topowise_scheduler.presentation.text import most_frequent_first

_SLICE_S: Final = 0.001
_PAUSE_S: Final = 0.001
_TEMPLATE_FIELDS: Final = ("jobTemplate", "template")
_MOST_KEPT: Final = 8
_KEPT_BYTES: Final = 4 << 20


class Fits(msgspec.Struct, frozen=True, rename="camel"):
    """The nodes with room, the roomiest first, and how many of the others say no, by their words."""

    pod: str
    total: int
    is_least: bool
    asked: int
    nodes: tuple[Room, ...]
    reasons: dict[str, int]
    not_looked_at: tuple[str, ...]


class Fitting(msgspec.Struct, frozen=True):
    """The nodes on which a pod fits now."""

    pod: str
    nodes: frozenset[str]


class Kept:
    """The pods that were counted last, by a digest."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self._pods: Bounded[str, Pod] = Bounded(_KEPT_BYTES, size_of_json, _MOST_KEPT)

    def put(self, pod: Pod) -> str:
        """Keeps a pod; its digest."""
        digest = xxhash.xxh64_hexdigest(msgspec.json.encode(pod))
        self._pods.put(digest, pod)
        return digest

    async def fitting(self, digest: str) -> Fitting | None:
        """Where it fits, None if it is not kept any more."""
        pod = self._pods.get(digest)
        if pod is None:
            return None
        return Fitting(_name(pod), frozenset(await collected(self._view.fitting(pod, self._view.names))))


def pod_of(body: bytes) -> Pod:
    """The pod of a manifest, YAML or JSON; of a controller's, the pod it makes. Raises ParseError."""
    try:
        document = documents.load(body)
        for field in _TEMPLATE_FIELDS:
            if isinstance(document, dict) and isinstance(document.get("spec"), dict) and field in document["spec"]:
                document = _made_by(document, document["spec"][field])
        found = msgspec.convert(document, Pod)
    except (msgspec.ValidationError, documents.DocumentError) as exc:
        raise ParseError(
            "manifest", " ".join(str(exc).split())[:300], "one Pod, or a controller with a template"
        ) from exc
    metadata = msgspec.structs.replace(found.metadata, uid="", namespace=found.metadata.namespace or "default")
    spec = msgspec.structs.replace(found.spec, nodeName="")
    return msgspec.structs.replace(found, metadata=metadata, spec=spec, status=None)


async def fits(view: ClusterView, pod: Pod, *, within_s: float) -> Fits:
    """How many there is room for. Raises ParseError for quantities and annotations that cannot be read."""
    names = view.names
    reasons: Counter[str] = Counter()
    rooms = []
    begun = slice_begun = time.perf_counter()
    for filling in view.fillings(pod, names):
        has_room = True
        while has_room:
            has_room = time.perf_counter() - begun < within_s and filling.add()
            if time.perf_counter() - slice_begun > _SLICE_S:
                await asyncio.sleep(_PAUSE_S)
                slice_begun = time.perf_counter()
        room = filling.room()
        if room.count:
            rooms.append(room)
        else:
            reasons[room.limit] += 1
    return Fits(
        pod=_name(pod),
        total=sum(room.count for room in rooms),
        is_least=any(room.is_least for room in rooms),
        asked=len(names),
        nodes=tuple(sorted(rooms, key=lambda room: (-room.count, room.node))),
        reasons=dict(most_frequent_first(reasons)),
        not_looked_at=unexamined(pod.spec),
    )


def _name(pod: Pod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"


def _made_by(owner: dict[str, Any], template: Any) -> Any:
    """The template with the owner's name: templates have none."""
    if not isinstance(template, dict):
        return template
    named = {key: value for key, value in _mapping(owner.get("metadata")).items() if key in ("name", "namespace")}
    return {**template, "metadata": {**named, **_mapping(template.get("metadata"))}}


def _mapping(given: Any) -> dict[Any, Any]:
    return given if isinstance(given, dict) else {}
