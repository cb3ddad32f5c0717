"""A "no" is excused by a fact of the history, and by nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from refusal_words import refusals
from scheduling import kubelet, pod
from soak import judgement
from soak.heard import Known, KnownPod, Look, Refused, ReportHeard
from soak.judgement import Fate, Truth, judge
from topowise import pods
from topowise_scheduler.kubelet import Kubelet

NOW = 100.0


def decoded(name: str, cpu: str = "3", **fields: Any) -> pods.Pod:
    return pods.decode(msgspec.json.encode(pod(name, cpu, **fields)))


def on_its_way(item: pods.Pod, since: float = 99.0, **fields: Any) -> KnownPod:
    known = KnownPod(item, "bound", since, (since, NOW))
    return msgspec.structs.replace(known, **fields)


def known_of(
    base: Kubelet | None, *known_pods: KnownPod, doubts: Sequence[str] = (), refused: Sequence[Refused] = ()
) -> Known:
    """What is known of a node that was looked at ten seconds ago, with pods that were whole then."""
    look = None if base is None else Look(90.0, base, frozenset(base.active))
    return Known("n1", NOW, 3.0, look, ReportHeard("7", tuple(doubts), 91.0), known_pods, tuple(refused))


def truth_of(node: Kubelet, fate: Fate = "unheard", **fields: Any) -> Truth:
    truth = Truth(node, node, frozenset(node.active), lambda uid: fate)
    return msgspec.structs.replace(truth, **fields)


def with_pods(*there: pods.Pod) -> Kubelet:
    node = kubelet()
    for item in there:
        assert node.admit(item).admitted
    return node


def test_of_a_node_without_a_report_nothing_is_known_that_could_be_against_it() -> None:
    assert judge(decoded("a"), refusals.NOT_NOW, known_of(None), truth_of(kubelet())) == ""


def test_a_pod_that_has_ended_is_a_cause_only_if_it_would_be_in_the_way() -> None:
    base = with_pods(decoded("first"), decoded("second"))
    assert judge(decoded("a"), refusals.NOT_NOW, known_of(base), truth_of(kubelet())) == judgement.FATES["unheard"]
    # With the pods still there a smaller pod has room all the same.
    assert (
        judge(decoded("small", "1"), refusals.NOT_NOW, known_of(with_pods(decoded("first"))), truth_of(kubelet())) == ""
    )


def test_an_end_that_was_heard_is_no_cause() -> None:
    first, second = decoded("first"), decoded("second")
    heard = [on_its_way(item, 80.0, gone=(95.0, 98.0)) for item in (first, second)]
    known = known_of(with_pods(first, second), *heard)
    assert judge(decoded("a"), refusals.NOT_NOW, known, truth_of(kubelet())) == ""


def test_a_pod_that_runs_is_there_although_a_pod_that_ended_was_in_its_place_when_it_was_heard() -> None:
    """The service has heard of the running pod before it heard of the end that made room for that pod."""
    old, leaving = decoded("old"), decoded("leaving")
    running = on_its_way(decoded("running"), 95.0, runs=96.0)
    known = known_of(with_pods(old, leaving), on_its_way(leaving, 80.0, gone=(95.0, 98.0)), running)
    truth = truth_of(with_pods(running.pod), "old report")
    assert judge(decoded("a"), refusals.NOT_NOW, known, truth) == judgement.FATES["old report"]


def test_room_that_is_kept_for_a_pod_that_does_not_come_is_a_cause() -> None:
    promised = [on_its_way(decoded(name), certainty="promised") for name in ("first", "second")]
    known = known_of(kubelet(), *promised)
    assert judge(decoded("a"), refusals.NOT_NOW, known, truth_of(kubelet(), "unbound")) == judgement.FATES["unbound"]


def test_uncertain_is_excused_by_a_pod_whose_possible_placement_conflicts() -> None:
    """A pod of three CPUs is on node 1 beside the first; had the first ended before, it would be on node 0."""
    first, second = decoded("first"), decoded("second")
    known = known_of(with_pods(first), on_its_way(first, 80.0, gone=(97.0, 99.9)), on_its_way(second))
    truth = with_pods(second)
    large = decoded("wanted", "4")
    assert judge(large, refusals.UNCERTAIN, known, truth_of(truth)) != ""
    # If no report is missing, the text is false.
    reported = known_of(truth, on_its_way(second, 80.0))
    assert judge(large, refusals.UNCERTAIN, reported, truth_of(truth)) == ""


def test_uncertain_is_no_excuse_for_a_pod_that_fits_in_each_way() -> None:
    newest = on_its_way(decoded("newest", "1"))
    node = with_pods(newest.pod)
    assert judge(decoded("a", "1"), refusals.UNCERTAIN, known_of(kubelet(), newest), truth_of(node)) == ""


def test_uncertain_is_no_excuse_for_or_by_a_pod_without_allocations() -> None:
    bare = pods.decode(
        msgspec.json.encode({"metadata": {"name": "bare", "uid": "uid-bare"}, "spec": {"containers": [{"name": "c"}]}})
    )
    newest = on_its_way(decoded("newest", "4"))
    assert judge(bare, refusals.UNCERTAIN, known_of(kubelet(), newest), truth_of(kubelet())) == ""
    assert (
        judge(decoded("a", "4"), refusals.UNCERTAIN, known_of(kubelet(), on_its_way(bare)), truth_of(kubelet())) == ""
    )


def test_unconfirmed_is_excused_by_the_word_of_the_exporter_after_a_restart() -> None:
    item, node = decoded("a"), kubelet()
    doubted, truth = known_of(kubelet(), doubts=["cpu-manager"]), truth_of(node, restarts=(90.5,))
    assert judge(item, refusals.UNCONFIRMED, doubted, truth) == judgement.UNCONFIRMED
    assert judge(item, refusals.UNCONFIRMED, known_of(kubelet()), truth) == ""
    assert judge(item, refusals.UNCONFIRMED, doubted, truth_of(node)) == ""
    # The doubt is of devices that the pod does not ask for.
    assert judge(item, refusals.UNCONFIRMED, known_of(kubelet(), doubts=["device:x.io/gpu"]), truth) == ""


def test_quarantined_is_excused_by_a_refusal_of_such_a_pod_since_the_report() -> None:
    item, truth = decoded("a"), truth_of(kubelet())
    refused = Refused(95.0, "n1", decoded("before"), "7")
    assert judge(item, refusals.QUARANTINED, known_of(kubelet(), refused=[refused]), truth) == judgement.QUARANTINED
    unrelated = (
        msgspec.structs.replace(refused, version="6"),
        msgspec.structs.replace(refused, pod=decoded("before", "2")),
        msgspec.structs.replace(refused, at=NOW - judgement.QUARANTINE_S - 1),
    )
    for unrelated_refusal in unrelated:
        assert judge(item, refusals.QUARANTINED, known_of(kubelet(), refused=[unrelated_refusal]), truth) == ""


def test_too_slow_is_excused_by_the_cost_of_the_pod() -> None:
    item, known = decoded("a"), known_of(kubelet())
    assert judge(item, refusals.TOO_SLOW, known, truth_of(kubelet())) == ""
    assert judge(item, refusals.TOO_SLOW, known, truth_of(kubelet(), limit_s=1e-9)) == judgement.TOO_SLOW
    assert judge(item, refusals.TOO_SLOW, known, truth_of(kubelet(), limit_s=100.0)) == ""


def test_a_node_that_could_take_the_pod_is_never_too_small() -> None:
    base = with_pods(decoded("first"), decoded("second"))
    assert judge(decoded("a"), refusals.NEVER, known_of(base), truth_of(kubelet())) == ""
