"""A node: its picture, and its pods with the certainty of each placement.

The SVG of a large machine takes tens of milliseconds to write. It is written in a thread, from immutable values, and
only if the node has changed.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import Final, Literal

import msgspec

from topowise.bounded import Bounded
from topowise_scheduler.explain import picture
from topowise_scheduler.explain.picture.contents import Zone
from topowise_scheduler.kubelet import Kubelet, allocated_nodes
from topowise_scheduler.ledger.ledger import Ledger
from topowise_scheduler.ledger.node.history import Entry
from topowise_scheduler.ledger.node.node_state import NodeState
from topowise_scheduler.ledger.pods.pod_states import BookingState
from topowise_scheduler.options.claims.devices import named
from topowise_scheduler.options.claims.gate import ClaimOption
from topowise_scheduler.report import Report

Certainty = Literal["confirmed", "predicted", "uncertain", "does not fit", "reserved", "nominated"]

CERTAINTIES: Final[Mapping[Certainty, str]] = {
    "confirmed": "the node's report includes the pod",
    "predicted": "bound; the model knows the NUMA nodes that the kubelet chooses",
    "uncertain": "bound; its NUMA nodes may differ from the prediction until the next report",
    "does not fit": "bound; by the model the kubelet cannot admit it",
    "reserved": "expected on this node after an answer, not bound yet",
    "nominated": "kube-scheduler evicts other pods for it on this node",
}

_DRAWN_BYTES: Final = 8 << 20
_STYLE: Final = re.compile(r"<style>.*?</style>\s*", re.DOTALL)


class PodRow(msgspec.Struct, frozen=True):
    """A pod of the node; `numa` in words, "-" without NUMA nodes of its own, with those of its claimed devices."""

    name: str
    certainty: Certainty
    numa: str
    priority: int


class NodeDetails(msgspec.Struct, frozen=True):
    """A reported node; `svg` is without its style sheet, which the page has. `stale` is why its report is not
    confirmed."""

    name: str
    policy: str
    scope: str
    precision: str
    kubelet: str
    version: str
    problems: tuple[str, ...]
    pods: tuple[PodRow, ...]
    svg: str
    stale: str = ""


class NodeReader:
    """Reads nodes; the last few pictures are kept. `monotonic` is the ledger's clock."""

    def __init__(self, ledger: Ledger, monotonic: Callable[[], float]) -> None:
        self._ledger = ledger
        self._monotonic = monotonic
        self._drawn: Bounded[str, tuple[int, str]] = Bounded(_DRAWN_BYTES, lambda _, drawn: len(drawn[1]))

    async def read(self, name: str) -> NodeDetails | None:
        """The details of a node, None if it is not reported."""
        node_state = self._ledger.node_states.of(name)
        if node_state is None or node_state.report is None or node_state.kubelet is None:
            return None
        report, causes = node_state.report, self._ledger.gates.unconfirmed.why(name)
        ago = round(self._monotonic() - node_state.history.reported_at)
        return NodeDetails(
            name=name,
            policy=report.policy,
            scope=node_state.kubelet.settings.topology.scope,
            precision=report.precision,
            kubelet=report.exact_for,
            version=report.version,
            problems=report.problems,
            pods=_pods(node_state, node_state.kubelet, self._monotonic(), self._claimed(name)),
            svg=await self._svg(name, node_state, node_state.kubelet, report),
            stale=f"{', '.join(causes)}; the report came {ago} s ago" if causes else "",
        )

    def _claimed(self, name: str) -> dict[str, str]:
        """Returns by UID where the claimed devices of pods are, in words."""
        claims = self._ledger.gates.option(ClaimOption)
        pods = () if claims is None else claims.bound(name)
        return {pod.record.uid: f"; claimed devices on {named(pod.near)}" for pod in pods if pod.near}

    async def _svg(self, name: str, node_state: NodeState, kubelet: Kubelet, report: Report) -> str:
        if not kubelet.node_ids:
            return ""
        changed_at = self._ledger.node_states.changed_at(name)
        drawn_at, svg = self._drawn.get(name) or (-1, "")
        if drawn_at == changed_at:
            return svg
        names = {entry.uid: "/".join(entry.name) for entry in node_state.history.entries()}
        drawn = picture.read(kubelet, names, node=name, precision=report.precision)
        drawn = msgspec.structs.replace(drawn, policy=report.policy)
        if (claims := self._ledger.gates.option(ClaimOption)) is not None:
            drawn = picture.with_devices(drawn, claims.nodes.devices_by_numa_node(name))
        svg = await asyncio.to_thread(_svg_without_style, drawn)
        self._drawn.put(name, (changed_at, svg))
        return svg


def style() -> str:
    """The style sheet that all pictures share."""
    sheet = _STYLE.search(picture.svg(picture.Picture("", "", "", "exact", (Zone(0, (), ()),))))
    return "" if sheet is None else sheet.group().strip().removeprefix("<style>").removesuffix("</style>")


def _svg_without_style(drawn: picture.Picture) -> str:
    return _STYLE.sub("", picture.svg(drawn), count=1)


def _pods(node_state: NodeState, kubelet: Kubelet, monotonic: float, claimed: Mapping[str, str]) -> tuple[PodRow, ...]:
    is_exact = node_state.report is not None and node_state.report.precision == "exact"
    uncertain = {view.uid for view in node_state.uncertain(monotonic)}
    rows = []
    for entry in node_state.history.entries():
        uid = entry.uid
        placements = allocated_nodes.placements(kubelet, uid, is_exact=is_exact) if uid in kubelet.active else {}
        certainty = _certainty(
            entry,
            is_uncertain=uid in uncertain,
            is_placed=uid in kubelet.active,
            is_reported=node_state.is_reported(uid),
        )
        numa = allocated_nodes.in_words(placements) + claimed.get(uid, "")
        rows.append(PodRow("/".join(entry.name), certainty, numa, entry.record.priority))
    return tuple(sorted(rows, key=lambda row: row.name))


def _certainty(entry: Entry, *, is_uncertain: bool, is_placed: bool, is_reported: bool) -> Certainty:
    if entry.state is BookingState.NOMINATED:
        return "nominated"
    if entry.state is BookingState.RESERVED:
        return "reserved"
    if is_reported:
        return "confirmed"
    if not is_placed:
        return "does not fit"
    return "uncertain" if is_uncertain else "predicted"
