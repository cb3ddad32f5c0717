"""Devices of resource claims, with real processes: in the zones while a ResourceSlice lists them, less allocations."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest

from daemons import Start, assert_eventually
from exporter_setup import FakeKubelet, published
from sandbox.apiserver import ApiServer
from sandbox.kubelet.holdings import ContainerHoldings, PodHoldings

pytestmark = pytest.mark.own_time

SLICES = "resourceslices.resource.k8s.io"
RESOURCE = "dra.topowise.io/gpu.example.com"


def gpus(name: str, **nodes: int) -> dict[str, Any]:
    """A slice with a device for each name -> NUMA node."""
    attribute = "resource.kubernetes.io/numaNode"
    devices = [{"name": device, "attributes": {attribute: {"int": numa_node}}} for device, numa_node in nodes.items()]
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    return {
        "metadata": {"name": name},
        "spec": {"driver": "gpu.example.com", "nodeName": "n1", "pool": pool, "devices": devices},
    }


def claiming(name: str, *devices: str) -> PodHoldings:
    claims = tuple(("gpu.example.com", "pool", device) for device in devices)
    return PodHoldings(name, "default", name, (ContainerHoldings("c", "app", claims=claims),))


def amounts(server: ApiServer) -> dict[str, tuple[str, str]]:
    """Zone -> capacity and available of the driver's devices."""
    topology = published(server) or {"zones": []}
    return {
        zone["name"]: (resource["capacity"], resource["available"])
        for zone in topology["zones"]
        for resource in zone.get("resources") or ()
        if resource["name"] == RESOURCE
    }


async def delete(server: ApiServer, name: str) -> None:
    url = f"{server.url}/apis/resource.k8s.io/v1/resourceslices/{name}"
    async with aiohttp.ClientSession() as session, session.delete(url) as answer:
        assert answer.status == 200


async def test_a_claim_takes_a_device_from_its_zone_and_gives_it_back(
    server: ApiServer, start: Start, config: dict[str, Any], kubelet: FakeKubelet
) -> None:
    server.create(SLICES, gpus("pool", a=0, b=0, c=4))
    exporter = await start("topowise_exporter", "run", config=config)
    # Already in the first object: a restart does not take them out of it for a moment.
    await assert_eventually(lambda: published(server))
    assert amounts(server) == {"node-0": ("2", "2"), "node-4": ("1", "1")}
    kubelet.pods = (claiming("p", "b"), claiming("q", "b", "c"))
    await assert_eventually(lambda: amounts(server) == {"node-0": ("2", "1"), "node-4": ("1", "0")})
    kubelet.pods = ()
    await assert_eventually(lambda: amounts(server) == {"node-0": ("2", "2"), "node-4": ("1", "1")})
    assert exporter.process.returncode is None


async def test_a_deleted_slice_removes_its_devices_and_starts_a_sync(
    server: ApiServer, start: Start, config: dict[str, Any], kubelet: FakeKubelet
) -> None:
    kubelet.pods = (claiming("p", "a"),)
    exporter = await start("topowise_exporter", "run", config={**config, "logging": {"verbosity": 4}})
    await assert_eventually(lambda: published(server))
    server.create(SLICES, gpus("pool", a=0, b=4))
    await assert_eventually(lambda: amounts(server) == {"node-0": ("1", "0"), "node-4": ("1", "1")})
    before = len(exporter.lines('"Event" reason="resourceslices"'))
    await delete(server, "pool")
    await assert_eventually(lambda: amounts(server) == {})
    assert len(exporter.lines('"Event" reason="resourceslices"')) > before


async def test_switched_off_it_asks_for_no_slices(server: ApiServer, start: Start, config: dict[str, Any]) -> None:
    server.create(SLICES, gpus("pool", a=0))
    await start("topowise_exporter", "run", config={**config, "resourceSlices": False})
    await assert_eventually(lambda: published(server))
    await asyncio.sleep(0.3)
    assert amounts(server) == {}
    assert not [entry for entry in server.requests() if entry[1].startswith("resourceslices")]
