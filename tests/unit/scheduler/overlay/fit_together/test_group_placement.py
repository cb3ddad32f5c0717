"""The answer for a group of pods equals placing the pods in sequence with the kubelet model."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import msgspec
import pytest

from examples import examples
from sandbox.exported import exported
from scheduling import Service, configuration, counts, exact, kubelet, machine, place_together, pod
from topowise import pods
from topowise_scheduler.explain.refusal_texts import unschedulable
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.verdicts import kube_scheduler
from topowise_scheduler.verdicts.refusals import Refusal

POLICIES = ("none", "best-effort", "restricted", "single-numa-node")


def pod_without_uid(name: str, cpu: str = "2", memory: str = "1Gi", **fields: Any) -> kube_scheduler.Pod:
    document = pod(name, cpu, memory, **fields)
    del document["metadata"]["uid"]
    return kube_scheduler.decode(json.dumps(document).encode())


def cluster(rng: Random) -> tuple[Service, dict[str, Kubelet]]:
    """Three to six nodes of random policy, scope and load; and their kubelet models by name."""
    service, truth = Service("TightFit"), {}
    for number in range(rng.randint(3, 6)):
        settings = configuration(
            topologyManagerPolicy=rng.choice(POLICIES), topologyManagerScope=rng.choice(("container", "pod"))
        )
        node = Kubelet(machine(), settings)
        for serial in range(rng.randint(0, 5)):
            document = pod(f"old{serial}", str(rng.randint(1, 3)), f"{rng.randint(1, 6)}Gi")
            node.admit(pods.decode(msgspec.json.encode(document)))
        name = f"n{number}"
        topology = exported(machine(), settings, node, lambda uid: ("default", uid.removeprefix("uid-")))
        service.report(
            msgspec.structs.replace(topology, metadata=msgspec.structs.replace(topology.metadata, name=name))
        )
        truth[name] = node
    return service, truth


def one_by_one(service: Service, document: dict[str, Any], count: int) -> int:
    """Number of copies that fit in sequence, each bound to its best node before the next question."""
    names = service.trial.names
    for serial in range(count):
        copy = {**document, "metadata": {"name": f"c{serial}", "namespace": "default", "uid": f"uid-c{serial}"}}
        fitting = service.fits(copy, *names)
        if not fitting:
            return serial
        best = service.view.best(kube_scheduler.decode(json.dumps(copy).encode()), fitting)
        service.put({**copy, "spec": {**copy["spec"], "nodeName": best}})
    return count


@pytest.mark.parametrize("seed", range(examples(20)))
def test_copies_fit_together_exactly_as_far_as_in_sequence(seed: int) -> None:
    rng = Random(seed)
    service, truth = cluster(rng)
    document = pod("c", str(rng.randint(1, 5)), f"{rng.choice((1, 4, 12))}Gi")
    del document["metadata"]["uid"]
    template = kube_scheduler.decode(json.dumps(document).encode())
    count = rng.randint(1, 24)
    group = place_together(service.trial, [template] * count, service.trial.names)
    for serial, placement in enumerate(group.placements):
        copy = {**document, "metadata": {"name": "c", "namespace": "default", "uid": f"u{serial}"}}
        admission = truth[placement.node].admit(pods.decode(msgspec.json.encode(copy)))
        assert admission.admitted, (placement.node, admission.reason)
        cpus = {cpu for container in placement.containers.values() for cpu in container.cpus.split(",")}
        assert cpus, "a Guaranteed pod holds CPUs"
    # Unreported bound pods may have a placement other than the prediction, which costs capacity in a sequence.
    assert len(group.placements) >= one_by_one(service, document, count)
    assert group.fits == (len(group.placements) == count)
    if not group.fits:
        copy = {**document, "metadata": {"name": "c", "namespace": "default", "uid": "last"}}
        late = pods.decode(msgspec.json.encode(copy))
        assert not any(node.fork().admit(late).admitted for node in truth.values()), group.refused


@pytest.mark.parametrize("seed", range(examples(10)))
def test_pods_of_several_kinds_are_placed_in_their_order(seed: int) -> None:
    rng = Random(seed)
    service, truth = cluster(rng)
    kinds = [pod("k", str(rng.randint(1, 4)), f"{rng.choice((1, 4, 12))}Gi") for _ in range(3)]
    documents = [rng.choice(kinds) for _ in range(12)]
    templates = [kube_scheduler.decode(json.dumps(document).encode()) for document in documents]
    group = place_together(service.trial, templates, service.trial.names)
    for serial, (placement, document) in enumerate(zip(group.placements, documents, strict=False)):
        copy = {**document, "metadata": {"name": "k", "namespace": "default", "uid": f"u{serial}"}}
        assert truth[placement.node].admit(pods.decode(msgspec.json.encode(copy))).admitted
    if not group.fits:
        copy = {**documents[len(group.placements)], "metadata": {"name": "k", "namespace": "default", "uid": "last"}}
        late = pods.decode(msgspec.json.encode(copy))
        assert not any(node.fork().admit(late).admitted for node in truth.values()), group.refused


def test_refusals_of_kube_scheduler_count_for_each_kind_of_pod() -> None:
    service = Service("TightFit")
    for name, pool in (("n1", "a"), ("n2", "b")):
        service.report(exact(kubelet(), name=name))
        service.put_node(name, labels={"pool": pool})
    anywhere, only_b = pod_without_uid("x"), pod_without_uid("y", nodeSelector={"pool": "b"})
    group = place_together(service.trial, [anywhere, only_b, only_b], ["n1", "n2"])
    assert [placement.node for placement in group.placements] == ["n1", "n2", "n2"]
    refused = place_together(service.trial, [pod_without_uid("y", "1", nodeSelector={"pool": "c"})], ["n1", "n2"])
    assert not refused.fits
    assert unschedulable(refused.refused) == "0/2 nodes: 2 node(s) didn't match Pod's node affinity/selector"


def test_the_sums_count_the_pods_before() -> None:
    """For resources outside the report, such as memory without a manager, kube-scheduler alone keeps the sums."""
    service = Service("TightFit")
    for name in ("n1", "n2"):
        service.report(counts(name, "8", included=()))
        service.put_node(name, allocatable={"cpu": "8", "memory": "64Gi", "pods": "3"})
    large = place_together(service.trial, [pod_without_uid("x", "1", "30Gi")] * 5, ["n1", "n2"])
    assert sorted(placement.node for placement in large.placements) == ["n1", "n1", "n2", "n2"]
    assert unschedulable(large.refused) == "0/2 nodes: 2 Insufficient memory"
    templates = [pod_without_uid("x", "1", "30Gi"), pod_without_uid("y", "1", "1Gi")] * 4
    mixed = place_together(service.trial, templates, ["n1", "n2"])
    assert len(mixed.placements) == 6
    assert "Too many pods" in mixed.refused


def test_without_a_node_no_pod_fits() -> None:
    group = place_together(Service("TightFit").trial, [pod_without_uid("x")], [])
    assert (group.fits, group.refused) == (False, {})


def test_unreported_nodes_do_not_count() -> None:
    service = Service("TightFit")
    service.put_node("silent")
    group = place_together(service.trial, [pod_without_uid("x")], ["silent"])
    assert (group.fits, group.refused) == (False, {Refusal.NO_REPORT: 1})


def test_the_answer_leaves_no_trace() -> None:
    service = Service("TightFit")
    service.report(exact(kubelet(), name="n1"))
    before = service.free("n1")
    assert place_together(service.trial, [pod_without_uid("x")] * 3, ["n1"]).fits
    assert service.free("n1") == before
    assert len(service.ledger.reservations) == 0
