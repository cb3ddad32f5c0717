"""Log, metrics and answers for people of a running service, for objects with hostile names."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from daemons import Start, assert_eventually
from sandbox.apiserver import ApiServer
from scheduler_process import NRT, Service
from scheduling import NODE_STATUS

pytestmark = pytest.mark.own_time

HOSTILE = "h\x1b]0;t\x07\x1b[31m\x9b2J\u202e\u2066\u200b\r\nE1121 00:00:00.000000 1 x.py:1] forged\u2028\x85\x7fh"
FORBIDDEN = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
GPU = f"example.com/gpu{HOSTILE}"


def report(name: str, policy: str, amount: str) -> dict[str, Any]:
    """A report of another producer, with arbitrary resource names."""
    amounts = {"capacity": "8", "allocatable": "8", "available": amount}
    zones = [
        {"name": f"node-{zone}", "type": "Node", "resources": [{"name": "cpu", **amounts}, {"name": GPU, **amounts}]}
        for zone in range(2)
    ]
    attributes = [{"name": "topologyManagerPolicy", "value": policy}]
    return {"metadata": {"name": name}, "attributes": attributes, "zones": zones}


def pod(name: str) -> dict[str, Any]:
    amounts = {"cpu": "9", "memory": "1Gi", GPU: "1"}
    container = {"name": f"c{HOSTILE}", "image": HOSTILE, "resources": {"requests": amounts, "limits": amounts}}
    metadata = {"name": name, "namespace": "default", "labels": {HOSTILE: HOSTILE}, "annotations": {HOSTILE: HOSTILE}}
    return {"metadata": metadata, "spec": {"containers": [container]}}


@pytest.mark.parametrize("form", ["text", "json"])
async def test_a_service_writes_no_character_that_a_reader_cannot_see(
    form: str, server: ApiServer, start: Start, tmp_path: Path
) -> None:
    for name, policy, amount in (
        ("a", "single-numa-node", "8"),
        ("b", HOSTILE, "8"),
        ("c", f"{HOSTILE}restricted", "3"),
    ):
        status = {**NODE_STATUS, "nodeInfo": {"kubeletVersion": f"v1.36.2{HOSTILE}"}}
        server.create("nodes", {"metadata": {"name": name, "annotations": {"x": HOSTILE}}, "status": status})
        server.create(NRT, report(name, policy, amount))
    document = pod("p")
    service = Service(server, tmp_path)
    service.config["logging"] = {"format": form, "verbosity": 4}
    process = await start("topowise_scheduler", "serve", config=service.config)
    await assert_eventually(service.is_ready)
    async with aiohttp.ClientSession() as session:
        answer = await service.ask("filter", document, ["a", "b", "c", HOSTILE], session)
        assert answer["FailedNodes"] or answer["FailedAndUnresolvableNodes"]
        await service.post(
            "filter", json.dumps({"Pod": {"metadata": {"name": HOSTILE}}, "NodeNames": HOSTILE}).encode(), session
        )
        _, _, explanation = await service.post("explain", msgspec.json.encode(pod(f"q{HOSTILE}")), session)
        async with session.get(f"{service.pages}/explain", params={"pod": f"default/{HOSTILE}"}) as refused:
            texts = [explanation, await refused.text()]

        async def is_counted() -> bool:
            async with session.get(f"http://127.0.0.1:{service.health_port}/metrics") as response:
                texts.append(await response.text())
            return "example.com/gpu" in texts[-1]

        await assert_eventually(is_counted)
    for text in [*texts, process.log]:
        assert not FORBIDDEN.search(text), FORBIDDEN.search(text)
        assert not any(line.startswith("E1121 00:00:00.000000") for line in text.splitlines())
    # Data stays what it is.
    assert any(GPU in node["text"] for node in json.loads(explanation))
    # The log has quoted hostile text, and not left it out.
    assert "x1b" in process.log or "u001b" in process.log
