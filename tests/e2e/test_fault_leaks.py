"""Ten thousand repetitions leave nothing behind, and no memory grows.

The memory bounds apply after a warm-up of a tenth, which fills allocators and caches.
`TOPOWISE_REPETITIONS` scales the number: 0.1 for a quick run, 10 for a night.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

import hostile
from daemons import Start, assert_eventually
from exporter_setup import FakeKubelet
from faults import Usage, syncs, usage
from sandbox.apiserver import ApiServer
from scheduler_process import Service

REPETITIONS = round(10_000 * float(os.environ.get("TOPOWISE_REPETITIONS", "1")))
_AT_ONCE = 8
_NODES = 6
_MIB = 1 << 20
# Growth after the warm-up, over all repetitions.
SCHEDULER_GROWTH = 8 * _MIB
EXPORTER_GROWTH = 6 * _MIB
PODS = "/api/v1/namespaces/default/pods"


def pod(name: str, app: str = "") -> dict[str, Any]:
    amounts = {"cpu": "2", "memory": "1Mi"}
    return {
        "metadata": {"name": name, "namespace": "default", "labels": {"app": app}},
        "spec": {"containers": [{"name": "c", "image": "i", "resources": {"requests": amounts, "limits": amounts}}]},
    }


class Lives:
    """Pods that are decided, bound by the service, and deleted."""

    def __init__(self, server: ApiServer, service: Service, session: aiohttp.ClientSession, names: list[str]) -> None:
        self._server = server
        self._service = service
        self._session = session
        self._number = 0
        self.failed = 0
        self.names = names

    async def run_pod(self) -> None:
        """filter, prioritize, bind, delete; every fourth is given up before its bind."""
        self._number += 1
        number = self._number
        created = self._server.create("pods", pod(f"p{number}", f"app-{number % 40}"))
        answer = await self._service.ask("filter", created, self.names, self._session)
        assert answer["NodeNames"], answer
        if len(answer["NodeNames"]) > 1:
            scores = await self._service.ask("prioritize", created, answer["NodeNames"], self._session)
            node = max(scores, key=lambda score: score["Score"])["Host"]
        else:
            (node,) = answer["NodeNames"]
        if number % 4:
            uid = created["metadata"]["uid"]
            named = {"PodName": f"p{number}", "PodNamespace": "default", "PodUID": uid, "Node": node}
            _, _, text = await self._service.post("bind", json.dumps(named).encode(), self._session)
            self.failed += json.loads(text)["Error"] != ""
        url = f"{self._server.url}{PODS}/p{number}?gracePeriodSeconds=0"
        async with self._session.delete(url) as response:
            assert response.status == 200

    async def many(self, count: int) -> None:
        left = count

        async def work() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                await self.run_pod()

        await asyncio.gather(*(work() for _ in range(_AT_ONCE)))


async def test_ten_thousand_pods_leave_nothing_in_the_service(
    server: ApiServer, start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    service = Service(server, tmp_path)
    names = hostile.nodes(server, _NODES)
    process = await start("topowise_scheduler", "serve", config=service.config)
    await assert_eventually(service.is_ready, within=60)
    async with aiohttp.ClientSession() as session:
        lives = Lives(server, service, session, names)

        async def empty() -> bool:
            now = await service.metrics(session)
            return not any(now[name] for name in ("open_reservations", "uncertain_pods", "waiting_pods"))

        async def rest() -> Usage:
            await assert_eventually(empty, within=60)
            return usage(process.process.pid)

        began = time.monotonic()
        await lives.many(REPETITIONS // 10)
        await rest()
        question = msgspec.json.encode(pod("asked"))
        # A thread decodes the request, and that thread stays.
        _, _, rooms = await service.post("explain", question, session)
        before = await rest()
        await lives.many(REPETITIONS - REPETITIONS // 10)
        after = await rest()
        _, _, rooms_after = await service.post("explain", question, session)
        tell(capsys, f"{REPETITIONS} pods in {time.monotonic() - began:.0f}s", before, after)
        # No booking is left: every zone of every node has its initial capacity.
        assert rooms_after == rooms
        assert_same(before, after, SCHEDULER_GROWTH)
        # On a busy machine a bind may time out, or require a new decision.
        assert lives.failed < REPETITIONS / 20
        assert not process.lines("Traceback")
        assert len(process.log.splitlines()) < 20, process.log[-3000:]


async def test_hostile_pods_leave_nothing_in_the_service(
    server: ApiServer, start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only the maximum number of concurrent pods warms up the service, as hostile pods would fill the caches first."""
    began = time.monotonic()
    before, after = await hostile.usage_around(server, start, tmp_path, REPETITIONS // 5)
    tell(capsys, f"{REPETITIONS // 5} hostile pods in {time.monotonic() - began:.0f}s", before, after)
    assert_same(before, after, before.rss // 10)


async def test_ten_thousand_syncs_leave_nothing_in_the_exporter(
    server: ApiServer,
    config: dict[str, Any],
    kubelet: FakeKubelet,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    server.create("nodes", {"metadata": {"name": "n1"}})
    file = tmp_path / "exporter.yaml"
    file.write_text(json.dumps(config))
    began = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(syncs.__file__),
        str(file),
        str(REPETITIONS),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(syncs.__file__).parents[1])},
    )
    telling = asyncio.create_task(process.communicate())
    number = 0
    try:
        while not telling.done():
            # Twenty times a second a pod with a new name, and a new object.
            number += 1
            kubelet.pods = ()
            if number % 3:
                kubelet.give(f"p{number}", 1 if number % 2 else 4)
            await asyncio.sleep(0.05)
    finally:
        if process.returncode is None:
            process.kill()
        out, _ = await telling
    assert process.returncode == 0
    (*before, tasks, _), (*after, tasks_after, count) = map(json.loads, out.decode().splitlines())
    seconds = time.monotonic() - began
    tell(capsys, f"{count} syncs at {number} changes in {seconds:.0f}s", Usage(*before), Usage(*after))
    assert count == REPETITIONS
    assert number >= REPETITIONS // 500
    assert tasks_after == tasks
    assert_same(Usage(*before), Usage(*after), EXPORTER_GROWTH)


def assert_same(before: Usage, after: Usage, growth: int) -> None:
    assert after.threads <= before.threads
    # Up to two connections may be open at either measurement.
    assert after.files <= before.files + 4
    assert after.rss - before.rss <= growth


def tell(capsys: pytest.CaptureFixture[str], label: str, before: Usage, after: Usage) -> None:
    rss = f"RSS {before.rss / _MIB:.1f} -> {after.rss / _MIB:.1f} MiB"
    with capsys.disabled():
        sys.stdout.write(f"\n{label}: {rss}, files {before.files} -> {after.files}, threads {after.threads}\n")
