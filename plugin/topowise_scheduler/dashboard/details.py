"""What the page shows beside its lists: a node with its picture and pods, or why a pod waits or was put where it is.

The SVG of a large machine takes tens of milliseconds to write. It is written in a thread, from immutable values, and
only if the node has changed. Why nodes accept or refuse a pod takes up to a second on a large cluster: answers are made
in sequence, in slices, and reused for a while.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Final, Literal

import msgspec

from topowise.bounded import Bounded, size_of_json
from topowise.errors import TopowiseError
from topowise.runtime.event_loop import collected
from topowise_scheduler.dashboard.decisions import Decision, Decisions
from topowise_scheduler.explain import picture
from topowise_scheduler.explain.cluster_view import ClusterView
from topowise_scheduler.explain.explanation import NodeExplanation
from topowise_scheduler.explain.picture.contents import Zone
from topowise_scheduler.explain.waiting import WaitingPod, looking
from topowise_scheduler.kubelet import Kubelet, allocated_nodes
from topowise_scheduler.ledger.ledger import Ledger
from topowise_scheduler.ledger.node.history import Entry
from topowise_scheduler.ledger.node.node_state import NodeState
from topowise_scheduler.ledger.pods.pod_states import BookingState
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.options.claims.devices import named
from topowise_scheduler.options.claims.gate import ClaimOption
from topowise_scheduler.report import Report

MOST_MATCHES: Final = 50
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
# A page is read every two seconds; the pod is fetched and explained again only after this time.
_FRESH_S: Final = 10.0
_MOST_BYTES: Final = 8 << 20
_MOST_ATTEMPTS: Final = 10
_UNKNOWN: Final = (
    "the cluster has no such pod that waits or is assigned to a node; "
    "expected NAMESPACE/NAME of a pod that is not deleted"
)


def matching(ledger: Ledger, text: str) -> Iterator[str | None]:
    """Yields "namespace/name" of waiting, refused and assigned pods whose name contains `text`; None between steps.

    A pod with exactly this name is the only result, so that a full name opens the pod itself.
    """
    wanted = text.strip().lower()
    names = dict.fromkeys(
        f"{record.namespace}/{record.name}" for record in (*ledger.without_node.values(), *ledger.refused.values())
    )
    for node in [name for name, _ in ledger.node_states.items()]:
        names.update(dict.fromkeys(f"{record.namespace}/{record.name}" for record in ledger.pods_on(node)))
        yield None
    exact = [name for name in names if wanted in (name.lower(), name.lower().partition("/")[2])]
    yield from exact if len(exact) == 1 else sorted(name for name in names if wanted in name.lower())


Certainty = Literal["confirmed", "predicted", "uncertain", "does not fit", "reserved", "nominated"]


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
        svg = await asyncio.to_thread(lambda: _STYLE.sub("", picture.svg(drawn), count=1))
        self._drawn.put(name, (changed_at, svg))
        return svg


def style() -> str:
    """The style sheet that all pictures share."""
    sheet = _STYLE.search(picture.svg(picture.Picture("", "", "", "exact", (Zone(0, (), ()),))))
    return "" if sheet is None else sheet.group().strip().removeprefix("<style>").removesuffix("</style>")


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


Explain = Callable[[str, Sequence[str]], Awaitable[list[NodeExplanation]]]
"""Explains nodes for a pod of the cluster ("namespace/name"). Raises TopowiseError."""


class PodDetails(msgspec.Struct, frozen=True):
    """`attempts` are the newest first, `since` is RFC 3339 while the pod waits.

    For a waiting pod `explained` has a few nodes of each reason of `why`, otherwise the nodes of the last attempt.
    `problem` says why there is no explanation.
    """

    pod: str
    attempts: tuple[Decision, ...]
    priority: int = 0
    since: str = ""
    why: WaitingPod | None = None
    explained: tuple[NodeExplanation, ...] = ()
    problem: str = ""


class PodReader:
    """Reads pods; the last few answers are kept. `monotonic` returns seconds."""

    def __init__(
        self,
        ledger: Ledger,
        view: ClusterView,
        decisions: Decisions,
        explain: Explain,
        monotonic: Callable[[], float],
    ) -> None:
        self._ledger = ledger
        self._view = view
        self._decisions = decisions
        self._explain = explain
        self._monotonic = monotonic
        self._cache: Bounded[tuple[object, ...], tuple[float, PodDetails]] = Bounded(_MOST_BYTES, size_of_json)
        self._lock = asyncio.Lock()

    async def read(self, pod: str) -> PodDetails:
        """The details of a pod ("namespace/name")."""
        async with self._lock:
            now = self._monotonic()
            attempts = tuple([decision for decision in self._decisions.all() if decision.pod == pod][:_MOST_ATTEMPTS])
            attempts = attempts or tuple([decision for decision in self._decisions.refused if decision.pod == pod])
            # A new attempt, or a new outcome, makes the kept answer stale.
            key = (pod, *((attempts[0].at, attempts[0].outcome) if attempts else ()))
            read_at, details = self._cache.get(key) or (float("-inf"), PodDetails(pod, ()))
            if now - read_at >= _FRESH_S:
                details = await self._read(pod, attempts)
                self._cache.put(key, (now, details))
            return msgspec.structs.replace(details, attempts=attempts)

    async def _read(self, pod: str, attempts: tuple[Decision, ...]) -> PodDetails:
        details = PodDetails(pod, attempts)
        waiting = self._ledger.without_node.values()
        record = next((record for record in waiting if f"{record.namespace}/{record.name}" == pod), None)
        names: list[str] = []
        if record is not None:
            details, names = await self._waiting(details, record)
        elif attempts:
            last = attempts[0]
            examples = [name for group in last.examples.values() for name in group]
            names = [name for name in (last.bound, last.expected, *examples) if name]
        if not names:
            is_known = pod in await collected(matching(self._ledger, pod))
            return details if is_known else msgspec.structs.replace(details, problem=_UNKNOWN)
        try:
            explained = await self._explain(pod, list(dict.fromkeys(names)))
        except TopowiseError as exc:
            return msgspec.structs.replace(details, problem=f"cannot be explained now: {exc}")
        return msgspec.structs.replace(details, explained=tuple(explained))

    async def _waiting(self, details: PodDetails, record: PodRecord) -> tuple[PodDetails, list[str]]:
        """The details of a waiting pod, and the nodes to explain: the nearest node, then a few for each reason."""
        (why,) = await collected(looking(self._view, record))
        details = msgspec.structs.replace(details, priority=record.priority, since=record.status.started, why=why)
        nearest = [why.nearest] if why.nearest else []
        return details, [*nearest, *(name for group in why.examples.values() for name in group)]
