"""Watch events come twice, late, or not at all: the ledger equals the ledger that a new service builds from lists."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from burst import Scenario, assert_no_refusals, assert_nothing_left_out
from burst.service import Service
from faults import Fault
from faults.bursts import SpoiltBench
from faults.mischief import Mischief

Json = dict[str, Any]
PODS = 250


def requests(cpus: str, **more: str) -> Json:
    amounts = {"cpu": cpus, "memory": "1Gi", **more}
    container = {"name": "c", "image": "i", "resources": {"requests": amounts, "limits": amounts}}
    return {"metadata": {"name": "asked", "namespace": "default"}, "spec": {"containers": [container]}}


QUESTIONS = [
    *(requests(str(cpus)) for cpus in (1, 2, 3, 4, 6, 8, 12)),
    requests("2", **{"hugepages-2Mi": "256Mi"}),
    requests("2", **{"nvidia.com/gpu": "1"}),
    requests("1", **{"intel.com/e810_vf": "2"}),
]


async def believed(bench: SpoiltBench, service: Service) -> dict[str, Any]:
    """All answers of a service about every node."""
    shown: dict[str, Any] = {}
    for number, question in enumerate(QUESTIONS):
        async with bench.session.post(f"{service.pages}/explain", json=question) as response:
            for node in json.loads(await response.text()):
                shown[f"{number} {node['node']}"] = node
    metrics = await service.metrics(bench.session)
    for name in ("nodes", "reported_nodes", "open_reservations", "waiting_pods", "uncertain_pods"):
        shown[name] = metrics[name]
    return shown


async def assert_true(bench: SpoiltBench, directory: Path) -> int:
    """Asserts equal answers of both services about every node; returns the number of compared answers."""
    fresh = Service("fresh", bench._kubeconfig, directory)
    try:
        await fresh.start()
        # A recently bound pod may be uncertain for some seconds.
        for left in range(60, -1, -1):
            actual, expected = await believed(bench, bench.services[0]), await believed(bench, fresh)
            if actual == expected:
                return len(actual)
            if left:
                await asyncio.sleep(1)
        assert actual.keys() == expected.keys()
        different = {name: (actual[name], expected[name]) for name in actual if actual[name] != expected[name]}
        raise AssertionError(f"{len(different)} differ: {json.dumps(dict(list(different.items())[:3]), indent=1)}")
    finally:
        await fresh.kill()


async def test_events_that_come_twice_again_and_after_breaks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mischief = Mischief(1)
    async with SpoiltBench(Scenario(nodes=10, pods=PODS, seed=11), tmp_path) as bench:
        bench.proxy.spoil(Fault(watch=True, edit=mischief))
        await bench.feed()
        with capsys.disabled():
            sys.stdout.write(f"\nrepeated {mischief.repeated}, replayed {mischief.replayed}, cut {mischief.cut}\n")
        assert min(mischief.repeated, mischief.replayed, mischief.cut) > 5
        assert_no_refusals(bench)
        await assert_nothing_left_out(bench)
        assert await assert_true(bench, tmp_path) > 50


async def eventually_nothing_left_out(bench: SpoiltBench) -> None:
    """Waits for the last list: after many losses the back-off may reach half a minute."""
    deadline = time.monotonic() + 60.0
    while True:
        try:
            await assert_nothing_left_out(bench)
        except AssertionError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(1.0)
        else:
            return


async def test_a_history_that_is_lost_again_and_again(tmp_path: Path) -> None:
    gone = json.dumps({"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}).encode()
    async with SpoiltBench(Scenario(nodes=10, pods=PODS, seed=12), tmp_path) as bench:

        async def lose() -> None:
            # The place is refused, and what came in between is in the next list alone.
            bench.proxy.spoil(Fault(watch=True, answer=(410, {"Content-Type": "application/json"}, gone), count=4))
            bench.proxy.close_watches()

        await bench.feed({share / 10: lose for share in range(1, 10, 2)})
        assert_no_refusals(bench)
        await eventually_nothing_left_out(bench)
        assert await assert_true(bench, tmp_path) > 50
