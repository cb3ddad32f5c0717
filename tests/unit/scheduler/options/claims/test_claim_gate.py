"""Which nodes take a pod with claims, which come first, and where the pod is steered.

The node has 3 free CPUs on NUMA node 0 and 4 on NUMA node 1; the kubelet alone takes the lowest that fits.
"""

from __future__ import annotations

import json

import msgspec
import pytest

from claim_objects import DRIVER, ClaimService, claim, claiming, device_slice, put_class, sized_claim, sized_slice
from scheduling import Service, decoded, exact, kubelet, pod
from steering_pods import marked
from topowise import nrt
from topowise_scheduler.dashboard.details import NodeReader
from topowise_scheduler.explain.explanation import ClaimExplanation, NodeExplanation
from topowise_scheduler.options.claims import claimed_nodes
from topowise_scheduler.options.claims.gate import ClaimOption, Judgement
from topowise_scheduler.options.claims.work import Work
from topowise_scheduler.options.steering.gate import SteeringOption
from topowise_scheduler.verdicts import kube_scheduler
from topowise_scheduler.verdicts.refusals import Refusal


def service(*numa: int | None, markers: int | None = None, **options: object) -> ClaimService:
    """Returns a service with the node n1, whose devices are on these NUMA nodes."""
    cluster = ClaimService(markers=markers, **options)
    cluster.add_node("n1", *numa)
    return cluster


def marked_claiming(name: str, *claims: str, **fields: object) -> dict[str, object]:
    return marked(name, resourceClaims=claiming(name, "2", *claims)["spec"]["resourceClaims"], **fields)


def refusal(cluster: ClaimService, document: dict[str, object]) -> str:
    return cluster.answers.verdicts(cluster.question(document, "n1")).refusal(0)


def judged(cluster: ClaimService, document: dict[str, object]) -> Judgement:
    return cluster.ledger.gates.option(ClaimOption).judge(cluster.records.record(decoded(document)), "n1")


REQUIRES = {"topowise.io/claim-alignment": "require"}


@pytest.mark.parametrize(("numa", "text"), [(0, None), (1, Refusal.CLAIMS_APART), (None, None)])
def test_without_steering_a_pod_that_requires_alignment_needs_devices_where_the_kubelet_places_it(
    numa: int | None, text: Refusal | None
) -> None:
    cluster = service(numa)
    cluster.put_claim("a")
    assert refusal(cluster, claiming("p", "2", "a", alignment="require")) == text
    assert not refusal(cluster, claiming("p", "2", "a"))
    assert not refusal(cluster, claiming("p", "2", "a", alignment="prefer"))


def test_with_markers_the_pod_goes_to_its_devices() -> None:
    cluster = service(1, markers=512)
    cluster.put_claim("a")
    pod = marked_claiming("p", "a", annotations=REQUIRES)
    assert not refusal(cluster, pod)
    record = cluster.records.record(decoded(pod))
    assert cluster.ledger.gates.option(SteeringOption).choice(record, "n1").numa == 1


def test_a_pod_is_steered_also_if_the_kubelet_is_predicted_to_place_it_near_its_devices() -> None:
    """The kubelet may take another NUMA node than predicted."""
    cluster = service(0, markers=512)
    cluster.put_claim("a")
    record = cluster.records.record(decoded(marked_claiming("p", "a")))
    choice = cluster.ledger.gates.option(SteeringOption).choice(record, "n1")
    assert (choice.numa, choice.alone, choice.is_required) == (0, 0, False)
    assert cluster.ledger.gates.option(ClaimOption).judge(record, "n1").outcome == "aligned"


def test_a_full_numa_node_of_the_devices_refuses_the_pod() -> None:
    cluster = service(0, markers=512)
    cluster.put_claim("a")
    full = marked("full", "2", node="n1")
    cluster.put(full)
    pod = marked_claiming("p", "a", annotations=REQUIRES)
    assert refusal(cluster, pod) == Refusal.NUMA_NODE_FULL
    assert not refusal(cluster, marked_claiming("p", "a"))


