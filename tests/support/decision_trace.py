"""A trace of decisions: the events that a service receives, the requests it is sent, and what it answers and writes.

`record` makes a trace with a random cluster whose kubelets are the one-node model; `replay` plays a trace to a new
service and yields what is different. A change of the code that shall change no decision keeps the trace.
"""

from __future__ import annotations

import lzma
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec
from prometheus_client import CollectorRegistry

import random_nodes
from scheduling import Clock, NoApi, Service, scope, topology_of
from topowise import pods, quantity
from topowise.errors import ConfigError
from topowise_scheduler.kubelet import Kubelet, KubeletConfiguration, KubeletStartError, Machine
from topowise_scheduler.ledger.budgets import Budgets
from topowise_scheduler.ledger.watch import reflectors
from topowise_scheduler.serve.extender.callers import Callers
from topowise_scheduler.serve.extender.http import Application, Metrics

RECORDED: Final = Path(__file__).parents[1] / "unit/scheduler/recorded/trace.jsonl.xz"
_MOST_BYTES: Final = 64 << 20
POLICIES: Final = ("single-numa-node", "restricted", "best-effort")
NODES, REPORTS, PODS = "nodes", "noderesourcetopologies", "pods"
Json = dict[str, Any]


class Line(msgspec.Struct, omit_defaults=True, array_like=True):
    """Something that happens to the service at a time: a `verb` is asked with a body, or a `collection` changes."""

    at: float
    what: str
    """ "ADDED pods" or another event, "LIST pods", "POST filter" or another verb, or "TICK"."""
    body: msgspec.Raw = msgspec.Raw(b"null")
    answer: msgspec.Raw = msgspec.Raw(b"null")
    writes: list[list[str]] = []
    """Method, path and body of each request that the service has made meanwhile."""


class Writes(NoApi):
    """An API server that takes everything."""

    def __init__(self) -> None:
        self.log: list[list[str]] = []

    async def request(self, method: str, path: str, *, body: bytes = b"", **_options: Any) -> bytes:  # type: ignore[override]
        self.log.append([method, path, body.decode()])
        return b"{}"


class Player:
    """A service to which lines are played, one after the other."""

    def __init__(self, api: Writes | None = None) -> None:
        self._clock, self._api = Clock(), api or Writes()
        self._collections: dict[str, tuple[Any, Any]] = {}
        service = self._service = self._begin()
        for source in reflectors(self._api, service.ledger, service.records, Budgets(), service.nodes):
            self._collections[source.name] = (source._decode, source._consumer)
        verbs = service.served(self._api, **self._binding(service))
        self._application = Application(verbs, Metrics(CollectorRegistry()), _MOST_BYTES, Callers(()))

    def _begin(self) -> Service:
        return Service("TightFit", clock=self._clock)

    def _binding(self, service: Any) -> dict[str, Any]:
        """Returns what the bind has besides."""
        return {}

    async def play(self, line: Line) -> Line:
        """Returns the line with the answer and the writes of this service."""
        self._clock.now = line.at
        kind, _, name = line.what.partition(" ")
        answer = b"null"
        if kind == "POST":
            answer = await self._ask(name, bytes(line.body))
        elif kind == "TICK":
            self._service.ledger.tick()
        else:
            decode, consumer = self._collections[name]
            if kind == "LIST":
                items = msgspec.json.decode(line.body, type=list[msgspec.Raw])
                for _ in consumer.replace([decode(item) for item in items]) or ():
                    pass
            else:
                consumer.apply(kind, decode(line.body))
        writes, self._api.log = self._api.log, []
        return msgspec.structs.replace(line, answer=msgspec.Raw(answer), writes=writes)

    async def _ask(self, verb: str, body: bytes) -> bytes:
        sent: list[Json] = []

        async def receive() -> Json:
            return {"type": "http.request", "body": body}

        async def send(message: Json) -> None:
            sent.append(message)

        await self._application(scope(f"/{verb}"), receive, send)
        return bytes(sent[1]["body"])


def read(file: Path) -> list[Line]:
    """Returns the lines of a file of hack/trace."""
    return [msgspec.json.decode(line, type=Line) for line in lzma.decompress(file.read_bytes()).splitlines()]


