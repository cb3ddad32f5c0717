"""What is measured, in order: serial decisions about pods as kube-scheduler makes them, about pods that the watch has
delivered before. An unknown pod gets no reservation, so that its decision would cost less than in production."""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import msgspec

from bench.figures import Figure, cpu_seconds, memory, say, spread
from bench.scheduler import catalogue, metal
from bench.scheduler.service import Caller, Service, fetch
from sandbox.processes import Process, free_ports
from topowise.runtime.heap import TRIM_S

NODES: Final = int(os.environ.get("BENCH_NODES", "5000"))
"""The nodes of the measured cluster."""
PART: Final = 500
"""Names in a question about a part of the nodes."""
# kube-scheduler does its own work between two calls, and the kernel counts the CPU of a thread when it rests.
_PAUSE_S: Final = 0.003
CALLS: Final = int(os.environ.get("BENCH_CALLS", "1000"))
STORM_S: Final = float(os.environ.get("BENCH_STORM_S", "6"))
# Times as many nodes, for the start and the memory of a large cluster.
_LARGE: Final = 3
_PODS_PER_SECOND: Final = 100
_UPDATES_PER_SECOND: Final = 500
_BINDERS: Final = 8
# For so long metrics may be behind.
_RENDERED_S: Final = 1.0
_REPORTS: Final = 'reports_total{precision="exact"}'


