"""Kueue's AdmissionChecks on an API server. Workloads have the fields of Kueue 0.14; Kueue itself does not run here.

The test plays Kueue's part: it reserves quota by sums, and starts the pods of a Workload whose check is Ready.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest

from daemons import assert_eventually
from sandbox.apiserver import ApiServer
from scheduling import Service, exact, kubelet, pod
from topowise.kube.api import MERGE_PATCH, Api
from topowise.runtime.config import PositiveDuration
from topowise_scheduler import kube_scheduler
from topowise_scheduler.configuration import Kueue as Settings
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kueue import CONTROLLER
from topowise_scheduler.leader.admission_checks import AdmissionChecks
from topowise_scheduler.leader.workload_pods import WorkloadPods

Json = dict[str, Any]
BASE = "/apis/kueue.x-k8s.io/v1beta1"
CHECK = "aligned"
QUOTA = {"type": "QuotaReserved", "status": "True", "reason": "QuotaReserved", "message": "", "observedGeneration": 1}


def definition(plural: str, kind: str, scope: str) -> Json:
    """A CRD that keeps all fields, as the types of Kueue are not what is tested."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": "v1beta1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}},
    }
    return {
        "metadata": {"name": f"{plural}.kueue.x-k8s.io"},
        "spec": {
            "group": "kueue.x-k8s.io",
            "names": {"plural": plural, "kind": kind, "listKind": f"{kind}List", "singular": kind.lower()},
            "scope": scope,
            "versions": [version],
        },
    }


