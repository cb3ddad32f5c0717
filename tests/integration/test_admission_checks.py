"""Kueue's AdmissionChecks on an API server. Workloads have the fields of Kueue 0.14; Kueue itself does not run here.

The test plays Kueue's part: it reserves quota by sums, and starts the pods of a Workload whose check is Ready.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from contextlib import AbstractAsyncContextManager
from random import Random
from typing import Any

import pytest

import kueue_definitions
from api_objects import running
from daemons import assert_eventually
from sandbox.apiserver import ApiServer
from scheduling import Service, exact, kubelet, pod
from topowise.kube.api import MERGE_PATCH, Api
from topowise.runtime import clock
from topowise_scheduler.configuration import ScaleUp as ScaleUpSettings
from topowise_scheduler.controllers.admission_checks import AdmissionChecks
from topowise_scheduler.controllers.kueue_objects import CONTROLLER
from topowise_scheduler.controllers.scale_up import ScaleUp
from topowise_scheduler.controllers.scale_up_demand import Demand
from topowise_scheduler.controllers.workload_pods import WorkloadPods
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.ledger.pods.pod_states import State
from topowise_scheduler.overlay.scale_up.placeholders import LABEL, OUTCOME_ANNOTATION
from topowise_scheduler.verdicts import kube_scheduler

pytestmark = pytest.mark.own_time

Json = dict[str, Any]
BASE = "/apis/kueue.x-k8s.io/v1beta1"
CHECK = "aligned"
QUOTA = {"type": "QuotaReserved", "status": "True", "reason": "QuotaReserved", "message": "", "observedGeneration": 1}


class Cluster:
    """Four nodes of 3 and 4 CPUs by NUMA node, an AdmissionCheck and a flavor for the pool "a"."""

    def __init__(self, server: ApiServer, api: Api, nodes: int = 4, most_reserved: int = 1000) -> None:
        self.server, self.api = server, api
        self.true: dict[str, Kubelet] = {}
        self.versions = itertools.count(2)
        for definition in kueue_definitions.all_of():
            server.create("customresourcedefinitions.apiextensions.k8s.io", definition)
        self.bound: list[Json] = []
        self.leads = True
        self.nodes: WorkloadPods | None = None
        for number in range(nodes):
            self.true[f"n{number}"] = kubelet()
        self.most_reserved = most_reserved
        self.start()

    def start(self) -> None:
        """Starts a service, which knows what the API server has."""
        self.service = Service("TightFit")
        for name, node in self.true.items():
            self.service.put_node(name, labels={"pool": "a"})
            self.service.report(exact(node, str(next(self.versions)), name))
        for document in self.bound:
            self.service.put(document)
        self.fitting = self.service.fitting(self.most_reserved, limit="for checks")
        self.leader = self.anew()

    def anew(self) -> AdmissionChecks:
        """Returns the controller of the service."""
        service = self.service
        return AdmissionChecks(
            self.api,
            service.view,
            self.fitting,
            nodes=self.nodes,
            is_leader=lambda: self.leads,
        )

    def running(self) -> AbstractAsyncContextManager[None]:
        return running(self.leader.run())

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
        question = self.service.answers.question(decoded, self.service.trial.names)
        outcomes = self.service.answers.verdicts(question).outcomes.tolist()
        fitting = [name for name, outcome in zip(question.names, outcomes, strict=True) if outcome == 1]
        if not fitting:
            self.service.answers.nowhere(question)
            return ""
        best = self.service.view.best(decoded, fitting)
        self.service.answers.expect(question, question.names.index(best))
        if self.service.ledger.reservations.assume(question.record, question.requests.needs, best):
            return ""
        started = clock.utc_now().isoformat(timespec="seconds")
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
    assert not cluster.service.fits(pod("stranger", "4"), *cluster.service.trial.names), "reserved"
    assert all(cluster.schedule(f"job-{number}", "3") for number in range(8))


async def test_a_job_that_fits_by_sums_only_is_retried_after_a_pause(cluster: Cluster) -> None:
    await cluster.workload("job", "3", 9)
    async with cluster.running():
        state = await cluster.decided("job")
    assert state["state"] == "Retry"
    assert state["message"].startswith("8 of 9 pods fit together")
    assert state["requeueState"]["count"] == 1
    (event,) = cluster.server.store.objects("events.events.k8s.io")
    assert (event["regarding"]["kind"], event["regarding"]["name"]) == ("Workload", "job")
    assert (event["reason"], event["note"]) == ("AlignmentCheckRetry", state["message"])
    assert cluster.service.fits(pod("stranger", "4"), *cluster.service.trial.names), "nothing is reserved"


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
    assert "for checks" in state["message"]


async def test_a_job_of_any_number_of_pods_gets_an_answer(cluster: Cluster) -> None:
    await cluster.workload("job", "1", 2_000_000_000)
    async with cluster.running():
        assert (await cluster.decided("job"))["state"] == "Rejected"


async def test_a_reservation_ends_by_time(cluster: Cluster) -> None:
    await cluster.workload("job", "3", 8)
    async with cluster.running():
        await cluster.decided("job")
    cluster.service.clock.now += 121
    cluster.service.ledger.reservations.expire()
    assert cluster.service.fits(pod("stranger", "4"), *cluster.service.trial.names)


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
    assert not cluster.service.fits(pod("stranger", "4"), *cluster.service.trial.names)
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


async def test_nothing_is_reserved_again_for_pods_that_run_or_after_the_time(cluster: Cluster) -> None:
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
    await asyncio.sleep(120)
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


class Scaling:
    """The scale-up beside the admission checks; nodes of the pool "a" are a group."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        cluster.server.create(
            "priorityclasses.scheduling.k8s.io", {"metadata": {"name": "topowise-placeholder"}, "value": -5}
        )
        self.start()

    def start(self) -> None:
        """Starts the service anew."""
        cluster = self.cluster
        cluster.nodes = WorkloadPods(patience=0.0)
        cluster.start()
        service = cluster.service
        for name in cluster.true:
            self.join(name)
        demand = Demand(cluster.api, service.view, patience=0.0)
        settings = ScaleUpSettings(enabled=True, group_labels=("pool",))
        self.controller = ScaleUp(
            cluster.api,
            service.trial,
            demand,
            settings,
            namespace="default",
            workloads=cluster.nodes,
            not_ready=cluster.leader.undecided,
        )

    def join(self, name: str, created: str = "2026-01-01T00:00:00Z", **changed: Any) -> None:
        """A node of the pool, with a host name, is reported."""
        cluster = self.cluster
        labels = {"pool": "a", "kubernetes.io/hostname": name}
        cluster.true.setdefault(name, kubelet(**changed))
        status = {
            "allocatable": {"cpu": "8", "memory": "64Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        document = {"metadata": {"name": name, "labels": labels, "creationTimestamp": created}, "status": status}
        cluster.service.nodes.apply("ADDED", cluster.service.nodes.decode(json.dumps(document).encode()))
        cluster.service.report(exact(cluster.true[name], str(next(cluster.versions)), name, **changed))

    async def sync(self) -> None:
        """Runs a pass if one is due, as `ScaleUp.run` does. A test that needs a pass calls the controller."""
        if self.controller.due():
            await self.controller.sync()

    async def outcomes(self) -> list[str]:
        """Returns the outcomes of all placeholders, "" for an active placeholder."""
        query = {"labelSelector": LABEL}
        raw = await self.cluster.api.request("GET", "/api/v1/namespaces/default/pods", query=query)
        annotations = [item["metadata"]["annotations"] for item in json.loads(raw)["items"]]
        return sorted(item.get(OUTCOME_ANNOTATION, "") for item in annotations)

    async def until(self, state: str, words: str) -> Json:
        """Runs passes of the scale-up until the check of the job has a state and some words in its message."""
        seen: Json = {}

        async def is_there() -> bool:
            nonlocal seen
            await self.sync()
            seen = await self.cluster.state("job")
            return seen["state"] == state and words in seen["message"]

        await assert_eventually(is_there, within=60)
        return seen


async def test_nodes_are_requested_for_a_workload_that_does_not_fit(cluster: Cluster) -> None:
    """Nine pods of 3 CPUs, of which eight fit on four nodes. The ninth fits on an empty node."""
    scaling = Scaling(cluster)
    await cluster.workload("job", "3", 9)
    before = await cluster.state("job")
    async with cluster.running():
        state = await scaling.until("Pending", "new nodes are requested")
        assert state["message"].startswith("8 of 9 pods fit together")
        assert state["lastTransitionTime"] == before["lastTransitionTime"]
        assert await scaling.outcomes() == [""]
        assert not cluster.service.fits(pod("stranger", "3"), *cluster.service.trial.names), "eight are reserved"
        await scaling.controller.sync()
        assert await scaling.outcomes() == [""], "once"
        scaling.join("new", clock.utc_now().isoformat())
        await scaling.until("Ready", "9 pods fit together, aligned")
        await scaling.controller.sync()
    assert await scaling.outcomes() == ["helped"]
    assert all(cluster.schedule(f"job-{number}", "3") for number in range(9))


async def test_a_new_node_is_kept_for_the_workload_until_its_check_is_decided_again(cluster: Cluster) -> None:
    scaling = Scaling(cluster)
    await cluster.workload("job", "3", 9)
    async with cluster.running():
        await scaling.until("Pending", "new nodes are requested")
    scaling.join("new", clock.utc_now().isoformat())
    await scaling.controller.sync()
    states = dict(cluster.service.ledger.pods).values()
    assert [state.state for state in states if state.node == "new"] == [State.RESERVED]


async def test_a_workload_that_new_nodes_do_not_help_is_retried_or_rejected(cluster: Cluster) -> None:
    scaling = Scaling(cluster)
    await cluster.workload("job", "5", 1)
    async with cluster.running():
        state = await scaling.until("Rejected", "no node is requested: 1 pod would not be aligned by an empty node")
    assert await scaling.outcomes() == []
    assert state["requeueState"] is None


async def test_the_limits_of_the_scale_up_hold_for_workloads(cluster: Cluster) -> None:
    """Three nodes are needed. The first node of a group comes alone; it does not help, and the group pauses."""
    scaling = Scaling(cluster)
    await cluster.workload("job", "4", 7)
    async with cluster.running():
        await scaling.until("Pending", "new nodes are requested")
        assert await scaling.outcomes() == [""], "the first alone"
        scaling.join("new", clock.utc_now().isoformat(), reservedSystemCPUs="0,4-7")
        state = await scaling.until("Retry", "no node is requested: ")
    assert await scaling.outcomes() == ["useless"]
    assert state["requeueState"]["count"] == 1
    assert not len(cluster.service.ledger.reservations)


async def test_a_new_leader_ends_no_request_before_it_has_decided(cluster: Cluster) -> None:
    scaling = Scaling(cluster)
    await cluster.workload("job", "3", 9)
    async with cluster.running():
        await scaling.until("Pending", "new nodes are requested")
    scaling.start()
    assert not scaling.controller.due()
    async with cluster.running():
        await assert_eventually(scaling.controller.due, within=60)
        await scaling.controller.sync()
        assert await scaling.outcomes() == [""]


async def test_the_request_ends_with_the_workload(cluster: Cluster) -> None:
    scaling = Scaling(cluster)
    await cluster.workload("job", "3", 9)
    async with cluster.running():
        await scaling.until("Pending", "new nodes are requested")
        await cluster.api.request("DELETE", f"{BASE}/namespaces/default/workloads/job")

        async def is_over() -> bool:
            await scaling.sync()
            return await scaling.outcomes() == ["unneeded"]

        await assert_eventually(is_over, within=60)
    assert not len(cluster.service.ledger.reservations)


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
