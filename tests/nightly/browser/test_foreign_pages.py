"""A web page cannot act on a service that is forwarded to its visitor's machine, shown in a real browser."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web

from browser import Page, opened
from daemons import Start, assert_eventually
from sandbox.apiserver import ApiServer
from sandbox.processes import free_ports
from scheduler_process import NRT, Service
from scheduling import counts
from scheduling import pod as pod_of
from topowise.kube.api import Api

# Names that a page may resolve to this machine.
_NAMES = "--host-resolver-rules=MAP *.example 127.0.0.1"

# Every way in which a page sends a body to another origin, and what the page can read of the answer.
_ATTACK = """
async (url, body) => {
  const said = [];
  const tries = [
    () => fetch(url, {method: "POST", mode: "no-cors", body}),
    () => fetch(url, {method: "POST", mode: "no-cors", body: new Blob([body], {type: "text/plain"})}),
    () => fetch(url, {method: "POST", body, headers: {"Content-Type": "application/json"}}),
    () => fetch(url, {method: "POST", body, credentials: "include", headers: {"Content-Type": "application/json"}}),
    () => fetch(url, {mode: "no-cors"}),
    async () => ({status: `beacon ${navigator.sendBeacon(url, body)}`}),
    async () => ({status: `json beacon ${navigator.sendBeacon(url, new Blob([body], {type: "application/json"}))}`}),
    () => new Promise(done => {
      const form = document.createElement("form"), field = document.createElement("input");
      const frame = document.createElement("iframe");
      [frame.name, form.method, form.action, form.enctype, form.target] = ["f", "POST", url, "text/plain", "f"];
      // One field makes JSON of its name, "=" and its value.
      [field.name, field.value] = [body.slice(0, -1) + `,"x":"`, `"}`];
      frame.onload = () => done({status: "form"});
      form.append(field); document.body.append(frame, form); form.submit();
      setTimeout(() => done({status: "form timed out"}), 2000);
    }),
  ];
  for (const one of tries) {
    try {
      const answer = await one();
      said.push([answer.status, answer.text && answer.type !== "opaque" ? await answer.text() : ""]);
    } catch (problem) { said.push(["failed", String(problem)]); }
  }
  return said;
}
"""


@pytest.fixture
async def service(server: ApiServer, tmp_path: Path, start: Start) -> Service:
    server.create("nodes", {"metadata": {"name": "n1"}})
    report = json.loads(msgspec.json.encode(counts("n1", ("8", "8"), included=())))
    server.create(NRT, {key: value for key, value in report.items() if value is not None})
    service = Service(server, tmp_path)
    service.config |= {"ui": {"enabled": True}, "volcano": {"enabled": True}}
    await start("topowise_scheduler", "serve", config=service.config)
    await assert_eventually(service.is_ready)
    return service


@pytest.fixture
async def site() -> AsyncIterator[int]:
    """Serves the web site of another origin; returns its port."""

    async def page(_: web.Request) -> web.Response:
        return web.Response(text="<!doctype html><title>harmless</title><body>", content_type="text/html")

    application = web.Application()
    application.router.add_get("/{path:.*}", page)
    runner = web.AppRunner(application)
    await runner.setup()
    (port,) = free_ports(1)
    await web.TCPSite(runner, "127.0.0.1", port).start()
    yield port
    await runner.cleanup()


async def attack(page: Page, url: str, body: Any) -> list[list[Any]]:
    said: list[list[Any]] = await page.run(f"({_ATTACK})({json.dumps(url)}, {json.dumps(json.dumps(body))})")
    return said


async def open_reservations(service: Service) -> float:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{service.health_port}/metrics") as response,
    ):
        lines = (await response.text()).splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("topowise_scheduler_open_reservations "))


def bodies(real: dict[str, Any]) -> dict[str, Any]:
    """Requests that would reserve, book or bind if they were answered."""
    meta, made_up = real["metadata"], pod_of("made-up", "8")
    task = {"UID": "made-up", "Name": "made-up", "Namespace": "default", "NodeName": "n1", "Pod": made_up, "Status": 2}
    return {
        "filter": {"Pod": made_up, "NodeNames": ["n1"]},
        "prioritize": {"Pod": made_up, "NodeNames": ["n1"]},
        "bind": {"PodName": "real", "PodNamespace": "default", "PodUID": meta["uid"], "Node": "n1"},
        "volcano/allocateFunc": {"task": task},
        "explain": made_up,
    }


async def test_a_page_of_another_site_reserves_binds_and_learns_nothing(
    service: Service, server: ApiServer, api: Api, site: int, tmp_path: Path
) -> None:
    real = server.create("pods", {key: value for key, value in pod_of("real", "8").items() if key != "status"})
    async with opened(tmp_path, _NAMES) as page:
        for base in (service.prefix, service.pages):
            port = base.rpartition(":")[2]
            # First from another origin, then under a DNS name of the attacker for the service's own address.
            for opener in (f"http://attacker.example:{site}/", f"http://rebound.example:{port}/explain"):
                await page.open(opener, width=800)
                await assert_eventually(lambda opener=opener: is_at(page, opener))
                target = base if str(site) in opener else f"http://rebound.example:{port}"
                for verb, body in bodies(real).items():
                    for status, text in await attack(page, f"{target}/{verb}", body):
                        assert status != 200, (opener, verb, text)
                        assert real["metadata"]["uid"] not in text
        assert await open_reservations(service) == 0
        assert "nodeName" not in json.loads(await api.request("GET", "/api/v1/namespaces/default/pods/real"))["spec"]
        # The dashboard opens in no frame and from no link of another site.
        await page.open(f"{service.pages}/ui", width=800)
        await page.has("#nodes-list", "n1")
    async with aiohttp.ClientSession() as session:
        assert (await service.ask("filter", real, ["n1"], session))["NodeNames"] == ["n1"]


async def is_at(page: Page, url: str) -> bool:
    return bool(await page.run("location.href") == url and await page.run("document.readyState") == "complete")
