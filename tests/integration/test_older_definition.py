"""Reads v1alpha1 of NodeResourceTopology where only it is served (CRD of Koordinator or an old RTE)."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from daemons import CRD, assert_eventually, plain
from sandbox.apiserver import ApiServer
from scheduling import Service
from topowise import nrt
from topowise.errors import ApiError
from topowise.kube.api import MERGE_PATCH, Api
from topowise.kube.reflector import Reflector
from topowise_scheduler.ledger.budgets import Budgets
from topowise_scheduler.ledger.watch import reflectors

pytestmark = pytest.mark.own_time

DEFINITION = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{nrt.PLURAL}.{nrt.GROUP}"


def definition(*served: str) -> dict[str, Any]:
    """The chart's CRD reduced to `served` versions; the last version is stored."""
    document: dict[str, Any] = yaml.safe_load(CRD.read_text())
    versions = [version for version in document["spec"]["versions"] if version["name"] in served]
    document["spec"]["versions"] = [{**version, "storage": version["name"] == served[-1]} for version in versions]
    return document


def topology(name: str, available: str) -> dict[str, Any]:
    """The object as RTE wrote it in v1alpha1."""
    resource = {"name": "cpu", "capacity": "8", "allocatable": "8", "available": available}
    return {
        "apiVersion": f"{nrt.GROUP}/{nrt.OLD_VERSION}",
        "kind": nrt.KIND,
        "metadata": {"name": name},
        "topologyPolicies": ["SingleNUMANodePodLevel"],
        "zones": [{"name": "node-0", "type": "Node", "resources": [resource]}],
    }


async def serve(api: Api, *versions: str) -> None:
    """Replaces the CRD with a CRD that serves these versions."""
    body = json.dumps({"spec": {"versions": definition(*versions)["spec"]["versions"]}}).encode()
    await api.request("PATCH", DEFINITION, body=body, content_type=MERGE_PATCH)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    file = tmp_path / "crd.yaml"
    file.write_text(yaml.safe_dump(definition(nrt.OLD_VERSION)))
    async with ApiServer(bookmark_every=0.2) as server:
        server.install_crds(file)
        yield server


@pytest.fixture
async def api(server: ApiServer) -> AsyncIterator[Api]:
    async with Api(plain(server), "test", timeout=2) as api:
        yield api


@asynccontextmanager
async def reading(api: Api) -> AsyncIterator[tuple[Service, Reflector[Any]]]:
    """The service's own watches, with watches that end soon."""
    service = Service()
    sources = reflectors(api, service.ledger, service.records, Budgets(), service.nodes)
    source = next(source for source in sources if source.name == nrt.PLURAL)
    source._watch_seconds = (1.0, 1.0)
    tasks = [asyncio.create_task(source.run()) for source in sources]
    try:
        await assert_eventually(lambda: all(source.synced for source in sources))
        yield service, source
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def policy(service: Service, name: str) -> str:
    node_state = service.ledger.node_states.of(name)
    assert node_state is not None
    assert node_state.report is not None
    return node_state.report.empty.settings.topology.policy


async def test_the_service_reads_v1alpha1_where_v1alpha2_is_not_served(
    server: ApiServer, api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ApiError, match="404"):
        await api.request("GET", nrt.PATH)
    await api.request("POST", nrt.OLD_PATH, body=msgspec.json.encode(topology("n1", "3")))
    with caplog.at_level(logging.INFO, "topowise.kube.reflector"):
        async with reading(api) as (service, source):
            assert service.ledger.node_states.reported() == ["n1"]
            assert (service.free("n1"), policy(service, "n1")) == ([3], "single-numa-node")
            await api.request("POST", nrt.OLD_PATH, body=msgspec.json.encode(topology("n2", "5")))
            await assert_eventually(lambda: service.ledger.node_states.reported() == ["n1", "n2"])
            lists = source.lists
            # After further watches the service still reads v1alpha1, without a list and without a new log line.
            await asyncio.sleep(2.5)
            assert source.lists == lists
    said = [record for record in caplog.records if record.message == "Reading another version"]
    assert len(said) == 1
    assert source.failures == 0


async def test_the_service_goes_back_to_v1alpha2_when_it_is_served(server: ApiServer, api: Api) -> None:
    await api.request("POST", nrt.OLD_PATH, body=msgspec.json.encode(topology("n1", "3")))
    async with reading(api) as (service, _):
        await serve(api, nrt.OLD_VERSION, nrt.VERSION)
        body = json.dumps({"attributes": [{"name": "topologyManagerPolicy", "value": "restricted"}]}).encode()
        await api.request("PATCH", f"{nrt.PATH}/n1", body=body, content_type=MERGE_PATCH)
        # v1alpha1 does not show attributes.
        await assert_eventually(lambda: policy(service, "n1") == "restricted")


async def test_the_service_falls_back_when_v1alpha2_is_taken_away(server: ApiServer, api: Api) -> None:
    await serve(api, nrt.OLD_VERSION, nrt.VERSION)
    await api.request("POST", nrt.OLD_PATH, body=msgspec.json.encode(topology("n1", "3")))
    async with reading(api) as (service, source):
        assert service.free("n1") == [3]
        await serve(api, nrt.OLD_VERSION)
        body = json.dumps({"zones": topology("n1", "6")["zones"]}).encode()
        await api.request("PATCH", f"{nrt.OLD_PATH}/n1", body=body, content_type=MERGE_PATCH)
        await assert_eventually(lambda: service.free("n1") == [6])
        await assert_eventually(lambda: source.lists == 2)
        assert service.free("n1") == [6]


async def ask(server: ApiServer, folder: Path, *words: str) -> tuple[int, str, str]:
    """`kubectl topowise ...`, which reads the cluster by the real kubectl: status, stdout, stderr."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "topowise_scheduler.kubectl", *words),
        *("--kubeconfig", str(server.kubeconfig(folder / "kubeconfig"))),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), 60)
    except TimeoutError:
        process.kill()
        raise
    return process.returncode or 0, out.decode(), err.decode()


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl on PATH")
@pytest.mark.real_time
@pytest.mark.nightly
async def test_the_plugin_reads_v1alpha1_where_v1alpha2_is_not_served(
    server: ApiServer, api: Api, tmp_path: Path
) -> None:
    status, out, err = await ask(server, tmp_path, "nodes", "-o", "name")
    assert (status, out) == (0, ""), err
    await api.request("POST", nrt.OLD_PATH, body=msgspec.json.encode(topology("n1", "3")))
    status, out, err = await ask(server, tmp_path, "nodes")
    assert status == 0, err
    assert out.splitlines()[1].split()[:4] == ["n1", "single-numa-node", "pod", "counts"]
    status, out, err = await ask(server, tmp_path, "nodes", "-o", "json")
    assert [(row["node"], row["precision"]) for row in json.loads(out)] == [("n1", "counts")]
    status, out, err = await ask(server, tmp_path, "node", "n1", "-o", "json")
    assert (status, json.loads(out)["node"]) == (0, "n1"), err
    status, _, err = await ask(server, tmp_path, "node", "n2")
    assert (status, err) == (2, "error: node n2: no such node is reported, expected the name of a reported node: n1\n")
