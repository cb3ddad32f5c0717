"""A trace of decisions with the options on: pods that are steered to a NUMA node, and pods with claims.

As decision_trace.py, with a small cluster of which every node has markers and four devices for claims. The plug-in that
labels the markers answers at once; kube-scheduler allocates the first free devices of the chosen node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec

from claim_objects import ClaimService, claim, claiming, device_slice
from decision_trace import PODS, POLICIES, REPORTS, Json, Line, Player, Writes
from scheduling import NODE_STATUS, configuration, decoded, kubelet, machine, pod, topology_of
from steering_pods import marked
from topowise import steering
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.options.claims import watch as claim_watch
from topowise_scheduler.options.claims.gate import ClaimOption
from topowise_scheduler.options.claims.prebind import ClaimPreBind
from topowise_scheduler.options.steering.gate import SteeringOption
from topowise_scheduler.options.steering.leases import NodeSteering
from topowise_scheduler.options.steering.prebind import SteeringPreBind

RECORDED: Final = Path(__file__).parents[1] / "unit/scheduler/recorded/trace-options.jsonl.xz"
SLICES, CLAIMS = "resourceslices", "resourceclaims"
_NUMA: Final = (0, 0, 1, 1)
"""The NUMA nodes of a node's devices."""


class _Cluster(Writes):
    """An API server with claims and the Leases of steering; `labels` are the NUMA nodes of the markers by node."""

    def __init__(self) -> None:
        super().__init__()
        self.claims: dict[str, bytes] = {}
        self.labels: dict[str, int] = {}
        self.steering: NodeSteering | None = None
        self._versions: dict[str, int] = {}
        self._requests: dict[str, steering.Request] = {}

    async def request(self, method: str, path: str, *, body: bytes = b"", **options: Any) -> bytes:  # type: ignore[override]
        name = path.rpartition("/")[2]
        if method == "GET":
            return self.claims[name] if CLAIMS in path else b'{"metadata":{"name":"%b","uid":"u"}}' % name.encode()
        if "/leases/" not in path:
            return await super().request(method, path, body=body, **options)
        node = name.removeprefix(steering.LEASE_PREFIX)
        text = msgspec.json.decode(body)["metadata"]["annotations"].get(steering.REQUEST)
        if text is None:
            self.log.append(["withdraw", node, ""])
            self.labels.pop(node, None)
            return b"{}"
        # The id of a request is random.
        request = self._requests[node] = steering.decode_request(text)
        self.log.append(["steer", node, f"{request.containers} to NUMA node {request.numa}"])
        asyncio.get_running_loop().call_soon(self._label, node, request)
        return b"{}"

    def _label(self, node: str, request: steering.Request) -> None:
        self.labels[node] = request.numa
        self._show(node, steering.Status(request.id, "labelled"))

    def release(self, node: str) -> None:
        """The kubelet has allocated the markers of the pod."""
        del self.labels[node]
        self._show(node, steering.Status(self._requests[node].id, "released", steering.ALLOCATED))

    def _show(self, node: str, status: steering.Status) -> None:
        assert self.steering is not None
        self._versions[node] = self._versions.get(node, 0) + 1
        annotations = {
            steering.REQUEST: steering.encode(self._requests[node]),
            steering.STATUS: steering.encode(status),
        }
        name, version = steering.lease_name(node), str(self._versions[node])
        lease = {"metadata": {"name": name, "resourceVersion": version, "annotations": annotations}}
        self.steering.apply("MODIFIED", self.steering.source._decode(msgspec.json.encode(lease)))


