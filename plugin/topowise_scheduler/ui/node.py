"""One node: its picture, and the pods on it with what is sure of each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from topowise_scheduler.cluster.bookings import Booking, BookingState
from topowise_scheduler.cluster.ledger import Ledger
from topowise_scheduler.cluster.node_state import NodeState
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.ui.state import Reader, Sightings
from topowise_scheduler.view import picture, placed
from topowise_scheduler.view.picture.model import Zone

Certainty = Literal["confirmed", "predicted", "uncertain", "does not fit", "reserved", "nominated"]

CERTAINTIES: Final[Mapping[Certainty, str]] = {
    "confirmed": "the node's report includes it",
    "predicted": "bound; the model knows where the kubelet puts it",
    "uncertain": "bound; it may lie elsewhere than predicted until the next report",
    "does not fit": "bound; by the model the kubelet has no room for it",
    "reserved": "expected here after an answer, not bound yet",
    "nominated": "kube-scheduler evicts others for it here",
}

_STYLE: Final = re.compile(r"<style>.*?</style>\s*", re.DOTALL)


class Pod(msgspec.Struct, frozen=True):
    """A pod of the node; `numa` in words, "-" if it holds nothing of its own or nobody knows where."""

    name: str
    certainty: Certainty
    numa: str
    priority: int


class NodePage(msgspec.Struct, frozen=True):
    """All that is shown of a node; `svg` is without its style sheet, which the page has. `seen` as in state.Node."""

    name: str
    policy: str
    scope: str
    precision: str
    kubelet: str
    marks: str
    seen: int
    version: str
    problems: tuple[str, ...]
    pods: tuple[Pod, ...]
    svg: str


def read(ledger: Ledger, reader: Reader, sightings: Sightings, name: str, monotonic: float) -> NodePage | None:
    """A node as it is, None if nobody has reported it. `monotonic` is the ledger's time."""
    node_state = ledger.node_state(name)
    if node_state is None or node_state.report is None or node_state.kubelet is None:
        return None
    settings = node_state.kubelet.settings.topology
    return NodePage(
        name=name,
        policy=node_state.report.policy,
        scope=settings.scope,
        precision=node_state.report.precision,
        kubelet=node_state.report.exact_for,
        marks=reader.marks(name, node_state, reader.quarantined()),
        seen=sightings.of(name),
        version=node_state.report.version,
        problems=node_state.report.problems,
        pods=_pods(node_state, node_state.kubelet, monotonic),
        svg=_svg(name, node_state, node_state.kubelet),
    )


def style() -> str:
    """The style sheet of the pictures, the same for all."""
    found = _STYLE.search(picture.svg(picture.Picture("", "", "", "exact", (Zone(0, (), ()),))))
    return "" if found is None else found.group().strip().removeprefix("<style>").removesuffix("</style>")


def _svg(name: str, node_state: NodeState, kubelet: Kubelet) -> str:
    if not kubelet.node_ids:
        return ""
    names = {uid: "/".join(booking.name) for uid, booking in node_state.bookings.items()}
    precision = "counts" if node_state.report is None else node_state.report.precision
    return _STYLE.sub("", picture.svg(picture.read(kubelet, names, node=name, precision=precision)), count=1)


def _pods(node_state: NodeState, kubelet: Kubelet, monotonic: float) -> tuple[Pod, ...]:
    is_exact = node_state.report is not None and node_state.report.precision == "exact"
    uncertain = {view.uid for view in node_state.uncertain(monotonic)}
    found = []
    for uid, booking in node_state.bookings.items():
        places = placed.of(kubelet, uid, is_exact=is_exact) if uid in kubelet.active else {}
        certainty = _certainty(booking, is_uncertain=uid in uncertain)
        found.append(Pod("/".join(booking.name), certainty, placed.in_words(places), booking.record.priority))
    return tuple(sorted(found, key=lambda one: one.name))


def _certainty(booking: Booking, *, is_uncertain: bool) -> Certainty:
    if booking.state is BookingState.NOMINATED:
        return "nominated"
    if booking.state is BookingState.RESERVED:
        return "reserved"
    if booking.reported:
        return "confirmed"
    if not booking.placed:
        return "does not fit"
    return "uncertain" if is_uncertain else "predicted"
