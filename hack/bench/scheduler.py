"""The scheduler service as a process: what kube-scheduler waits for, through HTTP with keep-alive.

5,000 servers of 8 NUMA nodes and 5 resources with 150,000 pods, from a stand-in of the API server (catalogue.py) that
costs the service's core nothing. Calls come as from kube-scheduler: one connection, a filter and a prioritize a pod,
500 names of all or all of them; the claim that follows an answer is under way when the next call comes. Each filter is
about other nodes than the one before, and prioritize about those that it kept; of 500 names, only calls count in which
nearly all were kept. TightFit is measured on the whole cluster, TLS and the other strategies on one of the same nodes
without pods.

BENCH_NODES (5000), BENCH_CALLS (1000) and BENCH_STORM_S (8) scale all of it down.
"""

from __future__ import annotations

import os
import shutil
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

import msgspec
import yaml

from bench import catalogue, metal, usage
from bench.caller import Caller
from bench.figures import Figure, spread
from sandbox.apiserver import kubeconfig
from sandbox.processes import Process, free_ports
from topowise import pods

NODES: Final = int(os.environ.get("BENCH_NODES", "5000"))
CALLS: Final = int(os.environ.get("BENCH_CALLS", "1000"))
STORM_S: Final = float(os.environ.get("BENCH_STORM_S", "8"))
POLICY: Final = os.environ.get("BENCH_POLICY", "single-numa-node")

PART: Final = 500
STRATEGIES: Final = ("LeastAllocated", "MostAllocated", "BalancedAllocation", "LeastNUMANodes", "NUMAAware")
_START_LIMIT_S: Final = 180.0
_PODS_PER_SECOND: Final = 100
_BINDERS: Final = 8
_REPORTS: Final = 'reports_total{precision="exact"}'


class Times(NamedTuple):
    """Milliseconds of the calls of one run, and of CPU of the service a pod, with all that it does after answers."""

    filter: list[float]
    prioritize: list[float]
    cpu: float


class Service:
    """The scheduler service as a child. `start_s` is the time from its start until it said that it was ready."""

    def __init__(
        self, stack: ExitStack, work: Path, api: str, strategy: str, tls: dict[str, str] | None = None
    ) -> None:
        self.port, self._health_port = free_ports(2)
        name = f"service-{self.port}"
        access = kubeconfig.write(work / f"{name}.kubeconfig", api)
        document = {
            "apiVersion": "topowise.io/v1alpha1",
            "kind": "SchedulerConfiguration",
            "client": {"kubeconfig": str(access)},
            "extender": {"port": self.port, **({} if tls is None else {"tls": tls})},
            "scoring": {"strategy": strategy},
            "serving": {"address": "127.0.0.1", "port": self._health_port},
        }
        file = work / f"{name}.yaml"
        file.write_text(yaml.safe_dump(document))
        # As the container image has it: gRPC's threads would have an arena of the allocator each.
        serve = [sys.executable, "-m", "topowise_scheduler", "serve", "--config", str(file)]
        arguments = ["env", "MALLOC_ARENA_MAX=2", *serve]
        process = Process(name, arguments, work / f"{name}.log")
        since = time.perf_counter()
        stack.enter_context(process)
        self.pid = process.pid
        while self._get("/readyz") is None:
            process.check()
            if time.perf_counter() - since > _START_LIMIT_S:
                raise RuntimeError(f"{name} is not ready:\n{process.tail()}")
            time.sleep(0.05)
        self.start_s = time.perf_counter() - since

    def metric(self, name: str) -> float:
        """A sample, by its name with labels and without the common prefix."""
        for line in (self._get("/metrics") or b"").decode().splitlines():
            if line.startswith(f"topowise_scheduler_{name} "):
                return float(line.rpartition(" ")[2])
        return 0.0

    def _get(self, path: str) -> bytes | None:
        try:
            return _open(f"http://127.0.0.1:{self._health_port}{path}")
        except (urllib.error.URLError, OSError):
            return None


