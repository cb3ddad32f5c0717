"""In any order of API events the ledger's pods and nodes agree with each other and with a plain model of five lines a
rule.

The model knows for each pod where it is reserved, assumed or bound and for which node it is nominated; the ledger's
`check` compares nodes with pods. Planted faults show that this can fail.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from examples import USUAL, examples
from ledger_check import check_ledger
from scheduling import Service, decoded, exact, kubelet, pod
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.ledger.node.node_state import NodeState
from topowise_scheduler.ledger.pods.pod_states import BookingState, PodState, PodStates, State

NODES = ("n1", "n2")
NAMES = ("a", "b", "c")
RESERVED_S = 30.0
UNLISTED_S = 120.0
SETTINGS = settings(
    max_examples=examples(30),
    stateful_step_count=60,
    database=None,
    deadline=None,
    derandomize=examples() == USUAL,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)

nodes = st.sampled_from(NODES)
names = st.sampled_from(NAMES)


class Expected(msgspec.Struct):
    """What the plain model has of a pod. `until` ends a reservation; `unlisted`: since when a list lacks it."""

    name: str
    cpus: str
    node: str = ""
    state: str = ""
    nominated: str = ""
    until: float = 0.0
    unlisted: float | None = None

    def leave(self) -> None:
        self.node, self.state, self.unlisted = "", "", None


class LedgerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.service = Service()
        self.truth: dict[str, Kubelet] = {name: kubelet() for name in NODES}
        self.pods: dict[str, Expected] = {}
        self.created = 0
        self.version = 0

    @initialize()
    def both_nodes_are_reported(self) -> None:
        for node in NODES:
            self.report(node)

    # Pods as the API server has them

    def uid(self, name: str) -> str | None:
        return next((uid for uid, expected in self.pods.items() if expected.name == name), None)

    def document(self, uid: str, **fields: Any) -> dict[str, Any]:
        expected = self.pods[uid]
        return pod(expected.name, expected.cpus, uid=uid, **fields)

    @rule(name=names, cpus=st.sampled_from("1234"))
    def create(self, name: str, cpus: str) -> None:
        if self.uid(name) is None:
            self.created += 1
            uid = f"uid-{self.created}"
            self.pods[uid] = Expected(name, cpus)
            self.service.put(self.document(uid))

    @rule(name=names, node=nodes)
    def answer(self, name: str, node: str) -> None:
        """The pod is asked about, and expected on a node."""
        uid = self.uid(name)
        if uid is None:
            return
        expected, service = self.pods[uid], self.service
        question = service.answers.question(decoded(self.document(uid)), NODES)
        if expected.state == "reserved":
            expected.leave()
        service.answers.expect(question, NODES.index(node))
        if not expected.state and self.is_reported(node):
            expected.node, expected.state, expected.until = node, "reserved", service.clock.now + RESERVED_S

    @rule(name=names, node=nodes)
    def begin_to_bind(self, name: str, node: str) -> None:
        uid = self.uid(name)
        if uid is None:
            return
        expected = self.pods[uid]
        record = self.service.records.decode(msgspec.json.encode(self.document(uid)))
        refusal = self.service.assume(record, node)
        if expected.state == "bound":
            assert refusal
            return
        expected.leave()
        if not refusal:
            expected.node, expected.state = node, "assumed"

    @rule(name=names, node=nodes)
    def bind_fails(self, name: str, node: str) -> None:
        uid = self.uid(name)
        if uid is None:
            return
        self.service.ledger.reservations.forget(uid, node)
        if self.pods[uid].state == "assumed" and self.pods[uid].node == node:
            self.pods[uid].leave()

    @rule(name=names, node=nodes, fails=st.booleans())
    def preempt(self, name: str, node: str, *, fails: bool) -> None:
        """A preemptor is bound to its nominated node, or its bind fails."""
        self.nominate(name, node)
        self.begin_to_bind(name, node)
        if fails:
            self.bind_fails(name, node)

    @rule(name=names, node=nodes, runs=st.booleans())
    def is_bound(self, name: str, node: str, *, runs: bool) -> None:
        """An event of a Binding by this or another scheduler; the pod never changes its node afterwards."""
        uid = self.uid(name)
        if uid is None or (self.pods[uid].state == "bound" and self.pods[uid].node != node):
            return
        expected = self.pods[uid]
        status = {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"} if runs else {}
        self.service.put(self.document(uid, node=node, **status))
        expected.node, expected.state, expected.nominated, expected.unlisted = node, "bound", "", None

    @rule(name=names, node=st.sampled_from(("", *NODES)))
    def nominate(self, name: str, node: str) -> None:
        uid = self.uid(name)
        if uid is None or self.pods[uid].state == "bound":
            return
        self.service.put(self.document(uid, nominatedNodeName=node))
        self.pods[uid].unlisted = None
        if self.pods[uid].state != "assumed":
            self.pods[uid].nominated = node

    @rule(name=names, refused=st.booleans())
    def end(self, name: str, *, refused: bool) -> None:
        uid = self.uid(name)
        if uid is None or self.pods[uid].state != "bound":
            return
        node = self.pods[uid].node
        self.truth[node].remove(uid)
        reason = {"reason": "TopologyAffinityError"} if refused else {}
        self.service.put(self.document(uid, node=node, phase="Failed", **reason))
        self.pods[uid].leave()
        del self.pods[uid]

    @rule(name=names)
    def delete(self, name: str) -> None:
        uid = self.uid(name)
        if uid is None:
            return
        if self.pods[uid].node:
            self.truth[self.pods[uid].node].remove(uid)
        self.service.ledger.drop_pod(uid)
        del self.pods[uid]

    @rule(lacking=st.sets(names))
    def list_anew(self, lacking: set[str]) -> None:
        """All pods are listed. A pod that the list lacks was deleted unseen, or was bound very recently."""
        listed = {uid for uid, expected in self.pods.items() if expected.name not in lacking}
        for uid in list(self.pods.keys() - listed):
            if self.pods[uid].state != "assumed":
                if self.pods[uid].node:
                    self.truth[self.pods[uid].node].remove(uid)
                self.service.ledger.drop_pod(uid)
                del self.pods[uid]
        for uid in listed:
            expected = self.pods[uid]
            if expected.state == "bound":
                self.service.put(self.document(uid, node=expected.node), is_news=False)
        self.service.ledger.note_listed(listed)
        for uid, expected in self.pods.items():
            since = self.service.clock.now if expected.unlisted is None else expected.unlisted
            expected.unlisted = since if expected.state == "assumed" and uid not in listed else None

    # Kubelets, exporters, time

    @rule(name=names)
    def kubelet_admits(self, name: str) -> None:
        uid = self.uid(name)
        if uid is not None and self.pods[uid].state == "bound":
            self.truth[self.pods[uid].node].admit(decoded(self.document(uid)))

    @rule(node=nodes)
    def report(self, node: str) -> None:
        self.version += 1
        by_uid = {uid: expected.name for uid, expected in self.pods.items()}
        truth = self.truth[node].fork()
        for uid in truth.active.keys() - by_uid.keys():
            truth.remove(uid)
        topology = exact(truth, str(self.version), node, lambda uid: ("default", by_uid[uid]))
        self.service.report(topology)

    @rule(node=nodes)
    def lose_report(self, node: str) -> None:
        self.service.ledger.reports.drop(node)

    @rule(seconds=st.sampled_from((0.5, 10.0, 31.0, 130.0)))
    def time_passes(self, seconds: float) -> None:
        clock = self.service.clock
        clock.now += seconds
        self.service.ledger.tick()
        for uid, expected in list(self.pods.items()):
            if expected.state == "reserved" and expected.until <= clock.now:
                expected.leave()
            if expected.unlisted is not None and expected.unlisted <= clock.now - UNLISTED_S:
                self.truth[expected.node].remove(uid)
                del self.pods[uid]

    def is_reported(self, node: str) -> bool:
        return node in self.service.ledger.node_states.reported()

    # Invariants

    @invariant()
    def nodes_and_pods_agree(self) -> None:
        check_ledger(self.service.ledger)

    @invariant()
    def pods_are_where_the_model_has_them(self) -> None:
        booked = {
            uid: ("" if state.state is None else state.state.name.lower(), state.node, state.nominated)
            for uid, state in self.service.ledger.pods
        }
        expected = {
            uid: (pod.state, pod.node, pod.nominated) for uid, pod in self.pods.items() if pod.state or pod.nominated
        }
        assert booked == expected

    @precondition(lambda self: not any(pod.state or pod.nominated for pod in self.pods.values()))
    @invariant()
    def nothing_is_left_of_pods_that_are_gone(self) -> None:
        assert len(self.service.ledger.reservations) == 0
        for node in NODES:
            state = self.service.ledger.node_states.of(node)
            assert state is None or not state.history.count


def test_any_order_of_events() -> None:
    run_state_machine_as_test(LedgerMachine, settings=SETTINGS)


def _keeps_the_old_node(self: PodStates, uid: str, state: PodState) -> list[Any]:
    """A pod that leaves a node stays on it as well."""
    return [change for change in _MOVE(self, uid, state) if change.after is not None]


def _forgets_nominations(self: PodState) -> PodState:
    return PodState()


def _reservations_never_end(self: PodStates, now: float) -> list[str]:
    return []


def _lowers_nothing(self: NodeState, uid: str, state: BookingState) -> None:
    return


def _assumed_is_bound(self: PodState) -> bool:
    return self.state is State.BOUND


_MOVE = PodStates.move


@pytest.mark.parametrize(
    ("where", "name", "fault"),
    [
        (PodStates, "move", _keeps_the_old_node),
        (PodState, "left", _forgets_nominations),
        (PodStates, "expired", _reservations_never_end),
        (NodeState, "lower", _lowers_nothing),
        (PodState, "is_assigned", property(_assumed_is_bound)),
    ],
)
@pytest.mark.nightly
def test_planted_faults_are_found(
    where: type, name: str, fault: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, name, fault)
    # The first failing example suffices, however long it is.
    unshrunk = settings(SETTINGS, print_blob=False, max_examples=4000, derandomize=True, phases=[Phase.generate])
    with pytest.raises((AssertionError, KeyError)):
        run_state_machine_as_test(LedgerMachine, settings=unshrunk)
