"""Devices of pods that leave: which allocations are free again, and which pods make way for a pod with claims.

The node has 3 free CPUs on NUMA node 0 and 4 on NUMA node 1; the kubelet alone takes the lowest that fits.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from claim_objects import FilledService, claim, claiming, device_slice, new_claims, sized_claim, sized_slice
from scheduling import Service, decoded, exact, kubelet, pod
from topowise.steering import RESOURCE
from topowise_scheduler.controllers.alignment import AlignmentPreemption, Victims
from topowise_scheduler.ledger.budgets import Budgets
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.options.claims.gate import ClaimOption
from topowise_scheduler.options.claims.ledger import Claims
from topowise_scheduler.verdicts import kube_scheduler
from topowise_scheduler.verdicts.engine import Outcome
from topowise_scheduler.verdicts.kube_scheduler import Node
from topowise_scheduler.verdicts.refusals import Refusal
from volcano import Volcano

NODE = Node("n1")
VICTIM, OTHER = "uid-victim", "uid-other"
WAITS = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]


class Pod:
    """A pod with the claim `new`."""

    uid = "uid-p"
    namespace = "default"
    claims: tuple[str, ...] = ("new",)
    needs = None


def full_node(**fields: Any) -> Claims:
    """Returns a node whose only device a claim has."""
    claims = new_claims()
    claims.put_slice(sized_slice(device_slice("n1", (0,))))
    claims.put_claim(sized_claim(claim("new")))
    claims.put_claim(sized_claim(claim("old", 1, ["gpu-0"], **fields)))
    return claims


@pytest.mark.parametrize(
    ("fields", "leaving", "is_free"),
    [
        ({"reserved": [VICTIM]}, [VICTIM], True),
        ({"reserved": [VICTIM], "owner": VICTIM}, [VICTIM], True),
        ({"reserved": [VICTIM, OTHER]}, [VICTIM], False),
        ({"reserved": [VICTIM, OTHER]}, [VICTIM, OTHER], True),
        # Not reserved: the claim goes with the pod that owns it, and a named claim stays allocated.
        ({"owner": VICTIM}, [VICTIM], True),
        ({}, [VICTIM], False),
        ({"reserved": [OTHER], "owner": VICTIM}, [VICTIM], False),
        ({"reserved": [VICTIM]}, [OTHER], False),
        ({"reserved": [VICTIM]}, [], False),
    ],
)
def test_a_device_is_free_once_all_pods_of_its_claim_have_left(
    fields: dict[str, Any], leaving: list[str], is_free: bool
) -> None:
    claims = full_node(**fields)
    found = claims.devices(Pod(), NODE, "n1", leaving)
    assert [device.id.device for device in found.devices] == (["gpu-0"] if is_free else [])
    assert found.is_short is not is_free
    # The prediction has left no trace.
    assert claims.devices(Pod(), NODE, "n1").is_short
    claims.drop_claim("default/old")
    assert not claims.devices(Pod(), NODE, "n1", leaving).problem


def test_an_assumed_allocation_leaves_with_its_pod() -> None:
    claims = full_node()
    claims.put_claim(sized_claim(claim("old", version=2)))

    class Earlier(Pod):
        uid = VICTIM
        claims = ("old",)

    claims.assume(VICTIM, "n1", claims.devices(Earlier(), NODE, "n1").allocations)
    assert claims.devices(Pod(), NODE, "n1").is_short
    assert not claims.devices(Pod(), NODE, "n1", [VICTIM]).problem
    assert claims.devices(Pod(), NODE, "n1").is_short


def test_whether_a_shared_claim_is_allocated_anew_is_not_known() -> None:
    """The claim of the pod itself loses its allocation with the pods that leave, unless the pod reserves it first."""
    claims = full_node(reserved=[VICTIM])

    class Sharing(Pod):
        claims = ("old",)

    assert claims.devices(Sharing(), NODE, "n1").is_allocated
    found = claims.devices(Sharing(), NODE, "n1", [VICTIM])
    assert "may be allocated anew" in found.problem
    assert not found.is_short


def test_the_replacement_of_a_pod_gets_new_devices() -> None:
    claims = full_node(reserved=["uid-p"], owner="uid-p")
    claims.put_slice(sized_slice(device_slice("n2", (1,))))

    class Moved(Pod):
        claims = ("old",)

    found = claims.devices(Moved(), Node("n2"), "n2", ["uid-p"])
    assert [device.id.pool for device in found.devices] == ["n2"]
    taken = tuple(found.allocations.items())
    assert claims.devices(Moved(), Node("n2"), "n2", ["uid-p"], taken).is_short
    assert not claims.devices(Moved(), Node("n2"), "n2", ["uid-p"]).problem


def test_devices_of_another_node_are_a_shortage() -> None:
    claims = full_node()
    document = claim("old", 1, ["gpu-0"], version=2)
    fields = [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]
    document["status"]["allocation"]["nodeSelector"] = {"nodeSelectorTerms": [{"matchFields": fields}]}
    claims.put_claim(sized_claim(document))

    class Allocated(Pod):
        claims = ("old",)

    assert claims.devices(Allocated(), NODE, "n1").is_allocated
    assert claims.devices(Allocated(), Node("n2"), "n2").is_short


def test_a_new_reservation_changes_the_node() -> None:
    claims = full_node(reserved=[VICTIM])
    seen: list[str] = []
    claims.changed = lambda node, is_better: seen.append(node)
    claims.put_claim(sized_claim(claim("old", 1, ["gpu-0"], version=2, reserved=[VICTIM])))
    assert not seen
    claims.put_claim(sized_claim(claim("old", 1, ["gpu-0"], version=3, reserved=[VICTIM, OTHER])))
    assert seen == ["n1"]


# Gates


service = FilledService


def record_of(cluster: FilledService, document: dict[str, Any]) -> PodRecord:
    return cluster.records.record(decoded(document))


def test_a_judgement_is_of_the_pods_that_leave() -> None:
    """gpu-0 on NUMA node 0 is the first free device once the first pod has left, gpu-1 on NUMA node 1 before."""
    cluster = service(0, 1)
    first, gate = cluster.run("first", "1", "gpu-0"), cluster.ledger.gates.option(ClaimOption)
    second = cluster.run("second", "1")
    record = record_of(cluster, claiming("p", "2", "new", alignment="require"))
    for _ in range(2):
        assert gate.judge(record, "n1").near == {1}
        assert gate.judge(record, "n1", [second]).near == {1}
        assert gate.judge(record, "n1", [first]).near == {0}
        assert gate.judge(record, "n1", [first, second]).near == {0}


def test_a_judgement_ends_with_another_reservation_of_a_claim() -> None:
    cluster = service(0, 1)
    first, gate = cluster.run("first", "1", "gpu-0"), cluster.ledger.gates.option(ClaimOption)
    record = record_of(cluster, claiming("p", "2", "new", alignment="require"))
    assert gate.judge(record, "n1", [first]).near == {0}
    cluster.put_claim("of-first", 1, ["gpu-0"], version=2, reserved=[first, OTHER], owner=first)
    assert gate.judge(record, "n1", [first]).near == {1}


def test_a_refusal_by_the_devices_is_resolved_by_evictions() -> None:
    cluster = service(1)
    verdicts = cluster.answers.verdicts(cluster.question(claiming("p", "2", "new", alignment="require"), "n1"))
    assert (verdicts.outcomes[0], verdicts.refusal(0)) == (Outcome.UNSCHEDULABLE, Refusal.CLAIMS_APART)


# Victims


def preempt(cluster: FilledService, document: dict[str, Any], proposed: Mapping[str, list[str]]) -> dict[str, set[str]]:
    """Returns the victims by node that the service answers to kube-scheduler's proposal."""
    nodes = {node: {"Pods": [{"UID": uid} for uid in uids]} for node, uids in proposed.items()}
    body = json.dumps({"Pod": document, "NodeNameToMetaVictims": nodes}).encode()
    answer = msgspec.json.decode(asyncio.run(cluster.verbs().preempt(body)).body)["NodeNameToMetaVictims"]
    return {node: {victim["UID"] for victim in victims["Pods"]} for node, victims in answer.items()}


