"""Pods that are to fit at once: the answer is what placing them one by one with the model gives."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import msgspec
import pytest

from sandbox.exported import exported
from scheduling import Service, configuration, counts, exact, kubelet, machine, pod
from topowise import pods
from topowise_scheduler import kube_scheduler
from topowise_scheduler.fit_together import group_placement
from topowise_scheduler.kubelet import Kubelet

POLICIES = ("none", "best-effort", "restricted", "single-numa-node")


def asked(name: str, cpu: str = "2", memory: str = "1Gi", **fields: Any) -> kube_scheduler.Pod:
    document = pod(name, cpu, memory, **fields)
    del document["metadata"]["uid"]
    return kube_scheduler.decode(json.dumps(document).encode())


def cluster(rng: Random) -> tuple[Service, dict[str, Kubelet]]:
    """Three to six nodes of any policy and scope, with something on them; and what their kubelets are."""
    service, truth = Service("TightFit"), {}
    for number in range(rng.randint(3, 6)):
        settings = configuration(
            topologyManagerPolicy=rng.choice(POLICIES), topologyManagerScope=rng.choice(("container", "pod"))
        )
        node = Kubelet(machine(), settings)
        for other in range(rng.randint(0, 5)):
            document = pod(f"old{other}", str(rng.randint(1, 3)), f"{rng.randint(1, 6)}Gi")
            node.admit(pods.decode(msgspec.json.encode(document)))
        name = f"n{number}"
        made = exported(machine(), settings, node, lambda uid: ("default", uid.removeprefix("uid-")))
        service.report(msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, name=name)))
        truth[name] = node
    return service, truth


def one_by_one(service: Service, document: dict[str, Any], count: int) -> int:
    """How many copies go one after the other, each bound to the best node before the next is asked about."""
    names = service.view.names
    for serial in range(count):
        copy = {**document, "metadata": {"name": f"c{serial}", "namespace": "default", "uid": f"uid-c{serial}"}}
        fitting = service.fits(copy, *names)
        if not fitting:
            return serial
        best = service.view.best(kube_scheduler.decode(json.dumps(copy).encode()), fitting)
        service.put({**copy, "spec": {**copy["spec"], "nodeName": best}})
    return count


@pytest.mark.parametrize("seed", range(60))
def test_copies_fit_together_if_and_as_far_as_they_do_one_by_one(seed: int) -> None:
    rng = Random(seed)
    service, truth = cluster(rng)
    document = pod("c", str(rng.randint(1, 5)), f"{rng.choice((1, 4, 12))}Gi")
    del document["metadata"]["uid"]
    template = kube_scheduler.decode(json.dumps(document).encode())
    count = rng.randint(1, 24)
    found = group_placement.place(service.answers, service.view, [template] * count, service.view.names)
    for serial, one in enumerate(found.placements):
        own = {**document, "metadata": {"name": "c", "namespace": "default", "uid": f"u{serial}"}}
        admission = truth[one.node].admit(pods.decode(msgspec.json.encode(own)))
        assert admission.admitted, (one.node, admission.reason)
        held = {cpu for place in one.containers.values() for cpu in place.cpus.split(",")}
        assert held, "a Guaranteed pod holds CPUs"
    # Bound pods nobody has reported may lie elsewhere than predicted, which costs room; here nobody else comes.
    assert len(found.placements) >= one_by_one(service, document, count)
    assert found.fits == (len(found.placements) == count)
    if not found.fits:
        own = {**document, "metadata": {"name": "c", "namespace": "default", "uid": "last"}}
        late = pods.decode(msgspec.json.encode(own))
        assert not any(node.fork().admit(late).admitted for node in truth.values()), found.why


@pytest.mark.parametrize("seed", range(20))
def test_pods_of_several_kinds_are_placed_in_their_order(seed: int) -> None:
    rng = Random(seed)
    service, truth = cluster(rng)
    kinds = [pod("k", str(rng.randint(1, 4)), f"{rng.choice((1, 4, 12))}Gi") for _ in range(3)]
    documents = [rng.choice(kinds) for _ in range(12)]
    wanted = [kube_scheduler.decode(json.dumps(one).encode()) for one in documents]
    found = group_placement.place(service.answers, service.view, wanted, service.view.names)
    for serial, (one, document) in enumerate(zip(found.placements, documents, strict=False)):
        own = {**document, "metadata": {"name": "k", "namespace": "default", "uid": f"u{serial}"}}
        assert truth[one.node].admit(pods.decode(msgspec.json.encode(own))).admitted
    if not found.fits:
        own = {**documents[len(found.placements)], "metadata": {"name": "k", "namespace": "default", "uid": "last"}}
        late = pods.decode(msgspec.json.encode(own))
        assert not any(node.fork().admit(late).admitted for node in truth.values()), found.why


def test_what_kube_scheduler_has_against_a_node_counts_for_each_kind() -> None:
    service = Service("TightFit")
    for name, pool in (("n1", "a"), ("n2", "b")):
        service.report(exact(kubelet(), name=name))
        service.put_node(name, labels={"pool": pool})
    anywhere, only_b = asked("x"), asked("y", nodeSelector={"pool": "b"})
    found = group_placement.place(service.answers, service.view, [anywhere, only_b, only_b], ["n1", "n2"])
    assert [one.node for one in found.placements] == ["n1", "n2", "n2"]
    refused = group_placement.place(
        service.answers, service.view, [asked("y", "1", nodeSelector={"pool": "c"})], ["n1", "n2"]
    )
    assert not refused.fits
    assert refused.why == "0/2 nodes: 2 node(s) didn't match Pod's node affinity/selector"


def test_the_sums_count_the_pods_before() -> None:
    """Of what a report does not have, as of memory that no manager gives out, only kube-scheduler keeps the sums."""
    service = Service("TightFit")
    for name in ("n1", "n2"):
        service.report(counts(name, "8", included=()))
        service.put_node(name, allocatable={"cpu": "8", "memory": "64Gi", "pods": "3"})
    large = group_placement.place(service.answers, service.view, [asked("x", "1", "30Gi")] * 5, ["n1", "n2"])
    assert sorted(one.node for one in large.placements) == ["n1", "n1", "n2", "n2"]
    assert large.why == "0/2 nodes: 2 Insufficient memory"
    several = [asked("x", "1", "30Gi"), asked("y", "1", "1Gi")] * 4
    mixed = group_placement.place(service.answers, service.view, several, ["n1", "n2"])
    assert len(mixed.placements) == 6
    assert "Too many pods" in mixed.why


def test_nodes_that_nobody_reports_do_not_count() -> None:
    service = Service("TightFit")
    service.put_node("silent")
    found = group_placement.place(service.answers, service.view, [asked("x")], ["silent"])
    assert (found.fits, found.why) == (False, "0/1 nodes: 1 not reported")


def test_the_answer_leaves_no_trace() -> None:
    service = Service("TightFit")
    service.report(exact(kubelet(), name="n1"))
    before = service.free("n1")
    assert group_placement.place(service.answers, service.view, [asked("x")] * 3, ["n1"]).fits
    assert service.free("n1") == before
    assert len(service.ledger.reservations) == 0
