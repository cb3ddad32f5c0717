"""Every recorded object equals the API server's result of the producer's requests, and is decoded as intended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from daemons import CRD, plain
from sandbox.apiserver import ApiServer
from topowise import nrt
from topowise.kube.api import Api
from topowise_scheduler import report
from topowise_scheduler.kubelet import Kubelet

Json = dict[str, Any]
FOLDER = Path(__file__).parent / "fixtures"
FILES = {str(path.relative_to(FOLDER)).removesuffix(".json"): path for path in sorted(FOLDER.rglob("*.json"))}


def recorded(name: str) -> Json:
    document: Json = json.loads(FILES[name].read_text())
    return document


def content(document: Json) -> Json:
    """The object without fields that differ between servers and times."""
    metadata = {
        key: value
        for key, value in document["metadata"].items()
        if key not in ("uid", "resourceVersion", "creationTimestamp", "managedFields")
    }
    fields = document["metadata"]["managedFields"]
    managers = [(entry["manager"], entry["operation"], entry["apiVersion"]) for entry in fields]
    return {**document, "metadata": {**metadata, "managers": managers}}


async def send(api: Api, request: Json) -> None:
    body = request["body"]
    if request["method"] == "PUT":
        there = json.loads(await api.request("GET", request["path"]))["metadata"]
        now = {"uid": there["uid"], "resourceVersion": there["resourceVersion"]}
        body = {**body, "metadata": {**body["metadata"], **now}}
    await api.request(
        request["method"],
        request["path"],
        query=request["query"],
        body=json.dumps(body).encode(),
        content_type=request["contentType"],
    )


async def served(name: str) -> Json:
    """The object after the recorded requests, from an API server with the chart's definition."""
    file = recorded(name)
    async with ApiServer() as server:
        server.install_crds(CRD)
        async with Api(plain(server), "test") as api:
            for request in (*file.get("before", ()), file["request"]):
                await send(api, request)
            topology: Json = json.loads(await api.request("GET", f"{nrt.PATH}/n1"))
            return topology


@pytest.mark.parametrize("name", [name for name in FILES if not name.startswith("odd/")])
async def test_it_is_what_the_server_gives_back(name: str) -> None:
    file = recorded(name)
    assert file["producer"]
    assert file["version"]
    assert file["source"]
    assert content(await served(name)) == content(file["object"])


class Read(msgspec.Struct):
    """The expected report of a file: free CPUs by NUMA node (None with the manager off), free devices, bytes."""

    policy: str
    scope: str
    cpus: list[int] | None
    gpus: list[int] | None = None
    method: str | None = None
    has_memory: bool = True
    problems: int = 0


SINGLE, RESTRICTED = "single-numa-node", "restricted"
EXPECTED = {
    "rte-0.25.0/single-numa-node": Read(SINGLE, "container", [3, 2], [1, 2], "with-exclusive-resources"),
    "rte-0.25.0/merge-patch": Read(SINGLE, "container", [3, 2], [1, 2], "with-exclusive-resources"),
    "rte-0.25.0/fingerprint-of-all": Read(RESTRICTED, "pod", [3, 2], [1, 2], "all"),
    "rte-0.25.0/no-fingerprint": Read("best-effort", "container", [3, 2], [1, 2]),
    "rte-0.25.0/no-memory-manager": Read(
        SINGLE, "container", [3, 8], [1, 2], "with-exclusive-resources", has_memory=False
    ),
    "rte-0.25.0/no-managers": Read("none", "container", None, None, "with-exclusive-resources", has_memory=False),
    "nfd-0.18.3/single-numa-node": Read(SINGLE, "container", [3, 2], [1, 2], "all"),
    "nfd-0.18.3/hybrid-cpus": Read(RESTRICTED, "pod", [3, 8], [1, 2], "all"),
    "nfd-0.18.3/no-pods": Read("best-effort", "container", [7, 8], [2, 2]),
    "nfd-0.18.3/negative-available": Read(SINGLE, "container", [3, 2], [0, 2], "all"),
    "nfd-0.20.0-devel/applied": Read(SINGLE, "container", [3, 2], [1, 2], "all"),
    "koordlet-1.6.0/kubelet-none": Read("none", "container", None, has_memory=False),
    "koordlet-1.6.0/kubelet-static": Read(SINGLE, "container", [7, 8]),
    "koordlet-1.6.0/kubelet-not-queried": Read("none", "container", [8, 8]),
    "koordlet-1.8.0/numa-reservation": Read(SINGLE, "container", [7, 7]),
    # RTE's fingerprint is still present as an annotation, its amounts are not.
    "koordlet-1.6.0/over-rte": Read(SINGLE, "container", [7, 8], [2, 2]),
    "odd/quantities": Read(SINGLE, "container", [1500, 14], [3, 3]),
    "odd/other-zones": Read(RESTRICTED, "pod", [5, 0], problems=1),
}


def test_every_file_is_read_somewhere() -> None:
    assert EXPECTED.keys() == FILES.keys()


@pytest.mark.parametrize("name", EXPECTED)
async def test_it_is_read(name: str) -> None:
    document = recorded(name).get("object") or await served(name)
    decoded = report.read(nrt.decode(json.dumps(document)))
    expected = EXPECTED[name]
    assert (decoded.precision, len(decoded.problems)) == ("counts", expected.problems), decoded.problems
    topology = decoded.empty.settings.topology
    assert (topology.policy, topology.scope) == (expected.policy, expected.scope)
    assert (decoded.fingerprint_method if decoded.fingerprint else None) == expected.method
    kubelet = report.kubelet_of(decoded, lambda _name: None)
    assert free_cpus(kubelet) == expected.cpus
    assert (kubelet.memory is not None) == expected.has_memory
    assert free_devices(kubelet) == expected.gpus


def free_cpus(kubelet: Kubelet) -> list[int] | None:
    if kubelet.cpu is None:
        return None
    available = kubelet.cpu.available
    return [(cpus & available).bit_count() for cpus in kubelet.topology.numa_cpus]


def free_devices(kubelet: Kubelet) -> list[int] | None:
    table = kubelet.devices.tables.get("example.com/gpu")
    if table is None:
        return None
    free = kubelet.devices.free("example.com/gpu")
    return [(near & free).bit_count() for near in table.near]


def test_costs_of_rte_make_the_distances() -> None:
    document = recorded("rte-0.25.0/single-numa-node")["object"]
    assert {cost["value"] for zone in document["zones"] for cost in zone["costs"]} == {10, 21}
    decoded = report.read(nrt.decode(json.dumps(document)))
    assert decoded.empty.topology_manager.distances == ((10, 21), (21, 10))


def test_numaplacement_of_rte_is_read() -> None:
    decoded = report.read(nrt.decode(json.dumps(recorded("rte-0.25.0/single-numa-node")["object"])))
    assert decoded.offsets is not None
    assert sum(map(len, decoded.offsets.values())) == 3