def evict(cluster: FilledService, document: dict[str, Any]) -> tuple[str, ...] | None:
    """Returns the victims that the preemptor of the service chooses, by name."""
    alignment = AlignmentPreemption(cluster.trial, Budgets())
    asked = kube_scheduler.decode(msgspec.json.encode(document))
    found: Victims | None = asyncio.run(alignment.choose(asked, 10, ()))
    return None if found is None else tuple(sorted(victim.name for victim in found.pods))


def wanting(cpu: str = "2", *names: str, **fields: Any) -> dict[str, Any]:
    """Returns a waiting pod of priority 5 with claims, `new` by default."""
    return claiming("p", cpu, *(names or ("new",)), priority=5, conditions=WAITS, **fields)


def test_a_proposal_is_completed_until_the_devices_are_near() -> None:
    """All CPUs are taken. kube-scheduler proposes the pod on NUMA node 0, whose device is on NUMA node 1."""
    cluster = service(1)
    victims = {cluster.run(name, cpu): name for name, cpu in (("on-0", "3"), ("on-1", "4"))}
    on_0, on_1 = victims
    assert preempt(cluster, wanting(), {"n1": [on_0]}) == {"n1": {on_0}}
    # The kubelet would take NUMA node 0 as long as it has room, whatever leaves.
    assert preempt(cluster, wanting(alignment="require"), {"n1": [on_0]}) == {}
    assert preempt(cluster, wanting(alignment="require"), {"n1": [on_1]}) == {"n1": {on_1}}


