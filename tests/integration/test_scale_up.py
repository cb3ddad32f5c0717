"""Placeholders on an API server: which nodes the leader requests, when it stops, and what a new leader knows."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from api_objects import create_with_status
from claim_objects import ClaimService, claiming
from placing import GATED
from sandbox.apiserver import ApiServer
from scheduling import WAITS, Clock, Service, configuration, exact, kubelet, machine, pod, topology_of
from topowise import pods
from topowise.errors import ApiError
from topowise.kube.api import Api
from topowise.runtime import clock
from topowise_scheduler.configuration import ScaleUp as Settings
from topowise_scheduler.controllers.scale_up import ScaleUp
from topowise_scheduler.controllers.scale_up_demand import Demand
from topowise_scheduler.controllers.workload_pods import WorkloadPods
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.overlay.overlay import NodeCopy
from topowise_scheduler.overlay.scale_up.budget import HOLD_S, Limits
from topowise_scheduler.overlay.scale_up.node_groups import GroupLabels, Profile
from topowise_scheduler.overlay.scale_up.placeholders import LABEL
from topowise_scheduler.verdicts.kube_scheduler import Node

pytestmark = pytest.mark.own_time

Json = dict[str, Any]
NAMESPACE = "topowise-system"
PODS = "/api/v1/namespaces/default/pods"
OTHERS = f"/api/v1/namespaces/{NAMESPACE}/pods"
SETTINGS = Settings(enabled=True, group_labels=("pool",))
LIMITS = Limits(per_hour=30, per_group=4, back_off=600.0)


class Cluster:
    """Node n1 of the pool "a" with 3 and 4 CPUs by NUMA node, of which 1 and 2 are free: 3 CPUs fit by the sum."""

    def __init__(
        self,
        server: ApiServer,
        api: Api,
        settings: Settings = SETTINGS,
        taken: tuple[str, ...] = ("2", "2"),
        declared: Mapping[GroupLabels, Profile] | None = None,
        limits: Limits = LIMITS,
        patience: float = 0.0,
        service: Service | None = None,
    ):
        self.server, self.api = server, api
        self.settings = settings
        self.declared = declared
        self.limits, self.patience = limits, patience
        self.service = service or Service("TightFit", clock=Clock())
        self.later = 0.0
        server.create("priorityclasses.scheduling.k8s.io", {"metadata": {"name": "topowise-placeholder"}, "value": -5})
        self.start()
        self.join("n1", taken=taken)

    def start(self) -> None:
        """A new leader, with no memory of the last leader."""
        service = self.service
        demand = Demand(self.api, service.view, patience=self.patience, clock=service.clock)
        self.workloads = WorkloadPods(patience=self.patience, clock=service.clock)
        self.leader = ScaleUp(
            self.api,
            service.trial,
            demand,
            self.settings,
            namespace=NAMESPACE,
            workloads=self.workloads,
            declared=self.declared,
            clock=service.clock,
            limits=self.limits,
            now=lambda: clock.utc_now().timestamp() + self.later,
        )

    def join(
        self, name: str, *, taken: tuple[str, ...] = (), is_reported: bool = True, pool: str = "a", **changed: Any
    ) -> None:
        """A node of the pool joins, and the watches bring it."""
        amounts = {"cpu": "8", "memory": "64Gi", "pods": "110"}
        document = {
            "metadata": {"name": name, "labels": {"pool": pool, "kubernetes.io/hostname": name}},
            "status": {"allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]},
        }
        created = self.server.create("nodes", document)
        node = self.service.nodes.decode(json.dumps(created).encode())
        self.service.nodes.apply("ADDED", node)
        self.service.ledger.reports.put_node_object(node, 0.0)
        true = kubelet(**changed)
        for at, cpu in enumerate(taken):
            document = pod(f"{name}-{at}", cpu, node=name)
            assert true.admit(pods.decode(json.dumps(document).encode())).admitted
            self.service.put(document, is_news=False)
        if is_reported:
            self.service.report(exact(true, name=name, **changed))

    async def waits(
        self, name: str, cpu: str = "3", namespace: str = "default", since: str = "", **fields: Any
    ) -> Json:
        """A pod waits, refused by topowise; the watch brings it with `since` as its creation time."""
        document = pod(name, cpu, conditions=WAITS, **fields)
        document["metadata"]["namespace"] = namespace
        created = await create_with_status(self.api, document, {"phase": "Pending", "conditions": WAITS})
        created["metadata"]["creationTimestamp"] = since or created["metadata"]["creationTimestamp"]
        self.service.put(created)
        return created

    def runs(self, document: Json, node: str) -> None:
        """The watch brings the bound pod."""
        document["spec"]["nodeName"] = node
        self.service.put(document)

    async def placeholders(self) -> list[Json]:
        raw = await self.api.request("GET", OTHERS, query={"labelSelector": LABEL})
        return list(json.loads(raw)["items"])

    async def outcomes(self) -> list[str]:
        items = await self.placeholders()
        return sorted(item["metadata"]["annotations"].get("topowise.io/scale-up-outcome", "") for item in items)

    @property
    def events(self) -> list[tuple[str, str]]:
        events = self.server.store.objects("events.events.k8s.io")
        return sorted((event["regarding"]["name"], event["reason"]) for event in events)


@pytest.fixture
def cluster(server: ApiServer, api: Api) -> Cluster:
    return Cluster(server, api)


def term(placeholder: Json) -> dict[str, Any]:
    affinity = placeholder["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (only,) = affinity["nodeSelectorTerms"]
    return {item["key"]: (item["operator"], item.get("values", [])) for item in only["matchExpressions"]}


async def test_a_node_is_requested_for_a_pod_that_lacks_only_alignment(cluster: Cluster) -> None:
    await cluster.waits("w")
    await cluster.leader.sync()
    (placeholder,) = await cluster.placeholders()
    assert term(placeholder) == {"pool": ("In", ["a"]), "kubernetes.io/hostname": ("NotIn", ["n1"])}
    spec = placeholder["spec"]
    (container,) = spec["containers"]
    assert container["resources"]["requests"] == {"cpu": "3", "memory": str(1 << 30)}
    assert spec["schedulerName"] == "topowise-placeholder", "no scheduler binds it"
    assert spec["automountServiceAccountToken"] is False
    (condition,) = placeholder["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == ("PodScheduled", "False", "Unschedulable")
    assert cluster.events == [("w", "ScaleUpForAlignment")]
    await cluster.leader.sync()
    assert len(await cluster.placeholders()) == 1, "once"


async def test_nothing_is_requested_for_pods_that_an_autoscaler_sees_or_that_no_node_would_align(
    cluster: Cluster,
) -> None:
    await cluster.waits("resources", "5", priority=3)
    await cluster.waits("never", "7", priority=2)
    await cluster.waits("retry", "1", priority=1)
    claim = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    await cluster.waits("volume", "3", volumes=claim)
    await cluster.leader.sync()
    assert not await cluster.placeholders()


async def test_a_declared_group_without_a_node_is_requested(server: ApiServer, api: Api) -> None:
    """A pod of 5 CPUs fits on n1 in sum, and no node of its pool aligns it; a node of the pool "b" does."""
    kubelet_of_b = Kubelet(machine(cores=8), configuration())
    amounts = {**kubelet_of_b.allocatable(), "pods": 110}
    group: GroupLabels = (("pool", "b"),)
    declared = {group: Profile(group, NodeCopy((kubelet_of_b,), like="", node=Node("", amounts, {"pool": "b"})))}
    cluster = Cluster(server, api, taken=(), declared=declared)
    waiting = await cluster.waits("w", "5")
    await cluster.leader.sync()
    (placeholder,) = await cluster.placeholders()
    assert term(placeholder) == {"pool": ("In", ["b"])}
    cluster.join("b1", pool="b", is_reported=False)
    cluster.service.report(topology_of(machine(cores=8), configuration(), kubelet_of_b, name="b1"))
    await cluster.leader.sync()
    assert cluster.service.ledger.pods.of(waiting["metadata"]["uid"]).node == "b1"
    cluster.runs(waiting, "b1")
    await cluster.leader.sync()
    assert await cluster.outcomes() == ["helped"]


async def test_a_wrong_declaration_costs_a_single_node(server: ApiServer, api: Api) -> None:
    kubelet_of_b = Kubelet(machine(cores=8), configuration())
    amounts = {**kubelet_of_b.allocatable(), "pods": 110}
    group: GroupLabels = (("pool", "b"),)
    declared = {group: Profile(group, NodeCopy((kubelet_of_b,), like="", node=Node("", amounts, {"pool": "b"})))}
    cluster = Cluster(server, api, taken=(), declared=declared)
    for name in ("w1", "w2"):
        await cluster.waits(name, "5")
    await cluster.leader.sync()
    cluster.join("b1", pool="b")
    for _ in range(3):
        await cluster.leader.sync()
    assert await cluster.outcomes() == ["useless"]


async def test_a_pod_waits_for_its_patience_first(server: ApiServer, api: Api) -> None:
    cluster = Cluster(server, api, patience=60.0)
    await cluster.waits("w")
    await cluster.leader.sync()
    cluster.service.clock.now += 59
    await cluster.leader.sync()
    assert not await cluster.placeholders()
    cluster.service.clock.now += 1
    await cluster.leader.sync()
    assert len(await cluster.placeholders()) == 1


async def test_the_new_node_is_reserved_and_the_placeholder_ends_when_the_pod_runs(cluster: Cluster) -> None:
    waiting = await cluster.waits("w")
    await cluster.leader.sync()
    cluster.join("n2", is_reported=False)
    await cluster.leader.sync()
    (placeholder,) = await cluster.placeholders()
    assert placeholder["metadata"]["annotations"]["topowise.io/scale-up-node"] == "n2"
    assert placeholder["status"]["conditions"][0]["reason"] == "NodeAdded", "the autoscaler adds no second node"
    cluster.service.report(exact(kubelet(), name="n2"))
    await cluster.leader.sync()
    assert cluster.service.ledger.pods.of(waiting["metadata"]["uid"]).node == "n2"
    assert sum(cluster.service.free("n2")) == 4, "reserved"
    cluster.runs(waiting, "n2")
    await cluster.leader.sync()
    assert await cluster.outcomes() == ["helped"]
    (placeholder,) = await cluster.placeholders()
    assert placeholder["status"]["phase"] == "Succeeded"
    assert placeholder["status"]["conditions"][0]["reason"] == "PlaceholderEnded", "Karpenter reads no phase"


async def test_a_new_node_is_awaited_until_its_devices_are_there(server: ApiServer, api: Api) -> None:
    """Its drivers start later than its exporter: a report alone does not make the node useless, or use up its time."""
    service = ClaimService(clock=Clock(), places=True)
    cluster = Cluster(server, api, service=service)
    service.put_devices("n1", 1)
    service.put_claim("running", 1, ["gpu-0"])
    service.put_claim("a")
    waiting = await cluster.waits("w", "1", **claims_of(claiming("w", "1", "a")), **GATED)
    uid = waiting["metadata"]["uid"]
    await cluster.leader.sync()
    assert len(await cluster.placeholders()) == 1
    cluster.join("n2")
    for _ in range(2):
        await cluster.leader.sync()
        service.wait(HOLD_S + 1)
    assert await cluster.outcomes() == [""]
    assert not service.ledger.pods.of(uid).node
    service.put_devices("n2", 1)
    await cluster.leader.sync()
    assert service.ledger.pods.of(uid).node == "n2"
    assert [device.pool for (device, _, is_allocated) in service.claims.devices_of_node("n2") if is_allocated] == ["n2"]
    cluster.runs(waiting, "n2")
    await cluster.leader.sync()
    assert await cluster.outcomes() == ["helped"]


async def test_a_new_node_without_its_devices_counts_as_a_failure(server: ApiServer, api: Api) -> None:
    service = ClaimService(clock=Clock(), places=True)
    cluster = Cluster(server, api, service=service)
    service.put_devices("n1", 1)
    service.put_claim("running", 1, ["gpu-0"])
    service.put_claim("a")
    await cluster.waits("w", "1", **claims_of(claiming("w", "1", "a")), **GATED)
    await cluster.leader.sync()
    cluster.join("n2")
    cluster.later = 901.0
    await cluster.leader.sync()
    assert await cluster.outcomes() == ["late"]
    await cluster.leader.sync()
    assert len(await cluster.placeholders()) == 1, "the group has a pause"


def claims_of(document: Json) -> Json:
    return {"resourceClaims": document["spec"]["resourceClaims"]}


async def test_equal_pods_get_as_many_nodes_as_they_need_the_first_alone(cluster: Cluster) -> None:
    """Two pods of 3 CPUs fit on an empty node, aligned: 5 pods need three nodes."""
    waiting = {(await cluster.waits(name))["metadata"]["uid"]: name for name in ("a", "b", "c", "d", "e")}
    await cluster.leader.sync()
    (first,) = await cluster.placeholders()
    cluster.join("n2")
    purchase = json.loads(first["metadata"]["annotations"]["topowise.io/scale-up"])
    assert len(purchase["pods"]) == 2
    for item in purchase["pods"]:
        document = json.loads(await cluster.api.request("GET", f"{PODS}/{waiting[item['uid']]}"))
        cluster.runs(document, "n2")
    await cluster.leader.sync()
    assert await cluster.outcomes() == ["", "", "helped"]
    hosts = [term(item)["kubernetes.io/hostname"] for item in await cluster.placeholders()]
    assert sorted(map(str, hosts)) == ["('NotIn', ['n1', 'n2'])"] * 2 + ["('NotIn', ['n1'])"]


def pods_of(placeholder: Json) -> list[str]:
    purchase = json.loads(placeholder["metadata"]["annotations"]["topowise.io/scale-up"])
    return [f"{item['namespace']}/{item['name']}" for item in purchase["pods"]]


async def crowd(cluster: Cluster, count: int = 6) -> list[Json]:
    """The pods of a tenant with many pods, oldest first."""
    since = "2026-01-01T00:00:{:02}Z"
    return [await cluster.waits(f"p{at}", namespace="noisy", since=since.format(at)) for at in range(count)]


async def test_a_tenant_with_many_pods_leaves_nodes_for_other_tenants(cluster: Cluster) -> None:
    """Two pods fit on a node, and the first node is requested alone."""
    await crowd(cluster)
    await cluster.waits("late", namespace="quiet")
    await cluster.leader.sync()
    (first,) = await cluster.placeholders()
    assert pods_of(first) == ["noisy/p0", "quiet/late"]


async def test_a_tenant_that_has_got_nodes_waits_behind_other_tenants(server: ApiServer, api: Api) -> None:
    cluster = Cluster(server, api, limits=msgspec.structs.replace(LIMITS, per_group=1))
    many = await crowd(cluster)
    await cluster.leader.sync()
    cluster.join("n2")
    for document in many[:2]:
        cluster.runs(document, "n2")
    await cluster.waits("late", namespace="quiet")
    cluster.start()
    await cluster.leader.sync()
    requests = {item["metadata"]["name"]: pods_of(item) for item in await cluster.placeholders()}
    assert sorted(requests.values()) == [["noisy/p0", "noisy/p1"], ["quiet/late", "noisy/p2"]]


async def test_a_gang_is_not_left_behind_by_pods_of_another_tenant(server: ApiServer, api: Api) -> None:
    cluster = Cluster(server, api, limits=msgspec.structs.replace(LIMITS, per_group=1))
    cluster.join("n2", taken=("2", "2"))
    await crowd(cluster)
    for at in range(2):
        await cluster.waits(f"w{at}", namespace="quiet", schedulingGroup={"podGroupName": "gang"}, priority=1)
    await cluster.leader.sync()
    (first,) = await cluster.placeholders()
    assert sorted(pods_of(first)) == ["quiet/w0", "quiet/w1"]


async def test_nothing_is_requested_after_a_node_that_cannot_align_the_pod(cluster: Cluster) -> None:
    """The new node has another kubelet configuration than the reported node of its group."""
    await cluster.waits("w")
    await cluster.waits("v")
    await cluster.waits("u")
    await cluster.leader.sync()
    # 3 CPUs of each NUMA node are reserved for the system.
    cluster.join("n2", reservedSystemCPUs="0-1,4-5")
    await cluster.leader.sync()
    assert await cluster.outcomes() == ["useless"]
    assert "ScaleUpDidNotHelp" in {reason for _, reason in cluster.events}
    for _ in range(3):
        await cluster.leader.sync()
    assert await cluster.outcomes() == ["useless"]
    cluster.start()
    await cluster.leader.sync()
    assert await cluster.outcomes() == ["useless"], "a new leader knows it"


async def test_a_pod_that_the_kubelet_of_the_new_node_refuses_ends_the_requests(cluster: Cluster) -> None:
    """The pod came to the node before the first report."""
    waiting = await cluster.waits("w")
    await cluster.waits("v")
    await cluster.leader.sync()
    cluster.join("n2", is_reported=False)
    waiting["status"] = {"phase": "Failed", "reason": "TopologyAffinityError"}
    cluster.runs(waiting, "n2")
    await cluster.leader.sync()
    assert await cluster.outcomes() == ["useless"]


async def test_after_the_pause_the_reports_decide_whether_a_node_is_requested(cluster: Cluster) -> None:
    await cluster.waits("w")
    await cluster.leader.sync()
    cluster.join("n2", reservedSystemCPUs="0-1,4-5")
    await cluster.leader.sync()
    cluster.later = 4000.0
    await cluster.leader.sync()
    assert await cluster.outcomes() == [], "deleted, and not requested again: n2 says that it would not help"


async def test_a_request_ends_without_a_node_in_time_and_the_group_pauses(cluster: Cluster) -> None:
    await cluster.waits("w")
    await cluster.leader.sync()
    cluster.later = 901.0
    await cluster.leader.sync()
    assert await cluster.outcomes() == ["late"]
    (placeholder,) = await cluster.placeholders()
    assert placeholder["status"]["phase"] == "Failed"
    await cluster.leader.sync()
    assert await cluster.outcomes() == ["late"]
    cluster.later = 1502.0
    await cluster.leader.sync()
    assert await cluster.outcomes() == ["", "late"]


async def test_a_placeholder_ends_with_its_pod(cluster: Cluster) -> None:
    waiting = await cluster.waits("w")
    await cluster.leader.sync()
    cluster.service.ledger.drop_pod(waiting["metadata"]["uid"])
    await cluster.leader.sync()
    assert await cluster.outcomes() == ["unneeded"]
    cluster.later = 3601.0
    await cluster.leader.sync()
    assert not await cluster.placeholders(), "deleted once it no longer counts for the hour"


async def test_a_new_leader_continues_a_request(cluster: Cluster) -> None:
    waiting = await cluster.waits("w")
    await cluster.leader.sync()
    cluster.start()
    await cluster.leader.sync()
    assert len(await cluster.placeholders()) == 1
    cluster.join("n2")
    cluster.start()
    await cluster.leader.sync()
    cluster.runs(waiting, "n2")
    cluster.start()
    await cluster.leader.sync()
    assert await cluster.outcomes() == ["helped"]


async def test_a_pass_is_due_at_once_when_a_node_comes(cluster: Cluster) -> None:
    await cluster.leader.sync()
    assert not cluster.leader.due()
    cluster.join("n9", taken=("2", "2"))
    assert not cluster.leader.due(), "no node is on its way"
    await cluster.waits("w")
    await cluster.leader.sync()
    assert not cluster.leader.due()
    cluster.join("n2", is_reported=False)
    assert cluster.leader.due()


async def test_a_new_leader_makes_a_placeholder_visible_that_the_last_leader_has_only_created(cluster: Cluster) -> None:
    await cluster.waits("w")
    cluster.server.levers.answer(500, method="PATCH", path=f"{OTHERS}/*/status", count=1)
    with contextlib.suppress(ApiError):
        await cluster.leader.sync()
    (placeholder,) = await cluster.placeholders()
    assert not placeholder["status"].get("conditions")
    cluster.start()
    await cluster.leader.sync()
    (placeholder,) = await cluster.placeholders()
    assert placeholder["status"]["conditions"][0]["reason"] == "Unschedulable"


async def test_a_node_that_comes_for_another_reason_is_used_first(cluster: Cluster) -> None:
    """A new node without a report counts as an empty node of its group."""
    cluster.join("n2", is_reported=False)
    await cluster.waits("w")
    cluster.service.ledger.gates.new_nodes.until["n2"] = 1e9
    await cluster.leader.sync()
    assert not await cluster.placeholders()


async def test_karpenter_gets_a_label_instead_of_host_names(server: ApiServer, api: Api) -> None:
    settings = Settings(enabled=True, autoscaler="karpenter", group_labels=("pool",))
    cluster = Cluster(server, api, settings)
    await cluster.waits("w")
    await cluster.leader.sync()
    (placeholder,) = await cluster.placeholders()
    assert term(placeholder) == {"pool": ("In", ["a"]), "topowise.io/known-node": ("DoesNotExist", [])}
    cluster.join("n2")
    await cluster.leader.sync()
    labels = {node["metadata"]["name"]: node["metadata"]["labels"] for node in server.store.objects("nodes")}
    assert "topowise.io/known-node" in labels["n1"]
    assert "topowise.io/known-node" not in labels["n2"], "until the placeholder ends, it fits on n2"


@pytest.mark.parametrize("count", [3, 4])
async def test_of_a_gang_the_pods_that_do_not_fit_get_nodes(server: ApiServer, api: Api, count: int) -> None:
    """Two pods of the gang fit on n1, the others on a new node."""
    cluster = Cluster(server, api, taken=())
    for at in range(count):
        await cluster.waits(f"w{at}", schedulingGroup={"podGroupName": "gang"})
    await cluster.leader.sync()
    (placeholder,) = await cluster.placeholders()
    purchase = json.loads(placeholder["metadata"]["annotations"]["topowise.io/scale-up"])
    assert len(purchase["pods"]) == count - 2


async def test_a_gang_that_fits_gets_no_node(server: ApiServer, api: Api) -> None:
    cluster = Cluster(server, api, taken=())
    for at in range(2):
        await cluster.waits(f"w{at}", schedulingGroup={"podGroupName": "gang"})
    await cluster.leader.sync()
    assert not await cluster.placeholders()
