"""The bind of a pod with claims: their allocation is read, and decides where the pod is steered."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from claim_objects import ClaimService, claim, claiming, put_class
from scheduling import NoApi
from topowise.errors import ApiError
from topowise_scheduler.options.claims.gate import ClaimOption
from topowise_scheduler.options.claims.prebind import ClaimPreBind
from topowise_scheduler.serve.extender.binding import Binder

REQUIRE = "require"
PATH = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/"


class Server(NoApi):
    """An API server with claims and Bindings, and the node n1 with devices on its NUMA nodes 0 and 1."""

    def __init__(self) -> None:
        self.claims: dict[str, dict[str, Any]] = {}
        self.read: list[str] = []
        self.bound = 0
        self.pod: dict[str, Any] = {}
        self.is_silent = False
        self.service = ClaimService(drivers=())
        self.service.add_node("n1", 0, 1)
        reader = ClaimPreBind(self, self.service.ledger.gates.option(ClaimOption))
        self.binder = Binder(self, self.service.ledger, self.service.records, lambda: None, prebinds=[reader])

    async def request(self, method: str, path: str, **options: Any) -> bytes:  # type: ignore[override]
        await asyncio.sleep(3600 if self.is_silent and method == "GET" else 0)
        if method == "POST":
            self.bound += 1
            return b"{}"
        if path.startswith("/api/v1/namespaces/default/pods/"):
            return json.dumps(self.pod).encode()
        name = path.removeprefix(PATH)
        self.read.append(name)
        if name not in self.claims:
            raise ApiError(404, "NotFound", f"{name} not found", request=path)
        return json.dumps(self.claims[name]).encode()

    async def bind(self, document: dict[str, Any]) -> str:
        record = self.service.put(document)
        self.service.ledger.remember(record)
        args = {"PodName": record.name, "PodNamespace": "default", "PodUID": record.uid, "Node": "n1"}
        error: str = json.loads((await self.binder.bind(json.dumps(args).encode())).body)["Error"]
        return error


@pytest.fixture
def server() -> Server:
    return Server()


async def test_an_allocation_that_the_watch_has_brought_is_not_read(server: Server) -> None:
    server.service.put_claim("a", 1, ["gpu-0"])
    assert await server.bind(claiming("p", "2", "a", alignment=REQUIRE)) == ""
    assert (server.read, server.bound) == ([], 1)


async def test_the_allocation_is_read_if_the_watch_is_behind(server: Server) -> None:
    """By the watch the claim has no allocation yet."""
    server.service.put_claim("a")
    server.claims["a"] = claim("a", 1, ["gpu-1"], version=2)
    error = await server.bind(claiming("p", "2", "a", alignment=REQUIRE))
    assert "would not be on the NUMA node of the pod's claimed devices" in error
    assert (server.read, server.bound) == (["a"], 0)
    assert await server.bind(claiming("q", "2", "a")) == ""
    assert (server.read, server.bound) == (["a"], 1)


async def test_without_an_answer_only_a_pod_that_requires_alignment_waits(server: Server) -> None:
    server.service.put_claim("a")
    assert "cannot be read" in await server.bind(claiming("p", "2", "a", alignment=REQUIRE))
    assert await server.bind(claiming("q", "2", "a")) == ""
    server.is_silent = True
    assert "no answer within 2 s" in await server.bind(claiming("r", "1", "a", alignment=REQUIRE))
    assert server.bound == 1


async def test_after_a_refused_bind_the_node_is_refused_until_the_claim_is_free(server: Server) -> None:
    """The first answer of filter does not know where the device will be."""
    server.service.put_claim("a")
    pod = claiming("p", "2", "a", alignment=REQUIRE)
    assert server.service.fits(pod, "n1") == ["n1"]
    server.claims["a"] = claim("a", 1, ["gpu-1"], version=2)
    assert await server.bind(pod) != ""
    assert server.service.fits(pod, "n1") == []
    # kube-scheduler has taken the allocation back; the same device would come again.
    server.service.put_claim("a", version=3)
    assert server.service.fits(pod, "n1") == []
    assert server.service.fits(claiming("other", "2", "a", alignment=REQUIRE), "n1") == ["n1"]
    server.service.clock.now += 61
    server.service.ledger.tick()
    assert server.service.fits(pod, "n1") == ["n1"]


async def test_the_claim_of_extended_resources_is_in_the_newest_status_of_the_pod(server: Server) -> None:
    """kube-scheduler makes it just before the bind, and deletes it after a refusal."""
    put_class(server.service.claims, "gpu", extendedResourceName="example.com/gpu")
    pod = extended("p")
    server.pod = extended("p")
    server.pod["status"]["extendedResourceClaimStatus"] = {"resourceClaimName": "made"}
    server.claims["made"] = made("gpu-1", 1)
    assert server.service.fits(pod, "n1") == ["n1"]
    assert "claimed devices" in await server.bind(pod)
    assert server.service.fits(pod, "n1") == []
    server.service.claims.drop_claim("default/made")
    assert server.service.fits(pod, "n1") == []
    server.claims["made"] = made("gpu-0", 2)
    server.service.clock.now += 61
    server.service.ledger.tick()
    assert await server.bind(pod) == ""


def made(device: str, version: int) -> dict[str, Any]:
    document = claim("made", 1, [device], version=version)
    document["metadata"]["annotations"] = {"resource.kubernetes.io/extended-resource-claim": "true"}
    document["metadata"]["ownerReferences"] = [{"kind": "Pod", "name": "p", "uid": "uid-p", "controller": True}]
    return document


def extended(name: str) -> dict[str, Any]:
    pod = claiming(name, "2", alignment=REQUIRE)
    for amounts in pod["spec"]["containers"][0]["resources"].values():
        amounts["example.com/gpu"] = "1"
    return pod
