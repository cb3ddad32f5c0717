"""Which nodes the leader keeps from a scale-down, and that no pod loses its alignment when another node is removed."""

from __future__ import annotations

import itertools
import json
from random import Random
from typing import Any

import pytest

from sandbox.apiserver import ApiServer
from scheduling import Service, exact, kubelet, pod
from topowise import pods
from topowise.kube.api import MERGE_PATCH, Api
from topowise_scheduler.controllers.scale_down_guard import ScaleDownGuard
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.verdicts import kube_scheduler

pytestmark = pytest.mark.own_time

Json = dict[str, Any]
PODS = "/api/v1/namespaces/default/pods"
DISABLED = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
KEYS = {DISABLED, "karpenter.sh/do-not-disrupt", "topowise.io/scale-down-guard"}


class Cluster:
    """Nodes of 3 and 4 CPUs by NUMA node, with pods on the API server and in the service."""

    def __init__(self, server: ApiServer, api: Api, most_nodes: int = 10) -> None:
        self.server, self.api = server, api
        self.service = Service("TightFit")
        self.true: dict[str, Kubelet] = {}
        self.names: dict[str, tuple[str, str]] = {}
        self.versions = itertools.count(1)
        service = self.service
        # On a busy machine a pass ends before all nodes are judged.
        self.guard = ScaleDownGuard(api, service.trial, most_nodes=most_nodes, clock=lambda: 0.0)

    def join(self, name: str, **metadata: Any) -> None:
        amounts = {"cpu": "8", "memory": "64Gi", "pods": "110"}
        status = {"allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
        self.server.create("nodes", {"metadata": {"name": name, **metadata}, "status": status})
        self.true[name] = kubelet()
        self.report(name)
        self.watch(name)

    def report(self, name: str) -> None:
        """The exporter reports the node as its kubelet has it."""
        version = str(next(self.versions))
        self.service.report(exact(self.true[name], version, name, self.names.__getitem__))

    def watch(self, name: str) -> None:
        """The watch brings the Node as it is."""
        (node,) = [node for node in self.server.store.objects("nodes") if node["metadata"]["name"] == name]
        self.service.nodes.apply("MODIFIED", self.service.nodes.decode(json.dumps(node).encode()))

    async def runs(self, name: str, cpu: str, node: str, **fields: Any) -> Json:
        document = pod(name, cpu, node=node, **fields)
        del document["metadata"]["uid"]
        created: Json = json.loads(await self.api.request("POST", PODS, body=json.dumps(document).encode()))
        self.admit(created, node)
        return created

    def admit(self, document: Json, node: str) -> None:
        """The kubelet admits the pod, and the exporter reports it."""
        meta = document["metadata"]
        self.names[meta["uid"]] = meta["namespace"], meta["name"]
        assert self.true[node].admit(pods.decode(json.dumps(document).encode())).admitted
        self.service.put(document)
        self.report(node)

    def ends(self, document: Json, node: str) -> None:
        self.true[node].remove(document["metadata"]["uid"])
        self.service.ledger.drop_pod(document["metadata"]["uid"])
        if node in self.service.nodes:
            self.report(node)

    async def leaves(self, name: str) -> None:
        """The autoscaler removes the node; its pods are gone before."""
        await self.api.request("DELETE", f"/api/v1/nodes/{name}")
        self.service.nodes.apply(
            "DELETED", self.service.nodes.decode(json.dumps({"metadata": {"name": name}}).encode())
        )
        self.service.ledger.reports.drop_node(name)
        self.service.ledger.reports.drop(name)

    def guarded(self) -> set[str]:
        """The nodes with all annotations of the guard."""
        for node in list(self.service.nodes):
            self.watch(node)
        nodes = {
            node["metadata"]["name"]: node["metadata"].get("annotations") or {}
            for node in self.server.store.objects("nodes")
        }
        return {name for name, annotations in nodes.items() if annotations.keys() >= KEYS}


@pytest.fixture
def cluster(server: ApiServer, api: Api) -> Cluster:
    return Cluster(server, api)


async def test_a_node_is_guarded_while_its_pod_would_not_be_aligned_elsewhere(cluster: Cluster) -> None:
    """n2 has 1 and 2 CPUs free: 3 in sum. The pods of n2 fit on n1, whose own pod does not fit on n2."""
    for name in ("n1", "n2"):
        cluster.join(name)
    wide = await cluster.runs("wide", "3", "n1")
    first = await cluster.runs("a", "2", "n2")
    second = await cluster.runs("b", "2", "n2")
    for _ in range(2):
        await cluster.guard.sync()
        assert cluster.guarded() == {"n1"}
    cluster.ends(first, "n2")
    await cluster.guard.sync()
    assert cluster.guarded() == {"n1"}, "the pod of n2 would go there"
    cluster.ends(wide, "n1")
    cluster.ends(second, "n2")
    await cluster.guard.sync()
    assert cluster.guarded() == set(), "at once when no pod needs it"


async def test_nodes_that_are_not_guarded_may_go_at_once(cluster: Cluster) -> None:
    """A pod of 4 CPUs fits on n3, which has no pod: n1 or n2 may go, but not both, and not n3 with either of them."""
    for name in ("n1", "n2", "n3"):
        cluster.join(name)
    await cluster.runs("a", "4", "n1")
    await cluster.runs("b", "4", "n2")
    for _ in range(3):
        await cluster.guard.sync()
        assert cluster.guarded() in ({"n1", "n3"}, {"n2", "n3"})


async def test_a_node_that_others_need_is_released_with_them(cluster: Cluster) -> None:
    for name in ("n1", "n2", "n3"):
        cluster.join(name)
    first = await cluster.runs("a", "4", "n1")
    second = await cluster.runs("b", "4", "n2")
    await cluster.guard.sync()
    cluster.guarded()
    cluster.ends(first, "n1")
    cluster.ends(second, "n2")
    await cluster.guard.sync()
    assert cluster.guarded() == set()


async def test_nodes_are_judged_by_themselves_beyond_half_of_the_limit(server: ApiServer, api: Api) -> None:
    cluster = Cluster(server, api, most_nodes=3)
    cluster.join("n5")
    pods = {}
    for name in ("n1", "n2", "n3", "n4"):
        cluster.join(name)
        pods[name] = await cluster.runs(f"of-{name}", "4", name)
    for _ in range(3):
        await cluster.guard.sync()
        assert cluster.guarded() == {"n5"}, "to which the pod of another node may go"
    for name in ("n1", "n2", "n3"):
        cluster.ends(pods[name], name)
        for _ in range(2):
            await cluster.guard.sync()
        assert len(cluster.guarded()) == 1, "for the next node"
    for name in ("n1", "n2", "n3", "n4", "n5"):
        await cluster.runs(f"wide-on-{name}", "3", name)
        if name != "n4":
            await cluster.runs(f"wider-on-{name}", "4", name)
    for _ in range(3):
        await cluster.guard.sync()
    assert len(cluster.guarded()) == 3, "their pods fit on no node"


async def test_pods_that_a_kubelet_does_not_align_and_daemon_pods_guard_no_node(cluster: Cluster) -> None:
    cluster.join("n1")
    cluster.join("n2")
    await cluster.runs("wide-a", "4", "n2")
    await cluster.runs("wide-b", "3", "n2")
    shared = pod("shared", node="n1")
    del shared["metadata"]["uid"]
    shared["spec"]["containers"] = [{"name": "c", "resources": {"requests": {"cpu": "5"}}}]
    cluster.admit(json.loads(await cluster.api.request("POST", PODS, body=json.dumps(shared).encode())), "n1")
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "set", "uid": "uid-set", "controller": True}
    daemon = pod("daemon", "2", node="n1")
    del daemon["metadata"]["uid"]
    daemon["metadata"]["ownerReferences"] = [owner]
    cluster.admit(json.loads(await cluster.api.request("POST", PODS, body=json.dumps(daemon).encode())), "n1")
    await cluster.guard.sync()
    assert cluster.guarded() == {"n2"}


