"""Constraints between pods on random clusters: the index and a real kube-scheduler refuse the same nodes.

Each node lacks an extended resource of its own, of which every probe requests one, and the profile of the probes checks
resources last. So the message of a probe names each node that passed all other filters, and counts the refused nodes by
reason.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest

from constrained_pods import NAMESPACES, apply, decode, node_json, pod_json
from sandbox.apiserver.client import MERGE, NODES, Client, connect
from sandbox.controlplane import API_VERSION, ControlPlane, StockScheduler
from topowise_scheduler.ledger.nodes import Nodes
from topowise_scheduler.verdicts import kube_scheduler
from topowise_scheduler.verdicts.inter_pod import InterPodIndex

pytestmark = pytest.mark.apiserver
log = logging.getLogger(__name__)
Json = dict[str, Any]
PROBES, STOCK = "probes", "stock"
# kube-scheduler's default filters, but resources last and no preemption.
FILTERS = [
    *("PrioritySort", "NodeUnschedulable", "NodeName", "TaintToleration", "NodeAffinity", "NodePorts"),
    *("PodTopologySpread", "InterPodAffinity", "NodeResourcesFit", "DefaultBinder"),
]
PROFILES: Json = {
    "apiVersion": API_VERSION,
    "clientConnection": {"qps": 1000, "burst": 1000},
    "profiles": [
        {"schedulerName": STOCK},
        {
            "schedulerName": PROBES,
            "plugins": {"multiPoint": {"disabled": [{"name": "*"}], "enabled": [{"name": name} for name in FILTERS]}},
        },
    ],
}
PROBES_AT_ONCE, ROUNDS, STOCK_PODS = 25, 5, 25


def pods_of(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


def lacking(node: str) -> str:
    return f"example.com/{node}"


class Cluster:
    """Nodes and pods of an API server with a kube-scheduler, and the index that follows their lists."""

    def __init__(self, api: Client, random: Random) -> None:
        self.api = api
        self.random = random
        self.nodes = Nodes()
        self.index = InterPodIndex(self.nodes, NAMESPACES.get)
        self.names: list[str] = []
        self.pods: dict[str, Json] = {}

    async def create(self) -> None:
        """Six to twelve nodes."""
        self.names = [f"n{number}" for number in range(self.random.randint(6, 12))]
        for name in self.names:
            await self.api.ok("POST", NODES, node_json(self.random, name))
            amounts = {lacking(other): "1000" for other in self.names if other != name} | {"cpu": "100", "pods": "1000"}
            status = {"allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
            await self.api.ok("PATCH", f"{NODES}/{name}/status", {"status": status}, MERGE)
            apply(self.nodes, await self.api.ok("GET", f"{NODES}/{name}"))

    async def read(self) -> None:
        """Brings the index up to date."""
        listed = {item["metadata"]["uid"]: item for item in (await self.api.ok("GET", "/api/v1/pods"))["items"]}
        for uid in set(self.pods) - set(listed):
            self.index.drop(uid)
        for uid, item in listed.items():
            if self.pods.get(uid) != item:
                self.index.put(decode(item))
        self.pods = listed

    async def post(self, pod: Json) -> Json:
        return await self.api.ok("POST", pods_of(pod["metadata"]["namespace"]), pod)

    async def change(self, number: int) -> None:
        """Pods come to nodes, by the rules or against them, are deleted by their kubelet's leave, and end."""
        for count in range(6):
            await self.read()
            pod = pod_json(self.random, f"placed-{number}-{count}", rate=0.25)
            allowed = self.index.verdicts(self.index.request(decode(pod)), self.names).allowed()
            # Two pods with one port on a node: kube-scheduler forgets the port when one of them ends.
            breaks = self.random.random() < 0.3 and "hostPort" not in json.dumps(pod)
            if breaks or allowed:
                pod["spec"]["nodeName"] = self.random.choice(self.names if breaks else allowed)
                await self.post(pod)
        await self.read()
        assigned = [pod for pod in self.pods.values() if pod["spec"].get("nodeName")]
        for pod in self.random.sample(assigned, min(2, len(assigned))):
            path = f"{pods_of(pod['metadata']['namespace'])}/{pod['metadata']['name']}"
            match self.random.randrange(3):
                case 0:
                    await self.api.ok("DELETE", path)
                case 1:
                    await self.api.ok("DELETE", path, gracePeriodSeconds=0)
                case 2:
                    await self.api.ok("PATCH", f"{path}/status", {"status": {"phase": "Succeeded"}}, MERGE)
        await self.read()

    def refusals(self, pod: Json, *, as_only: str = "") -> Counter[str]:
        """The words of every refused node, and the lacking resource of every other node."""
        spec = kube_scheduler.decode(json.dumps(pod).encode()).spec
        names = [as_only] if as_only else self.names
        verdicts = self.index.verdicts(self.index.request(decode(pod)), names, as_only=bool(as_only))
        words: Counter[str] = Counter()
        for at, name in enumerate(names):
            node = self.nodes.get(name)
            assert node is not None
            objection = kube_scheduler.exclusion_of(node, spec) or verdicts.objection(at)
            words[f"Insufficient {lacking(name)}" if objection is None else objection.words] += 1
        return words

    async def until(self, pods: list[Json], is_done: Callable[[Json], bool]) -> list[Json]:
        """Waits until the pods are as wanted; returns them."""
        async with asyncio.timeout(60):
            while True:
                await self.read()
                seen = [self.pods[pod["metadata"]["uid"]] for pod in pods]
                if all(map(is_done, seen)):
                    return seen
                await asyncio.sleep(0.05)


