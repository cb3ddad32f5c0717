"""Which gated pod is placed next, where, and what is written to it."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from placing import GATED, Placing
from scheduling import configuration, counts, decoded, machine, pod, topology_of
from steering_pods import requiring
from topowise.placement import GATE, GROUP, GROUP_SIZE, PLACED_ON
from topowise.steering import RESOURCE
from topowise_scheduler.controllers.placement.writing import patch
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.ledger.pods.pod_states import State

TRIED = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes are available"}]


def required(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}


def on(node: str) -> dict[str, Any]:
    return {"key": "metadata.name", "operator": "In", "values": [node]}


def test_pods_are_placed_by_priority_then_age_each_with_the_earlier_ones_booked() -> None:
    placing = Placing("8", "4")
    placing.put("late", "4", creationTimestamp="2026-01-01T00:00:02Z")
    placing.put("early", "4")
    placing.put("first", "4", priority=1, creationTimestamp="2026-01-01T00:00:03Z")
    placing.put("big", "8", creationTimestamp="2026-01-01T00:00:01Z")
    # TightFit: the tightest node first. The big pod fits nowhere after two others.
    assert list(placing.place_all().items()) == [("first", "n2"), ("early", "n1"), ("late", "n1")]
    assert placing.ledger.placements.gated_count == 1
    assert set(placing.ledger.waiting) == {"uid-big"}


def test_a_placed_pod_keeps_its_place_until_it_is_bound_or_gone() -> None:
    placing = Placing("4")
    placing.put("a", "4")
    placing.place_all()
    state = placing.ledger.pods.of("uid-a")
    assert (state.node, state.state) == ("n1", State.RESERVED)
    placing.clock.now += 500
    placing.ledger.tick()
    placing.service.question(pod("a", "4"), "n1")
    assert placing.ledger.pods.of("uid-a").node == "n1"
    placing.put("b", "4")
    assert placing.place_all() == {}
    placing.bind("a", "n1")
    assert not placing.ledger.placements.placed_count
    placing.delete("a")
    assert placing.place_all() == {"b": "n1"}


def test_what_is_booked_follows_from_the_events_alone() -> None:
    """Another replica, or this one after a restart, books as the leader that wrote."""
    placing, other = Placing("4", "8"), Placing("4", "8")
    for name, cpu in (("a", "4"), ("b", "3"), ("c", "5")):
        placing.put(name, cpu)
    placing.place_all()
    other.pods = placing.pods
    for name in random.Random(1).sample(sorted(placing.pods), 3):
        other.event(name)
    assert {uid: state.node for uid, state in other.ledger.pods} == {
        uid: state.node for uid, state in placing.ledger.pods
    }
    assert other.next() == []


def test_a_pod_that_no_kubelet_aligns_is_left_to_kube_scheduler_at_once() -> None:
    placing = Placing("4")
    placing.put("burstable", containers=[{"name": "a", "resources": {"requests": {"cpu": "1"}}}])
    (write,) = placing.next()
    assert (write.node, patch(write, "7")["spec"]) == ("", {"schedulingGates": None})
    assert placing.apply(write)
    assert placing.placed() == {"burstable": ""}
    assert not placing.ledger.placements.placed_count


@pytest.mark.parametrize("gates", [[GATE, "kueue.x-k8s.io/admission"], ["example.com/other", GATE]])
def test_a_pod_with_another_gate_is_nobodys_turn(gates: list[str]) -> None:
    placing = Placing("4")
    placing.put("a", schedulingGates=[{"name": name} for name in gates])
    assert placing.place_all() == {}
    assert not placing.ledger.waiting
    placing.put("a", **GATED)
    assert placing.place_all() == {"a": "n1"}


def test_the_patch_narrows_each_term_and_leaves_the_rest() -> None:
    placing = Placing("4")
    expressions = [{"key": "disk", "operator": "In", "values": ["nvme"]}]
    placing.node("n1", labels={"disk": "nvme"})
    terms = [{"matchExpressions": expressions}, {"matchFields": [on("n1")]}, {}]
    preferred = [{"weight": 1, "preference": {"matchExpressions": expressions}}]
    affinity = required(*terms)
    affinity["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] = preferred
    placing.put("a", affinity=affinity)
    (write,) = placing.next()
    body = json.loads(json.dumps(patch(write, "7")))
    assert body["metadata"] == {"uid": "uid-a", "resourceVersion": "7", "annotations": {PLACED_ON: "n1"}}
    assert body["spec"]["affinity"] == required(
        {"matchExpressions": expressions, "matchFields": [on("n1")]}, {"matchFields": [on("n1"), on("n1")]}, {}
    )


@pytest.mark.parametrize(
    ("labels", "form", "expected"),
    [
        ({}, "required", "required"),
        ({}, "nominated", "nominated"),
        ({"karpenter.sh/nodepool": "a"}, "required", "nominated"),
    ],
)
def test_a_node_of_an_autoscaler_is_only_nominated(labels: dict[str, str], form: Any, expected: str) -> None:
    placing = Placing("4", form=form)
    placing.node("n1", labels=labels)
    placing.put("a")
    assert [write.form for write in placing.next()] == [expected]


def test_preferred_node_affinity_comes_before_the_strategy() -> None:
    placing = Placing("8", "4")
    placing.node("n1", labels={"disk": "nvme"})
    preference = {"weight": 1, "preference": {"matchExpressions": [{"key": "disk", "operator": "Exists"}]}}
    wish = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [preference]}}
    placing.put("wishes", "4", affinity=wish)
    placing.put("a", "4")
    placing.put("again", "8", affinity=wish)
    placing.node("n2", {"taints": [{"key": "a", "effect": "PreferNoSchedule"}]})
    assert placing.place_all() == {"wishes": "n1", "a": "n1"}


def test_a_refused_write_leaves_nothing_booked_and_the_pod_in_its_turn() -> None:
    placing = Placing("4")
    placing.put("a", "4")
    (write,) = placing.next()
    placing.put("a", labels={"changed": "meanwhile"})
    assert not placing.apply(write)
    assert not dict(placing.ledger.pods)
    assert placing.place_all() == {"a": "n1"}


def test_a_pod_that_the_api_server_refuses_has_no_turn_for_a_while_or_until_it_changes() -> None:
    """Otherwise it would be first again at once, and every other pod would wait for it."""
    placing = Placing("4")
    placing.put("refused", "2", priority=1)
    for again in (False, True):
        (write,) = placing.next()
        assert write.record.name == "refused"
        placing.ledger.retract(write.record.uid, pause=30)
        placing.event("refused")
        assert not dict(placing.ledger.pods)
        assert placing.ledger.placements.gated_count == 1
        placing.clock.now += 29 if again else 30
        placing.ledger.tick()
    placing.put("other", "2")
    assert placing.place_all() == {"other": "n1"}
    placing.put("refused", labels={"changed": "now"})
    assert placing.place_all() == {"refused": "n1"}
    assert not placing.ledger.placements.gated_count


def test_the_nomination_before_the_gate_is_opened_is_no_other_write() -> None:
    placing = Placing("4", form="nominated")
    placing.put("a", "4")
    (write,) = placing.next()
    placing.put("a", nominatedNodeName="n1")
    assert placing.next() == []
    # The second write has failed.
    placing.ledger.retract(write.record.uid)
    (again,) = placing.next()
    assert (again.node, again.record.status.version) == ("n1", placing.pods["a"]["resourceVersion"])


def test_a_write_without_an_answer_ends_by_its_time_unless_an_event_shows_it() -> None:
    placing = Placing("4")
    placing.put("a", "4")
    assert placing.next()
    placing.event("a")
    assert placing.next() == []
    placing.clock.now += 16
    placing.ledger.tick()
    assert not dict(placing.ledger.pods)
    assert placing.place_all() == {"a": "n1"}


def test_a_pod_that_fits_nowhere_is_looked_at_again_when_a_node_may_have_more_room() -> None:
    placing = Placing("4")
    placing.put("a", "8")
    assert placing.next() == []
    calls: list[int] = []
    best, placing.decisions._best = placing.decisions._best, lambda record: calls.append(1) or iter(())  # type: ignore
    assert placing.next() == []
    assert not calls
    placing.decisions._best = best  # type: ignore[method-assign]
    placing.service.report(counts("n1", "8", included=(), version="2"))
    assert placing.place_all() == {"a": "n1"}


def test_few_pods_are_placed_ahead_of_a_kube_scheduler_that_binds_nothing() -> None:
    placing = Placing(*["8"] * 8, ahead=20)
    for number in range(50):
        placing.put(f"p{number}", "1")
    first = placing.place_all()
    assert len(first) == 20
    placing.clock.now += 61
    # The twenty keep their places; some more find out whether anybody binds.
    assert len(placing.place_all()) == 16
    for name, node in first.items():
        placing.bind(name, node)
    assert len(placing.place_all()) == 4


def test_a_pod_that_nobody_binds_keeps_its_room_for_ten_minutes() -> None:
    """As with an annotation that somebody else wrote to a pod of a scheduler that does not exist."""
    placing = Placing("4")
    placing.put("forged", "4", schedulingGates=None, schedulerName="none", annotations={PLACED_ON: "n1"})
    placing.put("a", "4")
    assert placing.place_all() == {}
    placing.clock.now += 601
    placing.ledger.tick()
    placing.event("forged")
    assert placing.place_all() == {"a": "n1"}


def test_a_placed_pod_that_kube_scheduler_cannot_bind_is_lost() -> None:
    placing = Placing("4")
    placing.put("a", "4")
    placing.place_all()
    assert not list(placing.decisions.lost())
    placing.put("a", conditions=TRIED)
    assert [placement.record.name for placement in placing.decisions.lost()] == ["a"]
    placing.put("a", nominatedNodeName="n1")
    assert not list(placing.decisions.lost())


def group(size: int, name: str = "g") -> dict[str, Any]:
    return {"labels": {GROUP: name}, "annotations": {GROUP_SIZE: str(size)}}


def test_a_group_is_placed_as_a_whole_and_not_before_it_is_complete() -> None:
    placing = Placing("4", "4")
    placing.put("a", "3", **group(2))
    assert placing.place_all() == {}
    placing.put("b", "4", **group(2))
    assert placing.place_all() == {"a": "n1", "b": "n2"}
    (decision,) = placing.decisions_of("a", "b")
    assert decision


def test_a_group_that_does_not_fit_takes_no_room_from_others() -> None:
    placing = Placing("4", "4")
    for name in "abc":
        placing.put(name, "3", **group(3))
    placing.put("single", "4", creationTimestamp="2026-01-01T00:00:09Z")
    assert placing.place_all() == {"single": "n1"}
    assert not [uid for uid, state in placing.ledger.pods if uid != "uid-single"]


def test_a_half_placed_group_is_finished_pod_by_pod() -> None:
    """As by a new leader: of a group of three one pod is placed, and one is bound."""
    placing = Placing("4", "4")
    for name in "abc":
        placing.put(name, "2", **group(3))
    writes = placing.next()
    assert len(writes) == 3
    other = Placing("4", "4")
    other.pods = placing.pods
    placing.apply(writes[0])
    placing.apply(writes[1])
    placing.bind(writes[1].record.name, writes[1].node)
    for name in "cab":
        other.event(name)
    assert set(other.place_all()) == {writes[2].record.name}


def test_a_group_that_waits_for_long_keeps_later_pods_waiting_for_a_while() -> None:
    placing = Placing("4", "4")
    placing.put("small", "4")
    placing.place_all()
    placing.bind("small", "n1")
    for name in "ab":
        placing.put(name, "3", creationTimestamp="2026-01-01T00:00:01Z", **group(2))
    assert placing.place_all() == {}
    placing.clock.now += 301
    placing.put("later", "2", creationTimestamp="2026-01-01T00:00:02Z")
    placing.put("important", "1", priority=1, creationTimestamp="2026-01-01T00:00:03Z")
    assert placing.place_all() == {"important": "n2"}
    placing.bind("important", "n2")
    assert placing.place_all() == {}
    # Time alone ends it.
    placing.clock.now += 601
    assert placing.place_all() == {"later": "n2"}


def test_a_group_that_never_fits_keeps_later_pods_waiting_once() -> None:
    placing = Placing("4")
    for name in "ab":
        placing.put(name, "4", **group(2))
    assert placing.place_all() == {}
    placing.clock.now += 901
    for round_ in range(3):
        placing.put(f"later-{round_}", "1", creationTimestamp="2026-01-01T00:00:02Z")
        assert placing.place_all() == {f"later-{round_}": "n1"}
        placing.clock.now += 301


def test_a_group_that_is_incomplete_again_keeps_nobody_waiting() -> None:
    placing = Placing("4")
    for name in "ab":
        placing.put(name, "4", **group(2))
    assert placing.place_all() == {}
    placing.clock.now += 301
    placing.put("later", "1", creationTimestamp="2026-01-01T00:00:02Z")
    assert placing.place_all() == {}
    placing.delete("b")
    assert placing.place_all() == {"later": "n1"}


def test_pods_of_a_group_that_have_ended_count_for_the_rest_of_it() -> None:
    """A leader ends in the middle of a group, and what it has placed is done before the next leader comes."""
    placing = Placing("4")
    for name in "abc":
        placing.put(name, "1", **group(3))
    placing.apply(placing.next()[0])
    placing.bind("a", "n1")
    placing.put("a", phase="Succeeded")
    other = Placing("4")
    other.pods = placing.pods
    for name in "abc":
        other.event(name)
    assert set(other.place_all()) == {"b", "c"}
    other.delete("a")
    assert not other.ledger.placements.ended("default/g")


def test_a_pod_that_must_not_come_first_waits_for_the_pod_on_its_way() -> None:
    """Three CPUs are free on NUMA node 0 and two on NUMA node 1. If the pod of two CPUs overtakes, as two writes or two
    binds may, it takes CPUs of NUMA node 0, and the kubelet refuses the pod of three."""
    placing, kubelet = Placing(), Kubelet(machine(), configuration())
    ended, runs = pod("ended", "3", node="n1"), pod("runs", "2", node="n1")
    assert kubelet.admit(decoded(ended)).admitted
    assert kubelet.admit(decoded(runs)).admitted
    kubelet.remove("uid-ended")
    placing.service.put(runs)
    placing.service.report(topology_of(machine(), configuration(), kubelet, "1"))
    placing.node("n1")
    placing.put("first", "3")
    placing.put("second", "2")
    (write,) = placing.next()
    assert placing.apply(write)
    assert (write.record.name, write.node) == ("first", "n1")
    assert not placing.next()
    placing.bind("first", "n1")
    assert kubelet.admit(decoded(pod("first", "3"))).admitted
    placing.service.report(topology_of(machine(), configuration(), kubelet, "2"))
    assert placing.place_all() == {"second": "n1"}


@pytest.mark.parametrize("seed", range(6))
def test_a_burst_gets_the_nodes_that_one_answer_after_the_other_would_give(seed: int) -> None:
    """Boards, state numbers and memories of what fits nowhere change no answer: with all of them thrown away before
    each decision the nodes are the same."""
    random_ = random.Random(seed)
    free = [str(random_.choice((4, 6, 8))) for _ in range(6)]
    burst = [(f"p{number}", str(random_.choice((1, 2, 3, 4)))) for number in range(16)]

    def nodes(*, anew: bool) -> dict[str, str]:
        placing, chosen = Placing(*free), {}
        for name, cpu in burst:
            placing.put(name, cpu)
        while writes := placing.next():
            for write in writes:
                placing.apply(write)
                chosen[write.record.name] = write.node
            if anew:
                placing.decisions._boards.clear()
                placing.decisions._in_vain.clear()
            if random_.random() < 0.3:
                name = random_.choice(sorted(chosen))
                if placing.pods[name].get("node") is None:
                    placing.bind(name, chosen[name])
        return chosen

    state = random_.getstate()
    first = nodes(anew=False)
    random_.setstate(state)
    assert nodes(anew=True) == first


def test_a_steered_pod_is_expected_on_its_numa_node_after_the_bind_too() -> None:
    placing = Placing()
    placing.service.report(topology_of(machine(), configuration(), Kubelet(machine(), configuration()), "1"))
    placing.node("n1", allocatable={"cpu": "8", "memory": "64Gi", "pods": "110", RESOURCE: "512"})

    def expected() -> int | None:
        state = placing.ledger.node_states.of("n1")
        entry = None if state is None else state.history.entry("uid-a")
        assert entry is not None
        return entry.record.steered

    document = requiring("a", 1, "1")
    placing.put("a", containers=document["spec"]["containers"], annotations=document["metadata"]["annotations"])
    (write,) = placing.next()
    assert placing.apply(write)
    assert expected() == 1
    placing.bind("a", "n1")
    assert expected() == 1
