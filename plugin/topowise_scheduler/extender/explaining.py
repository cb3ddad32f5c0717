"""GET /explain?pod=namespace/name, and POST /explain with a manifest: why each node says yes or no, for people."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from topowise import documents
from topowise.errors import ApiError
from topowise.kube import paths
from topowise.kube.api import Api
from topowise_scheduler import kube_scheduler
from topowise_scheduler.extender.replies import BadRequestError, NotReady, Query, Reply
from topowise_scheduler.view.cluster_view import ClusterView
from topowise_scheduler.view.explanation import NodeExplanation

_TIMEOUT_S = 5.0


class Explainer:
    """Answers are simulations: nothing is reserved by them. Every method raises BadRequestError and ParseError."""

    def __init__(self, api: Api, view: ClusterView, not_ready: NotReady) -> None:
        self._api = api
        self._view = view
        self._not_ready = not_ready

    async def explain(self, body: bytes | None, query: Query) -> Reply:
        """The explanation of the manifest in a body, or without one of the pod that the query names."""
        nodes = query.get("node", ())
        if body is not None:
            return Reply(self.manifest(body, nodes))
        return Reply(await self.named(query.get("pod", ("",))[0], nodes))

    async def named(self, pod: str, nodes: Sequence[str]) -> bytes:
        """The explanation of a pod of the cluster, "namespace/name"; of these nodes, or of all."""
        return msgspec.json.encode(await self.explanations(pod, nodes))

    def manifest(self, body: bytes, nodes: Sequence[str]) -> bytes:
        """The explanation of a pod as it is written in a manifest, YAML or JSON."""
        return msgspec.json.encode(self._of(body, nodes))

    async def explanations(self, pod: str, nodes: Sequence[str]) -> list[NodeExplanation]:
        """As `named`, not yet written."""
        namespace, slash, name = pod.partition("/")
        if not (namespace and slash and name) or "/" in name:
            raise BadRequestError(f"pod is {pod!r}, expected namespace/name")
        try:
            path = paths.pod(namespace, name)
            body = await self._api.request("GET", path, timeout=_TIMEOUT_S)
        except ApiError as exc:
            raise BadRequestError(f"pod {pod} cannot be read: {exc}") from exc
        return self._of(body, nodes)

    def _of(self, body: bytes, nodes: Sequence[str]) -> list[NodeExplanation]:
        problem = self._not_ready()
        if problem is not None:
            raise BadRequestError(f"not ready: {problem}")
        try:
            pod = msgspec.convert(documents.load(body), kube_scheduler.Pod)
        except (msgspec.ValidationError, documents.DocumentError) as exc:
            raise BadRequestError(f"request is not a manifest of a pod: {exc}") from exc
        return self._view.explanations(kube_scheduler.unbound(pod), list(nodes) or self._view.names)


def refuse(problem: str) -> Reply:
    """An object instead of the list."""
    return Reply(msgspec.json.encode({"error": problem}), problem=problem)
