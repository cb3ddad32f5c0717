"""Nodes on which a pod's CPUs, memory and devices of device plug-ins would not be near the devices of its claims (DRA).

The kubelet's Topology Manager has no hints from claims. So the kubelet places the pod without regard to them, or where
a marker steers it (gates/numa_node.py). kube-scheduler allocates the claims: until it has, the devices are those that
the allocator is predicted to take on the node.

*Near*: all NUMA nodes of the pod's exclusive resources are NUMA nodes of its claimed devices. Devices without a NUMA
node do not count.

Invariant: a node is refused only for a pod that requires alignment, and only if the devices are known or predicted. A
cached judgement is used only until its node, or a claim on it, changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

import numpy as np

from topowise.bounded import Bounded
from topowise.claimed_devices import NumaNodes
from topowise_scheduler import refusals
from topowise_scheduler.claims.annotation import Alignment
from topowise_scheduler.claims.devices import ClaimedDevices
from topowise_scheduler.claims.numa_nodes import named, numa_nodes_of
from topowise_scheduler.cluster.gates.affinity import CacheUntilChange
from topowise_scheduler.cluster.gates.gate import FITS, Draft, Question
from topowise_scheduler.cluster.gates.ignored_pods import IgnoredPods
from topowise_scheduler.cluster.gates.numa_node import Markers, views_of, wanted_markers
from topowise_scheduler.cluster.pods.pod_states import PodStates
from topowise_scheduler.cluster.pods.records import PodRecord
from topowise_scheduler.cluster.rows.node_states import NodeStates
from topowise_scheduler.kube_scheduler import Node
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.allocated_nodes import allocated_nodes
from topowise_scheduler.kubelet.masks import union
from topowise_scheduler.kubelet.trial import trial
from topowise_scheduler.steering.choice import problem_of

if TYPE_CHECKING:
    # At run time the import would load the library of CEL, which most installations do not need.
    from topowise_scheduler.claims.ledger import Claims

Outcome = Literal["aligned", "possible", "apart", "unknown", "nothing"]
"""`possible`: in some states of the node only. `unknown`: the devices are not known. `nothing`: the devices have no
NUMA node."""
GRADES: Final[Mapping[Outcome, int]] = {"aligned": 2, "nothing": 2, "possible": 1, "unknown": 1, "apart": 0}
"""By outcome; a node with a greater grade is better for a pod that prefers alignment."""

MISPREDICTED_S: Final = 60.0
"""A node that gave a claim other devices than predicted does not get the pod again for this time."""
_MOST_BYTES: Final = 1 << 20
_MAX_NUMA_BYTES: Final = 4 << 20


# A judgement takes about a millisecond, so a cluster of new nodes is scored in several calls.
_MOST_NEW: Final = 200

_Key: TypeAlias = tuple[str, bytes, bytes, tuple[bool, int | None], frozenset[str]]
"""Node, requests and steering of the pod, its claims, markers and required NUMA node, pods that do not count."""


class ClaimSettings(NamedTuple):
    """`node_of` returns a Node object. `default` is the alignment of pods without the annotation, `by_namespace` the
    default of some namespaces."""

    claims: Claims
    node_of: Callable[[str], Node | None]
    default: Alignment = "prefer"
    by_namespace: Mapping[str, Alignment] = {}


class Judgement(NamedTuple):
    """A pod with claims on a node. `near` are the NUMA nodes of the devices. `placed` are the NUMA nodes on which the
    kubelet is predicted to place the pod, steered or not. `steer_to` is the NUMA node to request for the markers, None
    if nothing has to be requested."""

    devices: ClaimedDevices
    outcome: Outcome
    near: frozenset[int] = frozenset()
    placed: frozenset[int] = frozenset()
    steer_to: int | None = None

    @property
    def text(self) -> str:
        """Returns the judgement in words, "" if there is nothing to say."""
        if self.outcome == "unknown":
            return f"NUMA node of its claimed devices is unknown: {self.devices.problem}"
        if not self.near:
            return ""
        verb = "are" if self.devices.is_allocated else "are predicted"
        where = f"its claimed devices {verb} on {named(self.near)}"
        if self.steer_to is not None:
            return f"{where}, and the pod is steered there"
        if self.outcome == "possible":
            return f"{where}; CPUs and memory may be elsewhere, the node's placements are uncertain"
        if self.outcome == "apart":
            return f"{where}, CPUs and memory would be on {named(self.placed) if self.placed else 'no NUMA node'}"
        return where


class PodAlignment(NamedTuple):
    """A pod with claims that is bound to a node: the NUMA nodes of its devices, and of its exclusive resources as the
    ledger has them. `outcome` is never `possible`."""

    record: PodRecord
    outcome: Outcome
    near: frozenset[int] = frozenset()
    placed: frozenset[int] = frozenset()


class ClaimGate:
    """See `Gate`. `settings` is None if claims are not enabled."""

    temporary: Final = frozenset((refusals.CLAIMS_MISPREDICTED,))

    def __init__(
        self,
        node_states: NodeStates,
        pods: PodStates,
        ignored: IgnoredPods,
        markers: Markers | None,
        settings: ClaimSettings | None,
    ) -> None:
        self._node_states = node_states
        self._pods = pods
        self._ignored = ignored
        self._markers = markers
        self._settings = settings
        self._judged = CacheUntilChange[Judgement, _Key](node_states, lambda _: 1024)
        self._bound = CacheUntilChange[tuple[PodAlignment, ...], tuple[str, frozenset[str]]](node_states)
        self._numa: Bounded[tuple[tuple[int, ...], str], NumaNodes]
        self._numa = Bounded(_MAX_NUMA_BYTES, lambda key, _: 10 * len(key[1]))
        # By UID and node, the time (seconds, monotonic) until which a misprediction counts.
        self._mispredicted: Bounded[tuple[str, str], float] = Bounded(_MOST_BYTES, lambda *_: 200)

    def applies(self, record: PodRecord) -> bool:
        """Returns whether the pod has claims, and claims are enabled."""
        return bool(record.claims) and self._settings is not None

    def alignment(self, record: PodRecord) -> Alignment:
        """Returns how near the pod has to be to the devices of its claims."""
        if record.claim_alignment:
            return record.claim_alignment
        settings = self._settings
        return "prefer" if settings is None else settings.by_namespace.get(record.namespace, settings.default)

    def verdicts(self, question: Question, draft: Draft) -> None:
        """See `Gate`."""
        record = question.record
        if not record.claims or self.alignment(record) != "require":
            return
        if self._settings is None:
            draft.refuse_all(refusals.CLAIMS_ARE_OFF)
            return
        for at in np.flatnonzero(draft.outcomes == FITS).tolist():
            text = self.refusal(record, question.names[at])
            if text:
                draft.refuse_node(at, text)

    def refusal(self, record: PodRecord, name: str, leaving: Collection[str] = ()) -> str:
        """See `Gate`."""
        if not record.claims or self.alignment(record) != "require":
            return ""
        if self._settings is None:
            return refusals.CLAIMS_ARE_OFF
        judged = self.judge(record, name, leaving)
        if judged.outcome in ("apart", "possible"):
            return refusals.CLAIMS_APART
        if (record.uid, name) in self._mispredicted and not judged.devices.is_allocated:
            return refusals.CLAIMS_MISPREDICTED
        return ""

    def judge(self, record: PodRecord, name: str, leaving: Collection[str] = ()) -> Judgement:
        """Returns whether a pod with claims would be near their devices on the node. Claims must be enabled, and the
        amounts of the pod readable."""
        self._forget_unexpected()
        key = self._key(record, name, leaving)
        judged = self._judged.get(key)
        return self._judge(record, key) if judged is None else judged

    def grades(self, record: PodRecord, names: Sequence[str]) -> list[int]:
        """Returns the grade of each node (GRADES). A call judges a limited number of nodes that are not known; all
        other nodes count as unknown."""
        self._forget_unexpected()
        grades, most_new = [], _MOST_NEW
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
        if self._settings is None or node_state is None or node_state.report is None:
            return ()
        key = (name, frozenset[str]())
        pods = self._bound.get(key)
        if pods is None:
            records = [entry.record for entry in node_state.history.bound() if entry.record.claims]
            pods = tuple([self._alignment_of(record, name, node_state.kubelet) for record in records])
            self._bound.put(key, pods)
        return pods

    def all_bound(self) -> Iterator[PodAlignment]:
        """Yields the pods with claims that are bound to nodes with devices of claims."""
        for name in () if self._settings is None else self._settings.claims.nodes:
            yield from self.bound(name)

    def _alignment_of(self, record: PodRecord, name: str, kubelet: Kubelet | None) -> PodAlignment:
        assert self._settings is not None
        devices = self._settings.claims.devices(record.uid, record.namespace, record.claims, None, name)
        if devices.problem or not devices.is_allocated or kubelet is None or record.uid not in kubelet.active:
            return PodAlignment(record, "unknown")
        near = self._near(name, kubelet, devices)
        if not near:
            return PodAlignment(record, "nothing")
        placed = _nodes_of(kubelet, record.uid)
        return PodAlignment(record, "aligned" if placed <= near else "apart", near, placed)

    def assume(self, record: PodRecord, name: str) -> None:
        """Expects the predicted devices of a pod's claims on the node that the pod is expected on."""
        if self._settings is None or not record.claims:
            return
        results = self.judge(record, name).devices.results
        if results:
            self._settings.claims.assume(record.uid, name, results)

    def note_refused(self, record: PodRecord, name: str, now: float) -> None:
        """Notes that a bind was refused for the devices of the pod's claims. If they were not predicted, the node does
        not get the pod again for a while, also once kube-scheduler has taken the allocation back."""
        if self._settings is not None and not self._settings.claims.were_predicted(record.namespace, record.claims):
            self._mispredicted.put((record.uid, name), now + MISPREDICTED_S)
            self._node_states.note_change(name)

    def until(self, record: PodRecord, name: str) -> Mapping[str, float]:
        """Returns by node when a misprediction ends to count (seconds, monotonic)."""
        end = self._mispredicted.get((record.uid, name))
        return {} if end is None else {name: end}

    def expire(self, now: float) -> set[str]:
        """Ends mispredictions that are over. Returns their nodes."""
        late = [key for key, end in self._mispredicted.items() if end < now]
        for key in late:
            self._mispredicted.pop(key)
        return {name for _, name in late}

    def _forget_unexpected(self) -> None:
        """Ends assumed allocations of pods that are not expected on the node any more."""
        assert self._settings is not None
        for uid, name in self._settings.claims.assumed():
            if self._pods.of(uid).node != name:
                self._settings.claims.forget(uid)

    def _key(self, record: PodRecord, name: str, leaving: Collection[str] = ()) -> _Key:
        assert self._settings is not None
        claims = self._settings.claims
        ignored = frozenset((*self._ignored.on(record.uid, record.priority, name), *leaving))
        digest = claims.digest(record.uid, record.namespace, record.claims)
        has_markers = self._has_markers(record, name)
        return name, record.admission_key, digest, (has_markers, record.numa_node), ignored

    def _judge(self, record: PodRecord, key: _Key) -> Judgement:
        assert self._settings is not None
        name, _, _, (has_markers, _), ignored = key
        devices = self._settings.claims.devices(
            record.uid, record.namespace, record.claims, self._settings.node_of(name), name
        )
        judged = self._judged_devices(record, name, devices, ignored, has_markers=has_markers)
        self._judged.put(key, judged)
        return judged

    def _judged_devices(
        self, record: PodRecord, name: str, devices: ClaimedDevices, ignored: frozenset[str], *, has_markers: bool
    ) -> Judgement:
        states = list(self._node_states.states(name, {record.uid, *ignored}))
        if devices.problem or not states or record.requests is None:
            problem = devices.problem or "the node has no report"
            return Judgement(devices._replace(problem=problem), "unknown")
        near = self._near(name, states[0], devices)
        if not near:
            return Judgement(devices, "nothing")
        if record.steered is None and has_markers:
            steered = self._steered(record, states, near)
            if steered is not None:
                return steered._replace(devices=devices)
        placed = [_placed(state, record) for state in states]
        fits = [nodes is not None and nodes <= near for nodes in placed]
        outcome: Outcome = "aligned" if all(fits) else "possible" if any(fits) else "apart"
        return Judgement(devices, outcome, near, placed[0] or frozenset())

    def _steered(self, record: PodRecord, states: Sequence[Kubelet], near: frozenset[int]) -> Judgement | None:
        """Returns the judgement of a pod with markers that is, or can be, steered to its devices; None if the kubelet
        alone decides."""
        nothing = ClaimedDevices()
        if record.numa_node is not None:
            required = frozenset((record.numa_node,))
            return Judgement(nothing, "aligned" if required <= near else "apart", near, required)
        if len(near) != 1:
            return None
        (target,) = near
        if problem_of(states, views_of(record), target):
            return None
        # The kubelet takes the lowest NUMA node that fits, whatever has ended meanwhile.
        is_lowest = target == min(states[0].node_ids)
        if is_lowest and all(_placed(state, record) == near for state in states):
            return Judgement(nothing, "aligned", near, near)
        return Judgement(nothing, "aligned", near, near, target)

    def _near(self, name: str, state: Kubelet, devices: ClaimedDevices) -> frozenset[int]:
        """Returns the NUMA nodes of the devices."""
        node_state = self._node_states.of(name)
        report = None if node_state is None else node_state.report
        numa_nodes = self._numa_nodes(tuple(state.node_ids), "" if report is None else report.pcie_roots)
        located = [numa_nodes.of(device.location) for device in devices.devices if device.location is not None]
        return frozenset([node for node in located if node is not None])

    def _numa_nodes(self, node_ids: tuple[int, ...], text: str) -> NumaNodes:
        return self._numa.once((node_ids, text), lambda: numa_nodes_of(node_ids, text))

    def _has_markers(self, record: PodRecord, name: str) -> bool:
        return self._markers is not None and bool(self._markers(name)) and bool(wanted_markers(record))


def _placed(state: Kubelet, record: PodRecord) -> frozenset[int] | None:
    """Returns the NUMA nodes of the pod's exclusive resources, None if the kubelet refuses the pod."""
    view = record.view(state)
    admission, after = trial(state, view)
    if not admission.admitted:
        return None
    return _nodes_of(after, view.uid)


def _nodes_of(kubelet: Kubelet, uid: str) -> frozenset[int]:
    """Returns the NUMA nodes of the exclusive resources of a pod that is on the node."""
    return frozenset(kubelet.ids(union(where.mask for where in allocated_nodes(kubelet, uid).values())))