async def replay(lines: Iterable[Line], player: Player | None = None) -> AsyncIterator[tuple[int, Line, Line]]:
    """Yields the number of each line whose answer or writes are different, the line, and the line as it is now."""
    player = player or Player()
    for number, line in enumerate(lines, 1):
        now = await player.play(line)
        # By value: scores that were made ahead, which a slow machine does not use, are written with other spaces.
        if msgspec.json.decode(now.answer) != msgspec.json.decode(line.answer) or now.writes != line.writes:
            yield number, line, now


async def record(seed: int, nodes: int, arrivals: int, shapes: int = 20) -> list[Line]:
    """Returns the trace of a random cluster in which so many pods arrive."""
    return await _Recorder(seed, nodes, shapes).run(arrivals)


class _Node:
    """A kubelet, and the version of the last report about it; `is_changed` since then."""

    def __init__(self, name: str, machine: Machine, config: KubeletConfiguration, kubelet: Kubelet) -> None:
        self.name, self.machine, self.config, self.kubelet = name, machine, config, kubelet
        self.version, self.is_changed = 0, True
        self.names: dict[str, tuple[str, str]] = {}
        self.allocatable = kubelet.allocatable()
        self._requests: dict[str, pods.Amounts] = {}

    def has_room(self, requests: pods.Amounts) -> bool:
        """As kube-scheduler sees it (NodeResourcesFit)."""
        held = self._requests.values()
        return len(held) < self.allocatable["pods"] and all(
            amount + sum(other.get(name, 0) for other in held) <= self.allocatable.get(name, 0)
            for name, amount in requests.items()
        )

    def admit(self, document: Json) -> bool:
        pod = msgspec.convert(document, pods.Pod)
        uid = pod.metadata.uid
        self.names[uid] = pod.metadata.namespace, pod.metadata.name
        self.is_changed = True
        if admitted := self.kubelet.admit(pod).admitted:
            self._requests[uid] = pods.needs(pod).requests
        return admitted

    def remove(self, uid: str) -> None:
        self.kubelet.remove(uid)
        del self._requests[uid]
        self.is_changed = True

    def report(self) -> bytes:
        self.version, self.is_changed = self.version + 1, False
        topology = topology_of(
            self.machine, self.config, self.kubelet, str(self.version), self.name, lambda uid: self.names[uid]
        )
        return msgspec.json.encode(topology)


