"""Answers whether pods fit at once, aligned, all or nothing, and reserves their resources for a while on request.

Pods are placed one after the other on copies of the nodes, where kube-scheduler would send them: on the node with the
best score for their template that admits them beside the pods before.

Made for callers that admit jobs as a whole (Kueue, a workflow engine) before the pods exist. A pod with a uid takes its
reservation when kube-scheduler asks for it; a reservation for a copy of a template only keeps other pods out. A
reservation ends by release or by time, so the number of reserved pods and the time are limited.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Final

import msgspec

from topowise.errors import ParseError
from topowise.runtime import clock
from topowise.runtime.event_loop import sliced
from topowise_scheduler.kubelet import allocated_nodes
from topowise_scheduler.kubelet.allocated_nodes import Placed
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.overlay.candidates import Classes
from topowise_scheduler.overlay.overlay import Overlay
from topowise_scheduler.overlay.trial import Trial
from topowise_scheduler.verdicts.kube_scheduler import RESOURCE_CLAIMS, Pod, unbound
from topowise_scheduler.verdicts.refusals import Reason

MOST_SECONDS: Final = 600
MOST_PODS: Final = 1024
"""The most pods of a request; each new template costs milliseconds in a large cluster."""


class PodPlacement(msgspec.Struct, frozen=True):
    """The node of a pod, and the placements of its containers."""

    record: PodRecord
    node: str
    containers: Mapping[str, Placed]


class GroupPlacement(msgspec.Struct, frozen=True):
    """The placed pods. `refused` has the number of nodes by reason against the first pod that is not placed, None if
    all are placed. `not_examined`: requirements of pods that the placement does not consider. `refusing` is the node of
    a pod that cannot be reserved there, "" if no reservation was tried."""

    placements: Sequence[PodPlacement]
    refused: Mapping[Reason, int] | None = None
    not_examined: Sequence[str] = ()
    refusing: str = ""

    @property
    def fits(self) -> bool:
        """Whether all pods are placed."""
        # No node may be left to refuse the pod.
        return self.refused is None


class GroupPlacer:
    """Places pods in order, in steps between which the caller can do other work. Reserves nothing.

    `overlay`: the cluster, or a copy of it on which pods were placed before. Raises ParseError for a pod that cannot be
    read.
    """

    def __init__(
        self, cluster: Trial, group: Sequence[Pod], names: Sequence[str], overlay: Overlay | None = None
    ) -> None:
        self._cluster = cluster
        self._pods = group
        self._classes = Classes(cluster, names)
        self.overlay = overlay or Overlay(cluster)
        """The cluster with the pods that are placed so far."""
        self.placement = GroupPlacement(())

    def steps(self) -> Iterator[None]:
        """Tries one node a step; `placement` is the answer after the last step."""
        placements: list[PodPlacement] = []
        not_examined: dict[str, None] = {}
        for pod in self._pods:
            record = self._cluster.record(pod)
            yield from self._classes.steps(pod, record)
            candidates = self._classes.of(pod, record)
            not_examined |= dict.fromkeys(self._unexamined(record))
            placed = yield from candidates.placing(self.overlay, record)
            if placed is None:
                self.placement = GroupPlacement(placements, candidates.refused, tuple(not_examined))
                return
            if not placed.is_certain:
                not_examined[RESOURCE_CLAIMS] = None
            self.overlay = placed.overlay
            is_exact = self._cluster.precision(placed.node) == "exact"
            containers = allocated_nodes.placements(placed.state, placed.record.uid, is_exact=is_exact)
            expected = msgspec.structs.replace(placed.record, uid=record.uid or placed.record.uid)
            placements.append(PodPlacement(expected, placed.node, containers))
            yield
        self.placement = GroupPlacement(placements, not_examined=tuple(not_examined))

    def _unexamined(self, record: PodRecord) -> list[str]:
        """Returns what the pod requires of nodes and no check here is about."""
        unexamined = () if record.constraints is None else record.constraints.unexamined
        return list(self._cluster.ledger.gates.unexamined(unexamined))


class FitTogether(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A request: pods, or `count` copies of a template; these nodes, or all nodes.

    `release` ends a reservation; all other fields are ignored then.
    """

    pods: tuple[Pod, ...] = ()
    template: Pod | None = None
    count: Annotated[int, msgspec.Meta(ge=1, le=MOST_PODS)] = 1
    nodes: tuple[str, ...] = ()
    reserve_seconds: Annotated[int, msgspec.Meta(ge=0, le=MOST_SECONDS)] = 0
    release: str = ""

    @property
    def all_pods(self) -> list[Pod]:
        """All pods of the request; copies are numbered."""
        copies = [] if self.template is None else [_numbered(self.template, number) for number in range(self.count)]
        return [*map(unbound, self.pods), *copies]


