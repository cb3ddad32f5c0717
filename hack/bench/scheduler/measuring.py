"""What is measured, in order."""

from __future__ import annotations

import shutil
import ssl
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import msgspec

from bench import usage
from bench.figures import Figure, spread
from bench.results import PartResults
from bench.scheduler import catalogue, certificates, metal
from bench.scheduler.asking import Asking
from bench.scheduler.attacks import attacks
from bench.scheduler.binds import binds, whole_pods
from bench.scheduler.caller import Caller
from bench.scheduler.calls import calls
from bench.scheduler.extent import CALLS, NODES, PART, POLICY
from bench.scheduler.loopback import say
from bench.scheduler.service import Service
from bench.scheduler.storms import storms
from sandbox.processes import Process, free_ports
from topowise import pods
from topowise.runtime.heap import TRIM_S

_LARGE: Final = 3
STRATEGIES: Final = ("LeastAllocated", "MostAllocated", "BalancedAllocation", "LeastNUMANodes", "NUMAAware")


async def measure() -> PartResults:
    """Returns all figures of the scheduler service."""
    servers = metal.servers(POLICY)
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="topowise-bench-")))
        api = _start_catalogue(stack, work, servers)
        figures = _on_whole_cluster(work, api, servers)
        for strategy in STRATEGIES:
            figures += _strategy(work, api, strategy)
        figures += _tls(work, api)
        figures += _attacked(work, api)
    # Three times as many nodes, after the first catalogue has ended.
    return PartResults(figures + _large(servers))


