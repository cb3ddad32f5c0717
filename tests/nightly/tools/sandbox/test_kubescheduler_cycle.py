"""In-tree decisions of the sandbox's kube-scheduler: fit, scores, messages, victims."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest

from sandbox.kubescheduler import fit
from sandbox.kubescheduler.cache import Cache, PodInfo, Refused, decode, fit_error
from sandbox.kubescheduler.fit import Cycle, Preemption
from topowise_scheduler.ledger.nodes import Nodes
from topowise_scheduler.verdicts.kube_scheduler import Node


def node(name: str, cpu: str = "8", labels: dict[str, str] | None = None, **spec: Any) -> Node:
    status = {"allocatable": {"cpu": cpu, "memory": "32Gi", "pods": "110"}}
    return Nodes().decode(
        msgspec.json.encode({"metadata": {"name": name, "labels": labels or {}}, "spec": spec, "status": status})
    )


def pod(name: str, cpu: str = "1", on: str = "", priority: int = 0, **spec: Any) -> PodInfo:
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


TAINT = {"key": "maintenance", "value": "disk", "effect": "NoSchedule"}
SELECTED = "node(s) didn't match Pod's node affinity/selector"


def requires(*values: str, key: str = "pool") -> dict[str, Any]:
    """Node affinity that requires one of these values of a label."""
    terms = [{"matchExpressions": [{"key": key, "operator": "In", "values": list(values)}]}]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


@pytest.mark.parametrize(
    ("node_spec", "pod_spec", "reason"),
    [
        ({"unschedulable": True}, {}, "node(s) were unschedulable"),
        ({"unschedulable": True}, {"tolerations": [{"operator": "Exists"}]}, None),
        ({"taints": [TAINT]}, {}, "node(s) had untolerated taint(s)"),
        ({"taints": [TAINT]}, {"tolerations": [{"key": "maintenance", "operator": "Exists"}]}, None),
        ({"taints": [{**TAINT, "effect": "PreferNoSchedule"}]}, {}, None),
        ({"labels": {"pool": "a"}}, {"nodeSelector": {"pool": "b"}}, SELECTED),
        ({"labels": {"pool": "a"}}, {"nodeSelector": {"pool": "a"}}, None),
        ({"labels": {"pool": "a"}}, {"affinity": requires("b", "c")}, SELECTED),
        ({"labels": {"pool": "a"}}, {"affinity": requires("a", "c")}, None),
    ],
)
async def test_kube_schedulers_own_filters_exclude_a_node(
    node_spec: dict[str, Any], pod_spec: dict[str, Any], reason: str | None
) -> None:
    cache = cache_of(node("n", **node_spec), pods=(pod("lower", "1", "n", priority=-1),))
    info = pod("p", **pod_spec)
    decision = await Cycle(cache, nobody, None, Random(1)).decide(info)
    assert decision.refused == ({} if reason is None else {"n": Refused((reason,), fit.EXCLUDING, ever=True)})
    assert decision.chosen == ("n" if reason is None else None)
    if reason is not None:
        outcome = await Preemption(cache, nobody, None, Random(1)).choose(info, decision.refused)
        message = "preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."
        assert outcome.message == message
