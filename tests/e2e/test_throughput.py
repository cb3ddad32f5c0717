"""How fast pods are placed on nodes with four NUMA nodes each, beside the same kube-scheduler without the service.

All parts run before the first pod is created, and the clock begins with that pod, also for pods with a scheduling gate.
The hollow kubelets wait until all pods are bound, as real kubelets do not share the cores of the control plane; then
they admit the pods in order of arrival. No time is asserted: the tests print the figures, which apply to the machine of
the run.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import msgspec
import psutil
import pytest

from burst.nodes import KINDS, Kind
from real_cluster import ASSETS, MISSING, PLACED, SCHEDULER, Cluster, Plugins
from sandbox.controlplane import ControlPlane
from sandbox.hollow.reporter import Reporting
from sandbox.processes import Process, free_ports

if ASSETS is None:
    pytest.skip(MISSING, allow_module_level=True)
pytestmark = pytest.mark.apiserver

Json = dict[str, Any]

# Each case takes a minute or more; THROUGHPUT_NODES overrides the sizes, the regular expression THROUGHPUT_ONLY selects
# cases.
SIZES = [int(size) for size in os.environ.get("THROUGHPUT_NODES", "500").split(",")]
# A kube-scheduler with NodeResourceTopologyMatch: go build ./cmd/noderesourcetopology-plugin in scheduler-plugins or in
# a fork that vendors the modules.
_PLUGIN = os.environ.get("SCHEDULER_PLUGINS", "")
_SAID = ("placements_total", "verdicts_total", "reservations_ended_total")
_ONLY = os.environ.get("THROUGHPUT_ONLY", "")
# The number of pods that fit before any kubelet has reported a placement.
_PODS = 1000
_AT_ONCE = 50
# Pods that are created one after the other.
_SINGLE = 60
# The hollow kubelets share the cores with the measured processes: an idle kubelet does nothing.
_REPORTING = Reporting(wait=(0.2, 0.5), lag=(0.0, 0.05), interval=3600.0)


def strict_nodes(count: int) -> Iterator[tuple[str, Kind]]:
    """Nodes with four zones of 8 cores; each pod gets a single zone."""
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


class Figures(NamedTuple):
    """Pods per second from the creation of the first pod to the last bind; seconds from the creation of a pod to its
    bind, half and 99 % of the pods are faster; CPU seconds by process, from the first pod to the last bind."""

    rate: float
    median: float
    late: float
    cpu: dict[str, float]

    def __str__(self) -> str:
        used = ", ".join(f"{name} {seconds:.1f}" for name, seconds in self.cpu.items())
        return f"{self.rate:.0f} pods/s, p50 {self.median:.2f} s, p99 {self.late:.2f} s; CPU s: {used}"


def cpu_seconds(plane: ControlPlane, cluster: Cluster) -> dict[str, float]:
    """CPU seconds by process, since its start."""
    pids = {
        "etcd": plane.etcd_pid,
        "API server": plane.apiserver_pid,
        "kube-scheduler": cluster.scheduler_pid,
        "service": cluster.service.pid,
    }
    return {name: sum(psutil.Process(pid).cpu_times()[:2]) for name, pid in pids.items()}


async def create_pods(cluster: Cluster, count: int) -> dict[str, float]:
    """Returns by name when each pod was sent (seconds, monotonic)."""
    random, sent = Random(5), {}

    async def create(document: Json) -> None:
        sent[document["metadata"]["name"]] = time.monotonic()
        await cluster.create(document)

    for first in range(0, count, _AT_ONCE):
        await asyncio.gather(*(create(pod(first + at, random)) for at in range(_AT_ONCE)))
    return sent


async def measure(plane: ControlPlane, cluster: Cluster, count: int) -> Figures:
    cluster.fleet.hold()
    # kube-scheduler has read all nodes by then.
    await asyncio.sleep(3.0)
    before = cpu_seconds(plane, cluster)
    sent = await create_pods(cluster, count)
    bound: dict[str, float] = {}
    seen = 0
    while len(bound) < count:
        await asyncio.sleep(0.5)
        cluster.check()
        fresh = cluster.fleet.held[seen:]
        seen += len(fresh)
        for at, _, item in fresh:
            if item.spec.nodeName:
                bound.setdefault(item.metadata.name, at)
    used = {name: seconds - before[name] for name, seconds in cpu_seconds(plane, cluster).items()}
    waits = sorted(at - sent[name] for name, at in bound.items())
    whole = max(bound.values()) - min(sent.values())
    return Figures(count / whole, waits[count // 2], waits[count * 99 // 100], used)


def competitors(port: int) -> dict[str, list[dict[str, Any]]]:
    """Cases without the service: `extenders` by name.

    From 1.35 on kube-scheduler decides identical pods together, unless it has an extender; the second case has an
    extender that manages no pod. In the third case an extender on `port` accepts all nodes for each pod.
    """
    verbs = {"filterVerb": "filter", "prioritizeVerb": "prioritize", "weight": 5, "nodeCacheCapable": True}
    return {
        "without an extender": [],
        "with one that is never asked": [
            {"urlPrefix": "http://127.0.0.1:9", "filterVerb": "filter", "managedResources": [{"name": "a.example/b"}]}
        ],
        "with one that says yes": [{"urlPrefix": f"http://127.0.0.1:{port}", "httpTimeout": "2s", **verbs}],
    }


@pytest.fixture
def yes(tmp_path: Path) -> Iterator[int]:
    (port,) = free_ports(1)
    arguments = [sys.executable, "-m", "sandbox.yes_extender", str(port)]
    with Process("yes-extender", arguments, tmp_path / "yes-extender.log"):
        yield port


class Case(NamedTuple):
    """`extenders` as in `Cluster`, None for the service; `service`: its configuration beside the usual; `gated`: the
    pods have the gate of the service. `sample`: percentageOfNodesToScore, 0 for kube-scheduler's default."""

    extenders: list[dict[str, Any]] | None = None
    service: Json | None = None
    gated: bool = False
    sample: int = 100
    plugins: Plugins | None = None


