"""Nodes that lack devices for the claims (DRA) of a pod, or on which its CPUs, memory and devices of device plug-ins
would not be near them.

The kubelet's Topology Manager has no hints from claims. So the kubelet places the pod without regard to them, or where
a marker steers it (steering/gate.py), and the devices are chosen to match (claimed_nodes.py).

A node may also have its free devices reserved for a nominated pod of a higher priority. A nomination reserves amounts
in kube-scheduler, and no devices of claims. So a pod of a lower priority could take the device of a pod that was
evicted for the nominated pod, and the eviction would be in vain. A node is refused for this only while the nominated
pod would get its devices there now, and would not after the pod.

*Near*: all NUMA nodes of the pod's exclusive resources are NUMA nodes of its claimed devices. Devices without a NUMA
node do not count.

Invariant: a node is refused only for a pod that requires alignment, and only if the devices are known. A cached
judgement is used only until its node, or a claim on it, changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np

from topowise.bounded import Bounded
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.ledger.gates.gate import Draft, Question
from topowise_scheduler.ledger.gates.option import ChangedNode, Cluster, CopiedNode, Expected, Option
from topowise_scheduler.ledger.pods.demands import Demands
from topowise_scheduler.ledger.pods.pod_states import BookingState
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.ledger.rows.node_states import CacheUntilChange
from topowise_scheduler.options.claims.annotation import NO_DEMAND
from topowise_scheduler.options.claims.claimed_nodes import Claimed, ClaimedNodes, demand_of, nodes_of, placed_by
from topowise_scheduler.options.claims.devices import ClaimedDevices
from topowise_scheduler.options.steering.gate import SteeringOption
from topowise_scheduler.verdicts.engine import Ratings
from topowise_scheduler.verdicts.kube_scheduler import RESOURCE_CLAIMS, Objection, lacks_devices
from topowise_scheduler.verdicts.refusals import Refusal
from topowise_scheduler.verdicts.strategies import ranks

Outcome = Literal["aligned", "possible", "apart", "unknown", "nothing"]
"""`possible`: in some states of the node only. `unknown`: the devices are not known. `nothing`: the devices have no
NUMA node."""
GRADES: Final[Mapping[Outcome, int]] = {"aligned": 2, "nothing": 2, "possible": 1, "unknown": 1, "apart": 0}
"""By outcome; a node with a greater grade is better for a pod that prefers alignment."""
BEST_GRADE: Final = 2

# A judgement takes about a millisecond, so a cluster of new nodes is scored in several calls.
_MOST_NEW: Final = 200
WERE_APART_S: Final = 60.0
"""A node on which kube-scheduler allocated devices apart from a pod does not get the pod again for this time."""
_MOST_BYTES: Final = 1 << 20

_Key: TypeAlias = tuple[str, bytes, bytes, Demands, frozenset[str], frozenset[str]]
"""Node, requests and steering of the pod, its claims and annotations, pods that free devices, pods that do not
count."""


class Judgement(NamedTuple):
    """A pod with claims on a node. `near` are the NUMA nodes of the devices. `placed` are the NUMA nodes on which the
    kubelet is predicted to place the pod, which `is_steered` or not."""

    devices: ClaimedDevices
    outcome: Outcome
    near: frozenset[int] = frozenset()
    placed: frozenset[int] = frozenset()
    is_steered: bool = False


class PodAlignment(NamedTuple):
    """A pod with claims that is bound to a node: the NUMA nodes of its devices, and of its exclusive resources as the
    ledger has them. `outcome` is never `possible`."""

    record: PodRecord
    outcome: Outcome
    near: frozenset[int] = frozenset()
    placed: frozenset[int] = frozenset()


class ClaimsAreOff(Option):
    """See `Option`: no pod fits that requires to be near the devices of its claims."""

    def verdicts(self, question: Question, draft: Draft) -> None:
        """See `Gate`."""
        if self.refusal(question.record, ""):
            draft.refuse_all(Refusal.CLAIMS_ARE_OFF)

    def refusal(self, record: PodRecord, name: str, leaving: Collection[str] = ()) -> Refusal | None:
        """See `Gate`."""
        is_required = record.demand(NO_DEMAND).alignment == "require"
        return Refusal.CLAIMS_ARE_OFF if record.claims and is_required else None


class ClaimOption(Option):
    """See `Option`. Pods without claims leave nodes with free devices to pods with claims."""

    concerns_every_pod = True
    limits_work = True

    def __init__(self, cluster: Cluster, claimed: ClaimedNodes, steering: SteeringOption) -> None:
        self._node_states = cluster.node_states
        self._ignored = cluster.ignored
        self._pods = cluster.pods
        self.nodes = claimed
        """The devices of claims on nodes."""
        self._steering = steering
        self._judged = CacheUntilChange[Judgement, _Key](cluster.node_states, lambda _: 1024)
        self._bound = CacheUntilChange[tuple[PodAlignment, ...], tuple[str, frozenset[str]]](cluster.node_states)
        claimed.settings.claims.changed = self._note_change
        # By UID and node, the time (seconds, monotonic) until which the node is left out.
        self._were_apart: Bounded[tuple[str, str], float] = Bounded(_MOST_BYTES, lambda *_: 200)

    @property
    def news(self) -> int:
        """See `Option`. A claim has come that a pod may wait for."""
        return self.nodes.settings.claims.arrivals

    def verdicts(self, question: Question, draft: Draft) -> None:
        """See `Gate`."""
        if self.nodes.is_required(question.record):
            draft.refuse_each(question, self._refusal_by_judgement, (Refusal.CLAIMS_APART,))
        if self._pods.nominated and self.nodes.applies(question.record):
            nodes = set(self._pods.nominated.values())
            draft.refuse_each(question, lambda record, name: self._reserved(record, name) if name in nodes else None)

    def refusal(self, record: PodRecord, name: str, leaving: Collection[str] = ()) -> Refusal | None:
        """See `Gate`."""
        if not self.nodes.applies(record):
            return None
        return self._refusal_by_judgement(record, name, leaving) or self._reserved(record, name, leaving)

    def _refusal_by_judgement(self, record: PodRecord, name: str, leaving: Collection[str] = ()) -> Refusal | None:
        if not self.nodes.is_required(record):
            return None
        judged = self.judge(record, name, leaving)
        if judged.outcome in ("apart", "possible"):
            return Refusal.CLAIMS_APART
        was_apart = (record.uid, name) in self._were_apart and not judged.devices.is_allocated
        return Refusal.CLAIMS_WERE_APART if was_apart else None

    def _reserved(self, record: PodRecord, name: str, leaving: Collection[str] = ()) -> Refusal | None:
        """Returns whether a nominated pod of a higher priority needs the devices that the pod would take."""
        node_state = self._node_states.of(name)
        if node_state is None:
            return None
        for entry in node_state.history.expected:
            # Of equal priorities, neither pod waits for the other.
            is_first = entry.state is BookingState.NOMINATED and entry.record.priority > record.priority
            if is_first and self.nodes.applies(entry.record) and self._takes(record, entry.record, name, leaving):
                return Refusal.DEVICES_RESERVED
        return None

    def _takes(self, record: PodRecord, nominated: PodRecord, name: str, leaving: Collection[str]) -> bool:
        """Returns whether the pod would take a device that the nominated pod needs."""
        taken = tuple(self.nodes.of(record, name, leaving).devices.allocations.items())
        if not taken or self.nodes.of(nominated, name, leaving).devices.problem:
            return False
        node_state = self._node_states.of(name)
        absent = {nominated.uid, *leaving}
        states = [] if node_state is None else list(self._node_states.states(name, absent))
        return self.nodes.once_placed(nominated, name, states, leaving, taken).devices.is_short

    @contextmanager
    def asking(self, nodes: int, *, is_simulation: bool) -> Iterator[Callable[[Sequence[str]], bool]]:
        """See `Option`. Predicts devices on some nodes, and on more nodes until a node fits for certain or the work is
        spent; in a simulation on all nodes that the work is enough for."""
        with self.nodes.limited(nodes if is_simulation else None) as left_out:
            yield lambda fitting: bool(left_out) and left_out.issuperset(fitting) and self.nodes.refill()

    def shortage(self, record: PodRecord, name: str, leaving: Collection[str] = ()) -> Objection | None:
        """See `Option`."""
        devices = self.nodes.of(record, name, leaving).devices if self.nodes.applies(record) else ClaimedDevices()
        return lacks_devices(devices.problem) if devices.is_short else None

    def examined(self) -> Collection[str]:
        """See `Option`."""
        return (RESOURCE_CLAIMS,)

    def knows(self, record: PodRecord, name: str) -> bool:
        """See `Option`."""
        return not self.nodes.applies(record) or not self.nodes.of(record, name).devices.problem

    def digest(self, record: PodRecord) -> bytes:
        """See `Option`."""
        return self.nodes.digest(record)

    def waits(self, record: PodRecord) -> bool:
        """See `Option`. A controller makes the claims of templates after the pod."""
        claims = self.nodes.settings.claims
        return bool(claims.drivers) and any(not claims.claim(f"{record.namespace}/{name}") for name in record.claims)

    def minds_order(self, record: PodRecord, name: str) -> bool:
        """See `Option`. The devices are chosen for the NUMA nodes that the kubelet alone takes now."""
        return self.nodes.applies(record) and self.nodes.follows_kubelet(record, name)

    def depends_on_evictions(self, record: PodRecord) -> bool:
        """See `Option`."""
        return self.nodes.applies(record)

    def is_certain(self, record: PodRecord, name: str, leaving: Collection[str] = ()) -> bool:
        """See `Option`."""
        return not self.nodes.applies(record) or self.judge(record, name, leaving).outcome != "unknown"

    def graded(self, question: Question, ratings: Ratings, changed: Mapping[str, ChangedNode]) -> Ratings:
        """See `Option`. Of a node of an overlay, what the cluster knows counts."""
        names = [question.names[at] for at in ratings.at.tolist()]
        if self.nodes.applies(question.record):
            grades = np.array(self.grades(question.record, names), np.int64)
            return ratings._replace(ranks=ranks.preceded(ratings.ranks, grades, BEST_GRADE))
        if question.requests.can_be_aligned:
            has_none = [not self.nodes.has_free_devices(name) for name in names]
            return ratings._replace(ranks=ranks.refined(ratings.ranks, np.array(has_none, np.int64), 1))
        return ratings

    def reserve(self, record: PodRecord, name: str) -> None:
        """See `Option`."""
        self.nodes.assume(record, name)

    def _note_change(self, name: str, is_better: bool) -> None:
        """The devices of a node, or the claims that have them, have changed."""
        node_state = self._node_states.of(name)
        if node_state is not None and node_state.report is not None:
            self._node_states.note_change(name)
            if is_better:
                self._node_states.note_improved(name)

    def judge(self, record: PodRecord, name: str, leaving: Collection[str] = ()) -> Judgement:
        """Returns whether a pod with claims would be near their devices on the node. Claims must be enabled, and the
        amounts of the pod readable."""
        key = self._key(record, name, leaving)
        judged = self._judged.get(key)
        return self._judge(record, key, leaving) if judged is None else judged

    def expected_in(self, expected: Expected, name: str, node: CopiedNode) -> Expected:
        """See `Option`."""
        record = expected.record
        if not self.nodes.applies(record):
            return expected
        devices, near = self.nodes.once_placed(
            record, name, node.states, node.removed, node.taken(), is_new=node.is_new
        )
        if devices.is_short:
            return expected._replace(refusal=lacks_devices(devices.problem).words)
        is_known = not devices.problem
        steered = self._steering.steered_in(record, name, node.states, demand_of(near)) if is_known else None
        placed = [placed_by(state, steered) for state in node.states if near] if steered is not None else []
        if steered is None or not all(nodes is not None and nodes <= near for nodes in placed):
            is_refused = is_known and self.nodes.is_required(record)
            expected = expected._replace(refusal=Refusal.CLAIMS_APART if is_refused else None)
        elif steered.steered is not None:
            expected = expected._replace(record=steered)
        return expected._replace(takes=tuple(devices.allocations.items()), is_certain=is_known)

    def grades(self, record: PodRecord, names: Sequence[str]) -> list[int]:
        """Returns the grade of each node (GRADES). A call judges a limited number of nodes that are not known; all
        other nodes count as unknown."""
        grades, most_new = [], _MOST_NEW
        with self.nodes.limited():
            for name in names:
                key = self._key(record, name)
                judged = self._judged.get(key)
                if judged is None and most_new:
                    most_new -= 1
                    judged = self._judge(record, key)
                grades.append(GRADES["unknown" if judged is None else judged.outcome])
        return grades

    def bound(self, name: str) -> tuple[PodAlignment, ...]:
        """Returns the pods with claims that are bound to a node."""
        node_state = self._node_states.of(name)
        if node_state is None or node_state.report is None:
            return ()
        key = (name, frozenset[str]())
        pods = self._bound.get(key)
        if pods is None:
            records = [entry.record for entry in node_state.history.bound() if entry.record.claims]
            pods = tuple([_alignment(record, self.nodes.of(record, name), node_state.kubelet) for record in records])
            self._bound.put(key, pods)
        return pods

    def all_bound(self) -> Iterator[PodAlignment]:
        """Yields the pods with claims that are bound to nodes with devices of claims."""
        for name in self.nodes.settings.claims.nodes:
            yield from self.bound(name)

    def unreserve(self, record: PodRecord, name: str, now: float) -> None:
        """See `Option`. If kube-scheduler has allocated devices that the pod cannot be near, the node does not get the
        pod again for a while, also once the allocation is taken back: the same devices would come again."""
        if self.nodes.is_required(record) and self.judge(record, name).outcome in ("apart", "possible"):
            self._were_apart.put((record.uid, name), now + WERE_APART_S)
            self._node_states.note_change(name)

    def until(self, record: PodRecord, name: str, refusal: Refusal) -> float | None:
        """See `Option`."""
        return self._were_apart.get((record.uid, name)) if refusal is Refusal.CLAIMS_WERE_APART else None

    def expire(self, now: float) -> set[str]:
        """See `Option`."""
        late = [key for key, end in self._were_apart.items() if end < now]
        for key in late:
            self._were_apart.pop(key)
        return {name for _, name in late}

    def _key(self, record: PodRecord, name: str, leaving: Collection[str] = ()) -> _Key:
        ignored = frozenset((*self._ignored.on(record.uid, record.priority, name), *leaving))
        freeing = self.nodes.freeing(record, leaving)
        return name, record.admission_key, self.nodes.digest(record), record.demands, freeing, ignored

    def _judge(self, record: PodRecord, key: _Key, leaving: Collection[str] = ()) -> Judgement:
        name, *_, ignored = key
        judged = self._judged_anew(record, name, ignored, leaving)
        if not self.nodes.is_left_out(name):
            self._judged.put(key, judged)
        return judged

    def _judged_anew(
        self, record: PodRecord, name: str, ignored: frozenset[str], leaving: Collection[str]
    ) -> Judgement:
        devices, near = self.nodes.of(record, name, leaving)
        node_state = self._node_states.of(name)
        if devices.problem or record.requests is None or node_state is None or node_state.kubelet is None:
            return Judgement(devices, "unknown")
        if not near:
            return Judgement(devices, "nothing")
        if record.steered is None:
            numa = self._steering.choice(record, name, leaving).numa
            if numa is not None:
                return Judgement(devices, "aligned" if numa in near else "apart", near, frozenset((numa,)), True)
        placed = self.nodes.placements(record, name, ignored)
        fits = [nodes is not None and nodes <= near for nodes in placed]
        outcome: Outcome = "aligned" if all(fits) else "possible" if any(fits) else "apart"
        return Judgement(devices, outcome, near, placed[0] or frozenset(), record.steered is not None)


def _alignment(record: PodRecord, claimed: Claimed, kubelet: Kubelet | None) -> PodAlignment:
    devices, near = claimed
    if devices.problem or not devices.is_allocated or kubelet is None or record.uid not in kubelet.active:
        return PodAlignment(record, "unknown")
    if not near:
        return PodAlignment(record, "nothing")
    placed = nodes_of(kubelet, record.uid)
    return PodAlignment(record, "aligned" if placed <= near else "apart", near, placed)
