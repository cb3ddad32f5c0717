"""How fast pods are placed on 500 nodes with four NUMA nodes each, beside the same kube-scheduler without the service.

All pods are there before kube-scheduler starts, and the hollow kubelets wait until all are bound, as elsewhere they do
not share the cores of the control plane; then they admit them in the order in which they came. No time is asserted: the
figures are printed, and hold for the machine of the run.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from burst.nodes import KINDS, Kind
from real_cluster import ASSETS, MISSING, SCHEDULER, Cluster, control_plane
from sandbox.controlplane import ControlPlane
from sandbox.processes import Process, free_ports

if ASSETS is None:
    pytest.skip(MISSING, allow_module_level=True)
pytestmark = pytest.mark.apiserver

_NODES = 500
# As many as fit by all rules before any kubelet has told where it put its own.
_PODS = 1000
_AT_ONCE = 50


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with control_plane() as running:
        yield running


def strict_nodes(count: int) -> Iterator[tuple[str, Kind]]:
    """Four zones of eight cores, each pod on one of them."""
    kind = KINDS["snc-restricted"]
    config = msgspec.structs.replace(kind.config, topologyManagerPolicy="single-numa-node")
    for number in range(count):
        yield f"metal-{number:03d}", Kind(kind.machine, config)


def pod(number: int, random: Random) -> dict[str, Any]:
    cpus = random.choice((1, 2, 2, 4))
    amounts = {"cpu": str(cpus), "memory": f"{cpus}Gi"}
    container = {"name": "app", "image": "none", "resources": {"requests": amounts, "limits": amounts}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"pod-{number:04d}", "namespace": "default"},
        "spec": {"schedulerName": SCHEDULER, "containers": [container]},
    }


async def pods_per_second(cluster: Cluster) -> float:
    """Over the middle nine tenths of the pods, from what a watch of them saw."""
    await cluster.stop_scheduler()
    random = Random(5)
    for first in range(0, _PODS, _AT_ONCE):
        await asyncio.gather(*(cluster.create(pod(first + at, random)) for at in range(_AT_ONCE)))
    cluster.fleet.hold()
    await cluster.start_scheduler()
    bound: dict[str, float] = {}
    seen = 0
    while len(bound) < _PODS:
        await asyncio.sleep(0.5)
        cluster.check()
        fresh = cluster.fleet.held[seen:]
        seen += len(fresh)
        for at, _, item in fresh:
            if item.spec.nodeName:
                bound.setdefault(item.metadata.uid, at)
    cluster.fleet.release()
    await cluster.settle(300.0, still=5.0)
    times = sorted(bound.values())
    begin, end = _PODS // 20, _PODS - _PODS // 20
    return (end - begin) / (times[end - 1] - times[begin])


def others(port: int) -> dict[str, list[dict[str, Any]]]:
    """What kube-scheduler is compared with: `extenders` by name.

    From 1.35 on it decides alike pods in one go, unless an extender is configured; the second case has one that no pod
    concerns. In the third one is asked about each pod that says yes to all (on `port`).
    """
    asked = {"filterVerb": "filter", "prioritizeVerb": "prioritize", "weight": 5, "nodeCacheCapable": True}
    return {
        "without an extender": [],
        "with one that is never asked": [
            {"urlPrefix": "http://127.0.0.1:9", "filterVerb": "filter", "managedResources": [{"name": "a.example/b"}]}
        ],
        "with one that says yes": [{"urlPrefix": f"http://127.0.0.1:{port}", "httpTimeout": "2s", **asked}],
    }


@pytest.fixture
def yes(tmp_path: Path) -> Iterator[int]:
    (port,) = free_ports(1)
    arguments = [sys.executable, "-m", "sandbox.yes_extender", str(port)]
    with Process("yes-extender", arguments, tmp_path / "yes-extender.log"):
        yield port


async def test_500_nodes(plane: ControlPlane, tmp_path: Path, yes: int, capsys: pytest.CaptureFixture[str]) -> None:
    ours = 0.0
    for name, extenders in ("with topowise", None), *others(yes).items():
        directory = tmp_path / name.replace(" ", "-")
        directory.mkdir()
        client = {"qps": 5000, "burst": 10000}
        async with Cluster(plane, directory, strict_nodes(_NODES), extenders=extenders, client=client) as cluster:
            rate = await pods_per_second(cluster)
            ours = ours or rate
            refused = len(cluster.refusals)
            if extenders is None:
                await cluster.assert_all_well()
        with capsys.disabled():
            print(f"\n  {name}: {rate:.0f} pods/s, {refused} refused; ours {ours / rate:.2f} of it", end="")  # noqa: T201