def go_plugin(binary: str) -> Plugins:
    """Returns NodeResourceTopologyMatch with its cache of reservations, without which it decides by old reports."""
    match = {"enabled": [{"name": "NodeResourceTopologyMatch"}]}
    arguments = {"scoringStrategy": {"type": "LeastAllocated"}, "cacheResyncPeriodSeconds": 5}
    return Plugins(
        Path(binary),
        {
            "plugins": {"filter": match, "score": match, "reserve": match},
            "pluginConfig": [{"name": "NodeResourceTopologyMatch", "args": arguments}],
        },
    )


def cases(port: int) -> dict[str, Case]:
    return {
        **{name: Case(extenders) for name, extenders in competitors(port).items()},
        "without an extender, some nodes scored": Case([], sample=0),
        **({"with the Go plug-in": Case([], plugins=go_plugin(_PLUGIN))} if _PLUGIN else {}),
        "with topowise": Case(),
        "placed by topowise": Case([], PLACED, gated=True),
        "placed by topowise, nominated": Case([], {"placement": {"enabled": True, "form": "nominated"}}, gated=True),
        "placed by topowise, some nodes scored": Case([], PLACED, gated=True, sample=0),
    }


@pytest.mark.parametrize("nodes", SIZES)
async def test_pods_per_second(
    plane: ControlPlane, tmp_path: Path, yes: int, nodes: int, capsys: pytest.CaptureFixture[str]
) -> None:
    count = _PODS if nodes < 2000 else 2 * _PODS
    rates: dict[str, float] = {}
    chosen = {name: case for name, case in cases(yes).items() if re.search(_ONLY, name)}
    async with Cluster(
        plane, tmp_path, strict_nodes(nodes), client={"qps": 5000, "burst": 10000}, reporting=_REPORTING
    ) as cluster:
        for name, case in chosen.items():
            cluster.gated = case.gated
            cluster.changed = {"percentageOfNodesToScore": case.sample}
            await cluster.start_anew(case.extenders, case.service, case.plugins)
            figures = await measure(plane, cluster, count)
            rates[name] = figures.rate
            compared = figures.rate / rates.get("without an extender", figures.rate)
            said = await cluster.service.metrics(cluster.session)
            said = {key: value for key, value in said.items() if key.startswith(_SAID) and value}
            with capsys.disabled():
                print(f"\n  {nodes} nodes, {name}: {figures}; {compared:.2f} of without {said or ''}", end="")  # noqa: T201
            cluster.fleet.release()
            await cluster.settle(300.0, still=5.0)
            with capsys.disabled():
                print(f"; {len(cluster.refusals)} refused", end="")  # noqa: T201
            if case.extenders is None or case.gated:
                await cluster.assert_all_well()
            cluster.refusals.clear()


@pytest.mark.parametrize("gated", [False, True], ids=["plain", "placed by topowise"])
async def test_seconds_of_a_single_pod(
    plane: ControlPlane, tmp_path: Path, gated: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """How long a pod waits for its bind while nothing else happens."""
    random, sent = Random(5), {}
    async with Cluster(plane, tmp_path, strict_nodes(SIZES[0]), extenders=[], gated=gated) as cluster:
        cluster.fleet.hold()
        await asyncio.sleep(3.0)
        for number in range(_SINGLE):
            document = pod(number, random)
            sent[document["metadata"]["name"]] = time.monotonic()
            await cluster.create(document)
            await asyncio.sleep(0.3)
        waits = sorted(at - sent[item.metadata.name] for at, _, item in cluster.fleet.held if item.spec.nodeName)
        cluster.fleet.release()
        with capsys.disabled():
            p50, p99 = (1000 * waits[len(waits) * share // 100] for share in (50, 99))
            print(f"\n  {SIZES[0]} nodes, gated {gated}: p50 {p50:.0f} ms, p99 {p99:.0f} ms", end="")  # noqa: T201
        assert len(waits) == _SINGLE
