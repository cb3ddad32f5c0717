"""Runs the demo: `python -m demo [--keep | --stop]`."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import aiohttp
import msgspec

from demo import workloads
from demo.cluster import Cluster
from demo.scheduling import ScheduledPod, Scheduling
from sandbox import kept
from sandbox.apiserver.client import TABLE
from sandbox.tables import columns
from topowise import cpuset, nrt, quantity
from topowise.errors import TopowiseError
from topowise.kube.api import Api
from topowise.text import rendered
from topowise_exporter.kubelet.podresources import PodResources
from topowise_scheduler.explain import picture
from topowise_scheduler.kubectl.nodes import table
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.report import kubelet_of, read

# A symbolic link to the directory of the demo that `--keep` has left running.
LINK: Final = Path(__file__).resolve().parents[2] / ".demo"

REACH: Final = "export KUBECONFIG=$PWD/.demo/kubeconfig PATH=$PWD/.venv/bin:$PATH"
_REACHED: Final = """
The cluster keeps running until you run: make demo-stop
  dashboard   {dashboard}
  logs        {logs}

Reach it from this directory with
  {reach}

docs/quick-start.md has commands to try."""
_STARTED: Final = time.monotonic()


def main() -> int:
    """Returns the exit status: 0 if every kubelet admitted its pods."""
    parser = argparse.ArgumentParser(prog="demo", description=__doc__)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--keep", action="store_true", help="leave everything running and print how to reach it")
    which.add_argument("--stop", action="store_true", help="stop the demo that --keep left running")
    options = parser.parse_args()
    if options.stop:
        ended = kept.stop(LINK)
        print(f"Stopped {ended} processes" if ended else "No demo is running")
        return 0
    if options.keep and kept.running(LINK):
        print("error: a demo is running already; stop it with make demo-stop", file=sys.stderr)
        return 1
    return _run_in_directory(keep=options.keep)


def _run_in_directory(*, keep: bool) -> int:
    """Runs the demo in a new directory, and deletes the directory unless the demo is kept."""
    directory = Path(tempfile.mkdtemp(prefix="topowise-demo-"))
    # SIGTERM ends the demo and its processes as ^C does. A non-interactive shell may ignore SIGINT, so both are set.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
    is_kept = False
    try:
        cluster = Cluster(directory)
        status = asyncio.run(_run(cluster, keep=keep))
        if keep:
            kept.keep(directory, cluster.processes.ids(), LINK)
            is_kept = True
            print(_REACHED.format(dashboard=f"{cluster.pages}/ui", logs=directory, reach=REACH), flush=True)
        return status
    except (TopowiseError, RuntimeError, aiohttp.ClientError, OSError) as exc:
        print(f"error: {exc}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        if not is_kept:
            shutil.rmtree(directory, ignore_errors=True)


async def _run(cluster: Cluster, *, keep: bool) -> int:
    finished = False
    try:
        await _start(cluster)
        async with await cluster.api() as api, aiohttp.ClientSession() as session:
            await cluster.until_reported(api)
            _say("exporters have reported every node")
            await _wait_until_ready(cluster, session)
            _say("scheduler has listed them")
            print(f"\n$ kubectl get noderesourcetopologies\n{await _topology_table(api)}")
            outcomes = await _schedule(cluster, api, session)
            print(f"\nWhere the pods run, as each kubelet reports\n{await _placements(cluster, outcomes)}")
            print(f"\n$ kubectl topowise nodes\n{await _what_is_left(cluster, api)}")
        print(f"\n{_comparison(cluster, outcomes)}")
        print(f"\nDone in {time.monotonic() - _STARTED:.1f}s: {_summary(outcomes)}")
        if keep:
            cluster.start_control_plane()
        finished = True
        return 0 if all(outcome.phase != "Failed" for outcome in outcomes) else 1
    finally:
        if not (keep and finished):
            cluster.processes.stop()


def _say(progress: str) -> None:
    print(f"  {time.monotonic() - _STARTED:4.1f} s  {progress}", flush=True)


async def _start(cluster: Cluster) -> None:
    print("Starting a cluster on loopback", flush=True)
    await cluster.start_api_server()
    _say("API server is up, the NodeResourceTopology CRD is installed")
    await cluster.start_kubelets()
    cluster.start_scheduler()
    own, *peers = cluster.nodes
    word = "an emulated kubelet" if own.is_emulated else "its real kubelet"
    _say(f"{len(cluster.nodes)} nodes: this machine with {word}, {len(peers)} emulated bare-metal machines")
    cluster.start_exporters()


async def _wait_until_ready(cluster: Cluster, session: aiohttp.ClientSession) -> None:
    async def ready() -> bool:
        try:
            async with session.get(f"http://127.0.0.1:{cluster.health_port}/readyz") as response:
                return response.status == 200
        except aiohttp.ClientError:
            return False

    await cluster.until(ready, "the scheduler")


async def _topology_table(api: Api) -> str:
    """Returns the API server's table, as kubectl requests and prints it."""
    table = msgspec.json.decode(await api.request("GET", nrt.PATH, accept=TABLE))
    header = [column["name"].upper() for column in table["columnDefinitions"] if not column.get("priority")]
    shown = [at for at, column in enumerate(table["columnDefinitions"]) if not column.get("priority")]
    rows = [[str(row["cells"][at]) if row["cells"][at] is not None else "" for at in shown] for row in table["rows"]]
    return columns(header, rows)


async def _schedule(cluster: Cluster, api: Api, session: aiohttp.ClientSession) -> list[ScheduledPod]:
    names = [node.name for node in cluster.nodes]
    outcomes = []
    async with Scheduling(api, session, cluster.extender, cluster.pages) as scheduling:
        for pod in workloads.PODS:
            outcome = await scheduling.schedule(pod, names)
            outcomes.append(outcome)
            _tell(pod, outcome)
    return outcomes