class Asking:
    """Pods one after the other, as kube-scheduler decides them. `gone` makes the service forget all of them."""

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
        for shape in range(len(metal.SHAPES)):
            _, answer = self._filter(self._pod(shape, 0), self._all)
            self._fitting.append(msgspec.json.decode(answer)["NodeNames"])
        self.gone()
        return statistics.mean(map(len, self._fitting)) / NODES

    def run(self, count: int, *, whole: bool = False, new_shapes: bool = False, per_second: float = 0.0) -> Times:
        """Some pods, about all nodes or a part of them; `per_second` 0 is as fast as it goes."""
        filters, priorities = [], []
        cpu, since = usage.cpu_seconds(self._service.pid), time.perf_counter()
        for number in range(count):
            if per_second:
                time.sleep(max(0.0, since + number / per_second - time.perf_counter()))
            shape = number % len(metal.SHAPES)
            pod = self._pod(shape, self._number if new_shapes else 0)
            all_fit = number // len(metal.SHAPES) % 2 == 1
            names = self._all if whole else self._window(self._fitting[shape] if all_fit else self._names)
            took, answer = self._filter(pod, names)
            filters.append(took)
            kept = msgspec.json.decode(answer)["NodeNames"]
            if len(kept) > 1:
                took = self.caller.post("prioritize", _arguments(pod, msgspec.json.encode(kept)))[0]
                if whole or len(kept) > 0.9 * PART:
                    priorities.append(took)
        spent = usage.cpu_seconds(self._service.pid) - cpu
        return Times(filters, priorities, spent / count * 1e3)

    def floor(self) -> float:
        """Milliseconds of a question about no node."""
        return statistics.median(self._filter(self._pod(0, 0), b"[]")[0] for _ in range(200))

    def place(self, count: int) -> list[bytes]:
        """Decides pods and claims room for them; their bind requests."""
        requests = []
        shapes = [shape for shape, names in enumerate(self._fitting) if len(names) > NODES // 4]
        for number in range(count):
            shape = shapes[number % len(shapes)]
            pod = self._pod(shape, 0)
            names = msgspec.json.encode(self._rng.sample(self._fitting[shape], min(50, len(self._fitting[shape]))))
            _, answer = self._filter(pod, names)
            kept = msgspec.json.encode(msgspec.json.decode(answer)["NodeNames"])
            _, answer = self.caller.post("prioritize", _arguments(pod, kept))
            scores = msgspec.json.decode(answer)
            if scores:
                uid, name = self._asked[-1]
                best = max(scores, key=lambda one: int(one["Score"]))["Host"]
                requests.append(_encode({"PodName": name, "PodNamespace": "team-0", "PodUID": uid, "Node": best}))
        return requests

    def gone(self) -> float:
        """All pods so far are deleted. Seconds until the service has seen that, after all it was sent before."""
        since = time.perf_counter()
        _open(f"{self._api}/control/gone", _encode(self._asked))
        self._asked.clear()
        while self._service.metric("open_claims") and time.perf_counter() - since < 60:
            time.sleep(0.02)
        return time.perf_counter() - since

    def _pod(self, shape: int, extra: int) -> bytes:
        self._number += 1
        name = f"bench-{shape}-{self._number:06}"
        pod = metal.extender_pod(shape, name, extra)
        self._asked.append((metal.uid_of(name), name))
        return pod

    def _window(self, names: list[str]) -> bytes:
        start = self._rng.randrange(len(names) + 1)
        return msgspec.json.encode((names[start:] + names[:start])[:PART])

    def _filter(self, pod: bytes, names: bytes) -> tuple[float, bytes]:
        return self.caller.post("filter", _arguments(pod, names))


async def measure() -> list[Figure]:
    """All figures of the scheduler service."""
    servers = metal.servers(POLICY)
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="topowise-bench-")))
        api = _start_catalogue(stack, work, servers)
        figures = _on_whole_cluster(work, api, servers)
        for strategy in STRATEGIES:
            figures += _strategy(work, api, strategy)
        return figures + _tls(work, api)