class OptionsPlayer(Player):
    """A service with both options. The line "ALLOCATED node" is the end of the label of a node."""

    def __init__(self) -> None:
        self.cluster = _Cluster()
        super().__init__(self.cluster)

    def _begin(self) -> ClaimService:
        service = ClaimService(markers=512, drivers=(), clock=self._clock)
        self.cluster.steering = NodeSteering(
            self.cluster,
            "system",
            expiry=10.0,
            lost=service.ledger.lose_label,
            unadmitted=lambda name: service.ledger.unadmitted(name, steering.RESOURCE),
            clock=self._clock,
        )
        for source in claim_watch.reflectors(self.cluster, service.claims):
            self._collections[source.name] = (source._decode, source._consumer)
        return service

    def _binding(self, service: Any) -> dict[str, Any]:
        claims, steering = service.ledger.gates.option(ClaimOption), service.ledger.gates.option(SteeringOption)
        forget = service.ledger.reservations.forget
        return {
            "prebinds": [
                ClaimPreBind(self.cluster, claims),
                SteeringPreBind(self.cluster.steering, steering, forget),
            ]
        }

    async def play(self, line: Line) -> Line:
        """See Player."""
        kind, _, name = line.what.partition(" ")
        if kind == "ALLOCATED":
            self.cluster.release(name)
            return line
        if name == CLAIMS and kind != "LIST":
            self.cluster.claims[msgspec.json.decode(line.body)["metadata"]["name"]] = bytes(line.body)
        return await super().play(line)


async def record(seed: int, nodes: int, arrivals: int) -> list[Line]:
    """Returns the trace of a cluster in which so many pods arrive."""
    return await _Recorder(seed, nodes).run(arrivals)


class _Node:
    """A kubelet; `free` are the devices that no claim has."""

    def __init__(self, name: str, policy: str) -> None:
        self.name, self.policy, self.version = name, policy, 0
        self.kubelet: Kubelet = kubelet(topologyManagerPolicy=policy)
        self.free = [f"gpu-{at}" for at in range(len(_NUMA))]
        self.cpus = self.kubelet.allocatable()["cpu"]

    def report(self) -> msgspec.Raw:
        self.version += 1
        config = configuration(topologyManagerPolicy=self.policy)
        return msgspec.Raw(
            msgspec.json.encode(topology_of(machine(), config, self.kubelet, str(self.version), self.name))
        )