def _tell(pod: workloads.Json, outcome: ScheduledPod) -> None:
    print(f"\nPod {outcome.pod} ({pod['metadata']['annotations']['demo.topowise.io/story']})")
    for container in pod["spec"]["containers"]:
        requests = container["resources"]["requests"]
        print(f"  {container['name']}: {', '.join(f'{resource} {amount}' for resource, amount in requests.items())}")
    rows = [
        [
            f"{'->' if opinion.node == outcome.chosen else '  '} {opinion.node}",
            "fits" if opinion.fits else "refused" if opinion.was_asked else "-",
            "-" if opinion.score is None else str(opinion.score),
            opinion.detail,
        ]
        for opinion in outcome.opinions
    ]
    print(columns(["   NODE", "VERDICT", "SCORE", "WHY"], rows, indent="  "), flush=True)
    if outcome.phase == "Failed":
        print(f"  the kubelet of {outcome.chosen} REFUSED it: {outcome.message}")


async def _placements(cluster: Cluster, outcomes: list[ScheduledPod]) -> str:
    rows = []
    for node in cluster.nodes:
        async with PodResources(str(node.socket)) as kubelet:
            listed = {pod.name: pod for pod in await kubelet.pods()}
        for outcome in outcomes:
            if outcome.chosen == node.name:
                pod = listed.get(outcome.pod)
                memory = (
                    [f"{quantity.human_bytes(block.size)}@{cpuset.to_text(block.nodes)}" for block in pod.memory]
                    if pod
                    else []
                )
                devices = [f"{device.id}@{cpuset.to_text(device.nodes)}" for device in pod.devices] if pod else []
                cpus = cpuset.to_text(pod.cpus) if pod and pod.cpus else "shared"
                rows.append([outcome.pod, node.name, outcome.phase, cpus, " ".join(memory), " ".join(devices)])
    rows += [[outcome.pod, "-", "Pending", "", "", ""] for outcome in outcomes if outcome.chosen is None]
    return columns(["POD", "NODE", "PHASE", "CPUS", "MEMORY@NUMA", "DEVICES@NUMA"], rows)


async def _what_is_left(cluster: Cluster, api: Api) -> str:
    """Returns the table of the exporters' reports, after they account for every pod."""
    accounted = 0
    for node in cluster.nodes:
        async with PodResources(str(node.socket)) as kubelet:
            accounted += sum(len(pod.cpus) for pod in await kubelet.pods())
    reports: list[nrt.NodeResourceTopology] = []

    async def all_accounted_for() -> bool:
        listed = msgspec.json.decode(await api.request("GET", nrt.PATH), type=_Reports)
        reports[:] = listed.items
        zones = [zone for report in reports for _, zone in nrt.numa_zones(report)]
        used = sum(
            quantity.for_resource("cpu", amount.allocatable) - quantity.for_resource("cpu", amount.available)
            for zone in zones
            for amount in zone.resources or ()
            if amount.name == "cpu"
        )
        return used == 1000 * accounted

    await cluster.until(all_accounted_for, "reports of all exporters that account for every pod")
    return f"{left(reports)}\n{_fullest(reports)}"


def left(reports: list[nrt.NodeResourceTopology]) -> str:
    """Returns the table of `kubectl topowise nodes`."""
    return rendered(table(reports)[0])


def _fullest(reports: list[nrt.NodeResourceTopology]) -> str:
    """Returns `kubectl topowise node` of the node with the largest share of CPUs in use."""

    def used(node: Kubelet) -> float:
        whole = node.topology.cpus.bit_count()
        return 0.0 if node.cpu is None else 1 - node.cpu.available.bit_count() / whole

    states = [(report.metadata.name, kubelet_of(read(report), lambda _: None)) for report in reports]
    name, node = max(states, key=lambda state: used(state[1]))
    drawn = picture.read(node, {uid: uid for uid in node.active}, node=name, precision="exact")
    return f"$ kubectl topowise node {name}\n{picture.terminal(drawn, width=110)}"


def _comparison(cluster: Cluster, outcomes: list[ScheduledPod]) -> str:
    """Returns the comparison with a scheduler that knows sums only, on the emulated nodes."""
    nodes = [node for node in cluster.nodes if node.is_emulated]
    shape = next(pod for pod in workloads.PODS if pod["metadata"]["name"] == "database")
    chosen = {outcome.pod: outcome.chosen for outcome in outcomes}
    aware = workloads.as_placed(nodes, workloads.PODS, shape, chosen)
    by_sums = workloads.by_sums(nodes, workloads.PODS, shape)
    rows = [
        [name, str(result.running), str(result.refused), str(result.waiting), str(result.more)]
        for name, result in (("topowise", aware), ("NUMA-blind, by sums", by_sums))
    ]
    header = ["SCHEDULER", "RUNNING", "REFUSED BY A KUBELET", "WAITING", "MORE OF database FIT"]
    return "The same pods on the same nodes without knowing NUMA nodes\n" + columns(header, rows)


class _Reports(msgspec.Struct, frozen=True):
    items: list[nrt.NodeResourceTopology]


def _summary(outcomes: list[ScheduledPod]) -> str:
    running = sum(outcome.phase == "Running" for outcome in outcomes)
    refused = sum(outcome.phase == "Failed" for outcome in outcomes)
    waiting = sum(outcome.chosen is None for outcome in outcomes)
    return f"{running} pods running where they were sent, {waiting} kept waiting, {refused} refused by a kubelet"


if __name__ == "__main__":
    sys.exit(main())
