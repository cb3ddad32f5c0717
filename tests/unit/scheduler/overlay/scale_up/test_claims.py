"""New nodes for pods whose devices are allocated here: a new node has the devices of a node of its group, all free.

A node has 3 free CPUs on NUMA node 0 and 4 on NUMA node 1; the kubelet alone takes the lowest that fits.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from claim_objects import DRIVER, ClaimService, claim, claiming, put_class, sized_claim
from placing import GATED
from scheduling import NoApi, exact, kubelet, pod
from steering_pods import marked
from topowise_scheduler.controllers.scale_up_demand import Demand
from topowise_scheduler.options.claims.gate import ClaimOption
from topowise_scheduler.overlay.scale_up import node_groups
from topowise_scheduler.overlay.scale_up.node_groups import Packing, PlannedNode, Profile
from topowise_scheduler.overlay.scale_up.template_nodes import TemplateNodes

KEYS = ("pool",)
GROUP = (("pool", "a"),)
REQUIRES = {"topowise.io/claim-alignment": "require"}


class GroupService(ClaimService):
    """The node n1 of the pool "a", all of whose devices claims have."""

    def __init__(self, *numa: int, **options: Any) -> None:
        super().__init__(places=True, **options)
        self.put_node("n1", labels={"pool": "a", "kubernetes.io/hostname": "n1"})
        self.report(exact(kubelet(), name="n1"))
        self.put_devices("n1", *numa)
        self.put_claim("running", len(numa), [f"gpu-{at}" for at in range(len(numa))])
        for name in ("a", "b", "c"):
            self.put_claim(name)

    def profile(self) -> Profile:
        nodes = [node for name in self.nodes if (node := self.nodes.get(name)) is not None]
        profile = node_groups.profile(self.ledger, GROUP, node_groups.groups(nodes, KEYS)[GROUP], ())
        assert profile is not None
        return profile

    def pack(self, *documents: dict[str, Any]) -> Packing:
        return node_groups.pack(self.trial, [self.put(item) for item in documents], [self.profile()])


def gated(name: str, cpu: str, *claims: str, **fields: Any) -> dict[str, Any]:
    return claiming(name, cpu, *claims, **GATED, **fields)


def sizes(packing: Packing) -> list[int]:
    return [len(node.records) for node in packing.new_nodes]


def test_a_new_node_has_the_devices_of_its_group_all_free() -> None:
    service = GroupService(0, 0)
    packing = service.pack(gated("p", "1", "a"), gated("q", "1", "b"), gated("r", "1", "c"))
    assert sizes(packing) == [2, 1]
    assert not packing.unplaced


def test_more_devices_than_a_node_has_are_on_no_new_node() -> None:
    service = GroupService(0, 0)
    service.put_claim("three", 3)
    packing = service.pack(gated("p", "1", "three"))
    assert [record.name for record in packing.unplaced] == ["p"]
    (record,) = packing.unplaced
    assert node_groups.refusal(service.trial, service.profile(), record) == "cannot allocate all claims"


def test_devices_and_cpus_of_a_new_node_are_near_each_other() -> None:
    """Two pods of 2 CPUs: the kubelet places the second on NUMA node 1."""
    pods = [gated(name, "2", claim, annotations=REQUIRES) for name, claim in (("p", "a"), ("q", "b"))]
    assert sizes(GroupService(0, 1).pack(*pods)) == [2]
    assert sizes(GroupService(0, 0).pack(*pods)) == [1, 1]
    assert GroupService(1, 1).pack(*pods).unplaced
    claims = claiming("p", "2", "a")["spec"]["resourceClaims"]
    steered = marked("p", "2", resourceClaims=claims, annotations=REQUIRES, **GATED)
    assert sizes(GroupService(1, 1, markers=512).pack(steered)) == [1]


def test_pods_that_share_a_claim_need_one_node() -> None:
    packing = GroupService(0).pack(gated("p", "1", "a"), gated("q", "1", "a"))
    assert sizes(packing) == [2]


def test_devices_that_no_slice_names_get_no_node() -> None:
    service = GroupService(0)
    service.claims.drop_slice(f"n1-{DRIVER}")
    packing = service.pack(gated("p", "1", "a"))
    assert packing.unplaced
    assert GroupService(0).pack(gated("p", "1", "missing")).unplaced
    # A new node whose slices are not there yet is not useless.
    assert not node_groups.refusal(service.trial, service.profile(), packing.unplaced[0])


def test_devices_of_other_drivers_get_no_node() -> None:
    service = GroupService(0, drivers=())
    assert service.pack(claiming("p", "1", "a")).unplaced


def test_a_claim_with_devices_of_a_node_gets_no_other_node() -> None:
    service = GroupService(0, 0)
    document = claim("other", 1, ["gpu-0"])
    fields = [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]
    document["status"]["allocation"]["nodeSelector"] = {"nodeSelectorTerms": [{"matchFields": fields}]}
    service.claims.put_claim(sized_claim(document))
    assert service.pack(gated("p", "1", "other")).unplaced


def test_pods_with_equal_claims_of_their_own_are_packed_as_one_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full node is asked once for all of them, not for each."""
    service, asked = GroupService(0), []
    take = PlannedNode.take
    monkeypatch.setattr(PlannedNode, "take", lambda node, record: bool(asked.append(record.name)) or take(node, record))
    for number in range(20):
        service.put_claim(f"own-{number}")
    packing = service.pack(*(gated(f"p{number}", "1", f"own-{number}") for number in range(20)))
    assert sizes(packing) == [1] * 20
    assert len(asked) < 3 * 20


