"""Checks that all that the ledger keeps of a pod or of a node agrees; it costs time."""

from __future__ import annotations

from topowise_scheduler.ledger.bookings import Bookings
from topowise_scheduler.ledger.ledger import Ledger
from topowise_scheduler.ledger.node.event_orders import distinct
from topowise_scheduler.ledger.node.node_state import NodeState
from topowise_scheduler.ledger.pods.pod_states import NOWHERE, BookingState, PodStates, State


def check_ledger(ledger: Ledger) -> None:
    """Raises AssertionError if what the ledger keeps of pods and of nodes contradicts itself."""
    for uid, pod in ledger.pods:
        assert not (pod.state is State.BOUND and uid in ledger.waiting), f"{uid} waits and is bound"
    _check_bookings(ledger._bookings)
    for name, state in ledger.node_states.items():
        _check_node(name, state, ledger.clock())
        assert (state.kubelet is not None) == (ledger.engine.row(name) >= 0), f"{name} in the engine"


def _check_bookings(bookings: Bookings) -> None:
    _check_indexes(bookings.pods)
    expected: dict[str, dict[str, BookingState]] = {}
    for uid, pod in bookings.pods:
        for name, booking_state in pod.booking_states().items():
            expected.setdefault(name, {})[uid] = booking_state
    booked = {
        name: {entry.uid: entry.state for entry in state.history.entries()}
        for name, state in bookings.node_states.items()
        if state.history.count
    }
    assert booked == expected, f"the nodes have {booked}, the pods say {expected}"


def _check_indexes(pods: PodStates) -> None:
    for uid, pod in pods:
        assert pod != NOWHERE, f"{uid} is kept and nowhere"
        assert bool(pod.node) == (pod.state is not None), f"{uid}: {pod}"
    by = {state: {uid for uid, pod in pods if pod.state is state} for state in State}
    assert pods._reserved.keys() == by[State.RESERVED]
    assert pods._assumed == by[State.ASSUMED]
    assert pods._unlisted.keys() <= pods._assumed
    assert pods.nominated == {uid: pod.nominated for uid, pod in pods if pod.nominated}


def _check_node(name: str, state: NodeState, now: float) -> None:
    """A cached state is what a new node with the same history has."""
    assert (state.report is None) == (state.kubelet is None), name
    anew = NodeState()
    anew._become(state.history)
    possible, expected = state.possible(now), anew.possible(now)
    if possible is None or expected is None:
        return
    assert expected.node.active.keys() == possible.node.active.keys(), name
    for uid in expected.node.active:
        assert expected.node.placements(uid) == possible.node.placements(uid), (name, uid)
    assert possible.doubted == expected.doubted, name
    assert possible.highest == expected.highest, name
    assert not distinct(possible.alternatives, (), expected.alternatives), name
    assert not distinct(expected.alternatives, (), possible.alternatives), name