class Cluster:
    """Four nodes of 3 and 4 CPUs by NUMA node, an AdmissionCheck and a flavor for the pool "a"."""

    def __init__(self, server: ApiServer, api: Api, nodes: int = 4, **settings: Any) -> None:
        self.server, self.api = server, api
        self.true: dict[str, Kubelet] = {}
        self.versions = itertools.count(2)
        for plural, kind, scope in (
            ("workloads", "Workload", "Namespaced"),
            ("admissionchecks", "AdmissionCheck", "Cluster"),
            ("resourceflavors", "ResourceFlavor", "Cluster"),
        ):
            server.create("customresourcedefinitions.apiextensions.k8s.io", definition(plural, kind, scope))
        self.bound: list[Json] = []
        self.leads = True
        self.nodes: WorkloadPods | None = None
        for number in range(nodes):
            self.true[f"n{number}"] = kubelet()
        self.settings = Settings(enabled=True, **settings)
        self.start()

    def start(self) -> None:
        """Starts a service, which knows what the API server has."""
        self.service = Service("TightFit")
        for name, node in self.true.items():
            self.service.put_node(name, labels={"pool": "a"})
            self.service.report(exact(node, str(next(self.versions)), name))
        for document in self.bound:
            self.service.put(document)
        self.fitting = self.service.fitting(self.settings.most_reserved, setting="kueue.mostReserved")
        self.leader = self.anew()

    def anew(self) -> AdmissionChecks:
        """Returns the controller of the service."""
        service = self.service
        return AdmissionChecks(
            self.api,
            service.ledger,
            service.answers,
            service.view,
            self.fitting,
            self.settings,
            nodes=self.nodes,
            is_leader=lambda: self.leads,
        )

    @contextlib.asynccontextmanager
    async def running(self, leader: AdmissionChecks | None = None) -> AsyncIterator[None]:
        task = asyncio.ensure_future((leader or self.leader).run())
        try:
            yield
            assert not task.done(), task
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def create(self, path: str, document: Json, status: Json | None = None) -> Json:
        group = {"apiVersion": "kueue.x-k8s.io/v1beta1"}
        raw = await self.api.request("POST", f"{BASE}/{path}", body=json.dumps({**group, **document}).encode())
        if status is not None:
            name = document["metadata"]["name"]
            body = json.dumps({"status": status}).encode()
            raw = await self.api.request("PATCH", f"{BASE}/{path}/{name}/status", body=body, content_type=MERGE_PATCH)
        created: Json = json.loads(raw)
        return created

    async def check(self, controller: str = CONTROLLER) -> None:
        meta = {"name": CHECK}
        await self.create(
            "admissionchecks", {"kind": "AdmissionCheck", "metadata": meta, "spec": {"controllerName": controller}}
        )
        labels = {"nodeLabels": {"pool": "a"}}
        await self.create("resourceflavors", {"kind": "ResourceFlavor", "metadata": {"name": "flavor"}, "spec": labels})

    async def workload(self, name: str, cpu: str, count: int, **status: Any) -> Json:
        """A Workload whose quota is reserved, and whose check is Pending."""
        template = pod(name, cpu)
        for field in ("name", "namespace", "uid"):
            del template["metadata"][field]
        sets = [
            {"name": "main", "count": count, "template": {"metadata": template["metadata"], "spec": template["spec"]}}
        ]
        document = {"kind": "Workload", "metadata": {"name": name}, "spec": {"podSets": sets}}
        assigned = {"name": "main", "flavors": {"cpu": "flavor"}, "count": count}
        states = [
            {"name": CHECK, "state": "Pending", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"},
            {"name": "other", "state": "Pending", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"},
        ]
        admission = {"clusterQueue": "queue", "podSetAssignments": [assigned]}
        full = {"conditions": [QUOTA], "admission": admission, "admissionChecks": states, **status}
        return await self.create("namespaces/default/workloads", document, full)

    async def state(self, name: str) -> Json:
        document = json.loads(await self.api.request("GET", f"{BASE}/namespaces/default/workloads/{name}"))
        states = {item["name"]: item for item in document["status"]["admissionChecks"]}
        assert states["other"]["state"] == "Pending", "another controller's"
        return {**states[CHECK], "requeueState": document["status"].get("requeueState")}

    async def decided(self, name: str) -> Json:
        async def is_decided() -> bool:
            return bool((await self.state(name))["state"] != "Pending")

        await assert_eventually(is_decided)
        return await self.state(name)

    def schedule(self, name: str, cpu: str) -> str:
        """kube-scheduler asks for a pod and binds it. Returns its node, whose report follows, "" if it has to wait."""
        document = pod(name, cpu)
        self.service.put(document)
        decoded = kube_scheduler.decode(json.dumps(document).encode())
        question = self.service.answers.question(decoded, self.service.view.names)
        outcomes = self.service.answers.verdicts(question).outcomes.tolist()
        fitting = [name for name, outcome in zip(question.names, outcomes, strict=True) if outcome == 1]
        if not fitting:
            self.service.answers.nowhere(question)
            return ""
        best = self.service.view.best(decoded, fitting)
        self.service.answers.expect(question, question.names.index(best))
        if self.service.ledger.reservations.assume(question.record, question.requests.needs, best):
            return ""
        started = datetime.now(UTC).isoformat(timespec="seconds")
        status = {"phase": "Running", "startTime": started}
        self.bound.append({**document, "spec": {**document["spec"], "nodeName": best}, "status": status})
        self.service.put(self.bound[-1])
        assert self.true[best].admit(decoded).admitted, f"the kubelet of {best} refuses {name}"
        self.service.report(exact(self.true[best], str(next(self.versions)), best))
        return best


@pytest.fixture
async def cluster(server: ApiServer, api: Api) -> Cluster:
    cluster = Cluster(server, api)
    await cluster.check()
    return cluster


async def test_our_check_is_active_and_other_checks_are_left_alone(server: ApiServer, api: Api) -> None:
    cluster = Cluster(server, api)
    await cluster.check("example.com/other")
    async with cluster.running():
        await asyncio.sleep(1.0)
        raw = json.loads(await api.request("GET", f"{BASE}/admissionchecks/{CHECK}"))
        assert "status" not in raw
    await cluster.api.request("DELETE", f"{BASE}/admissionchecks/{CHECK}")
    await cluster.create(
        "admissionchecks",
        {"kind": "AdmissionCheck", "metadata": {"name": CHECK}, "spec": {"controllerName": CONTROLLER}},
    )
    cluster.start()
    async with cluster.running():
        await assert_eventually(lambda: _is_active(api))


async def _is_active(api: Api) -> bool:
    check = json.loads(await api.request("GET", f"{BASE}/admissionchecks/{CHECK}"))
    conditions = check.get("status", {}).get("conditions", [])
    return [(item["type"], item["status"]) for item in conditions] == [("Active", "True")]


async def test_a_job_that_fits_is_ready_and_its_pods_take_the_reserved_places(cluster: Cluster) -> None:
    """Eight pods of 3 CPUs fill four nodes."""
    await cluster.workload("job", "3", 8)
    async with cluster.running():
        state = await cluster.decided("job")
    assert (state["state"], state["message"]) == ("Ready", "8 pods fit together, aligned; reserved for 120 s")
    assert not cluster.service.fits(pod("stranger", "4"), *cluster.service.view.names), "reserved"
    assert all(cluster.schedule(f"job-{number}", "3") for number in range(8))


async def test_a_job_that_fits_by_sums_only_is_retried_after_a_pause(cluster: Cluster) -> None:
    await cluster.workload("job", "3", 9)
    async with cluster.running():
        state = await cluster.decided("job")
    assert state["state"] == "Retry"
    assert state["message"].startswith("8 of 9 pods fit together")
    assert state["requeueState"]["count"] == 1
    assert cluster.service.fits(pod("stranger", "4"), *cluster.service.view.names), "nothing is reserved"


async def test_the_pause_doubles(cluster: Cluster) -> None:
    await cluster.workload("job", "3", 9, requeueState={"count": 3})
    async with cluster.running():
        state = await cluster.decided("job")
    assert state["requeueState"]["count"] == 4


async def test_a_job_that_no_empty_node_would_take_is_rejected(cluster: Cluster) -> None:
    await cluster.workload("job", "5", 1)
    async with cluster.running():
        state = await cluster.decided("job")
    assert state["state"] == "Rejected"


async def test_a_flavor_selects_its_nodes(cluster: Cluster) -> None:
    for number in range(4):
        cluster.service.put_node(f"n{number}", labels={"pool": "b"})
    await cluster.workload("job", "3", 1)
    async with cluster.running():
        assert (await cluster.decided("job"))["state"] == "Retry"


async def test_workloads_without_quota_or_with_an_answer_are_left_alone(cluster: Cluster) -> None:
    await cluster.workload("no-quota", "3", 1, conditions=[])
    await cluster.workload("evicted", "3", 1, conditions=[QUOTA, {**QUOTA, "type": "Evicted"}])
    await cluster.workload("done", "3", 1)
    async with cluster.running():
        await cluster.decided("done")
        before = await cluster.state("done")
        await asyncio.sleep(1.0)
    cluster.start()
    async with cluster.running():
        await asyncio.sleep(1.5)
    assert await cluster.state("done") == before, "a new leader does not decide again"
    assert (await cluster.state("no-quota"))["state"] == "Pending"
    assert (await cluster.state("evicted"))["state"] == "Pending"


async def test_more_pods_than_may_be_reserved_are_retried(server: ApiServer, api: Api) -> None:
    cluster = Cluster(server, api, most_reserved=2)
    await cluster.check()
    await cluster.workload("job", "3", 3)
    async with cluster.running():
        state = await cluster.decided("job")
    assert state["state"] == "Retry"
    assert "kueue.mostReserved" in state["message"]


async def test_a_job_of_any_number_of_pods_gets_an_answer(cluster: Cluster) -> None:
    await cluster.workload("job", "1", 2_000_000_000)
    async with cluster.running():
        assert (await cluster.decided("job"))["state"] == "Rejected"


async def test_a_reservation_ends_by_time(server: ApiServer, api: Api) -> None:
    cluster = Cluster(server, api, hold=PositiveDuration(60))
    await cluster.check()
    await cluster.workload("job", "3", 8)
    async with cluster.running():
        await cluster.decided("job")
    cluster.service.clock.now += 61
    cluster.service.ledger.reservations.expire()
    assert cluster.service.fits(pod("stranger", "4"), *cluster.service.view.names)


async def test_a_new_leader_reserves_again_for_pods_that_are_not_bound(cluster: Cluster) -> None:
    await cluster.workload("job", "3", 8)
    async with cluster.running():
        await cluster.decided("job")
    assert all(cluster.schedule(f"job-{number}", "3") for number in range(3))
    before = await cluster.state("job")
    cluster.start()
    ledger = cluster.service.ledger
    async with cluster.running():
        await assert_eventually(lambda: len(ledger.reservations) == 5)
    assert await cluster.state("job") == before, "not decided again"
    assert not cluster.service.fits(pod("stranger", "4"), *cluster.service.view.names)
    assert all(cluster.schedule(f"job-{number}", "3") for number in range(3, 8))
    assert not len(ledger.reservations)


async def test_a_new_leader_reserves_again_before_it_decides(cluster: Cluster) -> None:
    await cluster.workload("first", "3", 8)
    async with cluster.running():
        await cluster.decided("first")
    cluster.start()
    await cluster.workload("second", "3", 1)
    async with cluster.running():
        assert (await cluster.decided("second"))["state"] == "Retry"
    assert len(cluster.service.ledger.reservations) == 8


async def test_nothing_is_reserved_again_for_pods_that_run_or_after_the_time(server: ApiServer, api: Api) -> None:
    cluster = Cluster(server, api, hold=PositiveDuration(3))
    await cluster.check()
    await cluster.workload("running", "3", 2)
    async with cluster.running():
        await cluster.decided("running")
    assert all(cluster.schedule(f"running-{number}", "3") for number in range(2))
    cluster.start()
    async with cluster.running():
        await asyncio.sleep(1.5)
    assert not len(cluster.service.ledger.reservations)
    await cluster.workload("late", "3", 2)
    cluster.start()
    async with cluster.running():
        await cluster.decided("late")
    await asyncio.sleep(3)
    cluster.start()
    async with cluster.running():
        await asyncio.sleep(1.5)
    assert not len(cluster.service.ledger.reservations)


async def test_a_replica_reserves_what_the_leader_has_decided(cluster: Cluster) -> None:
    """Its places are taken by pods that another replica's scheduler binds."""
    await cluster.workload("job", "3", 3)
    async with cluster.running():
        await cluster.decided("job")
    cluster.start()
    cluster.leads = False
    ledger = cluster.service.ledger
    async with cluster.running():
        await assert_eventually(lambda: len(ledger.reservations) == 3)
        await cluster.workload("pending", "3", 1)
        for number in range(3):
            cluster.service.put(pod(f"job-{number}", "3", node=f"n{number}"))
            assert len(ledger.reservations) == 2 - number
        await asyncio.sleep(1.0)
    assert (await cluster.state("pending"))["state"] == "Pending", "only the leader decides"
    assert not len(ledger.reservations)


async def test_of_fifty_jobs_no_job_is_admitted_whose_pods_wait(
    server: ApiServer, api: Api, capsys: pytest.CaptureFixture[str]
) -> None:
    """Quota for all by sums, as Kueue reserves it; the pods of Ready jobs start in random order."""
    rng, cluster = Random(5), Cluster(server, api, nodes=12)
    await cluster.check()
    jobs = {f"job-{number:02d}": (str(rng.randint(1, 4)), rng.randint(1, 4)) for number in range(50)}
    states: Counter[str] = Counter()
    waiting = 0
    async with cluster.running():
        for name, (cpu, count) in jobs.items():
            await cluster.workload(name, cpu, count)
        for name in jobs:
            await cluster.decided(name)
    pods = []
    for name, (cpu, count) in jobs.items():
        state = (await cluster.state(name))["state"]
        states[state] += 1
        pods += [(f"{name}-{number}", cpu) for number in range(count if state == "Ready" else 0)]
    rng.shuffle(pods)
    # A pod that waits is tried again after the others, as long as any pod is placed.
    left, before = pods, len(pods) + 1
    while left and len(left) < before:
        before = len(left)
        left = [(name, cpu) for name, cpu in left if not cluster.schedule(name, cpu)]
    waiting = len(left)
    with capsys.disabled():
        print(f"\n  50 jobs: {dict(states)}, {len(pods)} pods of admitted jobs, {waiting} of them wait")  # noqa: T201
    assert states["Ready"] > 5
    assert states["Retry"] > 5
    assert not waiting