def test_an_extended_resource_of_a_device_plugin_needs_no_slices() -> None:
    """A class backs it too, for nodes without the plug-in."""
    service = GroupService(0)
    service.claims.drop_slice(f"n1-{DRIVER}")
    put_class(service.claims, "backing", extendedResourceName="example.com/gpu")
    amounts = {"cpu": "8", "memory": "64Gi", "pods": "110", "example.com/gpu": "1"}
    service.put_node("n1", labels={"pool": "a", "kubernetes.io/hostname": "n1"}, allocatable=amounts)
    document = pod("p", "1", **GATED)
    for listed in document["spec"]["containers"][0]["resources"].values():
        listed["example.com/gpu"] = "1"
    nodes = service.ledger.gates.option(ClaimOption).nodes
    assert not nodes.once_placed(service.put(document), "n1", [kubelet()], (), is_new=True).devices.problem


@pytest.mark.parametrize("is_gated", [True, False])
async def test_a_node_is_wanted_for_a_gated_pod_that_lacks_devices(is_gated: bool) -> None:
    """No autoscaler sees a pod with a scheduling gate, so what it lacks in sum counts too."""
    service = GroupService(0)
    fields: dict[str, Any] = GATED if is_gated else {"conditions": [UNSCHEDULABLE]}
    service.put(claiming("p", "1", "a", **fields))
    for at, cpu in enumerate(("3", "4")):
        service.put(pod(f"full-{at}", cpu, node="n1"))
    service.put(pod("q", "3", **fields))
    demand = Demand(NoApi(), service.view, patience=0.0, clock=service.clock)
    wanted = [record.name for record in await demand.pods((), {})]
    assert wanted == (["p", "q"] if is_gated else [])


UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "topowise: 0/1"}


def test_a_node_that_an_autoscaler_thinks_of_lacks_nothing_that_kube_scheduler_looks_at() -> None:
    service = GroupService(0)
    service.put_claim("two", 2)
    answers = []
    for document in (claiming("p", "1", "two"), claiming("p", "1", "a")):
        question = service.question(document, "new")
        node = {"metadata": {"name": "new", "labels": {"pool": "a"}}, "status": {"allocatable": {"cpu": "8"}}}
        templates = TemplateNodes(service.trial, KEYS, {})
        answers.append(templates.with_templates(question, [json.dumps(node).encode()]).templates)
    assert answers == [{0: None}, {0: None}]
