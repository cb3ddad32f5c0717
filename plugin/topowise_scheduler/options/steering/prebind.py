"""The step of steering before a Binding: the pod's NUMA node is booked and its markers are labelled (leases.py)."""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from topowise.runtime.log import kv
from topowise.steering import RESOURCE as MARKER
from topowise.text import without_uids
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.options.steering.gate import SteeringOption
from topowise_scheduler.options.steering.leases import NodeSteering

log = logging.getLogger(__name__)


class SteeringPreBind:
    """See `PreBind`. `forget` ends the booking of a pod (UID) on a node."""

    def __init__(self, leases: NodeSteering, option: SteeringOption, forget: Callable[[str, str], None]) -> None:
        self._leases = leases
        self._option = option
        self._forget = forget

    def reads_anew(self, record: PodRecord) -> bool:
        """See `PreBind`."""
        return False

    def wait_s(self, record: PodRecord) -> float:
        """See `PreBind`. A bind waits for the end of a label and for its own label."""
        return 2 * self._leases.wait if _markers(record) else 0.0

    async def prebind(self, record: PodRecord, node: str, book: Callable[[PodRecord], str]) -> tuple[PodRecord, str]:
        """See `PreBind`."""
        if not _markers(record):
            return record, ""
        problem = await self._leases.rest(node)
        if problem:
            return record, problem
        choice = self._option.choice(record, node)
        if choice.numa is None:
            return record, ""
        steered = msgspec.structs.replace(record, steered=choice.numa)
        problem = await self._label(steered, choice.numa, node, book)
        if not problem:
            # The node may have changed while the service waited, so the bind books the pod again.
            return steered, ""
        if choice.is_required:
            return record, problem
        log.warning("Pod is not steered", extra=kv(node=node, why=without_uids(problem)))
        return record, await self._leases.rest(node)

    async def _label(self, steered: PodRecord, numa: int, node: str, book: Callable[[PodRecord], str]) -> str:
        """Books a pod on its NUMA node and has the markers labelled. Returns why they are not, "" if they are."""
        problem = self._leases.silence(node) or await self._leases.admission(node) or book(steered)
        if problem:
            return problem
        problem = "cancelled"
        try:
            problem = await self._leases.request(node, steered.uid, numa, _markers(steered))
        finally:
            if problem:
                await self.unreserve(steered, node)
        return problem

    async def unreserve(self, record: PodRecord, node: str) -> None:
        """See `PreBind`. A steered pod is not bound: it leaves the node, and its request is withdrawn."""
        if record.steered is not None:
            self._forget(record.uid, node)
            await self._leases.withdraw(node, record.uid)


def _markers(record: PodRecord) -> int:
    """Returns the number of containers that request a marker."""
    containers = () if record.needs is None else record.needs.containers
    return sum(bool(container.limits.get(MARKER)) for container in containers)