class _Recorder:
    def __init__(self, seed: int, nodes: int, shapes: int) -> None:
        self._random = Random(seed)
        self._player, self._lines, self._now = Player(), list[Line](), 1000.0
        self._nodes = dict(nodes_of(self._random, nodes))
        self._shapes = [random_nodes.pod(self._random, "shape") for _ in range(shapes)]
        self._running: dict[str, tuple[Json, str]] = {}

    async def run(self, arrivals: int) -> list[Line]:
        await self._play(f"LIST {NODES}", [_node(node) for node in self._nodes.values()])
        await self._play(f"LIST {PODS}", [])
        await self._play(f"LIST {REPORTS}", [msgspec.Raw(node.report()) for node in self._nodes.values()])
        for number in range(arrivals):
            self._now += self._random.expovariate(4.0)
            if int(self._now) != int(self._lines[-1].at):
                await self._play("TICK")
            await self._arrive(number)
            await self._leave()
            for node in self._nodes.values():
                if node.is_changed and self._random.random() < 0.15:
                    await self._play(f"MODIFIED {REPORTS}", msgspec.Raw(node.report()))
        return self._lines

    async def _play(self, what: str, body: Any = None) -> Any:
        # As a file has it: the service reads the same bytes when the trace is played again.
        line = await self._player.play(Line(round(self._now, 3), what, msgspec.Raw(msgspec.json.encode(body))))
        self._lines.append(line)
        return msgspec.json.decode(line.answer)

    async def _arrive(self, number: int) -> None:
        pod = _pod(self._random.choice(self._shapes), f"p{number}", self._random)
        await self._play(f"ADDED {PODS}", pod)
        requests = pods.needs(msgspec.convert(pod, pods.Pod)).requests
        some = self._random.sample(sorted(self._nodes), min(90, len(self._nodes)))
        offered = [name for name in some if self._nodes[name].has_room(requests)]
        fitting = (await self._play("POST filter", {"Pod": pod, "NodeNames": offered}))["NodeNames"]
        if not fitting:
            await self._wait(pod, offered)
            return
        scores = await self._play("POST prioritize", {"Pod": pod, "NodeNames": fitting})
        host = max(scores, key=lambda score: score["Score"])["Host"]
        meta = pod["metadata"]
        if self._random.random() < 0.95:
            binding = {"PodName": meta["name"], "PodNamespace": "default", "PodUID": meta["uid"], "Node": host}
            if (await self._play("POST bind", binding))["Error"]:
                return
        else:
            # Another scheduler, which knows nothing of NUMA nodes.
            host = self._random.choice(offered)
        await self._admit(pod, self._nodes[host])

    async def _wait(self, pod: Json, offered: Sequence[str]) -> None:
        pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]
        await self._play(f"MODIFIED {PODS}", pod)
        verb = self._random.choice(("preempt", "explain", "fit-together", ""))
        if verb == "preempt":
            victims = {name: {"Pods": None, "NumPDBViolations": 0} for name in offered[:8]}
            await self._play("POST preempt", {"Pod": pod, "NodeNameToMetaVictims": victims})
        elif verb == "explain":
            await self._play("POST explain", pod)
        elif verb:
            await self._play("POST fit-together", {"pods": [pod, {**pod, "metadata": {"name": "more"}}]})

    async def _admit(self, pod: Json, node: _Node) -> None:
        pod["spec"]["nodeName"] = node.name
        await self._play(f"MODIFIED {PODS}", pod)
        uid = pod["metadata"]["uid"]
        if not node.admit(pod):
            pod["status"] |= {"phase": "Failed", "reason": "TopologyAffinityError"}
            await self._play(f"MODIFIED {PODS}", pod)
            return
        self._running[uid] = pod, node.name
        if self._random.random() < 0.9:
            node.kubelet.start(uid)
            pod["status"] |= {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"}
            await self._play(f"MODIFIED {PODS}", pod)

    async def _leave(self) -> None:
        if len(self._running) > 2 * len(self._nodes) or self._random.random() < 0.3:
            uid = self._random.choice(sorted(self._running, key=lambda uid: int(uid[5:]))) if self._running else ""
            if uid:
                pod, name = self._running.pop(uid)
                self._nodes[name].remove(uid)
                await self._play(f"DELETED {PODS}", pod)


def nodes_of(rng: Random, count: int) -> Iterator[tuple[str, _Node]]:
    """Yields random nodes without pods, by name."""
    number = 0
    while number < count:
        machine = random_nodes.machine(rng)
        config = random_nodes.configuration(rng, machine, POLICIES[number % len(POLICIES)])
        # A kubelet reports neither unhealthy devices, which it counts, nor what a device plug-in prefers.
        machine = msgspec.structs.replace(
            machine,
            devices=tuple(
                msgspec.structs.replace(plugin, devices=healthy, preferred="")
                for plugin in machine.devices
                if (healthy := tuple(device for device in plugin.devices if device.healthy))
            ),
        )
        try:
            kubelet = Kubelet(machine, config)
        except (KubeletStartError, ConfigError):
            continue
        name = f"n{number:03}"
        yield name, _Node(name, machine, config, kubelet)
        number += 1


def _node(node: _Node) -> Json:
    amounts = {name: quantity.to_text(name, amount) for name, amount in node.allocatable.items()}
    status = {"allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
    return {"metadata": {"name": node.name, "labels": {"kubernetes.io/hostname": node.name}}, "status": status}


def _pod(shape: pods.Pod, name: str, rng: Random) -> Json:
    document: Json = msgspec.json.decode(msgspec.json.encode(shape))
    document["metadata"] = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
    if rng.random() < 0.05:
        document["metadata"]["annotations"] = {"topowise.io/numa-node": str(rng.randrange(2))}
    document["spec"]["priority"] = rng.choice((0, 0, 0, 100))
    document["status"] = {"phase": "Pending"}
    return document
