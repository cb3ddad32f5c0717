"""A cluster of equal nodes whose pods are placed by gate; each replica of the service is behind a fault proxy."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final, Self

from burst.nodes import KINDS
from burst.service import Service
from daemons import assert_eventually
from faults import FaultProxy
from real_cluster import GATED, LEASES, PODS, Cluster, pod
from sandbox.controlplane import ControllerManager, ControlPlane
from topowise.kube.api import MERGE_PATCH
from topowise.placement import GROUP, GROUP_SIZE, PLACED_ON

Json = dict[str, Any]

# Two NUMA nodes of 6 and 8 CPUs in whole cores.
_KIND: Final = KINDS["small-single"]
REPLICA_SETS: Final = "/apis/apps/v1/namespaces/default/replicasets"
STATEFUL_SETS: Final = "/apis/apps/v1/namespaces/default/statefulsets"
JOBS: Final = "/apis/batch/v1/namespaces/default/jobs"
EVENTS: Final = "/apis/events.k8s.io/v1/namespaces/default/events"
POLICIES: Final = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
BINDINGS: Final = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
LEASE: Final = f"{LEASES.format('default')}/topowise-scheduler-requeue"
CONTROLLERS: Final = tuple(f"{name}-controller" for name in ("replicaset", "job", "statefulset", "garbage-collector"))
# Also on a busy machine.
SOON_S: Final = 90.0


def group(size: int, name: str = "g") -> Json:
    """Metadata of a pod of a group."""
    return {"labels": {GROUP: name}, "annotations": {GROUP_SIZE: str(size)}}


def workload(kind: str, name: str, cpu: str, **spec: Any) -> Json:
    """A controller of gated pods."""
    template = {"metadata": {"labels": {"app": name}}, "spec": {**pod("", cpu)["spec"], **GATED}}
    if kind == "Job":
        template["spec"]["restartPolicy"] = "Never"
    else:
        spec = {"selector": {"matchLabels": {"app": name}}, "replicas": 1, **spec}
    return {
        "apiVersion": "batch/v1" if kind == "Job" else "apps/v1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": {"template": template, **spec},
    }


class GatedCluster(Cluster):
    """Nodes n0, n1 … with 6 and 8 CPUs on their NUMA nodes, `replicas` of the service of which one leads, and
    kube-controller-manager if `controllers`. `settings` are the services'."""

    cleared = (
        *(REPLICA_SETS, STATEFUL_SETS, JOBS, EVENTS, POLICIES, BINDINGS, LEASES.format("default")),
        *Cluster.cleared,
    )

    def __init__(
        self,
        plane: ControlPlane,
        directory: Path,
        count: int = 4,
        *,
        replicas: int = 1,
        controllers: Sequence[str] = (),
        extenders: list[Json] | None = None,
        **settings: Any,
    ) -> None:
        if replicas > 1:
            settings["leaderElection"] = {"enabled": True}
        nodes = [(f"n{number}", _KIND) for number in range(count)]
        super().__init__(plane, directory, nodes, extenders=extenders, settings=settings, gated=True)
        self._controllers = controllers
        self.proxies = [FaultProxy(plane.url, plane.token) for _ in range(replicas)]

    @property
    def kubeconfig(self) -> Path:
        """The administrator's, past the proxies."""
        return self._kubeconfig

    @property
    def proxy(self) -> FaultProxy:
        """In front of the API server for the first service."""
        return self.proxies[0]

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            for proxy in self.proxies:
                await stack.enter_async_context(proxy)
            await super().__aenter__()
            stack.push_async_callback(super().__aexit__, None, None, None)
            for number in range(1, len(self.proxies)):
                self.services.append(self._service(number))
                await self.services[number].start()
            if self._controllers:
                manager = ControllerManager(self.plane, self._directory / "controllers", self._controllers)
                await asyncio.to_thread(manager.__enter__)
                stack.push_async_callback(asyncio.to_thread, manager.__exit__, None, None, None)
                stack.push_async_callback(self._end_workloads)
            self._all = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._all.aclose()

    def _service(self, number: int) -> Service:
        kubeconfig = self.proxies[number].kubeconfig(self._directory / f"proxy-{number}")
        return Service(f"service-{number}", kubeconfig, self._directory, **self._settings(number))

    async def _end_workloads(self) -> None:
        """Deletes them while their controllers run, which take back their finalizers."""
        for path in (REPLICA_SETS, STATEFUL_SETS, JOBS):
            await self.api.request("DELETE", path, query={"propagationPolicy": "Background"})
        await self.until(lambda pods: not any(pod["metadata"].get("ownerReferences") for pod in pods))

    # What there is

    async def until(self, check: Any, within: float = SOON_S) -> list[Any]:
        """Waits until `check` holds for the list of all pods, and returns them."""
        result: list[Any] = []

        async def holds() -> Any:
            self.check()
            result[:] = await self.pods()
            return check(result)

        await assert_eventually(holds, within=within)
        return result

    async def bound(self, count: int, within: float = SOON_S) -> dict[str, str]:
        """Waits until so many pods are bound, and returns the node of each."""
        nodes = await self.until(lambda pods: len(nodes_of(pods)) == count, within)
        return nodes_of(nodes)

    async def placed(self, count: int, within: float = SOON_S) -> dict[str, str]:
        """Waits until so many pods are placed or bound, and returns the node of each."""
        pods = await self.until(lambda pods: len(placed_of(pods)) == count, within)
        return placed_of(pods)

    async def leads(self) -> int:
        """Waits for a leader and returns its number."""
        holder = ""

        async def is_held() -> str:
            nonlocal holder
            lease = json.loads(await self.api.request("GET", LEASE))
            holder = lease["spec"].get("holderIdentity") or ""
            return holder

        await assert_eventually(is_held, within=SOON_S)
        return next(number for number, _ in enumerate(self.services) if self.lines(f'identity="{holder}', number))

    def lines(self, text: str, number: int = 0) -> list[str]:
        """Lines of a service's log that contain a text."""
        log = self._directory / f"service-{number}.log"
        return [line for line in log.read_text(errors="replace").splitlines() if text in line]

    async def outcomes(self) -> Counter[str]:
        """The outcomes of placements that the services have counted."""
        counts: Counter[str] = Counter()
        for service in self.services:
            if service.pid:
                for key, value in (await service.metrics(self.session)).items():
                    if key.startswith("placements_total"):
                        counts[key.split('"')[1]] += int(value)
        return counts

    async def events(self, reason: str) -> Counter[str]:
        """How many events of a reason there are, by pod."""
        events = json.loads(await self.api.request("GET", EVENTS))["items"]
        return Counter(event["regarding"]["name"] for event in events if event["reason"] == reason)

    async def assert_nothing_left(self, *, gated: int = 0) -> None:
        """All is well, no pod is on another node than it was placed on, and each service has so many pods that wait."""
        await self.settle()
        await self.assert_all_well()
        for document in await self.pods():
            named = document["metadata"].get("annotations", {}).get(PLACED_ON)
            assert not named or document["spec"].get("nodeName", named) == named
        await self.assert_counts(gated=gated)

    async def assert_counts(self, *, gated: int) -> None:
        """Each service has so many pods that wait, and no placed pod that is not bound."""
        for service in self.services:
            if service.pid:
                metrics = await service.metrics(self.session)
                assert (metrics["gated_pods"], metrics["placed_pods"]) == (gated, 0)

    # What happens

    async def patch(self, path: str, body: Json, **query: str) -> None:
        """A merge patch of an object, or of a pod by its name."""
        path, data = path if path.startswith("/") else f"{PODS}/{path}", json.dumps(body).encode()
        await self.api.request("PATCH", path, query=query, body=data, content_type=MERGE_PATCH)

    async def cordon(self, node: str) -> None:
        await self.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}})

    async def add(self, name: str, cpu: str, metadata: Json | None = None, **spec: Any) -> None:
        """Creates a gated pod of whole CPUs."""
        document = pod(name, cpu, **spec)
        document["metadata"] |= metadata or {}
        if "schedulingGates" in spec or "nodeName" in spec:
            await self.api.request("POST", PODS, body=json.dumps(document).encode())
        else:
            await self.create(document)

    async def classes(self, **priorities: int) -> None:
        """Creates a PriorityClass of each name."""
        for name, value in priorities.items():
            document = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
            await self.create({**document, "value": value}, "/apis/scheduling.k8s.io/v1/priorityclasses")

    async def delete(self, name: str) -> None:
        await self.api.request("DELETE", f"{PODS}/{name}", query={"gracePeriodSeconds": "0"})


def nodes_of(pods: Sequence[Json]) -> dict[str, str]:
    return {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in pods if pod["spec"].get("nodeName")}


def placed_of(pods: Sequence[Json]) -> dict[str, str]:
    annotations = {pod["metadata"]["name"]: pod["metadata"].get("annotations", {}) for pod in pods}
    return {name: texts[PLACED_ON] for name, texts in annotations.items() if PLACED_ON in texts}