def test_victims_free_the_devices_that_the_pod_gets() -> None:
    """The victim's device on NUMA node 0 is allocated first once it is free."""
    cluster = service(0, 1)
    victim, other = cluster.run("victim", "3", "gpu-0"), cluster.run("other", "4")
    assert preempt(cluster, wanting(alignment="require"), {"n1": [victim]}) == {"n1": {victim}}
    assert preempt(cluster, wanting(alignment="require"), {"n1": [other]}) == {"n1": {other}}


def test_a_steered_pod_gets_the_numa_node_of_its_devices() -> None:
    cluster = service(1, markers=512)
    on_0, on_1 = cluster.run("on-0", "3"), cluster.run("on-1", "4")
    document = wanting(alignment="require")
    for amounts in document["spec"]["containers"][0]["resources"].values():
        amounts[RESOURCE] = "1"
    assert preempt(cluster, document, {"n1": []}) == {"n1": {on_1}}
    assert preempt(cluster, document, {"n1": [on_0]}) == {"n1": {on_0, on_1}}


def test_the_preemptor_evicts_for_devices() -> None:
    """kube-scheduler evicts no pod for devices: its own dry run leaves them allocated."""
    cluster = service(0, 0)
    cluster.run("first", "1", "gpu-0", priority=2)
    cluster.run("second", "1", "gpu-1", priority=1)
    cluster.run("plain", "1")
    assert evict(cluster, wanting("1")) == ("second",)
    cluster.put_claim("two", 2)
    assert evict(cluster, wanting("1", "two")) == ("first", "second")
    cluster.put_claim("three", 3)
    assert evict(cluster, wanting("1", "three")) is None


def test_the_preemptor_evicts_for_devices_and_cpus() -> None:
    cluster = service(1)
    cluster.run("on-0", "3", "gpu-0")
    cluster.run("on-1", "4")
    assert evict(cluster, wanting("3")) == ("on-0",)
    assert evict(cluster, wanting("4")) == ("on-0", "on-1")
    # NUMA node 0 has room too once the pod with the device has left, and the kubelet would take it.
    assert evict(cluster, wanting("3", alignment="require")) is None
    assert evict(cluster, wanting("4", alignment="require")) == ("on-0", "on-1")


def test_fewer_victims_may_suffice_where_all_do_not() -> None:
    """Only NUMA node 1 has 4 CPUs. Without `first`, its device on NUMA node 0 would be allocated."""
    cluster = service(0, 1)
    cluster.run("first", "3", "gpu-0")
    second = cluster.run("second", "4")
    assert preempt(cluster, wanting("4", alignment="require"), {"n1": []}) == {"n1": {second}}


def test_the_preemptor_evicts_from_the_numa_node_of_the_devices() -> None:
    """NUMA node 0 has 3 free CPUs, so kube-scheduler evicts no pod."""
    cluster = service(1, markers=512)
    cluster.run("on-1", "4")
    document = wanting("2", alignment="require")
    for amounts in document["spec"]["containers"][0]["resources"].values():
        amounts[RESOURCE] = "1"
    verdicts = cluster.answers.verdicts(cluster.question(document, "n1"))
    assert (verdicts.outcomes[0], verdicts.refusal(0)) == (Outcome.UNSCHEDULABLE, Refusal.NUMA_NODE_FULL)
    assert evict(cluster, document) == ("on-1",)


