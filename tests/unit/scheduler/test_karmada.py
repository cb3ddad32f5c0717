"""How many replicas Karmada is told that fit: as many as true kubelets then admit, and never more."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any, NoReturn, cast

import grpc
import pytest

from scheduling import Service, decoded, exact, kubelet, pod
from topowise.runtime.config import PositiveDuration, ServingTls
from topowise.wire import karmada_estimator_pb2 as pb
from topowise_scheduler import karmada_api
from topowise_scheduler.configuration import Karmada
from topowise_scheduler.kubelet import Kubelet

TLS = ServingTls(cert_file="tls.crt", key_file="tls.key", client_ca_file="ca.crt")


class AbortedError(Exception):
    """The request was aborted."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(f"{code.name}: {details}")


class Context:
    """Of a request that is not on a wire."""

    async def abort(self, code: grpc.StatusCode, details: str) -> NoReturn:
        raise AbortedError(code, details)


CONTEXT = cast(karmada_api.Context, Context())


def cluster(*names: str, **taken: Sequence[str]) -> Service:
    """Nodes of 3 and 4 free CPUs by NUMA node; `taken`: CPUs of pods by node."""
    service = Service("TightFit")
    for name in names:
        node = kubelet()
        for at, cpu in enumerate(taken.get(name, ())):
            document = pod(f"{name}-{at}", cpu, node=name)
            service.put(document)
            assert node.admit(decoded(document)).admitted
        service.put_node(name, labels={"zone": name})
        service.report(exact(node, name=name))
    return service


def estimator(service: Service, not_ready: str | None = None, **settings: Any) -> karmada_api.Estimator:
    chosen = Karmada(port=1, tls=TLS, **{"time_limit": PositiveDuration(600), **settings})
    return karmada_api.Estimator(service.answers, service.view, chosen, lambda: not_ready)


def amounts(**quantities: str) -> dict[str, bytes]:
    return {name: pb.KubernetesQuantity(string=text).SerializeToString() for name, text in quantities.items()}


def requirements(cpu: str = "3", memory: str = "1Gi", **fields: Any) -> pb.ReplicaRequirements:
    return pb.ReplicaRequirements(resourceRequestBytes=amounts(cpu=cpu, memory=memory), **fields)


def component(cpu: str, replicas: int = 1, name: str = "c") -> pb.Component:
    required = pb.ComponentReplicaRequirements(resourceRequestBytes=amounts(cpu=cpu, memory="1Gi"))
    return pb.Component(name=name, replicas=replicas, replicaRequirements=required)


async def replicas(asked: karmada_api.Estimator, required: pb.ReplicaRequirements, *assumed: pb.Component) -> int:
    workloads = [pb.AssumedWorkload(namespace="default", components=assumed)] if assumed else []
    request = pb.MaxAvailableReplicasRequest(
        cluster="member1", replicaRequirements=required, assumedWorkloads=workloads
    )
    return (await asked.MaxAvailableReplicas(request, CONTEXT)).maxReplicas


async def sets(asked: karmada_api.Estimator, *components: pb.Component) -> int:
    request = pb.MaxAvailableComponentSetsRequest(cluster="member1", components=components)
    return (await asked.MaxAvailableComponentSets(request, CONTEXT)).maxSets


@pytest.mark.parametrize(("cpu", "count"), [("4", 2), ("3", 4), ("2", 6), ("5", 0), ("1", 14)])
async def test_replicas_fit_aligned_and_not_by_sums(cpu: str, count: int) -> None:
    """7 CPUs of each node are free in sum."""
    assert await replicas(estimator(cluster("n1", "n2")), requirements(cpu)) == count