def _on_whole_cluster(work: Path, api: str, servers: Sequence[metal.Server]) -> list[Figure]:
    with _asking(work, api, "TightFit") as (service, asking):
        resident, peak = usage.memory(service.pid)
        cluster = f"{NODES:,} NRTs and {NODES * metal.PODS:,} pods"
        figures = [
            Figure(f"{cluster}: start to ready", round(service.start_s, 1), "s", 45),
            Figure(f"{cluster}: resident after that", round(resident), "MiB", 450),
            Figure(f"{cluster}: most resident so far", round(peak), "MiB"),
            Figure(f"{cluster}: CPU spent on that", round(usage.cpu_seconds(service.pid), 1), "s"),
        ]
        _say(f"ready after {service.start_s:.1f} s, {resident:.0f} MiB resident")
        _say(f"a pod fits on {asking.prepare():.0%} of the nodes")
        asking.run(CALLS // 10)
        part = asking.run(CALLS)
        asking.gone()
        figures += [Figure("no name: filter, p50", round(asking.floor(), 3), "ms")]
        figures += _calls("500 names, 20 shapes", part, (0.6, 1.5), (0.8, 2.0))
        figures += _naive(servers, statistics.median(part.filter))
        cold = asking.run(CALLS // 2, new_shapes=True)
        asking.gone()
        figures += _calls("500 names, always a new shape", cold, (0.6, 1.5), (0.8, 2.0))
        asking.run(len(metal.SHAPES), whole=True)
        whole = asking.run(CALLS // 10, whole=True)
        asking.gone()
        figures += _calls(f"{NODES:,} names, 20 shapes", whole, (2.0, None), (3.0, None))
        whole = asking.run(CALLS // 20, whole=True, new_shapes=True)
        asking.gone()
        figures += _calls(f"{NODES:,} names, always a new shape", whole, (2.0, None), (3.0, None))
        figures += _storms(service, asking, api)
        figures += _binds(service, asking, api)
        resident, peak = usage.memory(service.pid)
        figures += [
            Figure(f"{cluster}: resident after all of this", round(resident), "MiB", 450),
            Figure(f"{cluster}: most resident", round(peak), "MiB"),
        ]
        own = asking.caller.cpu / asking.caller.calls * 1e3
        return [*figures, Figure("the client's own CPU in a call, the kernel's part included", round(own, 3), "ms")]


def _strategy(work: Path, api: str, strategy: str) -> list[Figure]:
    with _asking(work, api + catalogue.LIGHT, strategy) as (_, asking):
        _say(f"{strategy}: a pod fits on {asking.prepare():.0%} of the nodes")
        asking.run(CALLS // 10)
        part = asking.run(CALLS // 4)
        asking.gone()
        asking.run(len(metal.SHAPES), whole=True)
        whole = asking.run(CALLS // 20, whole=True)
        asking.gone()
        return [
            *spread(f"500 names, prioritize by {strategy}", part.prioritize, "ms", 0.8, 2.0),
            Figure(
                f"{NODES:,} names, prioritize by {strategy}, p50",
                round(statistics.median(whole.prioritize), 3),
                "ms",
                3.0,
            ),
        ]


def _tls(work: Path, api: str) -> list[Figure]:
    if shutil.which("openssl") is None:
        return []
    server, client = _certificates(work)
    with _asking(work, api + catalogue.LIGHT, "TightFit", server, client) as (_, asking):
        asking.prepare()
        asking.run(CALLS // 10)
        part = asking.run(CALLS // 2)
        asking.gone()
        whole = asking.run(CALLS // 20, whole=True)
        asking.gone()
        return [
            *_calls("TLS with client certificate, 500 names", part, (0.6, 1.5), (0.8, 2.0)),
            *_calls(f"TLS with client certificate, {NODES:,} names", whole, (2.0, None), (3.0, None)),
        ]


def _storms(service: Service, asking: Asking, api: str) -> list[Figure]:
    """Events on the watches while kube-scheduler decides a pod each 10 ms, and nothing but events."""
    figures = []
    calm = asking.run(round(STORM_S / 2 * _PODS_PER_SECOND), per_second=_PODS_PER_SECOND)
    asking.gone()
    figures += _calls(f"500 names, {_PODS_PER_SECOND} pods/s, no events", calm, (None, None), (None, None))
    for what, path, rate in (("NRT updates/s", "reports", 500), ("pod events/s", "pods", 1000)):
        for calls in (True, False):
            title = f"{rate:,} {what}"
            taken = service.metric(_REPORTS)
            cpu, since = usage.cpu_seconds(service.pid), time.perf_counter()
            _open(f"{api}/control/{path}?rate={rate}&seconds={STORM_S}", b"")
            if calls:
                times = asking.run(round(STORM_S * _PODS_PER_SECOND), per_second=_PODS_PER_SECOND)
                figures += _calls(f"500 names, {_PODS_PER_SECOND} pods/s, {title}", times, (0.6, 1.5), (0.8, 2.0))
            while (told := msgspec.json.decode(_open(f"{api}/control/sent")))["running"]:
                time.sleep(0.05)
            share = (usage.cpu_seconds(service.pid) - cpu) / (time.perf_counter() - since)
            since = time.perf_counter()
            if path == "pods":
                # A claim, whose end is the last event of all.
                asking.run(1)
            else:
                while service.metric(_REPORTS) - taken < told["sent"] and time.perf_counter() - since < 60:
                    time.sleep(0.02)
            behind = time.perf_counter() - since
            behind += asking.gone() if path == "pods" else 0.0
            asking.gone()
            title += f" with {_PODS_PER_SECOND} pods/s" if calls else " alone"
            figures += [
                Figure(f"{title}: CPU of the service", round(100 * share), "% of a core"),
                Figure(f"{title}: events taken", round(told["sent"] / told["seconds"]), "events/s"),
                Figure(f"{title}: until nothing is left to take", round(behind, 2), "s", 0.5),
            ]
            _say(f"{title}: {share:.0%} CPU, {behind:.2f} s behind")
    return figures


def _binds(service: Service, asking: Asking, api: str) -> list[Figure]:
    """One after the other, and several at a time as kube-scheduler does; the API server's own time beside."""
    count = CALLS // 2
    with Caller(int(api.rpartition(":")[2])) as direct:
        body = _encode({"metadata": {"uid": "nobody"}, "target": {"name": "nowhere"}})
        own = [direct.post("api/v1/namespaces/team-0/pods/bench-0-0/binding", body)[0] for _ in range(CALLS // 4)]
    _open(f"{api}/control/gone", _encode([("nobody", "bench-0-0")]))
    requests = asking.place(count)
    times = [asking.caller.post("bind", body)[0] for body in requests]
    asking.gone()
    requests = asking.place(count)
    failed: list[bytes] = []

    def work(mine: Sequence[bytes]) -> None:
        with Caller(service.port) as caller:
            failed.extend(answer for body in mine if (answer := caller.post("bind", body)[1]) != b'{"Error":""}')

    threads = [threading.Thread(target=work, args=(requests[number::_BINDERS],)) for number in range(_BINDERS)]
    cpu, since = usage.cpu_seconds(service.pid), time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took, spent = time.perf_counter() - since, usage.cpu_seconds(service.pid) - cpu
    asking.gone()
    for answer in failed[:3]:
        _say(f"bind: {answer!r}")
    return [
        Figure("bind: the API stand-in's own time, p50", round(statistics.median(own), 2), "ms"),
        *spread("bind, one at a time", times, "ms", None, None),
        Figure(f"bind, {_BINDERS} at a time", round(len(requests) / took), "pods/s"),
        Figure("bind: CPU of the service, its watch events included", round(spent / len(requests) * 1e3, 2), "ms"),
        Figure("bind: refused", len(failed), "pods"),
    ]


def _naive(servers: Sequence[metal.Server], filter_ms: float) -> list[Figure]:
    """What a loop over the nodes in Python takes, as an extender without the engine would be."""
    since = time.perf_counter()
    for shape in range(len(metal.SHAPES)):
        needs = pods.needs(pods.decode(metal.extender_pod(shape, "new")))
        for server in servers:
            trial = server.kubelet.fork()
            trial.admit_view(trial.view("new", needs))
    node_ms = (time.perf_counter() - since) / len(metal.SHAPES) / len(servers) * 1e3
    return [
        Figure("the model on one node, fork and admission", round(node_ms * 1e3), "us"),
        Figure(
            "500 names: a loop over the model takes longer than the call", round(node_ms * PART / filter_ms), "times"
        ),
    ]


def _calls(
    what: str, times: Times, filters: tuple[float | None, float | None], priorities: tuple[float | None, float | None]
) -> list[Figure]:
    _say(
        f"{what}: filter {statistics.median(times.filter):.2f}, prioritize {statistics.median(times.prioritize):.2f} ms"
    )
    return [
        *spread(f"{what}: filter", times.filter, "ms", *filters),
        *spread(f"{what}: prioritize", times.prioritize, "ms", *priorities),
        Figure(f"{what}: CPU of the service a pod", round(times.cpu, 2), "ms"),
    ]


@contextmanager
def _asking(
    work: Path, api: str, strategy: str, tls: dict[str, str] | None = None, context: ssl.SSLContext | None = None
) -> Iterator[tuple[Service, Asking]]:
    with ExitStack() as stack:
        service = Service(stack, work, api, strategy, tls)
        caller = stack.enter_context(Caller(service.port, context))
        yield service, Asking(service, caller, api.removesuffix(catalogue.LIGHT))


def _start_catalogue(stack: ExitStack, work: Path, servers: Sequence[metal.Server]) -> str:
    templates = catalogue.Templates(
        [f"metal-{number:05}" for number in range(NODES)],
        [server.reports for server in servers],
        [server.pods for server in servers],
    )
    file = work / "templates"
    file.write_bytes(msgspec.msgpack.encode(templates))
    (port,) = free_ports(1)
    process = Process(
        "catalogue", [sys.executable, "-m", "bench.catalogue", str(file), str(port)], work / "catalogue.log"
    )
    stack.enter_context(process).wait_until_ready(f"http://127.0.0.1:{port}/control/sent")
    return f"http://127.0.0.1:{port}"


def _certificates(work: Path) -> tuple[dict[str, str], ssl.SSLContext]:
    """What the service serves with, and what a client needs; one authority for both."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=work, check=True, capture_output=True, timeout=30)

    def request(name: str) -> list[str]:
        curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        return ["req", *curve, "-keyout", f"{name}.key", "-subj", f"/CN={name}"]

    openssl(*request("ca"), "-x509", "-days", "2", "-out", "ca.crt")
    for name in ("server", "client"):
        openssl(*request(name), "-addext", "subjectAltName=IP:127.0.0.1", "-out", f"{name}.csr")
        signing = ["-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-copy_extensions", "copy"]
        openssl("x509", "-req", "-in", f"{name}.csr", *signing, "-days", "2", "-out", f"{name}.crt")
    context = ssl.create_default_context(cafile=str(work / "ca.crt"))
    context.load_cert_chain(work / "client.crt", work / "client.key")
    files = {"certFile": "server.crt", "keyFile": "server.key", "clientCaFile": "ca.crt"}
    return {field: str(work / file) for field, file in files.items()}, context


def _arguments(pod: bytes, names: bytes) -> bytes:
    return b'{"Pod":%s,"Nodes":null,"NodeNames":%s}' % (pod, names)


def _open(url: str, body: bytes | None = None) -> bytes:
    with _opener.open(urllib.request.Request(url, data=body), timeout=10) as response:
        answer: bytes = response.read()
        return answer


def _say(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


# No proxy from the environment: this is loopback.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_encode: Callable[[Any], bytes] = msgspec.json.encode
