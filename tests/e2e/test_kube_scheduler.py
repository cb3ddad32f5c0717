"""The form of the stock kube-scheduler's extender requests, which all other tests assume.

The extender here is minimal: it stores and logs each request (`--log-cli-level=INFO` shows it), accepts
all nodes and binds. With RECORD_EXTENDER_REQUESTS=folder it writes the unchanged bodies there, for
tests/unit/scheduler/recorded.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from real_cluster import ASSETS, MISSING
from sandbox import controlplane
from sandbox.apiserver import documents
from sandbox.apiserver.client import CRDS, MERGE, NODES, NRT, PODS, Client, connect, nrt, pod
from sandbox.apiserver.errors import Json
from sandbox.controlplane import ControlPlane, StockScheduler

if ASSETS is None:
    pytest.skip(MISSING, allow_module_level=True)
pytestmark = pytest.mark.apiserver
log = logging.getLogger(__name__)

DEFINITIONS = documents.load_all(Path(__file__).parents[2] / "charts" / "topowise" / "crds")
PRIORITIES = "/apis/scheduling.k8s.io/v1/priorityclasses"
NAMES = ("metal-0", "metal-1")
HEADERS = {"Host", "User-Agent", "Content-Length", "Content-Type", "Accept-Encoding"}


@dataclass(frozen=True)
class Request:
    """A request as received."""

    method: str
    path: str
    version: tuple[int, int]
    headers: dict[str, str]
    connection: tuple[str, int]
    raw: bytes

    @property
    def verb(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def body(self) -> Json:
        body: Json = json.loads(self.raw)
        return body


class Extender:
    """Stores every request, accepts all nodes, prefers the `favourite`, returns all victims unchanged, and binds."""

    def __init__(self, api: Client, favourite: str) -> None:
        self.requests: list[Request] = []
        self._api = api
        self._favourite = favourite
        self._come = asyncio.Event()

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        """Listens on a free loopback port; yields the `urlPrefix`."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1/"
        finally:
            await runner.cleanup()

    async def next(self, verb: str, after: int = 0) -> Request:
        """The first request of a verb from index `after` on; waits for it."""
        async with asyncio.timeout(20):
            while True:
                first = next((request for request in self.requests[after:] if request.verb == verb), None)
                if first is not None:
                    return first
                self._come.clear()
                await self._come.wait()

    async def _handle(self, received: web.Request) -> web.Response:
        assert received.transport is not None
        request = Request(
            received.method,
            received.path,
            (received.version.major, received.version.minor),
            dict(received.headers),
            received.transport.get_extra_info("peername"),
            await received.read(),
        )
        self.requests.append(request)
        self._come.set()
        log.info("%s %s %s\n%s", request.method, request.path, request.headers, request.raw.decode())
        return web.json_response(await self._answer(request))

    async def _answer(self, request: Request) -> Any:
        body = request.body
        match request.verb:
            case "filter":
                return {"Nodes": body["Nodes"], "NodeNames": body["NodeNames"], "Error": ""}
            case "prioritize":
                return [{"Host": name, "Score": 10 * (name == self._favourite)} for name in offered(body)]
            case "preempt":
                return {"NodeNameToMetaVictims": proposed(body)}
            case "bind":
                reply = await self._api.call("POST", f"{PODS}/{body['PodName']}/binding", binding(body))
                return {"Error": "" if reply.status == 201 else reply.text}
        return {"Error": f"unknown verb {request.verb}"}


def offered(body: Json) -> list[str]:
    """Node names of a filter or prioritize request, in either form."""
    if body["NodeNames"] is not None:
        names: list[str] = body["NodeNames"]
        return names
    return [node["metadata"]["name"] for node in body["Nodes"]["items"]]


def proposed(body: Json) -> dict[str, Json]:
    """Victims by node in the meta form, from either form of preempt's request."""
    if body["NodeNameToMetaVictims"] is not None:
        victims: dict[str, Json] = body["NodeNameToMetaVictims"]
        return victims
    return {
        name: {**entry, "Pods": [{"UID": pod["metadata"]["uid"]} for pod in entry["Pods"]]}
        for name, entry in body["NodeNameToVictims"].items()
    }


def binding(body: Json) -> Json:
    metadata = {"name": body["PodName"], "namespace": body["PodNamespace"], "uid": body["PodUID"]}
    target = {"apiVersion": "v1", "kind": "Node", "name": body["Node"]}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}