async def measure() -> list[Figure]:
    """Returns all figures of the scheduler service."""
    servers = metal.servers("single-numa-node")
    with ExitStack() as stack:
        service, api, cluster, figures = _started(stack, servers, _LARGE * NODES)
    with ExitStack() as stack:
        service, api, cluster, started = _started(stack, servers, NODES)
        figures += started
        asking = Asking(service, stack.enter_context(Caller(service.port)), api)
        say(f"a pod fits on {asking.prepare():.0%} of the nodes")
        asking.run(CALLS // 10)
        for title, count, is_whole in ((f"{PART} names", CALLS, False), (f"{NODES:,} names", CALLS // 10, True)):
            asking.run(len(metal.SHAPES), whole=is_whole)
            figures += _calls(f"{title}, 20 shapes", asking, asking.run(count, whole=is_whole))
            times = asking.run(count // 2, whole=is_whole, new_shapes=True)
            figures += _calls(f"{title}, always a new shape", asking, times)
        figures += _storm(service, asking, api)
        figures += _binds(service, asking)
        figures += _whole_pods(service, asking, api)
        # Free pages go back to the system now and then.
        await asyncio.sleep(TRIM_S + 1)
        resident, peak = memory(service.pid)
        return [
            *figures,
            Figure(f"{cluster}: resident after all of this", round(resident), "MiB"),
            Figure(f"{cluster}: most resident", round(peak), "MiB"),
        ]


def _started(stack: ExitStack, servers: Sequence[metal.Server], nodes: int) -> tuple[Service, str, str, list[Figure]]:
    """Returns a ready service, the URL of its API server, the cluster in words, and the figures of the start."""
    work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="topowise-bench-")))
    api = _start_catalogue(stack, work, servers, nodes)
    service = Service(stack, work, api)
    resident, peak = memory(service.pid)
    cluster = f"{nodes:,} NRTs and {nodes * metal.PODS:,} pods"
    say(f"{cluster}: ready after {service.start_s:.1f} s, {resident:.0f} MiB resident")
    figures = [
        Figure(f"{cluster}: start to ready", round(service.start_s, 1), "s", on_wall=True),
        Figure(f"{cluster}: resident after that", round(resident), "MiB"),
        Figure(f"{cluster}: most resident so far", round(peak), "MiB"),
    ]
    return service, api, cluster, figures


def _calls(title: str, asking: Asking, times: Times) -> list[Figure]:
    """Returns times on the wall and CPU times of the service, after the end of all pods."""
    asking.gone()
    filter_cpu, prioritize_cpu = map(statistics.median, (times.filter_cpu, times.prioritize_cpu))
    medians = statistics.median(times.filter), statistics.median(times.prioritize), filter_cpu, prioritize_cpu
    say(title + ": filter {:.2f}, prioritize {:.2f} ms; of CPU {:.2f} and {:.2f}".format(*medians))
    return [
        *spread(f"{title}: filter", times.filter, "ms"),
        Figure(f"{title}: filter, CPU of the service, p50", round(filter_cpu, 3), "ms"),
        *spread(f"{title}: prioritize", times.prioritize, "ms"),
        Figure(f"{title}: prioritize, CPU of the service, p50", round(prioritize_cpu, 3), "ms"),
        Figure(f"{title}: CPU of the service a pod", round(times.cpu, 2), "ms"),
    ]


def _storm(service: Service, asking: Asking, api: str) -> list[Figure]:
    """Measures hundreds of changed reports a second, with and without a pod decision every 10 ms."""
    figures = []
    for is_busy in (True, False):
        title = f"{_UPDATES_PER_SECOND} NRT updates/s"
        taken = service.metric(_REPORTS)
        cpu, since = cpu_seconds(service.pid), time.perf_counter()
        fetch(f"{api}/control/reports?rate={_UPDATES_PER_SECOND}&seconds={STORM_S}", b"")
        if is_busy:
            times = asking.run(round(STORM_S * _PODS_PER_SECOND), per_second=_PODS_PER_SECOND)
            named = f"500 names, {_PODS_PER_SECOND} pods/s, {title}"
            # The CPU time of a call cannot be separated from that of the events.
            figures += spread(f"{named}: filter", times.filter, "ms")
            figures += spread(f"{named}: prioritize", times.prioritize, "ms")
        while (progress := msgspec.json.decode(fetch(f"{api}/control/sent")))["running"]:
            time.sleep(0.05)
        share = (cpu_seconds(service.pid) - cpu) / (time.perf_counter() - since)
        since = time.perf_counter()
        service.wait_until_idle(60.0)
        behind = time.perf_counter() - since
        while service.metric(_REPORTS) - taken < progress["sent"] and behind < 60:
            time.sleep(0.1)
            behind = max(behind, time.perf_counter() - since - _RENDERED_S)
        asking.gone()
        title += f" with {_PODS_PER_SECOND} pods/s" if is_busy else " alone"
        figures += [
            Figure(f"{title}: CPU of the service", round(100 * share), "% of a core"),
            Figure(f"{title}: until nothing is left to take", round(behind, 2), "s", on_wall=True),
        ]
        say(f"{title}: {share:.0%} CPU, {behind:.2f} s behind")
    return figures


def _binds(service: Service, asking: Asking) -> list[Figure]:
    """Measures serial and concurrent binds."""
    count = CALLS // 2
    times = [asking.caller.post("bind", body)[0] for body in asking.place(count)]
    asking.gone()
    requests = asking.place(count)
    failed: list[bytes] = []

    def work(bodies: Sequence[bytes]) -> None:
        with Caller(service.port) as caller:
            failed.extend(answer for body in bodies if (answer := caller.post("bind", body)[1]) != b'{"Error":""}')

    threads = [threading.Thread(target=work, args=(requests[number::_BINDERS],)) for number in range(_BINDERS)]
    since = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - since
    asking.gone()
    for answer in failed[:3]:
        say(f"bind: {answer!r}")
    return [
        *spread("bind, one at a time", times, "ms"),
        Figure(f"bind, {_BINDERS} at a time", round(len(requests) / took), "pods/s"),
        Figure("bind: refused", len(failed), "pods"),
    ]


def _whole_pods(service: Service, asking: Asking, api: str) -> list[Figure]:
    """Measures the service's CPU time of a whole pod: filter, prioritize, bind, its events, and a report of a node."""
    count = CALLS // 4
    taken, cpu = service.metric(_REPORTS), cpu_seconds(service.pid)
    for body in asking.place(count, PART):
        asking.caller.post("bind", body)
    fetch(f"{api}/control/reports?rate={_PODS_PER_SECOND}&seconds={count / _PODS_PER_SECOND}", b"")
    until = time.perf_counter() + count / _PODS_PER_SECOND + 10
    while service.metric(_REPORTS) - taken < count and time.perf_counter() < until:
        time.sleep(0.5)
    spent = cpu_seconds(service.pid) - cpu
    asking.gone()
    name = f"{PART} names, a whole pod with its bind, events and report: CPU of the service"
    return [Figure(name, round(spent / count * 1e3, 2), "ms")]


def _start_catalogue(stack: ExitStack, work: Path, servers: Sequence[metal.Server], nodes: int) -> str:
    templates = catalogue.Templates(
        [f"metal-{number:05}" for number in range(nodes)],
        [server.reports for server in servers],
        [server.pods for server in servers],
    )
    file = work / "templates"
    file.write_bytes(msgspec.msgpack.encode(templates))
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "bench.scheduler.catalogue", str(file), str(port)]
    process = Process("catalogue", command, work / "catalogue.log")
    stack.enter_context(process).wait_until_ready(f"http://127.0.0.1:{port}/control/sent")
    return f"http://127.0.0.1:{port}"


class Times(NamedTuple):
    """Milliseconds of the calls of a run: on the wall until the answer, and CPU time of the service including its work
    after the answer. `cpu` is per pod."""

    filter: list[float]
    prioritize: list[float]
    filter_cpu: list[float]
    prioritize_cpu: list[float]
    cpu: float