def test_a_claim_that_is_allocated_decides_whatever_is_predicted() -> None:
    cluster = service(0, 1)
    cluster.put_claim("a", 1, ["gpu-1"])
    assert refusal(cluster, claiming("p", "2", "a", alignment="require")) == Refusal.CLAIMS_APART
    cluster.put_claim("a", version=2)
    assert not refusal(cluster, claiming("p", "2", "a", alignment="require"))


def test_devices_on_several_numa_nodes_are_near_both() -> None:
    cluster = service(0, 1)
    cluster.put_claim("a", 2)
    judgement = judged(cluster, claiming("p", "2", "a"))
    assert (judgement.outcome, judgement.near) == ("aligned", {0, 1})


def test_unknown_devices_refuse_nothing() -> None:
    cluster = service(1)
    pod = claiming("p", "2", "missing", alignment="require")
    assert not refusal(cluster, pod)
    judgement = judged(cluster, pod)
    assert judgement.outcome == "unknown"
    assert "missing is not known" in judgement.devices.problem


def test_a_required_alignment_needs_the_feature() -> None:
    plain = Service()
    plain.report(exact(kubelet()))
    verdicts = plain.answers.verdicts(plain.question(claiming("p", "2", "a", alignment="require"), "n1"))
    assert verdicts.refusal(0) == Refusal.CLAIMS_ARE_OFF
    assert plain.fits(claiming("p", "2", "a"), "n1") == ["n1"]
    # kubectl reads no claims, and says so.
    laptop = Service(ignores_claims=True)
    laptop.report(exact(kubelet()))
    assert laptop.fits(claiming("p", "2", "a", alignment="require"), "n1") == ["n1"]


def test_an_alignment_that_is_not_one_is_an_error_of_the_pod() -> None:
    cluster = service(0)
    cluster.put_claim("a")
    body = json.dumps({"Pod": claiming("p", "2", "a", alignment="always"), "NodeNames": ["n1"]}).encode()
    with pytest.raises(Exception, match="require, prefer"):
        cluster.verbs().filter(body)


def test_aligned_nodes_come_first() -> None:
    cluster = service(1)
    cluster.add_node("n2", 0)
    cluster.add_node("n3")
    cluster.put_claim("a")
    scores = cluster.answers.scores(cluster.question(claiming("p", "2", "a"), "n1", "n2", "n3")).tolist()
    assert scores[1] > scores[2] > scores[0]


def test_pods_without_claims_leave_nodes_with_free_devices_to_pods_with_claims() -> None:
    cluster, plain = service(0), Service("TightFit")
    cluster.put_node("n2")
    cluster.report(exact(kubelet(), name="n2"))
    for name in ("n1", "n2"):
        plain.report(exact(kubelet(), name=name))
    for each in (cluster, plain):
        # n1 has less room left, so TightFit prefers it.
        each.put(pod("before", "1", node="n1"))

    def scores(of: Service) -> list[int]:
        found: list[int] = of.answers.scores(of.question(pod("p", "1"), "n1", "n2")).tolist()
        return found

    assert scores(plain)[0] > scores(plain)[1]
    assert scores(cluster)[0] < scores(cluster)[1]
    cluster.put_claim("a", 1, ["gpu-0"])
    assert scores(cluster) == scores(plain)


def test_the_default_is_by_namespace() -> None:
    cluster = service(1, alignment="require")
    cluster.put_claim("a")
    assert refusal(cluster, claiming("p", "2", "a")) == Refusal.CLAIMS_APART
    assert not refusal(cluster, claiming("p", "2", "a", alignment="prefer"))


def test_the_next_pod_gets_other_devices_than_a_pod_on_its_way() -> None:
    cluster = service(0, 1)
    for name in ("a", "b"):
        cluster.put_claim(name)
    first = cluster.answers.question(decoded(claiming("first", "1", "a")), ["n1"])
    cluster.answers.expect(first, 0)
    second = claiming("second", "1", "b")
    assert judged(cluster, second).near == {1}
    # The reservation ends, and with it the expectation of its devices.
    cluster.ledger.reservations.release("uid-first")
    assert judged(cluster, second).near == {0}