@pytest.mark.parametrize("seed", range(20))
async def test_true_kubelets_admit_as_many_and_no_further(seed: int) -> None:
    rng = Random(seed)
    names = [f"n{number}" for number in range(rng.randint(1, 4))]
    taken = {name: [str(rng.randint(1, 3)) for _ in range(rng.randint(0, 2))] for name in names}
    service = cluster(*names, **{name: cpus for name, cpus in taken.items() if sum(map(int, cpus)) <= 3})
    cpu = str(rng.randint(1, 4))
    count = await replicas(estimator(service), requirements(cpu))
    nodes = [true_state(service, name) for name in names]
    admitted = 0
    for node in nodes:
        while node.admit(decoded(pod(f"new-{admitted}", cpu))).admitted:
            admitted += 1
    assert count == admitted


def true_state(service: Service, name: str) -> Kubelet:
    state = service.ledger.node_states.of(name)
    assert state is not None
    assert state.kubelet is not None
    return state.kubelet.fork()


async def test_a_pod_that_no_kubelet_aligns_is_counted_by_sums() -> None:
    service = cluster("n1", "n2", n1=["2"])
    for name in ("n1", "n2"):
        service.put_node(name, allocatable={"cpu": "7", "memory": "31Gi", "pods": "110"})
    required = pb.ReplicaRequirements(resourceRequestBytes=amounts(cpu="1500m"))
    assert await replicas(estimator(service), required) == 3 + 4
    assert await replicas(estimator(service), pb.ReplicaRequirements()) == 109 + 110, "by the number of pods"
    service.put_node("n2", {"unschedulable": True})
    assert await replicas(estimator(service), required) == 3


def claim(**fields: Any) -> pb.NodeClaim:
    return pb.NodeClaim(**fields)


def selector(operator: str, *values: str) -> bytes:
    expression = pb.KubernetesNodeSelectorRequirement(key="zone", operator=operator, values=values)
    term = pb.KubernetesNodeSelectorTerm(matchExpressions=[expression])
    return pb.KubernetesNodeSelector(nodeSelectorTerms=[term]).SerializeToString()


@pytest.mark.parametrize(
    ("node_claim", "count"),
    [
        (claim(nodeSelector={"zone": "n1"}), 1),
        (claim(nodeSelector={"zone": "n9"}), 0),
        (claim(nodeAffinityBytes=selector("NotIn", "n1")), 1),
        (claim(nodeAffinity=selector("In", "n1", "n2")), 2),
        (claim(nodeAffinityBytes=selector("DoesNotExist")), 0),
        (claim(), 2),
    ],
)
async def test_the_node_claim_selects_nodes(node_claim: pb.NodeClaim, count: int) -> None:
    assert await replicas(estimator(cluster("n1", "n2")), requirements("4", nodeClaim=node_claim)) == count


