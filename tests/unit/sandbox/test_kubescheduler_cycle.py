"""In-tree decisions of the sandbox's kube-scheduler: fit, scores, messages, victims."""

from __future__ import annotations

from random import Random

import msgspec

from sandbox.kubescheduler import fit
from sandbox.kubescheduler.attempt import Refused, fit_error
from sandbox.kubescheduler.cache import Cache, Node
from sandbox.kubescheduler.cycle import Cycle
from sandbox.kubescheduler.pod import PodInfo, decode
from sandbox.kubescheduler.preemption import Preemption


def node(name: str, cpu: str = "8", **more: str) -> Node:
    allocatable = {"cpu": cpu, "memory": "32Gi", "pods": "110", **more}
    return msgspec.convert({"metadata": {"name": name}, "status": {"allocatable": allocatable}}, Node)


def pod(name: str, cpu: str = "1", on: str = "", priority: int = 0, **spec: str) -> PodInfo:
    container = {"name": "c", "resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}}
    return decode(
        msgspec.json.encode(
            {
                "metadata": {"name": name, "namespace": "d", "uid": name},
                "spec": {"priority": priority, "nodeName": on, "containers": [container], **spec},
            }
        )
    )


def cache_of(*nodes: Node, pods: tuple[PodInfo, ...] = ()) -> Cache:
    cache = Cache()
    for node in nodes:
        cache.put_node(node)
    for info in pods:
        cache.put_pod(info)
    return cache


def nobody(name: str, info: PodInfo) -> list[PodInfo]:
    return []


def test_reasons_are_counted_and_sorted_as_text() -> None:
    reasons = ["NUMA: no room"] * 3 + ["Insufficient cpu"] * 17
    assert fit_error(20, reasons) == "0/20 nodes are available: 17 Insufficient cpu, 3 NUMA: no room."
    assert fit_error(2, [], "preemption: none.") == "0/2 nodes are available: preemption: none."


def test_an_assumed_pod_counts_until_it_is_forgotten() -> None:
    cache = cache_of(node("n"))
    cache.assume(pod("a", "6"), "n")
    (info,) = cache.nodes()
    assert fit.check(pod("b", "4"), info) == Refused(("Insufficient cpu",), fit.PLUGIN)
    cache.drop_pod("a")
    assert fit.check(pod("b", "4"), info) is None
    assert info.scored == {"cpu": 0, "memory": 0}


def test_more_than_the_node_has_is_unresolvable() -> None:
    (info,) = cache_of(node("n")).nodes()
    assert fit.check(pod("b", "9"), info) == Refused(("Insufficient cpu",), fit.PLUGIN, ever=True)


def test_the_emptier_node_scores_more() -> None:
    cache = cache_of(node("empty"), node("full"), pods=(pod("a", "4", "full"),))
    scores = {info.name: fit.least_allocated(pod("b"), info) for info in cache.nodes()}
    assert scores == {"empty": (87 + 96) // 2, "full": (37 + 93) // 2}


async def test_without_an_extender_the_emptier_node_is_chosen() -> None:
    cache = cache_of(node("empty"), node("full"), pods=(pod("a", "4", "full"),))
    decision = await Cycle(cache, nobody, None, Random(1)).decide(pod("b"))
    assert decision.chosen == "empty"


async def test_the_least_important_are_evicted_and_as_few_as_will_do() -> None:
    lower = (pod("a", "4", "n", 1), pod("b", "4", "n", 2))
    cache = cache_of(node("n"), pods=lower)
    refused = {"n": Refused(("Insufficient cpu",), fit.PLUGIN)}
    outcome = await Preemption(cache, nobody, None, Random(1)).choose(pod("vip", "4", priority=9), refused)
    assert (outcome.node, [victim.uid for victim in outcome.victims]) == ("n", ["a"])


async def test_a_node_that_only_the_extender_refused_has_no_victims() -> None:
    cache = cache_of(node("n"), pods=(pod("a", "1", "n", 1),))
    refused = {"n": Refused(("NUMA",), "Extender")}
    outcome = await Preemption(cache, nobody, None, Random(1)).choose(pod("vip", "1", priority=9), refused)
    assert outcome.node is None
    assert outcome.message == 'preemption: expected at least one victim pod on node "n"'


async def test_equals_are_not_evicted() -> None:
    cache = cache_of(node("n"), node("m"), pods=(pod("a", "8", "n"),))
    refused = {
        "n": Refused(("Insufficient cpu",), fit.PLUGIN),
        "m": Refused(("NUMA: too small",), "Extender", ever=True),
    }
    outcome = await Preemption(cache, nobody, None, Random(1)).choose(pod("b", "4"), refused)
    assert outcome.message == (
        "preemption: 0/2 nodes are available: 1 No preemption victims found for incoming pod, "
        "1 Preemption is not helpful for scheduling."
    )