async def test_an_annotation_of_another_writer_is_left_alone(cluster: Cluster) -> None:
    cluster.join("n1", annotations={DISABLED: "true"})
    cluster.join("n2", annotations={DISABLED: "false"})
    await cluster.runs("wide", "4", "n1")
    await cluster.runs("wide-too", "4", "n2")
    await cluster.guard.sync()
    assert not cluster.guarded()


async def test_at_most_so_many_nodes_are_guarded(server: ApiServer, api: Api) -> None:
    cluster = Cluster(server, api, most_nodes=2)
    for number in range(4):
        cluster.join(f"n{number}")
        await cluster.runs(f"four-{number}", "4", f"n{number}")
        await cluster.runs(f"three-{number}", "3", f"n{number}")
    for _ in range(3):
        await cluster.guard.sync()
        assert len(cluster.guarded()) == 2


async def test_the_annotation_that_a_user_removes_comes_back(cluster: Cluster) -> None:
    cluster.join("n1")
    await cluster.runs("wide", "4", "n1")
    await cluster.guard.sync()
    assert cluster.guarded() == {"n1"}
    body = json.dumps({"metadata": {"annotations": dict.fromkeys(KEYS)}}).encode()
    await cluster.api.request("PATCH", "/api/v1/nodes/n1", body=body, content_type=MERGE_PATCH)
    assert not cluster.guarded()
    await cluster.guard.sync()
    assert cluster.guarded() == {"n1"}