def condition(pod: Json) -> Json:
    conditions: list[Json] = pod["status"].get("conditions", [])
    return next((item for item in conditions if item["type"] == "PodScheduled"), {})


def message_of(pod: Json) -> Counter[str]:
    """The number of nodes by reason."""
    text = condition(pod)["message"]
    match = re.fullmatch(r"0/\d+ nodes are available: (.*?)\.(?: [a-z].*)?", text)
    assert match is not None, text
    reasons = [reason.partition(" ") for reason in match[1].split(", ")]
    return Counter({words: int(number) for number, _, words in reasons})


def as_probe(pod: Json, names: list[str], *, only: str = "") -> Json:
    """The pod as a probe, which no node can take; its node affinity names one node (`only`)."""
    probe: Json = json.loads(json.dumps(pod))
    probe["spec"]["schedulerName"] = PROBES
    probe["spec"]["containers"][0]["resources"] = {"limits": {lacking(name): "1" for name in names}}
    if only:
        probe["metadata"]["name"] += "-only"
        field = {"key": "metadata.name", "operator": "In", "values": [only]}
        affinity = probe["spec"].setdefault("affinity", {}).setdefault("nodeAffinity", {})
        required = affinity.setdefault("requiredDuringSchedulingIgnoredDuringExecution", {"nodeSelectorTerms": [{}]})
        for term in required["nodeSelectorTerms"]:
            term["matchFields"] = [field]
    return probe


@pytest.fixture(params=[11, 12, 13, 14])
async def cluster(request: pytest.FixtureRequest, plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(connect(plane.url, plane.token))
        labels = {"team": NAMESPACES["other"]["team"]}
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other", "labels": labels}}
        assert (await api.call("POST", "/api/v1/namespaces", body)).status in (201, 409)
        for namespace in NAMESPACES:
            stack.push_async_callback(api.ok, "DELETE", pods_of(namespace), gracePeriodSeconds=0)
        stack.push_async_callback(api.ok, "DELETE", NODES)
        cluster = Cluster(api, Random(request.param))
        await cluster.create()
        scheduler = StockScheduler(plane, PROFILES, tmp_path)
        await asyncio.to_thread(scheduler.__enter__)
        stack.push_async_callback(asyncio.to_thread, scheduler.__exit__, None, None, None)
        yield cluster


async def test_kube_scheduler_refuses_the_same_nodes(cluster: Cluster) -> None:
    compared: Counter[str] = Counter()
    for number in range(ROUNDS):
        await cluster.change(number)
        expected: list[tuple[Json, Counter[str]]] = []
        for count in range(PROBES_AT_ONCE):
            pod = pod_json(cluster.random, f"probe-{number}-{count}", by_api_server=True)
            posted = await cluster.post(as_probe(pod, cluster.names))
            expected.append((posted, cluster.refusals(posted)))
            if "topologySpreadConstraints" in pod["spec"]:
                only = cluster.random.choice(cluster.names)
                pinned = await cluster.post(as_probe(pod, cluster.names, only=only))
                expected.append((pinned, cluster.refusals(posted, as_only=only)))
        seen = await cluster.until([pod for pod, _ in expected], lambda pod: bool(condition(pod)))
        for pod, (_, words) in zip(seen, expected, strict=True):
            message = message_of(pod)
            if pod["metadata"]["name"].endswith("-only"):
                # Of the other nodes it only says that NodeAffinity has left them out.
                del message["node(s) didn't satisfy plugin(s) [NodeAffinity]"]
            assert message == words, json.dumps(pod["spec"])
            compared.update({words if words.startswith("node") else "passed": by for words, by in words.items()})
            compared["probes"] += 1
            await cluster.api.ok("DELETE", f"{pods_of(pod['metadata']['namespace'])}/{pod['metadata']['name']}")
    log.info("%s", dict(compared))


async def test_kube_scheduler_chooses_one_of_the_allowed_nodes(cluster: Cluster) -> None:
    chosen: Counter[bool] = Counter()
    for number in range(STOCK_PODS):
        await cluster.read()
        pod = pod_json(cluster.random, f"stock-{number}", rate=0.4, by_api_server=True)
        pod["spec"]["schedulerName"] = STOCK
        posted = await cluster.post(pod)
        words = cluster.refusals(posted)
        (seen,) = await cluster.until([posted], lambda pod: bool(condition(pod)))
        node = seen["spec"].get("nodeName", "")
        assert f"Insufficient {lacking(node)}" in words if node else message_of(seen) == words
        chosen[bool(node)] += 1
        if not node:
            await cluster.api.ok("DELETE", f"{pods_of(pod['metadata']['namespace'])}/{pod['metadata']['name']}")
    log.info("bound %d, refused everywhere %d", chosen[True], chosen[False])