class FitTogetherService:
    """Keeps the reservations, for at most `most_reserved` pods. Raises ParseError for an invalid request.

    `limit`: what `most_reserved` is, for messages. `clock` gives seconds, monotonic.
    """

    def __init__(
        self,
        cluster: Trial,
        *,
        most_reserved: int = 0,
        limit: str = "fitTogether.mostReserved",
        clock: Callable[[], float] = clock.monotonic,
    ) -> None:
        self._cluster = cluster
        self._ledger = cluster.ledger
        self._most_reserved, self._limit = most_reserved, limit
        self._clock = clock
        # By name: the end (seconds, monotonic), and the end of each pod's reservation in the ledger, by uid.
        self._reservations: dict[str, tuple[float, dict[str, float]]] = {}

    async def fit(self, request: FitTogether, *, hand_over: bool = False, name: str = "") -> tuple[GroupPlacement, str]:
        """Places the pods; returns the placement, and the name of the reservation or "".

        `hand_over`: the copies of a template make way for pods of the same namespace and requests. `name`: of the
        reservation, by default a random name.
        """
        pods = request.all_pods
        if not 0 < len(pods) <= MOST_PODS:
            raise ParseError("pods", str(len(pods)), f"1 to {MOST_PODS} of them")
        self._check_limit(len(pods) if request.reserve_seconds else 0)
        placing = GroupPlacer(self._cluster, pods, list(request.nodes) or self._cluster.names)
        await sliced(placing.steps())
        placement = placing.placement
        if not placement.fits or not request.reserve_seconds:
            return placement, ""
        self._check_limit(len(pods))
        return self._reserve(placement, request.reserve_seconds, name or secrets.token_hex(8), hand_over=hand_over)

    def is_reserved(self, name: str) -> bool:
        """Returns whether the time of a reservation is not over, even if all its pods are bound."""
        return self._reservations.get(name, (0.0, {}))[0] > self._clock()

    def release(self, reservation: str) -> bool:
        """Ends a reservation; whether it existed."""
        _, held_until = self._reservations.pop(reservation, (0.0, {}))
        self._unreserve(held_until)
        return bool(held_until)

    def _unreserve(self, held_until: Mapping[str, float]) -> None:
        for uid, until in held_until.items():
            # A later reservation, by kube-scheduler's question or another request, is not ours to end.
            if self._ledger.pods.of(uid).until == until:
                self._ledger.reservations.release(uid)

    def _check_limit(self, more: int) -> None:
        now = self._clock()
        self._reservations = {name: entry for name, entry in self._reservations.items() if entry[0] > now}
        reserved = sum(len(uids) for _, uids in self._reservations.values())
        if more and reserved + more > self._most_reserved:
            raise ParseError(
                "reserveSeconds",
                f"{more} pods beside {reserved}",
                f"{self._most_reserved} at the most ({self._limit}); nothing is reserved",
            )

    def _reserve(
        self, group: GroupPlacement, seconds: int, name: str, *, hand_over: bool
    ) -> tuple[GroupPlacement, str]:
        """Reserves the placement; refuses it if the cluster has changed between two slices."""
        held_until: dict[str, float] = {}
        copies = []
        for placement in group.placements:
            record = placement.record
            if record.uid.startswith("\0"):
                record = msgspec.structs.replace(record, uid=f"\0{name}/{len(held_until)}")
                copies.append(record)
            assert record.needs is not None
            refusal = self._ledger.reservations.put_unasked(
                record, record.needs, placement.node, seconds, in_any_order=hand_over
            )
            if refusal:
                self._unreserve(held_until)
                placed = group.placements[: len(held_until)]
                return GroupPlacement(placed, {refusal: 1}, group.not_examined, placement.node), ""
            held_until[record.uid] = self._ledger.pods.of(record.uid).until
        for record in copies if hand_over else ():
            self._ledger.reservations.hand_over(record)
        self._reservations[name] = self._clock() + seconds, held_until
        return group, name


def _numbered(template: Pod, number: int) -> Pod:
    metadata = template.metadata
    named = msgspec.structs.replace(metadata, name=f"{metadata.name or 'pod'}-{number}", uid="")
    return msgspec.structs.replace(template, metadata=named)
