"""Claims of a hostile tenant: neither memory nor time of the service grows with what a selector computes."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import hostile
from claim_objects import DRIVER, claim, device_slice
from daemons import Start, assert_eventually
from sandbox.apiserver import ApiServer
from scheduler_process import Service

pytestmark = pytest.mark.own_time

MIB = 1 << 20


def doublings(number: int) -> str:
    """Returns an expression that makes a list of 4 * 2 ** (number - 1) elements."""
    bindings = [f"cel.bind(a{at}, {f'a{at - 1} + a{at - 1}' if at else '[1, 2, 3, 4]'}, " for at in range(number)]
    return "".join(bindings) + f"a{number - 1}.size() > 1" + ")" * number


def selecting(name: str, expression: str) -> dict[str, Any]:
    """Returns a claim with a selector."""
    document = claim(name)
    document["spec"]["devices"]["requests"][0]["exactly"]["selectors"] = [{"cel": {"expression": expression}}]
    del document["metadata"]["uid"], document["metadata"]["resourceVersion"]
    return document


def pod(name: str) -> dict[str, Any]:
    """Returns a pod with a claim of the same name."""
    return {
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"containers": [{"name": "c"}], "resourceClaims": [{"name": "c", "resourceClaimName": name}]},
    }


def address_space(pid: int) -> int:
    """Returns what a process has mapped (bytes)."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def test_a_selector_of_a_tenant_takes_no_memory(server: ApiServer, start: Start, tmp_path: Path) -> None:
    """kube-apiserver stores it: 608 characters, which ask for a list of a billion elements."""
    names = hostile.nodes(server, 2)
    server.create("deviceclasses.resource.k8s.io", {"metadata": {"name": "gpu"}, "spec": {}})
    for name in names:
        server.create("resourceslices.resource.k8s.io", device_slice(name, [0, 0, 1, 1]))
    hostile_text = doublings(24)
    assert 600 <= len(hostile_text) <= 612
    server.create("resourceclaims.resource.k8s.io", selecting("hostile", hostile_text))
    server.create("resourceclaims.resource.k8s.io", selecting("plain", f"device.driver == '{DRIVER}'"))
    service = Service(server, tmp_path)
    service.config |= {"resourceClaims": {"enabled": True, "drivers": [DRIVER]}, "placement": {"enabled": True}}
    daemon = await start("topowise_scheduler", "serve", config=service.config)
    await assert_eventually(service.is_ready, within=60)
    pid = daemon.process.pid
    limit = address_space(pid) + 200 * MIB
    resource.prlimit(pid, resource.RLIMIT_AS, (limit, limit))
    async with aiohttp.ClientSession() as session:
        for name, expected in (("hostile", "not known: a long search"), ("plain", "to be on NUMA node")):
            created = server.create("pods", pod(name))
            answer = await service.ask("filter", created, names, session)
            assert answer["NodeNames"] == names, answer
            async with session.get(f"{service.pages}/explain", params={"pod": f"default/{name}"}) as response:
                assert expected in (text := await response.text()), text
    assert daemon.process.returncode is None
    assert not daemon.lines("Traceback")
    assert address_space(pid) <= limit