@pytest.mark.parametrize("field", ["tolerations", "tolerationsBytes"])
async def test_tolerations_open_tainted_nodes(field: str) -> None:
    service = cluster("n1", "n2")
    service.put_node("n1", {"taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]})
    tolerated = pb.KubernetesToleration(key="gpu", value="yes").SerializeToString()
    asked = estimator(service)
    assert await replicas(asked, requirements("4")) == 1
    assert await replicas(asked, requirements("4", nodeClaim=claim(**cast(Any, {field: [tolerated]})))) == 2


async def test_requests_of_releases_before_1_18_are_read() -> None:
    required = pb.ReplicaRequirements(resourceRequest=amounts(cpu="4", memory="1Gi"))
    assert await replicas(estimator(cluster("n1", "n2")), required) == 2


async def test_sets_of_components_fit_together() -> None:
    """A node takes 3 and 4 CPUs, or 3 and 3."""
    asked = estimator(cluster("n1", "n2", "n3"))
    assert await sets(asked, component("4"), component("3")) == 3
    assert await sets(asked, component("3", 2), component("4", name="driver")) == 2
    assert await sets(asked, component("4", 4)) == 0
    assert await sets(asked, component("4"), component("1", 0)) == 3, "a component without replicas"


async def test_workloads_that_are_on_their_way_are_deducted() -> None:
    asked = estimator(cluster("n1", "n2"))
    assert await replicas(asked, requirements("4"), component("4")) == 1
    assert await replicas(asked, requirements("4"), component("3", 4)) == 0
    assert await replicas(asked, requirements("4"), component("4", 2**31 - 1), component("9", 5)) == 0


async def test_a_damaged_workload_on_its_way_is_an_invalid_argument() -> None:
    damaged = pb.Component(
        replicas=1, replicaRequirements=pb.ComponentReplicaRequirements(resourceRequest={"cpu": b"\xff"})
    )
    with pytest.raises(AbortedError, match="INVALID_ARGUMENT"):
        await replicas(estimator(cluster("n1")), requirements(), component("1"), damaged)


async def test_nothing_is_reserved_or_remembered() -> None:
    service = cluster("n1")
    assert await replicas(estimator(service), requirements("4")) == 1
    assert await replicas(estimator(service), requirements("4")) == 1
    assert len(service.ledger.reservations) == 0
    assert not service.ledger.unscheduled


@pytest.mark.parametrize(
    ("required", "named"),
    [
        (requirements("many"), "many"),
        (requirements("-4"), "-4"),
        (requirements(""), "quantity"),
        (pb.ReplicaRequirements(resourceRequestBytes={"cpu": b"\xff"}), "Error parsing"),
        (requirements(nodeClaim=claim(nodeAffinityBytes=b"\x0a\xff")), "Error parsing"),
        (requirements(nodeClaim=claim(tolerationsBytes=[b"\x0a\x05a"])), "Error parsing"),
    ],
)
async def test_a_damaged_request_is_an_invalid_argument(required: pb.ReplicaRequirements, named: str) -> None:
    with pytest.raises(AbortedError, match=f"INVALID_ARGUMENT: .*{named}"):
        await replicas(estimator(cluster("n1")), required)


@pytest.mark.parametrize("components", [(), (component("1", 0),), (component("1", 1025),), (component("1", -5),)])
async def test_a_set_has_1_to_1024_replicas(components: Sequence[pb.Component]) -> None:
    with pytest.raises(AbortedError, match=r"INVALID_ARGUMENT: .*1 to 1024"):
        await sets(estimator(cluster("n1")), *components)


async def test_a_request_for_another_cluster_is_refused() -> None:
    assert await replicas(estimator(cluster("n1"), cluster="member1"), requirements()) == 2
    with pytest.raises(AbortedError, match=r"INVALID_ARGUMENT: cluster is 'member1', expected 'member2'"):
        await replicas(estimator(cluster("n1"), cluster="member2"), requirements())


async def test_nothing_is_answered_before_the_first_lists() -> None:
    with pytest.raises(AbortedError, match="UNAVAILABLE: not ready: pods"):
        await replicas(estimator(cluster("n1"), not_ready="pods"), requirements())


async def test_unschedulable_replicas_are_left_to_the_estimator_of_karmada() -> None:
    with pytest.raises(AbortedError, match=r"UNIMPLEMENTED: .*karmada-descheduler"):
        await estimator(cluster("n1")).GetUnschedulableReplicas(pb.UnschedulableReplicasRequest(), CONTEXT)


async def test_the_time_limit_ends_an_answer_with_what_fits_so_far() -> None:
    service = cluster(*(f"n{number}" for number in range(200)))
    asked = estimator(service, time_limit=PositiveDuration(1e-6))
    outcomes = await asyncio.gather(*(replicas(asked, requirements("1")) for _ in range(3)), return_exceptions=True)
    counts = [outcome for outcome in outcomes if isinstance(outcome, int)]
    assert all(count < 1400 for count in counts)
    assert all("RESOURCE_EXHAUSTED" in str(outcome) for outcome in outcomes if not isinstance(outcome, int))


@pytest.mark.parametrize("tls", [None, ServingTls(cert_file="tls.crt", key_file="tls.key")])
def test_a_port_needs_a_ca_for_clients(tls: ServingTls | None) -> None:
    with pytest.raises(ValueError, match="clientCaFile"):
        Karmada(port=10352, tls=tls)
