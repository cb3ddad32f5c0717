"""Karmada's `Estimator` service (proto/karmada_estimator_service.proto): how many replicas fit here, aligned.

karmada-scheduler divides the replicas of a workload among member clusters by these answers. Its own estimator divides
sums. Every answer is a simulation on the present state of the cluster, and reserves nothing. A request has no limits,
so replicas are taken as Guaranteed pods with a container: the pods that a kubelet aligns.

Invariant: an answer is never more than what fits. At the time limit it is what was found until then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from topowise.errors import ParseError
from topowise.pods import Quantities, Resources
from topowise.runtime.event_loop import sliced
from topowise.runtime.listening import endpoint
from topowise.runtime.log import kv
from topowise.wire import karmada_estimator_pb2 as pb
from topowise.wire import karmada_estimator_service_pb2_grpc as service_grpc
from topowise_scheduler import grpc_server
from topowise_scheduler.answers import Answers
from topowise_scheduler.configuration import Karmada
from topowise_scheduler.fit_together.copies import Copies, SetCounter
from topowise_scheduler.fit_together.group_placement import MOST_PODS
from topowise_scheduler.grpc_server import listen
from topowise_scheduler.kube_scheduler import (
    Affinity,
    Container,
    Metadata,
    NodeAffinity,
    NodeSelector,
    Pod,
    Requirement,
    Spec,
    Term,
    Toleration,
)
from topowise_scheduler.presentation.explain.cluster_view import ClusterView

log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]
Decoded = TypeVar("Decoded", bound=Message)
Requirements = pb.ReplicaRequirements | pb.ComponentReplicaRequirements

# Requirements and selectors are some KiB; a request may have many assumed workloads.
_MAX_MESSAGE: Final = 4 << 20
_MAX_STREAMS: Final = 64
# Of an answer, whose field is an int32: more replicas than any cluster runs.
_MOST_SETS: Final = 1_000_000
_UNSCHEDULABLE: Final = (
    "topowise does not count unschedulable replicas, because it does not watch workloads: use Karmada's own estimator "
    "with karmada-descheduler"
)


class Estimator(service_grpc.EstimatorServicer):
    """Answers a request after the other.

    Aborts with UNAVAILABLE before the first sync, INVALID_ARGUMENT for a request that cannot be used, and
    RESOURCE_EXHAUSTED if the time limit ends before the first replica is tried.
    """

    def __init__(
        self,
        answers: Answers,
        view: ClusterView,
        settings: Karmada,
        not_ready: Callable[[], str | None],
    ) -> None:
        self._answers = answers
        self._view = view
        self._settings = settings
        self._not_ready = not_ready
        self._turn = asyncio.Lock()

    async def MaxAvailableReplicas(  # noqa: N802 - the name in the contract
        self, request: pb.MaxAvailableReplicasRequest, context: Context
    ) -> pb.MaxAvailableReplicasResponse:
        """Returns how many replicas fit."""
        required = request.replicaRequirements
        replicas = await self._count(
            request.cluster,
            lambda: [Copies(_pod("replica", required.namespace, required))],
            request.assumedWorkloads,
            context,
        )
        return pb.MaxAvailableReplicasResponse(maxReplicas=replicas)

    async def MaxAvailableComponentSets(  # noqa: N802
        self, request: pb.MaxAvailableComponentSetsRequest, context: Context
    ) -> pb.MaxAvailableComponentSetsResponse:
        """Returns how many complete sets of components fit."""
        sets = await self._count(
            request.cluster,
            lambda: _one_set(request.namespace, request.components),
            request.assumedWorkloads,
            context,
        )
        return pb.MaxAvailableComponentSetsResponse(maxSets=sets)

    async def GetUnschedulableReplicas(  # noqa: N802
        self, request: pb.UnschedulableReplicasRequest, context: Context
    ) -> pb.UnschedulableReplicasResponse:
        """Aborts with UNIMPLEMENTED."""
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, _UNSCHEDULABLE)
        raise AssertionError("unreachable: abort raises")

    async def _count(
        self,
        cluster: str,
        one_set: Callable[[], Sequence[Copies]],
        assumed: Iterable[pb.AssumedWorkload],
        context: Context,
    ) -> int:
        problem = self._not_ready()
        if problem is not None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"not ready: {problem}")
        if self._settings.cluster and cluster != self._settings.cluster:
            why = f"cluster is {cluster!r:.80}, expected {self._settings.cluster!r:.80} (karmada.cluster)"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, why)
        try:
            before = (copies for workload in assumed for copies in _copies(workload.namespace, workload.components))
            counter = SetCounter(self._answers, self._view, one_set(), before, _MOST_SETS)
            async with asyncio.timeout(self._settings.time_limit), self._turn:
                await sliced(counter.steps())
        except (ParseError, DecodeError) as exc:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(exc))
        except TimeoutError:
            pass
        if not counter.has_begun:
            why = f"the time limit of {self._settings.time_limit:g} s ended before a replica was tried"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{why} (karmada.timeLimit)")
        return counter.count


def _one_set(namespace: str, components: Sequence[pb.Component]) -> list[Copies]:
    """Returns the pods of a set of components. Raises ParseError and DecodeError."""
    total = sum(max(0, component.replicas) for component in components)
    if not 0 < total <= MOST_PODS:
        raise ParseError("components", f"{total} replicas", f"1 to {MOST_PODS} of them in a set")
    return list(_copies(namespace, components))


def _copies(namespace: str, components: Iterable[pb.Component]) -> Iterator[Copies]:
    """Yields the pods of components with replicas. Raises ParseError and DecodeError."""
    for component in components:
        if component.replicas > 0:
            yield Copies(_pod(component.name, namespace, component.replicaRequirements), component.replicas)


def _pod(name: str, namespace: str, required: Requirements) -> Pod:
    """Returns a Guaranteed pod with these requirements. Raises ParseError and DecodeError."""
    amounts: Quantities = {
        resource: _quantity(resource, raw)
        for by_resource in (required.resourceRequest, required.resourceRequestBytes)
        for resource, raw in by_resource.items()
    }
    claim = required.nodeClaim
    terms = [
        Term(_requirements(term.matchExpressions), _requirements(term.matchFields))
        for raw in (claim.nodeAffinityBytes or claim.nodeAffinity,)
        for term in _decoded(pb.KubernetesNodeSelector(), raw).nodeSelectorTerms
    ]
    affinity = Affinity(nodeAffinity=NodeAffinity(NodeSelector(tuple(terms)))) if terms else None
    tolerations = [_decoded(pb.KubernetesToleration(), raw) for raw in claim.tolerationsBytes or claim.tolerations]
    spec = Spec(
        containers=(Container("main", Resources(requests=amounts, limits=amounts)),),
        nodeSelector=dict(claim.nodeSelector) or None,
        affinity=affinity,
        tolerations=tuple(
            Toleration(entry.key, entry.operator or "Equal", entry.value, entry.effect) for entry in tolerations
        ),
    )
    return Pod(Metadata(name=name or "replica", namespace=namespace or "default"), spec)


def _quantity(resource: str, raw: bytes) -> str:
    text = _decoded(pb.KubernetesQuantity(), raw).string
    # The API server refuses such a pod.
    if text.startswith("-"):
        raise ParseError(resource, text, "an amount of 0 or more")
    return text


def _requirements(entries: Iterable[pb.KubernetesNodeSelectorRequirement]) -> tuple[Requirement, ...]:
    return tuple([Requirement(entry.key, entry.operator, tuple(entry.values)) for entry in entries])


def _decoded(message: Decoded, raw: bytes) -> Decoded:
    message.ParseFromString(raw)
    return message


async def serve(settings: Karmada, estimator: Estimator) -> None:
    """Serves until cancelled. Raises SourceError for an address in use, and for an unusable certificate."""

    def add(server: grpc.aio.Server) -> None:
        service_grpc.add_EstimatorServicer_to_server(estimator, server)  # type: ignore[no-untyped-call]
        listen(server, endpoint(settings.address, settings.port), settings.tls)
        log.info("Serving Karmada's estimator", extra=kv(port=settings.port))

    await grpc_server.serve(add, max_message=_MAX_MESSAGE, max_streams=_MAX_STREAMS)