def _large(servers: Sequence[metal.Server]) -> list[Figure]:
    nodes = _LARGE * NODES
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="topowise-bench-")))
        api = _start_catalogue(stack, work, servers, nodes)
        service, asking = stack.enter_context(_asking(work, api, "TightFit", nodes=nodes))
        resident, peak = usage.memory(service.pid)
        cluster = f"{nodes:,} NRTs and {nodes * metal.PODS:,} pods"
        say(f"{cluster}: ready after {service.start_s:.1f} s, {resident:.0f} MiB resident")
        spent = usage.cpu_seconds(service.pid)
        asking.run(len(metal.SHAPES), whole=True)
        whole = asking.run(CALLS // 20, whole=True)
        asking.gone()
        return [
            Figure(f"{cluster}: start to ready", round(service.start_s, 1), "s", on_wall=True),
            Figure(f"{cluster}: resident after that", round(resident), "MiB"),
            Figure(f"{cluster}: most resident so far", round(peak), "MiB"),
            Figure(f"{cluster}: CPU spent on that", round(spent, 1), "s"),
            *calls(f"{nodes:,} names, 20 shapes", whole),
            _late(service, f"{cluster}: "),
        ]


def _late(service: Service, cluster: str = "") -> Figure:
    """Returns the share of measurements since the start in which the event loop was blocked."""
    lag = "event_loop_lag_seconds"
    looks = service.metric(f"{lag}_count")
    late = looks - service.metric(f'{lag}_bucket{{le="0.01"}}')
    name = f"{cluster}looks at the event loop at which it was more than 10 ms late"
    return Figure(name, round(100 * late / max(1.0, looks), 2), "%", on_wall=True)


def _on_whole_cluster(work: Path, api: str, servers: Sequence[metal.Server]) -> list[Figure]:
    with _asking(work, api, "TightFit") as (service, asking):
        resident, peak = usage.memory(service.pid)
        cluster = f"{NODES:,} NRTs and {NODES * metal.PODS:,} pods"
        figures = [
            Figure(f"{cluster}: start to ready", round(service.start_s, 1), "s", on_wall=True),
            Figure(f"{cluster}: resident after that", round(resident), "MiB"),
            Figure(f"{cluster}: most resident so far", round(peak), "MiB"),
            Figure(f"{cluster}: CPU spent on that", round(usage.cpu_seconds(service.pid), 1), "s"),
        ]
        say(f"ready after {service.start_s:.1f} s, {resident:.0f} MiB resident")
        say(f"a pod fits on {asking.prepare():.0%} of the nodes")
        asking.run(CALLS // 10)
        part = asking.run(CALLS)
        asking.gone()
        figures += [Figure("no name: filter, p50", round(asking.floor(), 3), "ms")]
        figures += calls("500 names, 20 shapes", part)
        figures += _naive(servers, statistics.median(part.filter_cpu))
        cold = asking.run(CALLS // 2, new_shapes=True)
        asking.gone()
        figures += calls("500 names, always a new shape", cold)
        asking.run(len(metal.SHAPES), whole=True)
        whole = asking.run(CALLS // 10, whole=True)
        asking.gone()
        figures += calls(f"{NODES:,} names, 20 shapes", whole)
        whole = asking.run(CALLS // 20, whole=True, new_shapes=True)
        asking.gone()
        figures += calls(f"{NODES:,} names, always a new shape", whole)
        for order, share in (("in changed order", 1.0), ("half of them, others each time", 0.5)):
            sampled = asking.run(CALLS // 20, whole=True, names_of=lambda share=share: asking.sample(share))  # type: ignore[misc]
            asking.gone()
            figures += calls(f"{NODES:,} names, {order}", sampled)
        figures += storms(service, asking, api)
        figures += binds(service, asking, api)
        figures += whole_pods(service, asking, api)
        # Free pages go back to the system now and then.
        time.sleep(TRIM_S + 1)
        resident, peak = usage.memory(service.pid)
        figures += [
            Figure(f"{cluster}: resident after all of this", round(resident), "MiB"),
            _late(service),
            Figure(f"{cluster}: most resident", round(peak), "MiB"),
        ]
        own = asking.caller.cpu / asking.caller.calls * 1e3
        return [*figures, Figure("the client's own CPU in a call, the kernel's part included", round(own, 3), "ms")]


def _strategy(work: Path, api: str, strategy: str) -> list[Figure]:
    with _asking(work, api + catalogue.LIGHT, strategy) as (_, asking):
        say(f"{strategy}: a pod fits on {asking.prepare():.0%} of the nodes")
        asking.run(CALLS // 10)
        part = asking.run(CALLS // 4)
        asking.gone()
        asking.run(len(metal.SHAPES), whole=True)
        whole = asking.run(CALLS // 20, whole=True)
        asking.gone()
        return [
            *spread(f"500 names, prioritize by {strategy}", part.prioritize, "ms"),
            Figure(
                f"500 names, prioritize by {strategy}, CPU of the service, p50",
                round(statistics.median(part.prioritize_cpu), 3),
                "ms",
            ),
            Figure(
                f"{NODES:,} names, prioritize by {strategy}, CPU of the service, p50",
                round(statistics.median(whole.prioritize_cpu), 3),
                "ms",
            ),
        ]


def _tls(work: Path, api: str) -> list[Figure]:
    if shutil.which("openssl") is None:
        return []
    server, client = certificates.make(work)
    with _asking(work, api + catalogue.LIGHT, "TightFit", server, client) as (_, asking):
        asking.prepare()
        asking.run(CALLS // 10)
        part = asking.run(CALLS // 2)
        asking.gone()
        whole = asking.run(CALLS // 20, whole=True)
        asking.gone()
        return [
            *calls("TLS with client certificate, 500 names", part),
            *calls(f"TLS with client certificate, {NODES:,} names", whole),
        ]


def _attacked(work: Path, api: str) -> list[Figure]:
    with _asking(work, api + catalogue.LIGHT, "TightFit", pages=True) as (service, asking):
        return attacks(service, asking)


def _naive(servers: Sequence[metal.Server], filter_ms: float) -> list[Figure]:
    """Measures a Python loop over the nodes, as an extender without the engine would run."""
    since = time.thread_time()
    for shape in range(len(metal.SHAPES)):
        needs = pods.needs(pods.decode(metal.extender_pod(shape, "new")))
        for server in servers:
            trial = server.kubelet.fork()
            trial.admit_view(trial.view("new", needs))
    node_ms = (time.thread_time() - since) / len(metal.SHAPES) / len(servers) * 1e3
    return [
        Figure("the model on one node, fork and admission", round(node_ms * 1e3), "us"),
        Figure(
            "500 names: a loop over the model takes longer than filter, both of CPU",
            round(node_ms * PART / filter_ms),
            "times",
        ),
    ]


@contextmanager
def _asking(
    work: Path,
    api: str,
    strategy: str,
    tls: dict[str, str] | None = None,
    context: ssl.SSLContext | None = None,
    *,
    pages: bool = False,
    nodes: int = NODES,
) -> Iterator[tuple[Service, Asking]]:
    with ExitStack() as stack:
        service = Service(stack, work, api, strategy, tls, pages=pages)
        caller = stack.enter_context(Caller(service.port, context))
        yield service, Asking(service, caller, api.removesuffix(catalogue.LIGHT), nodes)


def _start_catalogue(stack: ExitStack, work: Path, servers: Sequence[metal.Server], nodes: int = NODES) -> str:
    templates = catalogue.Templates(
        [f"metal-{number:05}" for number in range(nodes)],
        [server.reports for server in servers],
        [server.pods for server in servers],
    )
    file = work / "templates"
    file.write_bytes(msgspec.msgpack.encode(templates))
    (port,) = free_ports(1)
    process = Process(
        "catalogue", [sys.executable, "-m", "bench.scheduler.catalogue", str(file), str(port)], work / "catalogue.log"
    )
    stack.enter_context(process).wait_until_ready(f"http://127.0.0.1:{port}/control/sent")
    return f"http://127.0.0.1:{port}"
