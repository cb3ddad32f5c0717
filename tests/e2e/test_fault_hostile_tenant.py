"""A tenant changes its pods in every permitted way, against all controllers of the leader."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest

from daemons import Start, assert_eventually
from exporter_setup import FakeKubelet
from faults import assert_said_once
from faults.site import LONG_S, Site, pod, site
from sandbox.apiserver import ApiServer
from scheduling import WAITS
from topowise.errors import ApiError
from topowise.kube.api import MERGE_PATCH, Api
from topowise_scheduler.controllers.requeue import REQUEUED_ANNOTATION

EVICTIONS_PER_MINUTE: Final = 3
REQUEUES_PER_SECOND: Final = 20
SECONDS: Final = 20
NODES: Final = 8
PODS: Final = 150
DUTIES: Final[dict[str, Any]] = {
    "requeue": {"enabled": True},
    "preemptor": {"enabled": True, "perMinute": EVICTIONS_PER_MINUTE},
    "placement": {"enabled": True},
    "waitingPods": {"tell": True},
    "refusedPods": {"delete": True},
}


@pytest.fixture
async def place(
    server: ApiServer, start: Start, config: dict[str, Any], kubelet: FakeKubelet, tmp_path: Path
) -> AsyncIterator[Site]:
    async with site(server, start, config, kubelet, tmp_path, **DUTIES) as place:
        yield place


def path(namespace: str, name: str = "", subresource: str = "") -> str:
    return "/".join(filter(None, (f"/api/v1/namespaces/{namespace}/pods", name, subresource)))


class Tenant:
    """Pods of a namespace, which wait because the service refused the pods."""

    def __init__(self, api: Api, namespace: str) -> None:
        self.api, self.namespace = api, namespace
        self.done: Counter[int] = Counter()

    async def create(
        self, name: str, cpus: int, *, node: str = "", priority: int = 0, gates: Sequence[Any] = (), **metadata: Any
    ) -> None:
        document = pod(name, cpus)
        document["metadata"] = {"name": name, "namespace": self.namespace, **metadata}
        document["spec"] |= {"priority": priority, "schedulerName": "topowise-scheduler"}
        if node:
            document["spec"]["nodeName"] = node
        if gates:
            document["spec"]["schedulingGates"] = gates
        await self.api.request("POST", path(self.namespace), body=json.dumps(document).encode())
        running = {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"}
        await self.patch(name, {"status": running if node else {"conditions": WAITS}}, "status")

    async def patch(self, name: str, body: dict[str, Any], subresource: str = "") -> None:
        target = path(self.namespace, name, subresource)
        await self.api.request("PATCH", target, body=json.dumps(body).encode(), content_type=MERGE_PATCH)

    async def delete(self, name: str) -> None:
        await self.api.request("DELETE", path(self.namespace, name), query={"gracePeriodSeconds": "0"})

    async def resize(self, name: str, cpus: int) -> None:
        amounts = {"cpu": str(cpus), "memory": "1Mi"}
        allocated = {"name": "c", "allocatedResources": amounts, "resources": {"requests": amounts, "limits": amounts}}
        await self.patch(name, {"status": {"containerStatuses": [allocated]}}, "status")

    async def misbehave(self, seconds: float) -> int:
        """Changes its own pods for some seconds; returns the number of changes."""
        end = time.monotonic() + seconds
        for number in itertools.count():
            if time.monotonic() > end:
                return number
            name = f"p{number % PODS}"
            with suppress(ApiError):
                match number % 7:
                    case 0:
                        policy = ("single-numa-node", "none", "restricted", "no such policy")[number // 7 % 4]
                        await self.patch(name, {"metadata": {"annotations": {"topowise.io/numa-policy": policy}}})
                    case 1:
                        nominated = (None, "n2", "n100", "no-such-node")[number // 7 % 4]
                        await self.patch(name, {"status": {"nominatedNodeName": nominated}}, "status")
                    case 2:
                        await self.delete(name)
                        await self.create(name, 1 + number % 7, priority=1000)
                    case 3:
                        condition = {**WAITS[0], "status": ("True", "False")[number // 7 % 2]}
                        await self.patch(name, {"status": {"conditions": [condition]}}, "status")
                    case 4:
                        annotations = {
                            "topowise.io/placed-on": "n2",
                            REQUEUED_ANNOTATION: "never",
                            "topowise.io/predicted": "x",
                        }
                        await self.patch(name, {"metadata": {"annotations": annotations}})
                    case 5:
                        await self.create("gated", 2, priority=1000, gates=[{"name": "example.com/gate"}])
                        await self.patch("gated", {"spec": {"schedulingGates": None}})
                        await self.delete("gated")
                    case 6:
                        # The status that a kubelet writes during an in-place resize.
                        await self.resize("resized", (1, 5)[number // 7 % 2])
                self.done[number % 7] += 1
            await asyncio.sleep(0.002)
        raise AssertionError("unreachable: count() has no end")


def evictions(server: ApiServer) -> int:
    """The number of victims with a deletion timestamp: finalizers keep the objects."""
    return sum("deletionTimestamp" in pod["metadata"] for pod in server.store.objects("pods"))


async def takes_important(place: Site) -> bool:
    """Whether n2 fits a pod with a higher priority than the tenant's pods."""
    document = pod("asked", 6)
    document["spec"]["priority"] = 2000
    return bool((await place.service.ask("filter", document, ["n1", "n2"], place.session))["NodeNames"] == ["n2"])


