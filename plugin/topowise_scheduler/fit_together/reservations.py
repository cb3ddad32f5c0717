"""Do these pods fit at once, all or nothing; on request their room is kept for a while.

For whoever admits jobs as a whole (Kueue, a workflow engine) before their pods are made. Room is kept for the pods as
they were asked about: one that has a uid takes its own when kube-scheduler asks for it, copies of a template only keep
others out, until they are released or their time is over. So there is a limit to how many are kept, and for how long.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from typing import Annotated, Final

import msgspec

from topowise.errors import ParseError
from topowise.runtime.turns import sliced
from topowise_scheduler.answers import Answers
from topowise_scheduler.cluster.ledger import Ledger
from topowise_scheduler.fit_together import group_placement
from topowise_scheduler.fit_together.group_placement import GroupPlacement, GroupPlacer
from topowise_scheduler.kube_scheduler import Pod, unbound
from topowise_scheduler.presentation.explain.cluster_view import ClusterView

MOST_SECONDS: Final = 600


class FitTogether(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A request: pods one by one, or `count` copies of a template; nodes, or all. `release` is a reservation to end,
    and then there is nothing else."""

    pods: tuple[Pod, ...] = ()
    template: Pod | None = None
    count: Annotated[int, msgspec.Meta(ge=1, le=group_placement.MOST_PODS)] = 1
    nodes: tuple[str, ...] = ()
    reserve_seconds: Annotated[int, msgspec.Meta(ge=0, le=MOST_SECONDS)] = 0
    release: str = ""

    @property
    def wanted(self) -> list[Pod]:
        """All pods, the copies numbered."""
        copies = [] if self.template is None else [_numbered(self.template, number) for number in range(self.count)]
        return [*map(unbound, self.pods), *copies]


class FitTogetherService:
    """`most_reserved` pods are kept room for at once. Raises ParseError for what cannot be asked."""

    def __init__(
        self,
        ledger: Ledger,
        answers: Answers,
        view: ClusterView,
        *,
        most_reserved: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ledger = ledger
        self._answers = answers
        self._view = view
        self._most_reserved = most_reserved
        self._clock = clock
        # By name: until when (seconds, monotonic), and until when the ledger keeps the room of each pod, by uid.
        self._reservations: dict[str, tuple[float, dict[str, float]]] = {}

    async def fit(self, asked: FitTogether) -> tuple[GroupPlacement, str]:
        """Whether all fit, and the name of the reservation, "" for none."""
        wanted = asked.wanted
        if not 0 < len(wanted) <= group_placement.MOST_PODS:
            raise ParseError("pods", str(len(wanted)), f"1 to {group_placement.MOST_PODS} of them")
        self._check_limit(len(wanted) if asked.reserve_seconds else 0)
        placing = GroupPlacer(self._answers, self._view, wanted, list(asked.nodes) or self._view.names)
        await sliced(placing.steps())
        found = placing.found
        if not found.fits or not asked.reserve_seconds:
            return found, ""
        self._check_limit(len(wanted))
        return self._reserve(found, asked.reserve_seconds)

    def release(self, reservation: str) -> bool:
        """The room is not needed any more. Whether there was such a reservation."""
        _, kept = self._reservations.pop(reservation, (0.0, {}))
        self._unreserve(kept)
        return bool(kept)

    def _unreserve(self, kept: Mapping[str, float]) -> None:
        for uid, until in kept.items():
            # What it has been given since, by kube-scheduler's question or a later request, is its own.
            if self._ledger.pods.of(uid).until == until:
                self._ledger.reservations.release(uid)

    def _check_limit(self, more: int) -> None:
        now = self._clock()
        self._reservations = {name: one for name, one in self._reservations.items() if one[0] > now}
        kept = sum(len(uids) for _, uids in self._reservations.values())
        if more and kept + more > self._most_reserved:
            raise ParseError(
                "reserveSeconds",
                f"{more} pods beside {kept}",
                f"{self._most_reserved} at the most (fitTogether.mostReserved); nothing is reserved",
            )

    def _reserve(self, found: GroupPlacement, seconds: int) -> tuple[GroupPlacement, str]:
        """Between two slices the cluster may have changed: then nothing is reserved, and it does not fit any more."""
        name = secrets.token_hex(8)
        kept: dict[str, float] = {}
        for placement in found.placements:
            record = placement.record
            if record.uid.startswith("\0"):
                record = msgspec.structs.replace(record, uid=f"\0{name}/{len(kept)}")
            assert record.needs is not None
            refusal = self._ledger.reservations.put_unasked(record, record.needs, placement.node, seconds)
            if refusal:
                self._unreserve(kept)
                why = f"{placement.node} has changed meanwhile: {refusal}"
                return GroupPlacement(found.placements[: len(kept)], why), ""
            kept[record.uid] = self._ledger.pods.of(record.uid).until
        self._reservations[name] = self._clock() + seconds, kept
        return found, name


def _numbered(template: Pod, number: int) -> Pod:
    metadata = template.metadata
    named = msgspec.structs.replace(metadata, name=f"{metadata.name or 'pod'}-{number}", uid="")
    return msgspec.structs.replace(template, metadata=named)