def test_a_pod_on_its_way_is_expected_on_the_numa_node_of_its_devices() -> None:
    cluster = service(1, 1, markers=512)
    cluster.put_claim("a")
    question = cluster.answers.question(decoded(marked_claiming("first", "a")), ["n1"])
    cluster.answers.expect(question, 0)
    assert cluster.free("n1") == [3, 2]


def test_bound_pods_are_compared_with_their_devices() -> None:
    cluster = service(0, 1)
    cluster.put_claim("a", 1, ["gpu-0"])
    cluster.put_claim("b", 1, ["gpu-1"])
    for name, of_pod in (("first", "a"), ("second", "b")):
        cluster.put(claiming(name, "1", of_pod, node="n1"))
    found = {
        pod.record.name: (pod.outcome, pod.near, pod.placed)
        for pod in cluster.ledger.gates.option(ClaimOption).all_bound()
    }
    assert found == {"first": ("aligned", {0}, {0}), "second": ("apart", {1}, {0})}


async def test_the_dashboard_shows_devices_beside_cpus() -> None:
    cluster = service(0, 1)
    cluster.put_claim("b", 1, ["gpu-1"])
    cluster.put(claiming("p", "1", "b", node="n1"))
    details = await NodeReader(cluster.ledger, cluster.clock).read("n1")
    assert details is not None
    assert details.pods[0].numa.endswith("; claimed devices on NUMA node 1")
    assert details.svg.count("dra.topowise.io/gpu.example.com") >= 2
    found = cluster.ledger.gates.option(ClaimOption).nodes.devices_by_numa_node("n1")
    assert found == {0: {"gpu.example.com": [("gpu-0", False)]}, 1: {"gpu.example.com": [("gpu-1", True)]}}


def test_the_numa_node_may_come_from_the_pcie_root() -> None:
    cluster = service()
    topology = exact(kubelet(), version="2")
    attributes = (*(topology.attributes or ()), nrt.Attribute("topowise.io/pcie-roots", "pci0000:17=0,pci0000:80=1"))
    cluster.report(msgspec.structs.replace(topology, attributes=attributes))
    document = {
        "metadata": {"name": "s"},
        "spec": {
            "driver": "gpu.example.com",
            "nodeName": "n1",
            "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
            "devices": [
                {"name": "gpu-0", "attributes": {"resource.kubernetes.io/pcieRoot": {"string": "pci0000:80"}}},
                {"name": "gpu-1", "attributes": {"resource.kubernetes.io/pciBusID": {"string": "0000:18:00.0"}}},
            ],
        },
    }
    cluster.claims.put_slice(sized_slice(document))
    for name, device, near in (("a", "gpu-0", {1}), ("b", "gpu-1", {0})):
        cluster.put_claim(name, 1, [device])
        assert judged(cluster, claiming("p", "2", name)).near == near


def test_extended_resources_that_a_class_backs_are_left_to_kube_scheduler() -> None:
    """It makes the claim just before the bind, under a name of its own."""
    cluster = service(0, 1)
    put_class(cluster.claims, "gpu", extendedResourceName="example.com/gpu")
    document = claiming("p", "1", alignment="require")
    for amounts in document["spec"]["containers"][0]["resources"].values():
        amounts["example.com/gpu"] = "1"
    assert judged(cluster, document).outcome == "unknown"
    assert not refusal(cluster, document)


def explained(cluster: ClaimService, document: dict[str, object]) -> NodeExplanation:
    pod = kube_scheduler.decode(msgspec.json.encode(document))
    (explanation,) = cluster.view.explanations(pod, ["n1"])
    return explanation