async def test_a_tenant_that_changes_its_pods_in_a_loop_costs_other_tenants_little(
    place: Site, server: ApiServer, api: Api
) -> None:
    noisy, quiet = Tenant(api, "noisy"), Tenant(api, "quiet")
    for name in ("noisy", "quiet"):
        server.create("namespaces", {"metadata": {"name": name}})
    for number in range(NODES):
        place.add_node(f"n{100 + number}", 6)
        # A finalizer keeps each evicted victim for ever.
        finalizers = {"finalizers": ["example.com/never"]}
        await quiet.create(f"victim{number}", 5, node=f"n{100 + number}", **finalizers)
    await quiet.create("big", 6, node="n2")
    await place.has({"n2": 0, "n107": 1})
    place.add_node("n200", 6)
    await noisy.create("resized", 1, node="n200")
    for number in range(PODS):
        await noisy.create(f"p{number}", 1 + number % 7, priority=1000)
    for number in range(NODES):
        await noisy.create(f"greedy{number}", 5, priority=1000)
    await quiet.create("waiting", 6, priority=2000)
    lines = place.log_lengths()
    began, before = time.monotonic(), len(place.proxy.asked)
    loop = asyncio.create_task(noisy.misbehave(SECONDS))
    await asyncio.sleep(SECONDS / 2)
    # The service answers correctly, and serves the other tenants.
    assert not await takes_important(place)
    await quiet.delete("big")
    await assert_eventually(lambda: takes_important(place), within=LONG_S)

    async def is_requeued() -> bool:
        document = json.loads(await api.request("GET", path("quiet", "waiting")))
        return REQUEUED_ANNOTATION in (document["metadata"].get("annotations") or {})

    await assert_eventually(is_requeued, within=LONG_S)
    assert await loop > PODS
    assert set(noisy.done) == set(range(7)), noisy.done
    seconds = time.monotonic() - began
    writes = [request for request in place.proxy.asked[before:] if request.method != "GET"]
    assert 1 <= evictions(server) <= EVICTIONS_PER_MINUTE * (1 + seconds / 60)
    requeued = [request for request in writes if request.method == "PATCH" and not request.path.endswith("/status")]
    assert len(requeued) <= REQUEUES_PER_SECOND * (seconds + 2)
    place.assert_alive()
    # Nothing is left of it.
    left = [pod["metadata"] for pod in server.store.objects("pods")]
    for metadata in left:
        if metadata["namespace"] == "noisy":
            await noisy.delete(metadata["name"])
    await place.has({"n2": 6, "n1": 4, "n107": 1, "n200": 6})
    metrics = await place.metrics()
    assert metrics["open_reservations"] == 0
    assert_said_once(place.exporter, lines[0])
    assert_said_once(place.scheduler, lines[1], at_most=3)
