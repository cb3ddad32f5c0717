"""Pods of a hostile tenant that fill the daemons' memory: as large as an API server admits, and all different."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec

from daemons import Start, assert_eventually
from faults import Usage, usage
from sandbox.apiserver import ApiServer
from scheduler_process import NRT, Service
from scheduling import NODE_STATUS

Json = dict[str, Any]

PODS: Final = "/api/v1/namespaces/default/pods"
# The limits are 3 MiB for a request, 1.5 MiB for an object in etcd, 256 KiB for all annotations.
_CONTAINERS: Final = 2500
_ANNOTATIONS: Final = 200 << 10
# Pods that exist at the same time: a tenant has a quota, and the test's API server limited memory.
_AT_ONCE: Final = 20


def _many_containers(number: int) -> Json:
    return {"containers": [_container(f"c{n}", number, n) for n in range(_CONTAINERS)]}


def _many_shapes(number: int) -> Json:
    """Returns a spec with the maximum of containers that topowise evaluates, all different."""
    return {"containers": [_container(f"c{n}", number, n) for n in range(256)]}


def _many_amounts(number: int) -> Json:
    """Returns a spec with the maximum of amounts that topowise evaluates, of resources that no node has."""
    amounts = {f"example-{number}.com/{'x' * 40}{n}": "1" for n in range(1000)}
    return {"containers": [{"name": "c", "image": "i:1", "resources": {"requests": amounts, "limits": amounts}}]}


def _long_names(number: int) -> Json:
    return {
        "containers": [_container("c", number, 0)],
        "nodeSelector": {f"n{number}-{n}": "y" * 60 for n in range(500)},
    }


def _container(name: str, number: int, position: int) -> Json:
    amounts = {"cpu": f"{1 + position % 7}m", "memory": str((number << 16) + position)}
    return {"name": name, "image": "i:1", "resources": {"requests": amounts, "limits": amounts}}


_KINDS: Final[tuple[Callable[[int], Json], ...]] = (_many_containers, _many_shapes, _many_amounts, _long_names)


def pod(number: int) -> Json:
    """Returns a pod; the four kinds take turns."""
    metadata = {
        "name": f"hostile-{number}",
        "namespace": "default",
        "labels": {f"l{number}-{n}": f"{number}-{n}" for n in range(200)},
        "annotations": {f"a{number}": "z" * _ANNOTATIONS},
    }
    return {"metadata": metadata, "spec": _KINDS[number % len(_KINDS)](number)}


def nodes(server: ApiServer, count: int) -> list[str]:
    """Creates nodes of two NUMA nodes with 64 CPUs each, and returns their names."""
    names = [f"n{number:02d}" for number in range(count)]
    for name in names:
        server.create("nodes", {"metadata": {"name": name}, "status": NODE_STATUS})
        cpu = {"name": "cpu", "capacity": "64", "allocatable": "64", "available": "64"}
        zones = [{"name": f"node-{zone}", "type": "Node", "resources": [cpu]} for zone in range(2)]
        attributes = [{"name": "topologyManagerPolicy", "value": "single-numa-node"}]
        server.create(NRT, {"metadata": {"name": name}, "attributes": attributes, "zones": zones})
    return names


async def usage_around(server: ApiServer, start: Start, directory: Path, count: int) -> tuple[Usage, Usage]:
    """What a service holds after as many pods as there are at the same time, and after so many more: what it once
    needed for all of these its allocator keeps."""
    service = Service(server, directory)
    names = nodes(server, 6)
    daemon = await start("topowise_scheduler", "serve", config=service.config)
    await assert_eventually(service.is_ready, within=60)
    async with aiohttp.ClientSession() as session:
        await _come_and_go(server, service, session, range(_AT_ONCE), names)
        before = usage(daemon.process.pid)
        await _come_and_go(server, service, session, range(_AT_ONCE, _AT_ONCE + count), names)
        await asyncio.sleep(1)
        after = usage(daemon.process.pid)
    assert not daemon.lines("Traceback")
    return before, after


async def _come_and_go(
    server: ApiServer, service: Service, session: aiohttp.ClientSession, numbers: range, names: list[str]
) -> None:
    """Makes them, has the service judge each, and deletes them."""
    for first in range(0, len(numbers), _AT_ONCE):
        batch = numbers[first : first + _AT_ONCE]
        for number in batch:
            created = server.create("pods", pod(number))
            body = msgspec.json.encode({"Pod": created, "Nodes": None, "NodeNames": names})
            await service.post("filter", body, session)
        # It hears of them before they go.
        await asyncio.sleep(0.1)
        for number in batch:
            url = f"{server.url}{PODS}/hostile-{number}?gracePeriodSeconds=0"
            async with session.delete(url) as response:
                assert response.status == 200
        # Of the history, too, which is some megabytes a pod.
        await asyncio.sleep(0.1)
        server.store.expire("pods")
