"""The `Scoring` service (proto/scoring.proto): the extender's answers for gRPC clients.

Every request is a simulation: it reserves nothing, so any scheduler may send requests at any time. `FitTogether` alone
may reserve nodes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio
import msgspec
import numpy as np

from topowise.errors import ParseError
from topowise.runtime.event_loop import collected, sliced
from topowise.runtime.listening import endpoint
from topowise.runtime.log import kv
from topowise.wire import scoring_pb2, scoring_pb2_grpc
from topowise_scheduler.configuration import Grpc
from topowise_scheduler.explain.cluster_view import ClusterView
from topowise_scheduler.explain.refusal_texts import TEXTS, not_together
from topowise_scheduler.ledger.answers import Answers, Question
from topowise_scheduler.overlay.fit_together import FitTogether, FitTogetherService
from topowise_scheduler.overlay.scale_up.template_nodes import TemplateNodes
from topowise_scheduler.serve import grpc_server
from topowise_scheduler.serve.grpc_server import listen, listen_on_socket
from topowise_scheduler.verdicts import kube_scheduler

log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]
Request = TypeVar("Request")

_VERDICTS = {
    "fits": scoring_pb2.VERDICT_FITS,
    "not reported": scoring_pb2.VERDICT_FITS,
    "not now": scoring_pb2.VERDICT_UNSCHEDULABLE,
    "never": scoring_pb2.VERDICT_UNRESOLVABLE,
    "excluded": scoring_pb2.VERDICT_UNRESOLVABLE,
}
_decode_node = msgspec.json.Decoder(kube_scheduler.NodeObject).decode
# A Pod is at most 1.5 MiB in etcd, 10,000 names of 253 characters 2.5 MB.
_MAX_MESSAGE = 16 << 20
# Per connection; 16 of the largest messages at once are 256 MiB.
_MAX_STREAMS = 16


class ScoringService(scoring_pb2_grpc.ScoringServicer):
    """Aborts with UNAVAILABLE before the first sync, and INVALID_ARGUMENT for a pod that cannot be read."""

    def __init__(
        self,
        answers: Answers,
        view: ClusterView,
        fitting: FitTogetherService,
        not_ready: Callable[[], str | None],
        templates: TemplateNodes | None = None,
    ) -> None:
        self._answers = answers
        self._view = view
        self._fitting = fitting
        self._not_ready = not_ready
        self._templates = templates

    async def Filter(  # noqa: N802 - the name in the contract
        self, request: scoring_pb2.FilterRequest, context: Context
    ) -> scoring_pb2.FilterResponse:
        """Returns verdicts and reasons."""
        question = await self._question(request, context)
        verdicts = self._answers.verdicts(question)
        # The first reason stands for no reason.
        numbers, indices = np.unique([0, *verdicts.refusals.tolist()], return_inverse=True)
        return scoring_pb2.FilterResponse(
            verdicts=verdicts.outcomes.tolist(),
            reason_index=indices[1:].tolist(),
            reasons=[TEXTS[number] for number in numbers.tolist()],
        )

    async def Score(  # noqa: N802
        self, request: scoring_pb2.ScoreRequest, context: Context
    ) -> scoring_pb2.ScoreResponse:
        """Returns scores."""
        question = await self._question(request, context)
        return scoring_pb2.ScoreResponse(scores=self._answers.scores(question).tolist())

    async def Explain(  # noqa: N802
        self, request: scoring_pb2.ExplainRequest, context: Context
    ) -> scoring_pb2.ExplainResponse:
        """Returns a verdict, a score and a sentence for each node."""
        pod = await self._read(lambda: _unbound(request.pod), context)
        steps = self._view.explaining(pod, list(request.nodes))
        # The first step reads the pod.
        first = await self._read(lambda: next(steps, None), context)
        explained = await collected(chain((first,), steps))
        return scoring_pb2.ExplainResponse(
            verdicts=[_VERDICTS[explanation.verdict] for explanation in explained],
            scores=[explanation.score for explanation in explained],
            details=[explanation.text for explanation in explained],
            not_looked_at=explained[0].not_looked_at if explained else (),
        )

    async def FitTogether(  # noqa: N802
        self, request: scoring_pb2.FitTogetherRequest, context: Context
    ) -> scoring_pb2.FitTogetherResponse:
        """Returns whether all pods fit together, or ends a reservation."""
        if request.release:
            return scoring_pb2.FitTogetherResponse(fits=self._fitting.release(request.release))
        request_together = await self._read(lambda: _together(request), context)
        try:
            result, reservation = await self._fitting.fit(request_together)
        except ParseError as exc:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(exc))
        nodes = [placement.node for placement in result.placements]
        return scoring_pb2.FitTogetherResponse(
            fits=result.fits,
            nodes=nodes,
            why=not_together(result.refused, result.refusing),
            reservation=reservation,
            not_examined=result.not_examined,
        )

    async def _question(
        self, request: scoring_pb2.FilterRequest | scoring_pb2.ScoreRequest, context: Context
    ) -> Question:
        def read() -> Question:
            names = [*request.nodes, *map(_name_of, request.templates)]
            question = self._answers.question(_unbound(request.pod), names, is_simulation=True)
            if self._templates is None:
                return question
            return self._templates.with_templates(question, request.templates, len(request.nodes))

        question = await self._read(read, context)
        await sliced(self._answers.steps(question))
        return self._answers.renewed(question)

    async def _read(self, decode: Callable[[], Request], context: Context) -> Request:
        """Returns the decoded request. Aborts before the first sync, and for a pod that cannot be read."""
        problem = self._not_ready()
        if problem is not None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"not ready: {problem}")
        try:
            return decode()
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            problem = f"pod is not the JSON of a v1.Pod, or a template not that of a v1.Node: {exc}"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, problem)
        except ParseError as exc:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(exc))
        raise AssertionError("unreachable: abort raises")


def _name_of(node: bytes) -> str:
    return _decode_node(node).metadata.name


def _unbound(pod: bytes) -> kube_scheduler.Pod:
    return kube_scheduler.unbound(kube_scheduler.decode(pod))


def _together(request: scoring_pb2.FitTogetherRequest) -> FitTogether:
    """Returns the request. Raises ParseError for numbers out of bounds."""
    pods = tuple(kube_scheduler.decode(pod) for pod in request.pods)
    numbered = {"template": pods[0], "count": request.count} if request.count and len(pods) == 1 else {"pods": pods}
    rest = {"nodes": tuple(request.nodes), "reserveSeconds": request.reserve_seconds}
    try:
        return msgspec.convert({**numbered, **rest}, FitTogether)
    except msgspec.ValidationError as exc:
        raise ParseError("FitTogetherRequest", "", str(exc)) from exc


async def serve(settings: Grpc, scoring: ScoringService) -> None:
    """Serves until cancelled. Raises SourceError for an address in use, and for an unusable certificate."""

    def add(server: grpc.aio.Server) -> None:
        scoring_pb2_grpc.add_ScoringServicer_to_server(scoring, server)  # type: ignore[no-untyped-call]
        if settings.socket:
            listen_on_socket(server, Path(settings.socket))
        if settings.port:
            listen(server, endpoint(settings.address, settings.port), settings.tls)
        log.info("Serving gRPC", extra=kv(socket=settings.socket, port=settings.port))

    await grpc_server.serve(add, max_message=_MAX_MESSAGE, max_streams=_MAX_STREAMS)
