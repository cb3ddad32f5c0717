"""How fast pods are placed on nodes with four NUMA nodes each, beside the same kube-scheduler without the service.

All pods exist before kube-scheduler starts, and the hollow kubelets wait until all are bound, as real kubelets do
not share the cores of the control plane; then they admit the pods in order of arrival. No time is asserted: the
tests print the figures, which apply to the machine of the run.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import msgspec
import psutil
import pytest

from burst.nodes import KINDS, Kind
from real_cluster import ASSETS, MISSING, SCHEDULER, Cluster, Plugins
from sandbox.controlplane import ControlPlane
from sandbox.hollow.reporter import Reporting

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
_SAID = ("nominations_total", "verdicts_total", "reservations_ended_total")
_ONLY = os.environ.get("THROUGHPUT_ONLY", "")
# The number of pods that fit before any kubelet has reported a placement.
_PODS = 1000
_AT_ONCE = 50
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
    """Bound pods per second, over the middle nine tenths as a watch saw the binds, and over all from the start of
    kube-scheduler; and CPU seconds by process, from that start to the last bind."""

    rate: float
    whole: float
    cpu: dict[str, float]

    def __str__(self) -> str:
        used = ", ".join(f"{name} {seconds:.1f}" for name, seconds in self.cpu.items())
        return f"{self.rate:.0f} pods/s, {self.whole:.0f} from the start; CPU s: {used}"


def cpu_seconds(plane: ControlPlane, cluster: Cluster) -> dict[str, float]:
    """CPU seconds by process, since its start."""
    pids = {"API server": plane.apiserver_pid, "kube-scheduler": cluster.scheduler_pid, "service": cluster.service.pid}
    return {name: sum(psutil.Process(pid).cpu_times()[:2]) for name, pid in pids.items()}


async def create_pods(cluster: Cluster, count: int) -> None:
    random = Random(5)
    for first in range(0, count, _AT_ONCE):
        await asyncio.gather(*(cluster.create(pod(first + at, random)) for at in range(_AT_ONCE)))


async def nominated(cluster: Cluster) -> int:
    """The number of nominated pods."""
    return sum(bool(pod["status"].get("nominatedNodeName")) for pod in await cluster.pods())


async def measure(plane: ControlPlane, cluster: Cluster, count: int, *, beforehand: bool, together: bool) -> Figures:
    """`beforehand`: pods are nominated before kube-scheduler starts; `together`: the service starts with it."""
    await cluster.stop_scheduler()
    if together:
        await cluster.service.kill()
    await create_pods(cluster, count)
    # The last nine are no burst, and no more than a thousand are nominated ahead.
    while beforehand and await nominated(cluster) < min(count - 9, 1000):
        await asyncio.sleep(0.5)
    cluster.fleet.hold()
    service_before = 0.0 if together else sum(psutil.Process(cluster.service.pid).cpu_times()[:2])
    api_before = sum(psutil.Process(plane.apiserver_pid).cpu_times()[:2])
    started = time.monotonic()
    await asyncio.gather(*([cluster.service.start()] if together else []), cluster.start_scheduler())
    bound: dict[str, float] = {}
    seen = 0
    while len(bound) < count:
        await asyncio.sleep(0.5)
        cluster.check()
        fresh = cluster.fleet.held[seen:]
        seen += len(fresh)
        for at, _, item in fresh:
            if item.spec.nodeName:
                bound.setdefault(item.metadata.uid, at)
    used = cpu_seconds(plane, cluster)
    used["API server"] -= api_before
    used["service"] -= service_before
    times = sorted(bound.values())
    begin, end = count // 20, count - count // 20
    return Figures((end - begin) / (times[end - 1] - times[begin]), count / (times[-1] - started), used)


def competitors() -> dict[str, list[dict[str, Any]]]:
    """Cases without the service: `extenders` by name.

    From 1.35 on kube-scheduler decides identical pods together, unless it has an extender; the second case has an
    extender that manages no pod.
    """
    return {
        "without an extender": [],
        "with one that is never asked": [
            {"urlPrefix": "http://127.0.0.1:9", "filterVerb": "filter", "managedResources": [{"name": "a.example/b"}]}
        ],
    }


NOMINATED: Json = {"nominator": {"enabled": True, "schedulerNames": [SCHEDULER]}}


class Case(NamedTuple):
    """`extenders` as in `Cluster`, None for the service; `service`: its configuration beside the usual."""

    extenders: list[dict[str, Any]] | None = None
    service: Json | None = None
    beforehand: bool = False
    together: bool = False
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


def cases() -> dict[str, Case]:
    return {
        **{name: Case(extenders) for name, extenders in competitors().items()},
        **({"with the Go plug-in": Case([], plugins=go_plugin(_PLUGIN))} if _PLUGIN else {}),
        "with topowise": Case(),
        "with topowise that names the best node": Case(service={"filter": {"bestNodes": 1}}),
        "with topowise that names all nodes": Case(service={"filter": {"mergeEqualNodes": False}}),
        "with topowise that nominates": Case(service=NOMINATED, together=True),
        "with topowise that has nominated all": Case(service=NOMINATED, beforehand=True),
    }


@pytest.mark.parametrize("nodes", SIZES)
async def test_pods_per_second(
    plane: ControlPlane, tmp_path: Path, nodes: int, capsys: pytest.CaptureFixture[str]
) -> None:
    count = _PODS if nodes < 2000 else 2 * _PODS
    rates: dict[str, float] = {}
    chosen = {name: case for name, case in cases().items() if re.search(_ONLY, name)}
    async with Cluster(
        plane, tmp_path, strict_nodes(nodes), client={"qps": 5000, "burst": 10000}, reporting=_REPORTING
    ) as cluster:
        for name, case in chosen.items():
            await cluster.start_anew(case.extenders, case.service, case.plugins)
            figures = await measure(plane, cluster, count, beforehand=case.beforehand, together=case.together)
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
            if case.extenders is None:
                await cluster.assert_all_well()
            cluster.refusals.clear()