class _Recorder:
    def __init__(self, seed: int, nodes: int) -> None:
        self._random, self._now = Random(seed), 1000.0
        self._player, self._lines = OptionsPlayer(), list[Line]()
        self._nodes = {f"n{at}": _Node(f"n{at}", POLICIES[at % len(POLICIES)]) for at in range(nodes)}
        self._running: dict[str, tuple[Json, _Node, list[str]]] = {}

    async def run(self, arrivals: int) -> list[Line]:
        names = list(self._nodes)
        metadata = [{"metadata": {"name": name}, "status": NODE_STATUS} for name in names]
        await self._play("LIST nodes", metadata)
        await self._play(f"LIST {PODS}", [])
        await self._play(f"LIST {REPORTS}", [node.report() for node in self._nodes.values()])
        await self._play("LIST deviceclasses", [{"metadata": {"name": "gpu"}, "spec": {}}])
        await self._play(f"LIST {SLICES}", [device_slice(name, _NUMA) for name in names])
        await self._play(f"LIST {CLAIMS}", [])
        for number in range(arrivals):
            self._now += self._random.expovariate(4.0)
            await self._arrive(f"p{number}")
            if len(self._running) > 3 * len(names) or self._random.random() < 0.2:
                await self._leave()
            for node in self._nodes.values():
                if self._random.random() < 0.2:
                    await self._play(f"MODIFIED {REPORTS}", node.report())
        return self._lines

    async def _play(self, what: str, body: Any = None) -> Any:
        line = await self._player.play(Line(round(self._now, 3), what, msgspec.Raw(msgspec.json.encode(body))))
        self._lines.append(line)
        return msgspec.json.decode(line.answer)

    def _pod(self, name: str) -> tuple[Json, Json | None]:
        """Returns a pod, and its claim if it has one."""
        cpu, kind = self._random.choice(("1", "2", "3")), self._random.random()
        annotations = {"topowise.io/numa-node": self._random.choice("01")} if kind < 0.1 else {}
        if kind < 0.35:
            return marked(name, cpu, annotations=annotations), None
        if kind < 0.5:
            return pod(name, cpu), None
        alignment = self._random.choice(("", "prefer", "require"))
        document = claiming(name, cpu, f"claim-{name}", alignment=alignment)
        if kind < 0.8:
            document["spec"]["containers"] = marked(name, cpu)["spec"]["containers"]
        return document, claim(f"claim-{name}", self._random.choice((1, 1, 2)))

    async def _arrive(self, name: str) -> None:
        document, wanted = self._pod(name)
        await self._play(f"ADDED {PODS}", document)
        if wanted is not None:
            await self._play(f"ADDED {CLAIMS}", wanted)
        count = 0 if wanted is None else wanted["spec"]["devices"]["requests"][0]["exactly"]["count"]
        needs = decoded(document).spec.containers
        assert needs is not None
        offered = [
            node.name for node in self._nodes.values() if len(node.free) >= count and self._has_room(node, document)
        ]
        fitting = (await self._play("POST filter", {"Pod": document, "NodeNames": offered}))["NodeNames"]
        if not fitting:
            return
        scores = await self._play("POST prioritize", {"Pod": document, "NodeNames": fitting})
        node = self._nodes[max(scores, key=lambda score: score["Score"])["Host"]]
        devices = node.free[:count]
        meta = document["metadata"]
        if wanted is not None:
            allocated = claim(
                wanted["metadata"]["name"], count, devices, node=node.name, version=2, reserved=[meta["uid"]]
            )
            await self._play(f"MODIFIED {CLAIMS}", allocated)
        args = {"PodName": name, "PodNamespace": "default", "PodUID": meta["uid"], "Node": node.name}
        if (await self._play("POST bind", args))["Error"]:
            if wanted is not None:
                wanted["metadata"]["resourceVersion"] = "3"
                await self._play(f"MODIFIED {CLAIMS}", wanted)
            return
        node.free = node.free[count:]
        await self._admit(document, node, devices)

    def _has_room(self, node: _Node, document: Json) -> bool:
        """As kube-scheduler sees it (NodeResourcesFit)."""
        used = sum(_cpus(other) for other, there, _ in self._running.values() if there is node)
        return used + _cpus(document) <= node.cpus // 1000

    async def _admit(self, document: Json, node: _Node, devices: list[str]) -> None:
        document["spec"]["nodeName"] = node.name
        await self._play(f"MODIFIED {PODS}", document)
        uid, view = document["metadata"]["uid"], node.kubelet.view_of(decoded(document))
        label = self._player.cluster.labels.get(node.name)
        if not node.kubelet.admit_view(msgspec.structs.replace(view, steered=label)).admitted:
            document["status"] |= {"phase": "Failed", "reason": "TopologyAffinityError"}
        else:
            self._running[uid] = document, node, devices
            node.kubelet.start(uid)
            document["status"] |= {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"}
        if label is not None:
            await self._play(f"ALLOCATED {node.name}")
        await self._play(f"MODIFIED {PODS}", document)

    async def _leave(self) -> None:
        if not self._running:
            return
        uid = self._random.choice(sorted(self._running))
        document, node, devices = self._running.pop(uid)
        node.kubelet.remove(uid)
        node.free = sorted([*node.free, *devices])
        await self._play(f"DELETED {PODS}", document)
        for name in _claims(document):
            await self._play(f"DELETED {CLAIMS}", claim(name))


def _cpus(document: Json) -> int:
    return sum(int(container["resources"]["requests"]["cpu"]) for container in document["spec"]["containers"])


def _claims(document: Json) -> Iterator[str]:
    return (listed["resourceClaimName"] for listed in document["spec"].get("resourceClaims", ()))
