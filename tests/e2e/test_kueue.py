"""The real Kueue beside the stock kube-scheduler and the service: are jobs admitted whose pods then wait?"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, Self

import msgspec
import pytest

from autoscalers import autoscaler, kind
from burst.nodes import KINDS, Kind
from fake_cloud import FakeCloud
from real_cluster import ASSETS, PODS, SCHEDULER, Cluster, pod
from real_kueue import GROUP, MISSING, Kueue, definitions, is_available
from sandbox import controlplane
from sandbox.controlplane import ControllerManager, ControlPlane, assets
from topowise.errors import ApiError
from topowise_scheduler.controllers.kueue_objects import CONTROLLER
from topowise_scheduler.overlay.scale_up.placeholders import LABEL, OUTCOME_ANNOTATION

if ASSETS is None or assets(controlplane.BINARY) is None or not is_available():
    pytest.skip(MISSING, allow_module_level=True)
pytestmark = pytest.mark.apiserver
__all__ = ["kind"]

Json = dict[str, Any]
# Four NUMA nodes of 8 CPUs, of which the system has two. Each node has a pod of 5 CPUs on each NUMA node, so 10 CPUs
# are free in sum, at most 3 of them on a NUMA node.
_SNC = KINDS["snc-restricted"]
KIND = Kind(_SNC.machine, msgspec.structs.replace(_SNC.config, topologyManagerPolicy="single-numa-node"))
_NODES, _JOBS = 10, 50
_FREE = 10 * _NODES
_JOBS_PATH = "/apis/batch/v1/namespaces/default/jobs"
_WORKLOADS = f"{GROUP}/namespaces/default/workloads"
_QUEUES = f"{GROUP}/namespaces/default/localqueues"
_EVENTS = "/api/v1/namespaces/default/events"
_CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
_SYSTEM = "/api/v1/namespaces/kube-system/pods"
_CHECK = "aligned"


class KueueCluster(Cluster):
    """A fragmented cluster with Kueue, whose queue has quota for what is free in sum. `checks`: of the ClusterQueue."""

    definitions = (*Cluster.definitions, *definitions())
    cleared = (*Cluster.cleared, _EVENTS)

    def __init__(
        self,
        plane: ControlPlane,
        directory: Path,
        *,
        checks: bool = True,
        pairs: int = 1,
        settings: Json | None = None,
    ) -> None:
        nodes = [(f"n{number:02d}", KIND) for number in range(_NODES)]
        settings = {"kueue": {"enabled": True}, **(settings or {})}
        super().__init__(plane, directory, nodes, settings=settings, pairs=pairs)
        self._checks = [_CHECK] if checks else []
        self._controllers = ControllerManager(
            plane, directory / "controllers", ("job-controller", "garbage-collector-controller")
        )
        self.kueue = Kueue(plane, directory / "kueue")

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await super().__aenter__()
            stack.push_async_callback(super().__aexit__, None, None, None)
            for manager in (self._controllers, self.kueue):
                if manager is self.kueue:
                    for path, document in self.kueue.objects():
                        await self._replace(path, document)
                await asyncio.to_thread(manager.__enter__)
                stack.push_async_callback(asyncio.to_thread, manager.__exit__, None, None, None)
            for number in range(4 * _NODES):
                await self.create(pod(f"filler-{number}", "5"))
            await self.settle()
            assert set(await self.phases()) == {"Running"}
            stack.push_async_callback(self._end_jobs)
            await self._queue()
            self._whole = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._whole.aclose()

    async def _replace(self, path: str, document: Json) -> None:
        """Creates an object of cluster scope, in place of the object of an earlier test."""
        if "webhookconfigurations" in path:
            await self._delete(f"{path}/{document['metadata']['name']}")
        try:
            await self.create(document, path)
        except ApiError as exc:
            if exc.status != 409:
                raise

    async def _delete(self, path: str, **query: str) -> None:
        try:
            await self.api.request("DELETE", path, query=query)
        except ApiError as exc:
            if exc.status != 404:
                raise

    async def _queue(self) -> None:
        quota = [{"name": "cpu", "nominalQuota": str(_FREE)}, {"name": "memory", "nominalQuota": "1Ti"}]
        flavors = [{"name": "default", "resources": quota}]
        resources = [{"coveredResources": ["cpu", "memory"], "flavors": flavors}]
        spec = {"namespaceSelector": {}, "queueingStrategy": "BestEffortFIFO", "resourceGroups": resources}
        queue = {
            "kind": "ClusterQueue",
            "metadata": {"name": "queue"},
            "spec": {**spec, "admissionChecks": self._checks},
        }
        check = {"kind": "AdmissionCheck", "metadata": {"name": _CHECK}, "spec": {"controllerName": CONTROLLER}}
        local = {"kind": "LocalQueue", "metadata": {"name": "queue"}, "spec": {"clusterQueue": "queue"}}
        for document, path in (
            ({"kind": "ResourceFlavor", "metadata": {"name": "default"}}, f"{GROUP}/resourceflavors"),
            (check, f"{GROUP}/admissionchecks"),
            (queue, f"{GROUP}/clusterqueues"),
            (local, _QUEUES),
        ):
            await self.create({"apiVersion": "kueue.x-k8s.io/v1beta1", **document}, path)

        async def is_active() -> bool:
            queue = json.loads(await self.api.request("GET", f"{GROUP}/clusterqueues/queue"))
            conditions = queue.get("status", {}).get("conditions", ())
            return any(item["type"] == "Active" and item["status"] == "True" for item in conditions)

        await self.until(is_active, 90, "an active ClusterQueue")

    async def _end_jobs(self) -> None:
        """Deletes jobs and queues while their controllers run."""
        await self._delete(_JOBS_PATH, propagationPolicy="Background")

        async def are_gone() -> bool:
            return not await self.list(_WORKLOADS) and not await self.list(_JOBS_PATH)

        await self.until(are_gone, 120, "no jobs")
        paths = (
            f"{_QUEUES}/queue",
            *(f"{GROUP}/{name}" for name in ("clusterqueues/queue", "admissionchecks/aligned")),
        )
        for path in (*paths, f"{GROUP}/resourceflavors/default"):
            await self._delete(path)

        async def are_queues_gone() -> bool:
            return not any([await self.list(f"{GROUP}/{name}") for name in ("clusterqueues", "resourceflavors")])

        await self.until(are_queues_gone, 60, "no queues")

    async def list(self, path: str) -> list[Any]:
        """Returns the objects of a collection."""
        return list(json.loads(await self.api.request("GET", path))["items"])

    async def until(self, is_done: Callable[[], Awaitable[bool]], limit: float, what: str) -> float:
        """Waits until `is_done` returns a true value. Returns the seconds."""
        since = time.monotonic()
        while not await is_done():
            self.check()
            assert time.monotonic() - since < limit, f"expected {what} within {limit:g} s: {await self.states()}"
            await asyncio.sleep(1.0)
        return time.monotonic() - since

    async def job(self, name: str, cpu: str, count: int) -> None:
        """Creates a job of `count` pods, as a user does."""
        template = pod(name, cpu)
        spec = {**template["spec"], "schedulerName": SCHEDULER, "restartPolicy": "Never"}
        document = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name, "labels": {"kueue.x-k8s.io/queue-name": "queue"}},
            "spec": {"parallelism": count, "completions": count, "template": {"spec": spec}},
        }
        await self.create(document, _JOBS_PATH)

    async def states(self) -> Counter[str]:
        """How many Workloads are admitted, wait for quota, wait for a retry, and have a check in each state."""
        states: Counter[str] = Counter()
        for workload in await self.list(_WORKLOADS):
            if is_true(workload, "Admitted"):
                states["admitted"] += 1
            elif not is_true(workload, "QuotaReserved"):
                states["backs off" if is_true(workload, "Evicted") else "queued"] += 1
            else:
                checks = workload.get("status", {}).get("admissionChecks", ())
                states["".join(check["state"] for check in checks)] += 1
        return states

    async def admitted(self) -> set[str]:
        """Returns the names of the jobs that are admitted."""
        return {
            workload["metadata"]["ownerReferences"][0]["name"]
            for workload in await self.list(_WORKLOADS)
            if is_true(workload, "Admitted")
        }

    async def waiting_jobs(self) -> set[str]:
        """Returns the names of the jobs with a pod that waits."""
        return {
            item["metadata"]["labels"]["batch.kubernetes.io/job-name"]
            for item in await self.list(PODS)
            if not item["spec"].get("nodeName")
        }

    async def admissions(self) -> Counter[str]:
        """Returns how often each Workload was admitted."""
        counts: Counter[str] = Counter()
        for event in await self.list(_EVENTS):
            if event.get("reason") == "Admitted":
                counts[event["involvedObject"]["name"]] += event.get("count") or 1
        return counts

    async def until_still(self, seconds: float, limit: float) -> None:
        """Waits until no job was admitted for some seconds, and nothing else changes."""
        since, before = time.monotonic(), set[str]()

        async def is_still() -> bool:
            nonlocal since, before
            admitted = await self.admitted()
            if admitted != before:
                since, before = time.monotonic(), admitted
            return time.monotonic() - since > seconds

        await self.until(is_still, limit, "no further admissions")
        await self.settle()


def is_true(workload: Json, condition: str) -> bool:
    conditions = workload.get("status", {}).get("conditions", ())
    return any(item["type"] == condition and item["status"] == "True" for item in conditions)


def jobs(seed: int) -> dict[str, tuple[str, int]]:
    """Returns CPUs and number of pods by name of the job: half of the jobs have pods that no NUMA node takes now."""
    rng = Random(seed)
    return {f"job-{number:02d}": (str(rng.randint(1, 5)), rng.randint(1, 3)) for number in range(_JOBS)}


@asynccontextmanager
async def started(plane: ControlPlane, directory: Path, **options: Any) -> AsyncIterator[KueueCluster]:
    """All jobs, all created at once."""
    async with KueueCluster(plane, directory, **options) as cluster:
        for name, (cpu, count) in jobs(5).items():
            await cluster.job(name, cpu, count)
        yield cluster


@pytest.mark.parametrize("checks", [True, False], ids=["with the check", "without the check"])
async def test_no_job_is_admitted_whose_pods_wait(
    checks: bool, plane: ControlPlane, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with started(plane, tmp_path, checks=checks) as cluster:
        await cluster.until_still(45, 400)
        admitted, waiting = await cluster.admitted(), await cluster.waiting_jobs()
        with capsys.disabled():
            sys.stdout.write(
                f"\n  {'with' if checks else 'without'} the check: of {_JOBS} jobs {len(admitted)} admitted, "
                f"{len(waiting)} of them with waiting pods; {dict(await cluster.states())}\n"
            )
        assert not cluster.refusals
        assert waiting <= admitted
        assert len(admitted) > 5
        assert bool(waiting) == (not checks)


@pytest.mark.parametrize("pairs", [1, 2], ids=["restart", "change of the leader"])
async def test_a_restart_loses_no_job_and_admits_none_twice(
    pairs: int, plane: ControlPlane, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with started(plane, tmp_path, pairs=pairs) as cluster:

        async def some_are_admitted() -> bool:
            return len(await cluster.admitted()) >= 5

        await cluster.until(some_are_admitted, 120, "admitted jobs")
        before = await cluster.admitted()
        for service in cluster.services:
            await service.kill()
            await asyncio.sleep(5 if pairs == 1 else 20)
            await service.start()
        await cluster.until_still(45, 400)
        admitted, waiting = await cluster.admitted(), await cluster.waiting_jobs()
        admissions = await cluster.admissions()
        with capsys.disabled():
            sys.stdout.write(
                f"\n  {pairs} replicas, each killed and started: {len(before)} jobs admitted before, {len(admitted)} "
                f"after, {len(waiting)} with waiting pods, most admissions of a job {max(admissions.values())}; "
                f"{dict(await cluster.states())}\n"
            )
        assert before <= admitted
        assert not waiting
        assert set(admissions.values()) == {1}
        assert len(await cluster.list(_WORKLOADS)) == _JOBS
        assert not cluster.refusals


async def test_a_job_waits_for_new_nodes_and_is_admitted_when_they_are_there(
    kind: str, plane: ControlPlane, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Six pods of 5 CPUs fit on no node; an empty node takes four."""
    scale_up = {"enabled": True, "namespace": "kube-system"}
    settings = {"startupTaint": {"enabled": True}, "scaleUp": scale_up}
    async with KueueCluster(plane, tmp_path, settings=settings) as cluster:
        placeholders = {"labelSelector": LABEL}
        await cluster.create({"metadata": {"name": "topowise-placeholder"}, "value": -5}, _CLASSES)
        async with FakeCloud(cluster.api, cluster.fleet, KIND, most=2 * _NODES) as cloud:
            for name in list(cluster.fleet.nodes):
                await cloud.adopt(name)
            async with autoscaler(kind, plane, tmp_path, cluster, cloud):
                await cluster.job("wide", "5", 6)
                messages: list[str] = []

                async def all_run() -> bool:
                    cloud.check()
                    for workload in await cluster.list(_WORKLOADS):
                        for check in workload.get("status", {}).get("admissionChecks", ()):
                            if (entry := f"{check['state']}: {check['message']}") not in messages:
                                messages.append(entry)
                    return (await cluster.phases())["Running"] == 4 * _NODES + 6

                seconds = await cluster.until(all_run, 400, f"running pods, checks {messages}")

                async def have_helped() -> bool:
                    raw = await cluster.api.request("GET", _SYSTEM, query=placeholders)
                    annotations = [item["metadata"]["annotations"] for item in json.loads(raw)["items"]]
                    return {item.get(OUTCOME_ANNOTATION) for item in annotations} == {"helped"}

                await cluster.until(have_helped, 60, "ended placeholders")
                with capsys.disabled():
                    lines = "".join(f"\n    {message}" for message in messages)
                    added = len(cloud.added)
                    sys.stdout.write(f"\n  {kind}: {added} nodes added, running after {seconds:.0f} s{lines}\n")
                assert len(cloud.added) == 2
                assert set((await cluster.admissions()).values()) == {1}
                assert not cluster.refusals
        await cluster.api.request("DELETE", _SYSTEM, query=placeholders)