def test_no_pod_is_evicted_whose_claim_the_pod_shares() -> None:
    cluster = service(0)
    cluster.run("first", "3", "gpu-0")
    cluster.run("second", "2", priority=9)
    assert evict(cluster, wanting("3")) == ("first",)
    assert evict(cluster, wanting("3", "of-first")) is None


def test_no_pod_is_evicted_while_a_node_has_devices() -> None:
    cluster = service(0)
    cluster.run("first", "1", "gpu-0")
    cluster.add("n2", 0)
    assert evict(cluster, wanting("1")) is None


def test_no_pod_is_evicted_where_the_devices_are_not_known() -> None:
    cluster = service(0)
    cluster.run("first", "3", "gpu-0")
    cluster.run("second", "4")
    assert evict(cluster, wanting("3")) == ("first",)
    assert evict(cluster, wanting("3", "missing")) is None


def test_without_claims_the_preemptor_leaves_pods_with_claims_out() -> None:
    plain, node = Service("TightFit"), kubelet()
    for name, cpu in (("on-0", "2"), ("on-1", "3")):
        document = pod(name, cpu, node="n1", priority=0, phase="Running")
        assert node.admit(decoded(document)).admitted
        plain.put(document, is_news=False)
    plain.report(exact(node))
    plain.put_node("n1")
    alignment = AlignmentPreemption(plain.trial, Budgets())
    for document, is_found in ((pod("p", "2", priority=5, conditions=WAITS), True), (wanting("2"), False)):
        asked = kube_scheduler.decode(msgspec.json.encode(document))
        assert (asyncio.run(alignment.choose(asked, 10, ())) is not None) == is_found


def test_a_node_without_free_devices_is_explained_as_kube_scheduler_does() -> None:
    cluster = service(0)
    cluster.run("first", "1", "gpu-0")
    asked = kube_scheduler.decode(msgspec.json.encode(wanting("1")))
    [(_, refusal)] = cluster.trial.refusals(cluster.trial.record(asked), ["n1"])
    assert refusal is not None
    assert refusal.words == "cannot allocate all claims"
    (explanation,) = cluster.view.explanations(asked, ["n1"])
    assert explanation.verdict == "not now"
    assert "0 of 1 devices" in explanation.text


def test_a_device_is_kept_for_a_nominated_pod_of_a_higher_priority() -> None:
    """Its victim has left, and kube-scheduler tries the pod of a lower priority first."""
    cluster = service(0)
    cluster.put_claim("later")
    cluster.put({**wanting("1"), "status": {"phase": "Pending", "nominatedNodeName": "n1"}})
    later = claiming("later", "1", "later", priority=1)

    def text(document: dict[str, Any]) -> Refusal | None:
        return cluster.answers.verdicts(cluster.question(document, "n1", "n2")).refusal(0)

    assert text(later) == Refusal.DEVICES_RESERVED
    # The nominated pod itself, a pod of an equal priority, and a pod without claims.
    assert text(wanting("1")) is None
    assert text(claiming("equal", "1", "later", priority=5)) is None
    assert text(pod("plain", "1", priority=1)) is None
    cluster.put_devices("n1", 0, 0)
    assert text(later) is None, "a second device is free"


def test_a_device_is_not_kept_for_a_nominated_pod_that_lacks_another() -> None:
    cluster = service(0)
    cluster.put_claim("two", 2)
    cluster.put({**wanting("1", "two"), "status": {"phase": "Pending", "nominatedNodeName": "n1"}})
    question = cluster.question(claiming("later", "1", "new", priority=1), "n1", "n2")
    assert not cluster.answers.verdicts(question).refusal(0)


def test_volcano_evicts_nobody_for_a_pod_that_would_lack_a_device_all_the_same() -> None:
    cluster = service(0)
    cluster.run("holder", "1", "gpu-0")
    for name, cpu in (("left", "2"), ("right", "4")):
        cluster.run(name, cpu)
    offered = claiming("right", "4", node="n1", phase="Running", priority=0)
    rejected, permitted = (-1, []), (1, ["right"])
    assert Volcano(cluster).evictable(claiming("p", "4", "new"), "n1", offered) == rejected
    assert Volcano(cluster).evictable(claiming("q", "4"), "n1", offered) == permitted
