"""Gated pods with claims (DRA): the service allocates their devices, and a stock kube-scheduler binds them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Callable, Coroutine
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from claims_cluster import CLAIMS, DRIVER, ClaimsCluster, claimed
from real_cluster import ASSETS, MISSING
from sandbox.controlplane import ControlPlane

if ASSETS is None:
    pytest.skip(MISSING, allow_module_level=True)
pytestmark = pytest.mark.apiserver

HOSTNAME: Final = "kubernetes.io/hostname"
# kube-scheduler would take the devices of NUMA node 1 first, the kubelet takes the CPUs of NUMA node 0.
CROSSED: Final = (*[1] * 16, *[0] * 16)
OURS: Final = {"drivers": [DRIVER]}


async def kill_a_replica(cluster: ClaimsCluster, turn: int) -> None:
    service = cluster.services[turn % 2]
    await service.kill()
    await asyncio.sleep(1.0)
    await service.start()


async def stop_kube_scheduler(cluster: ClaimsCluster, turn: int) -> None:
    await cluster.stop_scheduler()
    await asyncio.sleep(3.0)
    await cluster.start_scheduler()


@pytest.mark.parametrize("alignment", ["prefer", "require"])
@pytest.mark.parametrize("steers", [False, True], ids=["alone", "steered"])
async def test_devices_are_chosen_where_the_kubelet_places_the_pod(
    plane: ControlPlane, tmp_path: Path, capsys: pytest.CaptureFixture[str], alignment: str, steers: bool
) -> None:
    """Pods with one to four devices and two to six CPUs among pods without claims, which come and end. Without a label
    a kubelet takes another NUMA node for a pod if the last pod there ends just before."""
    claims = {**OURS, "alignment": alignment}
    async with ClaimsCluster(plane, tmp_path, 3, devices=CROSSED, steers=steers, claims=claims, gated=True) as cluster:
        seen = await cluster.run_burst(60, Random(3), (2.0, 5.0), markers=steers)
        apart = {name: at for name, at in seen.alignments.items() if not at.is_aligned}
        with capsys.disabled():
            print(f"\n  {len(seen.alignments)} with claims, {len(apart)} apart, {seen.seconds:.0f} s", end="")  # noqa: T201
        assert not seen.twice
        assert not seen.lost
        assert not cluster.refusals
        assert len(seen.alignments) > 20
        assert len(apart) <= (0 if steers and alignment == "require" else 0.1 * len(seen.alignments))


@pytest.mark.parametrize("fault", [kill_a_replica, stop_kube_scheduler])
async def test_no_device_is_given_twice_or_kept_for_nobody(
    plane: ControlPlane,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    fault: Callable[[ClaimsCluster, int], Coroutine[Any, Any, None]],
) -> None:
    """Two replicas of the service, which end in turn, or kube-scheduler does. `TOPOWISE_BURST=10` is 1,000 pods."""
    pods, election = 100 * int(os.environ.get("TOPOWISE_BURST", "1")), {"leaderElection": {"enabled": True}}
    async with ClaimsCluster(plane, tmp_path, 6, steers=False, claims=OURS, gated=True, more=election) as cluster:
        cluster.services.append(cluster._service(1))
        await cluster.services[1].start()

        async def again() -> None:
            for turn in count():
                await asyncio.sleep(3.0)
                await fault(cluster, turn)
                # The other replica has to see that the lease is not renewed.
                await asyncio.sleep(20.0 if fault is kill_a_replica else 0.0)

        faults = asyncio.create_task(again())
        try:
            seen = await cluster.run_burst(pods, Random(5), (1.0, 3.0), markers=False)
        finally:
            faults.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await faults
        with capsys.disabled():
            print(f"\n  {pods} pods, {seen.looks} looks at all claims, {seen.seconds:.0f} s", end="")  # noqa: T201
        assert not seen.twice
        assert not seen.lost
        assert not cluster.refusals
        # The controller takes back the devices of pods that have ended.
        async with asyncio.timeout(60):
            while json.loads(await cluster.api.request("GET", CLAIMS))["items"]:
                await asyncio.sleep(0.5)


async def test_each_of_many_claims_has_devices_of_its_own(
    plane: ControlPlane, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Claims and pods that are created at the same time, and two replicas of which one ends from time to time, on nodes
    that are nearly full in the end. `TOPOWISE_CLAIMS=10000` takes some minutes."""
    number = int(os.environ.get("TOPOWISE_CLAIMS", "400"))
    election, nodes = {"leaderElection": {"enabled": True}}, number // 90 + 1
    async with ClaimsCluster(
        plane, tmp_path, nodes, devices=(0, 1) * 50, steers=False, claims=OURS, gated=True, more=election
    ) as cluster:
        cluster.services.append(cluster._service(1))
        await cluster.services[1].start()
        at_once, started = asyncio.Semaphore(16), asyncio.get_running_loop().time()

        async def create(name: str) -> None:
            request = {"name": "gpu", "exactly": {"deviceClassName": "gpu"}}
            document = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}}
            pod = claimed(name, 1, 1, markers=False)
            pod["spec"]["resourceClaims"] = [{"name": "gpus", "resourceClaimName": name}]
            pod["spec"]["containers"][0]["resources"] |= {"requests": {"cpu": "10m"}, "limits": {}}
            async with at_once:
                await cluster.create({**document, "spec": {"devices": {"requests": [request]}}}, CLAIMS)
                await cluster.create(pod)

        async def kill() -> None:
            for turn in count():
                await asyncio.sleep(5.0)
                await kill_a_replica(cluster, turn)
                await asyncio.sleep(25.0)

        faults = asyncio.create_task(kill())
        await asyncio.gather(*(create(f"c{at}") for at in range(number)))
        async with asyncio.timeout(120 + number / 10):
            while any(not pod["spec"].get("nodeName") for pod in await cluster.pods()):
                await asyncio.sleep(1.0)
        faults.cancel()
        claims = json.loads(await cluster.api.request("GET", CLAIMS))["items"]
        devices = [
            (result["pool"], result["device"])
            for each in claims
            for result in each["status"]["allocation"]["devices"]["results"]
        ]
        with capsys.disabled():
            seconds = asyncio.get_running_loop().time() - started
            print(f"\n  {number} claims on {nodes} nodes, {seconds:.0f} s", end="")  # noqa: T201
        assert len(devices) == len(set(devices)) == number
        assert not cluster.refusals
