"""Volcano's predicate and prioritize: codes that lead to the right victims, its policy table, its formula."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from crowds import many_containers
from ledger_check import check_ledger
from scheduling import Service, counts, exact, kubelet, pod
from steering_pods import marked, requiring
from topowise_scheduler.ledger.pods.records import MAX_CONTAINERS, Records
from topowise_scheduler.serve.extender.replies import BadRequestError
from topowise_scheduler.serve.volcano import verbs, wire
from topowise_scheduler.verdicts import refusals
from volcano import ALLOCATED, Volcano, node_info, serving, task

POLICIES = ("none", "best-effort", "restricted", "single-numa-node")


def policy(name: str) -> dict[str, Any]:
    return {"annotations": {"volcano.sh/numa-topology-policy": name}} if name else {}


def test_a_pod_that_has_to_be_steered_gets_no_node() -> None:
    """Volcano binds by itself, without a label, so the kubelet would choose."""
    service = Service()
    service.report(exact(kubelet()))
    volcano = Volcano(service)
    assert not volcano.fits(requiring("a", 1), "n1")
    assert volcano.fits(marked("b"), "n1")


# The table in docs/design/numa-aware.md of Volcano, read at ed72c7c: none has no action, every other policy takes the
# nodes with that policy, and restricted and single-numa-node those among them whose CPU topology meets the request. The
# pod asks for five CPUs; a split node has four free on each NUMA node.
@pytest.mark.parametrize(
    ("wanted", "roomy", "split"),
    [
        ("", POLICIES, ("none", "best-effort")),
        ("none", POLICIES, ("none", "best-effort")),
        ("best-effort", ("best-effort",), ("best-effort",)),
        ("restricted", ("restricted",), ()),
        ("single-numa-node", ("single-numa-node",), ()),
    ],
)
def test_topology_policy_chooses_nodes_as_in_volcanos_table(
    wanted: str, roomy: tuple[str, ...], split: tuple[str, ...]
) -> None:
    service = Service()
    for one in POLICIES:
        service.report(counts(f"roomy-{one}", ("8", "8"), policy=one, included=()))
        service.report(counts(f"split-{one}", ("4", "4"), policy=one, included=()))
    volcano = Volcano(service)
    asked = pod("p", "5", **policy(wanted))
    assert tuple(one for one in POLICIES if volcano.fits(asked, f"roomy-{one}")) == roomy
    assert tuple(one for one in POLICIES if volcano.fits(asked, f"split-{one}")) == split


def test_a_pod_of_more_containers_than_are_judged_is_refused_for_good() -> None:
    """Code 3 is UnschedulableAndUnresolvable: no victim makes the pod smaller."""
    service = Service()
    service.report(counts("n1", ("8", "8"), included=()))
    volcano = Volcano(service)
    large = many_containers(MAX_CONTAINERS + 1)
    assert volcano.predicate(large, "n1") == (3, refusals.TOO_LARGE)
    assert "pod cannot be placed" in volcano.allocate(large, "n1")
    check_ledger(service.ledger)


def test_a_node_that_nobody_has_reported_fits_unless_a_policy_is_asked_for() -> None:
    volcano = Volcano(Service())
    assert volcano.fits(pod("p"), "unknown-node")
    assert volcano.predicate(pod("q", **policy("restricted")), "unknown-node") == (3, refusals.OTHER_POLICY)


def test_before_the_first_sync_nobody_is_placed_and_nobody_evicted() -> None:
    verbs = serving(Service(), not_ready=lambda: "not yet listed: pods")
    body = json.dumps({"task": task(pod("p")), "node": node_info("n")}).encode()
    assert verbs["predicate"].now is not None
    with pytest.raises(BadRequestError, match="not yet listed: pods") as caught:
        verbs["predicate"].now(body)
    assert json.loads(verbs["predicate"].refuse(str(caught.value)).body) == {
        "status": "not ready: not yet listed: pods",
        "code": 1,
    }


def test_a_pod_that_was_taken_off_a_node_still_names_it_and_is_asked_about_like_any_other() -> None:
    service = Service()
    for name in ("n1", "n2"):
        service.report(counts(name, "8", included=()))
    volcano = Volcano(service)
    left = task(pod("p", "8"), node="n1", status=ALLOCATED)
    left.update(NodeName="", Status=1)
    assert left["Pod"]["spec"]["nodeName"] == "n1"
    assert volcano.ask("predicate", {"task": left, "node": node_info("n2")}) == {"status": "", "code": 0}


def test_a_pod_that_has_changed_is_read_anew() -> None:
    service = Service()
    service.report(counts("n", "8", included=()))
    volcano = Volcano(service)
    assert volcano.fits(pod("p", "8"), "n")
    assert not volcano.fits(pod("p", "9"), "n")


def test_nothing_of_a_node_but_its_name_is_read() -> None:
    service = Service()
    service.report(counts("n", "8", included=()))
    odd = {"Tasks": {"x": 1}, "Node": "not a node", "NumaInfo": [], "Name": "n"}
    assert Volcano(service).ask("predicate", {"task": task(pod("p")), "node": odd}) == {"status": "", "code": 0}


def test_verdicts_are_counted_by_their_words() -> None:
    service = Service()
    service.report(counts("full", ("0", "0"), included=()))
    volcano = Volcano(service)
    for _ in range(3):
        volcano.predicate(pod("p", "4"), "full")
    assert service.answers.verdict_counts[refusals.NOT_NOW] == 3


def test_scores_are_volcanos_formula_times_the_weight() -> None:
    """The example of Volcano's numa-aware plug-in: 1, 2 and 4 NUMA nodes of at most 4."""
    service = Service()
    for zones in (1, 2, 4):
        free = tuple(str(8 // zones) if at < zones else "0" for at in range(4))
        service.report(counts(f"n{zones}", free, policy="best-effort", allocatable=str(8 // zones), included=()))
    scores = Volcano(service).scores(pod("p", "8"), "n1", "n2", "n4", "unknown-node")
    assert tuple(scores[name] for name in ("n1", "n2", "n4")) == (750.0, 500.0, 0.0)
    assert scores["unknown-node"] == 0.0


def test_a_node_on_which_the_pod_does_not_fit_scores_nothing() -> None:
    service = Service()
    service.report(counts("full", ("0", "0"), included=()))
    assert Volcano(service).scores(pod("p", "4"), "full") == {"full": 0.0}


def test_another_strategy_scores_from_0_to_1000() -> None:
    service = Service()
    for name, free in (("empty", "8"), ("half", "4")):
        service.report(counts(name, free, included=()))
    scores = Volcano(service, strategy="LeastAllocated").scores(pod("p", "2"), "empty", "half")
    assert 1000 >= scores["empty"] > scores["half"] >= 0


def test_pods_that_volcano_asks_about_are_kept_within_a_bound_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pod comes with its whole object, and predicate comes once for each node."""
    monkeypatch.setattr(verbs, "_MAX_POD_BYTES", 1 << 20)
    kept = verbs._Pods(Records())

    def ask(number: int) -> Any:
        document = pod("p", "1", uid=f"uid-{number}", annotations={"x": "y" * 100_000})
        return kept.of(wire.Task(msgspec.Raw(json.dumps(document).encode()), f"uid-{number}"))

    first = ask(0)
    assert ask(0) is first
    for number in range(1, 30):
        ask(number)
    assert ask(29) is ask(29)
    assert ask(0) is not first
