"""Nodes on which a pod's CPUs, memory and devices of device plug-ins would not be near the devices of its claims (DRA).

The kubelet's Topology Manager has no hints from claims. So the kubelet places the pod without regard to them, or where
a marker steers it (gates/numa_node.py).

*Near*: all NUMA nodes of the pod's exclusive resources are NUMA nodes of its claimed devices. Devices without a NUMA
node do not count.

Invariant: a node is refused only for a pod that requires alignment, and only if the devices are known or predicted. A
cached judgement is used only until its node, or a claim on it, changes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

from topowise.bounded import Bounded
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.allocated_nodes import allocated_nodes
from topowise_scheduler.kubelet.masks import union
from topowise_scheduler.kubelet.trial import trial
from topowise_scheduler.ledger.gates.affinity import CacheUntilChange
from topowise_scheduler.ledger.gates.claimed_nodes import Claimed, ClaimedNodes
from topowise_scheduler.ledger.gates.gate import Draft, Question
from topowise_scheduler.ledger.gates.ignored_pods import IgnoredPods
from topowise_scheduler.ledger.gates.numa_node import NumaNodeGate
from topowise_scheduler.ledger.pods.records import Demands, PodRecord
from topowise_scheduler.ledger.rows.node_states import NodeStates
from topowise_scheduler.options.claims.devices import ClaimedDevices
from topowise_scheduler.options.claims.objects import DeviceRequestAllocationResult
from topowise_scheduler.verdicts.refusals import Refusal

Outcome = Literal["aligned", "possible", "apart", "unknown", "nothing"]
"""`possible`: in some states of the node only. `unknown`: the devices are not known. `nothing`: the devices have no
NUMA node."""
GRADES: Final[Mapping[Outcome, int]] = {"aligned": 2, "nothing": 2, "possible": 1, "unknown": 1, "apart": 0}
"""By outcome; a node with a greater grade is better for a pod that prefers alignment."""
BEST_GRADE: Final = 2

MISPREDICTED_S: Final = 60.0
"""A node that gave a claim other devices than predicted does not get the pod again for this time."""
_MOST_BYTES: Final = 1 << 20
# A judgement takes about a millisecond, so a cluster of new nodes is scored in several calls.
_MOST_NEW: Final = 200

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


class Expected(NamedTuple):
    """A pod as it would come to a node, and the devices of its claims there. `record` is None if the pod would not be
    near the devices, or if these are not known."""

    record: PodRecord | None
    devices: ClaimedDevices

    @property
    def results(self) -> Sequence[DeviceRequestAllocationResult]:
        """Returns the devices that the pod takes from later pods."""
        return [result for part in self.devices.results.values() for result in part]


class PodAlignment(NamedTuple):
    """A pod with claims that is bound to a node: the NUMA nodes of its devices, and of its exclusive resources as the
    ledger has them. `outcome` is never `possible`."""

    record: PodRecord
    outcome: Outcome
    near: frozenset[int] = frozenset()
    placed: frozenset[int] = frozenset()


class ClaimGate:
    """See `Gate`."""

    def __init__(
        self, node_states: NodeStates, ignored: IgnoredPods, claimed: ClaimedNodes, numa_node: NumaNodeGate
    ) -> None:
        self._node_states = node_states
        self._ignored = ignored
        self._claimed = claimed
        self._numa_node = numa_node
        self._judged = CacheUntilChange[Judgement, _Key](node_states, lambda _: 1024)
        self._bound = CacheUntilChange[tuple[PodAlignment, ...], tuple[str, frozenset[str]]](node_states)
        # By the number of the node's state, and the requests of the pod.
        self._placed: Bounded[tuple[int, bytes], Sequence[frozenset[int] | None]]
        self._placed = Bounded(_MOST_BYTES, lambda key, places: 300 + len(key[1]) + 300 * len(places))
        # By UID and node, the time (seconds, monotonic) until which a misprediction counts.
        self._mispredicted: Bounded[tuple[str, str], float] = Bounded(_MOST_BYTES, lambda *_: 200)

    def applies(self, record: PodRecord) -> bool:
        """Returns whether the pod has claims, and claims are enabled."""
        return self._claimed.applies(record)

    def verdicts(self, question: Question, draft: Draft) -> None:
        """See `Gate`."""
        if not self._concerns(question.record):
            return
        if self._claimed.settings is None:
            draft.refuse_all(Refusal.CLAIMS_ARE_OFF)
        else:
            draft.refuse_each(question, self.refusal, (Refusal.CLAIMS_APART,))

    def refusal(self, record: PodRecord, name: str, leaving: Collection[str] = ()) -> Refusal | None:
        """See `Gate`."""
        if not self._concerns(record):
            return None
        if self._claimed.settings is None:
            return Refusal.CLAIMS_ARE_OFF
        judged = self.judge(record, name, leaving)
        if judged.outcome in ("apart", "possible"):
            return Refusal.CLAIMS_APART
        is_mispredicted = (record.uid, name) in self._mispredicted and not judged.devices.is_allocated
        return Refusal.CLAIMS_MISPREDICTED if is_mispredicted else None

    def judge(self, record: PodRecord, name: str, leaving: Collection[str] = ()) -> Judgement:
        """Returns whether a pod with claims would be near their devices on the node. Claims must be enabled, and the
        amounts of the pod readable."""
        key = self._key(record, name, leaving)
        judged = self._judged.get(key)
        return self._judge(record, key, leaving) if judged is None else judged

    def expected_in(
        self,
        record: PodRecord,
        name: str,
        states: Sequence[Kubelet],
        taken: Sequence[DeviceRequestAllocationResult] = (),
        leaving: Collection[str] = (),
    ) -> Expected:
        """Returns how a pod would come to a node in these states with these devices `taken`, once the pods `leaving`
        have left; a pod without claims comes as it is."""
        if not self.applies(record):
            return Expected(record, ClaimedDevices())
        devices, near = self._claimed.once_placed(record, name, leaving, taken)
        steered = None if devices.problem else self._numa_node.steered_in(record, name, states, near)
        placed = [_placed(state, steered) for state in states if near] if steered is not None else []
        is_near = all(nodes is not None and nodes <= near for nodes in placed)
        return Expected(steered if is_near else None, devices)

    def grades(self, record: PodRecord, names: Sequence[str]) -> list[int]:
        """Returns the grade of each node (GRADES). A call judges a limited number of nodes that are not known; all
        other nodes count as unknown."""
        grades, most_new = [], _MOST_NEW
        with self._claimed.limited():
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
        if self._claimed.settings is None or node_state is None or node_state.report is None:
            return ()
        key = (name, frozenset[str]())
        pods = self._bound.get(key)
        if pods is None:
            records = [entry.record for entry in node_state.history.bound() if entry.record.claims]
            pods = tuple([_alignment(record, self._claimed.of(record, name), node_state.kubelet) for record in records])
            self._bound.put(key, pods)
        return pods

    def all_bound(self) -> Iterator[PodAlignment]:
        """Yields the pods with claims that are bound to nodes with devices of claims."""
        settings = self._claimed.settings
        for name in () if settings is None else settings.claims.nodes:
            yield from self.bound(name)

    def note_refused(self, record: PodRecord, name: str, now: float) -> None:
        """Notes that the bind of a pod was refused. If its claims have other devices than predicted, and the pod cannot
        be near them, the node does not get the pod again for a while, also once kube-scheduler has taken the allocation
        back."""
        settings = self._claimed.settings
        if settings is None or not self._claimed.is_required(record):
            return
        if settings.claims.were_predicted(record.namespace, record.claims):
            return
        if self.judge(record, name).outcome in ("apart", "possible"):
            self._mispredicted.put((record.uid, name), now + MISPREDICTED_S)
            self._node_states.note_change(name)

    def until(self, record: PodRecord, name: str) -> float:
        """Returns when a misprediction on a node ends to count (seconds, monotonic), infinity if there is none."""
        end = self._mispredicted.get((record.uid, name))
        return math.inf if end is None else end

    def expire(self, now: float) -> set[str]:
        """Ends mispredictions that are over. Returns their nodes."""
        late = [key for key, end in self._mispredicted.items() if end < now]
        for key in late:
            self._mispredicted.pop(key)
        return {name for _, name in late}

    def _concerns(self, record: PodRecord) -> bool:
        """Returns whether the pod has claims, and requires alignment with them."""
        if not (record.claims or self.applies(record)) or self._claimed.ignored:
            return False
        return self._claimed.alignment(record) == "require"

    def _key(self, record: PodRecord, name: str, leaving: Collection[str] = ()) -> _Key:
        ignored = frozenset((*self._ignored.on(record.uid, record.priority, name), *leaving))
        freeing = self._claimed.freeing(record, leaving)
        return name, record.admission_key, self._claimed.digest(record), record.demands, freeing, ignored

    def _judge(self, record: PodRecord, key: _Key, leaving: Collection[str] = ()) -> Judgement:
        name, *_, ignored = key
        judged = self._judged_anew(record, name, ignored, leaving)
        if not self._claimed.is_left_out(name):
            self._judged.put(key, judged)
        return judged

    def _placements(self, record: PodRecord, name: str, ignored: frozenset[str]) -> Sequence[frozenset[int] | None]:
        """Returns where the kubelet places the pod in each possible state of the node (`_placed`)."""
        number = 0 if ignored else self._node_states.number(name)

        def places() -> Sequence[frozenset[int] | None]:
            return [_placed(state, record) for state in self._node_states.states(name, {record.uid, *ignored})]

        return self._placed.once((number, record.admission_key), places) if number else places()

    def _judged_anew(
        self, record: PodRecord, name: str, ignored: frozenset[str], leaving: Collection[str]
    ) -> Judgement:
        devices, near = self._claimed.of(record, name, leaving)
        if devices.problem or record.requests is None:
            return Judgement(devices, "unknown")
        if not near:
            return Judgement(devices, "nothing")
        if record.steered is None:
            numa = self._numa_node.choice(record, name, leaving).numa
            if numa is not None:
                return Judgement(devices, "aligned" if numa in near else "apart", near, frozenset((numa,)), True)
        placed = self._placements(record, name, ignored)
        fits = [nodes is not None and nodes <= near for nodes in placed]
        outcome: Outcome = "aligned" if all(fits) else "possible" if any(fits) else "apart"
        return Judgement(devices, outcome, near, placed[0] or frozenset(), record.steered is not None)


def _alignment(record: PodRecord, claimed: Claimed, kubelet: Kubelet | None) -> PodAlignment:
    devices, near = claimed
    if devices.problem or not devices.is_allocated or kubelet is None or record.uid not in kubelet.active:
        return PodAlignment(record, "unknown")
    if not near:
        return PodAlignment(record, "nothing")
    placed = _nodes_of(kubelet, record.uid)
    return PodAlignment(record, "aligned" if placed <= near else "apart", near, placed)


def _placed(state: Kubelet, record: PodRecord) -> frozenset[int] | None:
    """Returns the NUMA nodes of the pod's exclusive resources, None if the kubelet refuses the pod."""
    view = record.view(state)
    admission, after = trial(state, view)
    return _nodes_of(after, view.uid) if admission.admitted else None


def _nodes_of(kubelet: Kubelet, uid: str) -> frozenset[int]:
    """Returns the NUMA nodes of the exclusive resources of a pod that is on the node."""
    return frozenset(kubelet.ids(union(where.mask for where in allocated_nodes(kubelet, uid).values())))