class Asking:
    """Sends pods serially, as kube-scheduler does. `gone` deletes all of them."""

    def __init__(self, service: Service, caller: Caller, api: str) -> None:
        self._service = service
        self.caller = caller
        self._api = api
        self._rng = Random(7)
        self._names = [f"metal-{number:05}" for number in range(NODES)]
        self._all = msgspec.json.encode(self._names)
        self._fitting: list[list[str]] = []
        self._asked: list[tuple[str, str]] = []
        self._number = 0

    def prepare(self) -> float:
        """Learns which nodes each shape fits on; the mean share of them."""
        for pod in self._come([(shape, 0) for shape in range(len(metal.SHAPES))]):
            _, answer = self._filter(pod, self._all)
            self._fitting.append(msgspec.json.decode(answer)["NodeNames"])
        self.gone()
        return statistics.mean(map(len, self._fitting)) / NODES

    def run(
        self,
        count: int,
        *,
        whole: bool = False,
        new_shapes: bool = False,
        per_second: float = 0.0,
    ) -> Times:
        """Decides `count` pods about all nodes or a part of them; `per_second` 0 is the maximum rate."""
        times = Times([], [], [], [], 0.0)
        shapes = [number % len(metal.SHAPES) for number in range(count)]
        pods = self._come([(shape, self._number + at if new_shapes else 0) for at, shape in enumerate(shapes)])
        cpu, since = self._service.cpu_ms(), time.perf_counter()
        for number, (shape, pod) in enumerate(zip(shapes, pods, strict=True)):
            if per_second:
                time.sleep(max(0.0, since + number / per_second - time.perf_counter()))
            all_fit = number // len(metal.SHAPES) % 2 == 1
            names = self._all if whole else self._window(self._fitting[shape] if all_fit else self._names)
            before = self._service.cpu_ms()
            took, answer = self._filter(pod, names)
            time.sleep(_PAUSE_S)
            times.filter.append(took)
            times.filter_cpu.append(self._service.cpu_ms() - before)
            fitting = msgspec.json.decode(answer)["NodeNames"]
            if len(fitting) > 1:
                body = arguments(pod, msgspec.json.encode(fitting))
                before = self._service.cpu_ms()
                took = self.caller.post("prioritize", body)[0]
                time.sleep(_PAUSE_S)
                spent = self._service.cpu_ms() - before
                if whole or len(fitting) > 0.9 * min(PART, NODES):
                    times.prioritize.append(took)
                    times.prioritize_cpu.append(spent)
        return times._replace(cpu=(self._service.cpu_ms() - cpu) / count)

    def place(self, count: int, part: int = 50) -> list[bytes]:
        """Decides pods and reserves room for them; their bind requests."""
        requests = []
        shapes = [shape for shape, names in enumerate(self._fitting) if len(names) > NODES // 4]
        drawn = [shapes[number % len(shapes)] for number in range(count)]
        for shape, pod in zip(drawn, self._come([(shape, 0) for shape in drawn]), strict=True):
            names = msgspec.json.encode(self._rng.sample(self._fitting[shape], min(part, len(self._fitting[shape]))))
            _, answer = self._filter(pod, names)
            fitting = msgspec.json.encode(msgspec.json.decode(answer)["NodeNames"])
            _, answer = self.caller.post("prioritize", arguments(pod, fitting))
            scores = msgspec.json.decode(answer)
            if scores:
                meta = msgspec.json.decode(pod)["metadata"]
                best = max(scores, key=lambda priority: int(priority["Score"]))["Host"]
                named = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"]}
                requests.append(msgspec.json.encode({**named, "Node": best}))
        return requests

    def gone(self) -> float:
        """Deletes all pods, and returns the seconds until the service is idle again."""
        since = time.perf_counter()
        fetch(f"{self._api}/control/gone", msgspec.json.encode(self._asked))
        self._asked.clear()
        self._service.wait_until_idle(60.0)
        took, since = time.perf_counter() - since, time.perf_counter()
        # Metrics are rendered once a second, which is too seldom to measure by.
        while self._service.metric("open_reservations") and time.perf_counter() - since < 60:
            time.sleep(0.1)
        return took

    def _come(self, shapes: Sequence[tuple[int, int]]) -> list[bytes]:
        """Pods of these shapes, with so many bytes of memory on top, once the service has heard of them."""
        sent = []
        for shape, extra in shapes:
            self._number += 1
            name = f"bench-{shape}-{self._number:06}"
            sent.append(metal.extender_pod(shape, name, extra))
            self._asked.append((metal.uid_of(name), name))
        created = fetch(f"{self._api}/control/come", b"[%b]" % b",".join(sent))
        self._service.wait_until_idle()
        return list(map(bytes, msgspec.json.decode(created, type=list[msgspec.Raw])))

    def _window(self, names: list[str]) -> bytes:
        start = self._rng.randrange(len(names) + 1)
        return msgspec.json.encode((names[start:] + names[:start])[:PART])

    def _filter(self, pod: bytes, names: bytes) -> tuple[float, bytes]:
        return self.caller.post("filter", arguments(pod, names))


def arguments(pod: bytes, names: bytes) -> bytes:
    """ExtenderArgs as a nodeCacheCapable extender gets them."""
    return b'{"Pod":%s,"Nodes":null,"NodeNames":%s}' % (pod, names)