@pytest.fixture
async def api(plane: ControlPlane) -> AsyncIterator[Client]:
    """A client of an API server with our CRDs and two ready nodes, each with 4 CPUs in a single NUMA node."""
    async with connect(plane.url, plane.token) as client:
        for crd in DEFINITIONS:
            assert (await client.call("POST", CRDS, crd)).status in (201, 409)
        while (await client.call("GET", NRT, limit=1)).status != 200:
            await asyncio.sleep(0.05)
        for name in NAMES:
            await client.ok("POST", NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
            await client.ok("PATCH", f"{NODES}/{name}/status", {"status": status()}, MERGE)
            await client.ok("POST", NRT, nrt(name))
        yield client
        for collection in (PODS, NODES, NRT):
            await client.ok("DELETE", collection, gracePeriodSeconds=0)


def status() -> Json:
    amounts = {"cpu": "4", "memory": "8Gi", "pods": "110"}
    return {"capacity": amounts, "allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]}


@dataclass(frozen=True)
class Setting:
    """A running scheduler, and whether it sends only node names."""

    api: Client
    extender: Extender
    names_alone: bool


@pytest.fixture(params=[True, False], ids=["names", "whole-nodes"])
async def setting(
    request: pytest.FixtureRequest, plane: ControlPlane, api: Client, tmp_path: Path
) -> AsyncIterator[Setting]:
    extender = Extender(api, favourite=NAMES[1])
    async with extender.serve() as url:
        entry = controlplane.extender(url, nodeCacheCapable=request.param)
        scheduler = StockScheduler(plane, {"percentageOfNodesToScore": 100, "extenders": [entry]}, tmp_path)
        await asyncio.to_thread(scheduler.__enter__)
        try:
            yield Setting(api, extender, request.param)
        finally:
            await asyncio.to_thread(scheduler.__exit__, None, None, None)


async def scheduled(api: Client, name: str) -> Json:
    """Waits for the bind; returns the bound pod."""
    async with asyncio.timeout(20):
        while True:
            seen = await api.ok("GET", f"{PODS}/{name}")
            if seen["spec"].get("nodeName"):
                return seen
            await asyncio.sleep(0.02)


def pod_of(name: str, cpu: str, **spec: Any) -> Json:
    body = pod(name, limits={"cpu": cpu, "memory": "1Gi"})
    body["spec"] |= spec
    return body


def assert_on_the_wire(requests: list[Request]) -> None:
    """Asserts the common form of all requests."""
    for request in requests:
        assert (request.method, request.path, request.version) == ("POST", f"/v1/{request.verb}", (1, 1))
        assert set(request.headers) == HEADERS
        assert request.headers["Content-Type"] == "application/json"
        assert request.headers["User-Agent"] == "Go-http-client/1.1"
        assert request.headers["Accept-Encoding"] == "gzip"
        assert int(request.headers["Content-Length"]) == len(request.raw)
    # The scheduling cycle uses a single connection; a concurrent bind may open a second connection.
    assert len({request.connection for request in requests if request.verb != "bind"}) == 1
    assert len({request.connection for request in requests}) <= 2


def assert_is_the_pod(sent: Json, created: Json) -> None:
    """Asserts a pod of the scheduler's cache: complete, but without kind and managed fields."""
    metadata = {name: value for name, value in created["metadata"].items() if name != "managedFields"}
    assert sent == {"metadata": metadata, "spec": created["spec"], "status": created["status"]}


def record(request: Request, name: str) -> None:
    folder = os.environ.get("RECORD_EXTENDER_REQUESTS")
    if folder:
        (Path(folder) / f"{name}.json").write_bytes(request.raw)


async def test_a_pod_is_filtered_prioritized_and_bound(setting: Setting) -> None:
    api, extender, names_alone = setting.api, setting.extender, setting.names_alone
    created = await api.ok("POST", PODS, pod_of("trainer", "1"))
    bound = await scheduled(api, "trainer")
    assert bound["spec"]["nodeName"] == NAMES[1]
    first, second, third = extender.requests
    assert [request.verb for request in extender.requests] == ["filter", "prioritize", "bind"]

    arguments = first.body
    assert list(arguments) == ["Pod", "Nodes", "NodeNames"]
    assert_is_the_pod(arguments["Pod"], created)
    assert sorted(offered(arguments)) == sorted(NAMES)
    if names_alone:
        assert arguments["Nodes"] is None
        record(first, "filter")
        record(second, "prioritize")
        record(third, "bind")
    else:
        assert arguments["NodeNames"] is None
        assert list(arguments["Nodes"]) == ["metadata", "items"]
        node = next(item for item in arguments["Nodes"]["items"] if item["metadata"]["name"] == NAMES[0])
        assert set(node) == {"metadata", "spec", "status"}
        assert node["status"]["allocatable"] == {"cpu": "4", "memory": "8Gi", "pods": "110"}
        assert "managedFields" not in node["metadata"]
        record(first, "filter-whole-nodes")
    assert sorted(offered(second.body)) == sorted(NAMES)
    assert {**second.body, "Nodes": None, "NodeNames": None} == {**arguments, "Nodes": None, "NodeNames": None}
    assert third.body == {
        "PodName": "trainer",
        "PodNamespace": "default",
        "PodUID": created["metadata"]["uid"],
        "Node": NAMES[1],
    }

    # The next pod's requests use the same connection.
    await api.ok("POST", PODS, pod_of("second", "1"))
    await scheduled(api, "second")
    assert [request.verb for request in extender.requests[3:]] == ["filter", "prioritize", "bind"]
    assert_on_the_wire(extender.requests)


async def test_a_pod_with_a_higher_priority_takes_the_place_of_a_victim(setting: Setting) -> None:
    api, extender, names_alone = setting.api, setting.extender, setting.names_alone
    await until_admitted(api)
    victims = {}
    for name in ("low-0", "low-1"):
        created = await api.ok("POST", PODS, pod_of(name, "3"))
        bound = await scheduled(api, name)
        victims[bound["spec"]["nodeName"]] = created["metadata"]["uid"]
    assert set(victims) == set(NAMES)
    before = len(extender.requests)
    high = await api.ok("POST", PODS, pod_of("high", "3", priorityClassName="high"))

    preempt = await extender.next("preempt", before)
    # No node was left for the extender's filter: earlier filters refused all nodes.
    assert extender.requests[before:] == [preempt]
    arguments = preempt.body
    assert list(arguments) == ["Pod", "NodeNameToVictims", "NodeNameToMetaVictims"]
    assert_is_the_pod(arguments["Pod"], high)
    expected = {node: {"Pods": [{"UID": uid}], "NumPDBViolations": 0} for node, uid in victims.items()}
    assert proposed(arguments) == expected
    if names_alone:
        assert arguments["NodeNameToVictims"] is None
        assert arguments["NodeNameToMetaVictims"] == expected
        record(preempt, "preempt")
    else:
        assert arguments["NodeNameToMetaVictims"] is None
        for node, entry in arguments["NodeNameToVictims"].items():
            (victim,) = entry["Pods"]
            assert victim["spec"]["nodeName"] == node
            assert set(victim) == {"metadata", "spec", "status"}
        record(preempt, "preempt-whole-pods")

    # The test acts as the kubelet and ends the victim; the scheduler then sends only the nominated node.
    node = await end_deleted_pod(api)
    bound = await scheduled(api, "high")
    assert bound["spec"]["nodeName"] == node
    # The binding removes the nomination.
    assert "nominatedNodeName" not in bound["status"]
    again = [request for request in extender.requests[before + 1 :] if request.verb in ("filter", "prioritize")]
    assert [(request.verb, offered(request.body)) for request in again] == [("filter", [node])]
    assert again[0].body["Pod"]["status"]["nominatedNodeName"] == node
    assert_on_the_wire(extender.requests)


async def until_admitted(api: Client) -> None:
    """Creates a priority class, and waits until the admission plug-in knows it."""
    body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 1000}
    assert (await api.call("POST", PRIORITIES, body)).status in (201, 409)
    async with asyncio.timeout(10):
        probe = pod_of("probe", "1", priorityClassName="high")
        while (await api.call("POST", PODS, probe, dryRun="All")).status == 403:
            await asyncio.sleep(0.05)


async def end_deleted_pod(api: Client) -> str:
    """Ends the pod that is being deleted; returns its node."""
    async with asyncio.timeout(20):
        while True:
            for seen in (await api.ok("GET", PODS))["items"]:
                if seen["metadata"].get("deletionTimestamp"):
                    await api.ok("DELETE", f"{PODS}/{seen['metadata']['name']}", gracePeriodSeconds=0)
                    node: str = seen["spec"]["nodeName"]
                    return node
            await asyncio.sleep(0.02)