def test_an_explanation_names_the_devices() -> None:
    cluster = service(1, markers=512)
    cluster.put_claim("a")
    explanation = explained(cluster, marked_claiming("p", "a"))
    assert explanation.text.endswith(
        "steered to NUMA node 1 (the kubelet alone would take 0) by the devices of its claims; "
        "its claimed devices are to be on NUMA node 1"
    )
    assert explanation.claims == ClaimExplanation("aligned", ("gpu.example.com/n1/gpu-0",), (1,), False)
    assert explanation.not_looked_at == ()
    apart = explained(cluster, claiming("q", "2", "a")).text
    assert apart.endswith("its claimed devices are to be on NUMA node 1, CPUs and memory would be on NUMA node 0")


def filtered(cluster: ClaimService, document: dict[str, object], *names: str) -> list[str]:
    """Returns the nodes that fit, as `filter` answers."""
    body = json.dumps({"Pod": document, "NodeNames": names}).encode()
    answer: list[str] = msgspec.json.decode(cluster.verbs().filter(body).body)["NodeNames"]
    return answer


@pytest.mark.parametrize("markers", [None, 512])
def test_a_call_examines_a_limited_number_of_nodes(markers: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The devices of all other nodes are unknown in this call, and these nodes come last."""
    monkeypatch.setattr(claimed_nodes, "_MOST_NEW", 2)
    cluster, names = service(0, markers=markers), ["n1", "n2", "n3", "n4", "n5"]
    for name in names[1:]:
        cluster.add_node(name, 0 if name == "n5" else 1)
        # Only NUMA node 1 has so many CPUs.
        cluster.put(marked(f"full-{name}", "4", node=name))
    cluster.put_claim("a")
    pod = marked_claiming("p", "a", annotations=REQUIRES) if markers else claiming("p", "2", "a", alignment="require")
    fits = filtered(cluster, pod, *names)
    assert fits[0] == "n1"
    assert "n2" not in fits
    assert "n4" in fits
    for _ in range(3):
        fits = filtered(cluster, pod, *names)
    assert fits == ["n1", "n5"]


def test_nodes_are_examined_until_a_node_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claimed_nodes, "_MOST_NEW", 1)
    cluster, names = service(1), ["n1", "n2", "n3"]
    for name in names[1:]:
        cluster.add_node(name, 1)
    cluster.put_claim("a")
    assert filtered(cluster, claiming("p", "2", "a", alignment="require"), *names) == []
    cluster.put_devices("n3", 0)
    assert filtered(cluster, claiming("p", "2", "a", alignment="require"), *names) == ["n3"]


def test_the_work_of_a_call_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant's claim of 11 of 128 devices with an equal attribute, for which the search is long on each of 200 nodes:
    the work of a call is that of a few nodes, and later calls are about other nodes."""
    cluster, names = ClaimService(alignment="prefer"), [f"n{number}" for number in range(200)]
    for name in names:
        cluster.put_node(name)
        cluster.report(exact(kubelet(), name=name))
        document = device_slice(name, [0] * 128)
        for at, device in enumerate(document["spec"]["devices"]):
            device["attributes"] |= {"group": {"int": at // 10 if at < 110 else 99}}
        cluster.claims.put_slice(sized_slice(document))
    document = claim("hostile", 11)
    document["spec"]["devices"]["constraints"] = [{"matchAttribute": f"{DRIVER}/group"}]
    cluster.claims.put_claim(sized_claim(document))
    units: list[int] = []
    spend = Work.spend
    monkeypatch.setattr(Work, "spend", lambda work, amount: (units.append(amount), spend(work, amount))[1])
    verbs, pod = cluster.verbs(), claiming("p", "2", "hostile", alignment="require")

    def work(names: list[str]) -> int:
        units.clear()
        verbs.filter(json.dumps({"Pod": pod, "NodeNames": names}).encode())
        return sum(units)

    # 50,000 units of all together, and 2,000 of each of a few nodes.
    assert max([work(names) for _ in range(4)]) <= 65_000
    for _ in names[:20]:
        last = work(names[:20])
    assert last == 0, "each call gets to know other nodes"
