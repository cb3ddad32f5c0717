"""What would be: GET /explain?pod=namespace/name and POST /explain with a manifest, why each node accepts or refuses
the pod; POST /fit-together with JSON or YAML of `FitTogether`, whether pods fit at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from topowise import documents
from topowise.errors import ApiError
from topowise.kube import paths
from topowise.kube.api import Api
from topowise.runtime.event_loop import collected
from topowise.text import escaped_json_bytes
from topowise_scheduler.explain.cluster_view import ClusterView
from topowise_scheduler.explain.explanation import NodeExplanation
from topowise_scheduler.explain.refusal_texts import not_together
from topowise_scheduler.explain.waiting import looking
from topowise_scheduler.explain.waiting_texts import step_of_refused
from topowise_scheduler.overlay.fit_together import FitTogether, FitTogetherService, GroupPlacement
from topowise_scheduler.serve.extender.replies import BadRequestError, NotReady, Query, Reply, check_ready
from topowise_scheduler.verdicts import kube_scheduler

_TIMEOUT_S = 5.0
_encode = msgspec.json.Encoder().encode


class Explainer:
    """Answers are simulations, and reserve nothing. Every method raises BadRequestError and ParseError."""

    def __init__(self, api: Api, view: ClusterView, not_ready: NotReady) -> None:
        self._api = api
        self._view = view
        self._not_ready = not_ready

    async def explain(self, body: bytes | None, query: Query) -> Reply:
        """The explanation of the manifest in the body; without a body, of the pod in the query.

        With `view=waiting`, an object with the cause and the next step beside the nodes.
        """
        nodes, shown = query.get("node", ()), query.get("view", ("nodes",))[0]
        if shown not in ("nodes", "waiting"):
            raise BadRequestError(f"view is {shown!r:.80}, expected nodes or waiting")
        pod = await self._decoded(await self._body(query.get("pod", ("",))[0]) if body is None else body)
        explanations = await self._of(pod, nodes)
        # The list of a whole cluster is some megabytes of JSON.
        parts = await collected(escaped_json_bytes(_encode(explanation)) for explanation in explanations)
        listed = b"[" + b",".join(parts) + b"]"
        if shown == "nodes":
            return Reply(listed)
        waiting = (await collected(looking(self._view, self._view.trial.record(pod))))[0]
        text = {"cause": waiting.cause, "nextStep": step_of_refused(waiting)}
        return Reply(escaped_json_bytes(_encode(text))[:-1] + b',"nodes":' + listed + b"}")

    async def explanations(self, pod: str, nodes: Sequence[str]) -> list[NodeExplanation]:
        """The explanation of a pod of the cluster, "namespace/name", for these nodes or for all."""
        return await self._of(await self._decoded(await self._body(pod)), nodes)

    async def _body(self, pod: str) -> bytes:
        namespace, slash, name = pod.partition("/")
        if not (namespace and slash and name) or "/" in name:
            raise BadRequestError(f"pod is {pod!r}, expected namespace/name")
        try:
            path = paths.pod(namespace, name)
            return await self._api.request("GET", path, timeout=_TIMEOUT_S)
        except ApiError as exc:
            raise BadRequestError(f"pod {pod} cannot be read: {exc}") from exc

    async def _decoded(self, body: bytes) -> kube_scheduler.Pod:
        check_ready(self._not_ready)
        try:
            # YAML of a large pod takes as long as a second, in which schedulers must not wait.
            document = await asyncio.to_thread(documents.load, body)
            return kube_scheduler.unbound(msgspec.convert(document, kube_scheduler.Pod))
        except (msgspec.ValidationError, documents.DocumentError) as exc:
            raise BadRequestError(f"request is not a manifest of a pod: {exc}") from exc

    async def _of(self, pod: kube_scheduler.Pod, nodes: Sequence[str]) -> list[NodeExplanation]:
        return await collected(self._view.explaining(pod, list(nodes) or self._view.trial.names))


async def fit_together(fitting: FitTogetherService, not_ready: NotReady, body: bytes) -> Reply:
    """The placements, or why the pods do not fit. Raises BadRequestError and ParseError."""
    check_ready(not_ready)
    try:
        request = msgspec.convert(documents.load(body), FitTogether)
    except (msgspec.ValidationError, documents.DocumentError) as exc:
        raise BadRequestError(f"request is no FitTogether: {exc}") from exc
    if request.release:
        return Reply(msgspec.json.encode({"released": fitting.release(request.release)}))
    return Reply(escaped_json_bytes(msgspec.json.encode(_document(*await fitting.fit(request)))))


def _document(result: GroupPlacement, reservation: str) -> dict[str, Any]:
    document: dict[str, Any] = {
        "fits": result.fits,
        "placements": [
            {
                "pod": f"{placed.record.namespace}/{placed.record.name}",
                "node": placed.node,
                "containers": {name: place.as_json() for name, place in placed.containers.items()},
            }
            for placed in result.placements
        ],
    }
    if not result.fits:
        document["why"] = not_together(result.refused, result.refusing)
    if result.not_examined:
        document["notExamined"] = list(result.not_examined)
    if reservation:
        document["reservation"] = reservation
    return document