@pytest.mark.parametrize("seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(2, 10))])
async def test_no_pod_loses_its_alignment_when_nodes_that_are_not_guarded_are_removed(
    server: ApiServer, api: Api, seed: int
) -> None:
    """Five times up to three random nodes that are not guarded go at once; their pods are placed like by
    kube-scheduler. 50 times in ten runs."""
    rng, cluster = Random(seed), Cluster(server, api, most_nodes=100)
    service, numbers = cluster.service, itertools.count()
    documents: dict[str, Json] = {}

    def grow() -> None:
        cluster.join(f"n{next(numbers)}")

    for _ in range(10):
        grow()
    for number in range(14):
        probe = pod(f"p{number}", str(rng.randint(1, 4)))
        fitting = service.fits(probe, *service.trial.names)
        if fitting:
            amount = probe["spec"]["containers"][0]["resources"]["limits"]["cpu"]
            created = await cluster.runs(f"p{number}", amount, rng.choice(fitting))
            documents[created["metadata"]["uid"]] = created
    for _ in range(5):
        candidates = await unguarded(cluster)
        while not candidates:
            grow()
            candidates = await unguarded(cluster)
        removed = rng.sample(candidates, min(len(candidates), rng.randint(1, 3)))
        moved = [documents[record.uid] for name in removed for record in service.ledger.pods_on(name)]
        rng.shuffle(moved)
        for document in moved:
            path = f"{PODS}/{document['metadata']['name']}"
            await cluster.api.request("DELETE", path, query={"gracePeriodSeconds": "0"})
            service.ledger.drop_pod(document["metadata"]["uid"])
        for name in removed:
            await cluster.leaves(name)
        for document in moved:
            name, amounts = document["metadata"]["name"], document["spec"]["containers"][0]["resources"]["limits"]
            fitting = service.fits(document, *service.trial.names)
            assert fitting, f"{name} of {removed} fits on no node"
            created = await cluster.runs(name, amounts["cpu"], service.view.best(unbound(document), fitting))
            documents[created["metadata"]["uid"]] = created


async def unguarded(cluster: Cluster) -> list[str]:
    """The nodes that are not guarded once the guard has nothing to do."""
    before: set[str] | None = None
    while before != cluster.guarded():
        before = cluster.guarded()
        await cluster.guard.sync()
    return sorted(set(cluster.service.trial.names) - cluster.guarded())


def unbound(document: Json) -> kube_scheduler.Pod:
    return kube_scheduler.decode(json.dumps({**document, "spec": {**document["spec"], "nodeName": ""}}).encode())
