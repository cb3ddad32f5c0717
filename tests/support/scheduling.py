"""Nodes and pods for tests of the scheduler service, as the API server would show them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec

from sandbox.exported import exported
from topowise import fingerprint, nrt, numaplacement, pods
from topowise.kube.api import Api
from topowise.kubeletconfig import KubeletConfiguration, MemoryReservation
from topowise_scheduler import report
from topowise_scheduler.configuration import Scoring
from topowise_scheduler.explain.cluster_view import ClusterView
from topowise_scheduler.explain.refusal_texts import TEXTS, at_bind
from topowise_scheduler.kubelet import Core, Kubelet, Machine, NumaNode
from topowise_scheduler.kubelet.cpu_manager import CpuManager
from topowise_scheduler.kubelet.memory_tables import MemoryTables
from topowise_scheduler.ledger.answers import Answers, Question
from topowise_scheduler.ledger.budgets import Budgets
from topowise_scheduler.ledger.ledger import Ledger
from topowise_scheduler.ledger.node.node_state import NodeState
from topowise_scheduler.ledger.nodes import Nodes
from topowise_scheduler.ledger.pods.exporter_pods import recognises
from topowise_scheduler.ledger.pods.records import PodRecord, Records
from topowise_scheduler.options.registry import READERS, Enabled
from topowise_scheduler.overlay.fit_together import FitTogetherService, GroupPlacement, GroupPlacer
from topowise_scheduler.overlay.trial import Trial
from topowise_scheduler.serve.extender.binding import Binder
from topowise_scheduler.serve.extender.evictions import Evictions
from topowise_scheduler.serve.extender.explaining import Explainer, fit_together
from topowise_scheduler.serve.extender.replies import NotReady, Observer, Reply, Verb
from topowise_scheduler.serve.extender.verbs import Verbs, table
from topowise_scheduler.verdicts import strategies
from topowise_scheduler.verdicts.engine import Engine
from topowise_scheduler.verdicts.inter_pod import InterPodIndex
from topowise_scheduler.verdicts.kube_scheduler import Pod
from topowise_scheduler.verdicts.refusals import Refusal

GIB = 1 << 30
WALL = 1_800_000_000.0
"""Time of the Node events of `Service.join`, in seconds since 1970."""


NODE_STATUS: dict[str, Any] = {
    "allocatable": {"cpu": "256", "memory": "1Ti", "pods": "1000"},
    "conditions": [{"type": "Ready", "status": "True"}],
}
"""Of a Node with more room than any report of these tests tells of: kube-scheduler has nothing against it."""


EXPORTER_LABELS = {"app.kubernetes.io/part-of": "topowise", "app.kubernetes.io/component": "exporter"}


class Clock:
    """A monotonic clock that only moves when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def counts(
    name: str,
    available: str | tuple[str, ...],
    *,
    allocatable: str = "8",
    policy: str = "single-numa-node",
    included: Iterable[str] | None = None,
    method: str = "with-exclusive-resources",
    version: str = "",
    placed: Mapping[str, int] | None = None,
) -> nrt.NodeResourceTopology:
    """An NRT of another exporter: free CPUs per zone; `included` are the pods its fingerprint counts, None: none.

    `placed` is numaplacement: the zone of the container "c" of each of these pods.
    """
    zones = (available,) if isinstance(available, str) else available
    named = {"topologyManagerPolicy": policy}
    if included is not None:
        named["nodeTopologyPodsFingerprint"] = fingerprint.of(("default", pod) for pod in included)
        named["nodeTopologyPodsFingerprintMethod"] = method
    vectors: dict[int, str] = {}
    if placed is not None:
        where = {("default", pod, "c"): zpod for pod, zpod in placed.items()}
        named[numaplacement.METADATA_ATTRIBUTE], vectors = numaplacement.encode(where, range(len(zones)))
    document = {
        "metadata": {"name": name, "resourceVersion": version},
        "attributes": [{"name": key, "value": value} for key, value in named.items()],
        "zones": [
            {
                "name": f"node-{number}",
                "type": "Node",
                "attributes": [
                    {"name": numaplacement.VECTOR_ATTRIBUTE, "value": vector}
                    for at, vector in vectors.items()
                    if at == number
                ],
                "resources": [{"name": "cpu", "capacity": allocatable, "allocatable": allocatable, "available": free}],
            }
            for number, free in enumerate(zones)
        ],
    }
    return nrt.decode(msgspec.json.encode(document))


def machine(zones: int = 2, cores: int = 4) -> Machine:
    """Returns a machine of 16 GiB and `cores` cores without siblings in each zone."""
    return Machine(
        numa=tuple(
            NumaNode(
                id=zone,
                memory=16 * GIB,
                cores=tuple(Core(socket=zone, threads=(zone * cores + core,)) for core in range(cores)),
                distances=tuple(10 if neighbour == zone else 20 for neighbour in range(zones)),
            )
            for zone in range(zones)
        )
    )


def configuration(**changed: Any) -> KubeletConfiguration:
    """Returns a configuration with all managers on; CPU 0 and a GiB of zone 0 are reserved for the system."""
    base = KubeletConfiguration(
        topologyManagerPolicy="single-numa-node",
        cpuManagerPolicy="static",
        memoryManagerPolicy="Static",
        reservedSystemCPUs="0",
        systemReserved={"memory": "1Gi"},
        reservedMemory=(MemoryReservation(0, {"memory": "1Gi"}),),
        evictionHard={},
    )
    return msgspec.structs.replace(base, **changed)


def kubelet(**changed: Any) -> Kubelet:
    """Returns the true node for `machine()`."""
    return Kubelet(machine(), configuration(**changed))


NameOf = Callable[[str], tuple[str, str]]


def _named_by_uid(uid: str) -> tuple[str, str]:
    return "default", uid.removeprefix("uid-")


def topology_of(
    hardware: Machine,
    config: KubeletConfiguration,
    node: Kubelet,
    version: str = "1",
    name: str = "n1",
    name_of: NameOf = _named_by_uid,
    **options: Any,
) -> nrt.NodeResourceTopology:
    """Returns what the exporter publishes of a node. `name_of` maps pod UIDs to names, by default "uid-NAME"."""
    topology = exported(hardware, config, node, name_of, **options)
    return msgspec.structs.replace(
        topology, metadata=msgspec.structs.replace(topology.metadata, name=name, resourceVersion=version)
    )


def exact(
    node: Kubelet, version: str = "1", name: str = "n1", name_of: NameOf = _named_by_uid, **changed: Any
) -> nrt.NodeResourceTopology:
    """Returns what the exporter publishes of a node of `machine()` whose configuration has the `changed` fields."""
    return topology_of(machine(), configuration(**changed), node, version, name, name_of)


def decoded(document: dict[str, Any]) -> pods.Pod:
    """Returns the pod of a JSON document, as the product decodes it."""
    return pods.decode(msgspec.json.encode(document))


def container(amounts: Mapping[str, str], name: str = "c", **fields: Any) -> dict[str, Any]:
    """Returns a container whose requests and limits are these amounts."""
    return {"name": name, "resources": {"requests": amounts, "limits": amounts}, **fields}


def pod(name: str, cpu: str = "2", memory: str = "1Gi", *, node: str = "", **fields: Any) -> dict[str, Any]:
    """Returns a Guaranteed pod with a container. `fields` go to metadata (annotations, labels, …), spec or status."""
    document: dict[str, Any] = {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": {"containers": [container({"cpu": cpu, "memory": memory})]},
        "status": {"phase": "Pending"},
    }
    if node:
        document["spec"]["nodeName"] = node
    for field, value in fields.items():
        where = "metadata" if field in _METADATA else "status" if field in _STATUS else "spec"
        document[where][field] = value
    return document


_METADATA = ("annotations", "labels", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp")
_STATUS = ("phase", "reason", "nominatedNodeName", "conditions", "startTime")


class NoApi(Api):
    """An API that must not be called."""

    def __init__(self) -> None:
        pass


def scope(path: str, method: str = "POST", query: bytes = b"", **headers: str) -> dict[str, Any]:
    """An ASGI request as kube-scheduler, or a person at a terminal, sends it; with other headers if they are given."""
    sent = {"host": "127.0.0.1:8080", "content_type": "application/json", **headers}
    listed = [(name.replace("_", "-").encode(), text.encode()) for name, text in sent.items()]
    return {"type": "http", "path": path, "method": method, "query_string": query, "headers": listed, "scheme": "http"}


def call(
    app: Any, path: str, body: bytes | Iterator[bytes] = b"", method: str = "POST", query: bytes = b"", **headers: str
) -> tuple[int, bytes]:
    """Returns status and body of an ASGI application's answer; an iterator is sent part by part."""
    parts = iter((body,)) if isinstance(body, bytes) else body
    messages: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        part = next(parts, None)
        return {"type": "http.request", "body": part or b"", "more_body": part is not None and part is not body}

    async def send(message: dict[str, Any]) -> None:
        messages.append(message)

    asyncio.run(app(scope(path, method, query, **headers), receive, send))
    start, content = messages
    assert int(dict(start["headers"])[b"content-length"]) == len(content["body"])
    return start["status"], content["body"]


class Service:
    """Ledger, engine and answers put together as the daemon does."""

    def __init__(
        self,
        strategy: str = "LeastAllocated",
        *,
        places: bool = False,
        seen: Callable[[pods.Pod], None] | None = None,
        clock: Clock | None = None,
        **options: Any,
    ) -> None:
        self.clock = clock or Clock()
        self.engine = Engine()
        self.nodes = Nodes()
        index = InterPodIndex(self.nodes) if places else None
        enabled = {name: options.pop(name) for name in Enabled._fields if name in options}
        self.enabled = Enabled(**{"markers": lambda name: 512, "steers": True, **enabled})
        self.ledger = Ledger(
            self.engine, self.clock, **{"options": self.enabled.options, "inter_pod": index, **options}
        )
        is_exporter = recognises("topowise-system", EXPORTER_LABELS)
        self.records = Records(places=places, seen=seen, is_exporter=is_exporter, index=index, readers=READERS)
        self.answers = Answers(self.ledger, self.records, strategies.make(strategy, {}, Scoring()))
        self.trial = Trial(self.ledger, self.answers, self.nodes)
        self.view = ClusterView(self.trial)

    def verbs(self, **options: Any) -> Verbs:
        """filter, prioritize and preempt."""
        not_ready = options.pop("not_ready", lambda: None)
        return Verbs(self.answers, Evictions(self.ledger, self.answers, Budgets()), not_ready, **options)

    def served(
        self,
        api: Api | None = None,
        observer: Observer | None = None,
        not_ready: NotReady = lambda: None,
        **binding: Any,
    ) -> dict[str, Verb]:
        """Returns all verbs of kube-scheduler's protocol; `binding`: what the bind has besides."""
        api = api or NoApi()
        return table(
            self.verbs(observer=observer, not_ready=not_ready),
            Binder(api, self.ledger, self.records, not_ready, observer=observer, **binding),
            Explainer(api, self.view, not_ready),
            partial(fit_together, self.fitting(), not_ready),
        )

    def fitting(self, most_reserved: int = 0, **options: Any) -> FitTogetherService:
        """Returns whether pods fit at once."""
        options = {"most_reserved": most_reserved, "clock": self.clock, **options}
        return FitTogetherService(self.trial, **options)

    def report(self, topology: nrt.NodeResourceTopology) -> None:
        """The watch of NRTs brings an object."""
        state = self.ledger.node_states.of(topology.metadata.name)
        apart = nrt.decode_lazily(msgspec.json.encode(topology))
        self.ledger.reports.put(report.read_lazily(apart, before=None if state is None else state.report))

    def put_node(self, name: str, spec: dict[str, Any] | None = None, **fields: Any) -> None:
        """Applies a Node event, for a Ready node by default."""
        status = {
            "allocatable": fields.get("allocatable", {"cpu": "8", "memory": "64Gi", "pods": "110"}),
            "conditions": [{"type": "Ready", "status": fields.get("ready", "True")}],
            "images": [{"names": [image]} for image in fields.get("images", ())],
        }
        document = {"metadata": {"name": name, "labels": fields.get("labels")}, "spec": spec or {}, "status": status}
        self.nodes.apply("ADDED", self.nodes.decode(msgspec.json.encode(document)))

    def join(self, name: str, *, age: float | None = 0.0, ready: bool = True, **metadata: Any) -> None:
        """Applies a Node event to the ledger; `age` in seconds, None for a Node without creation time."""
        created = None if age is None else datetime.fromtimestamp(WALL - age, UTC).isoformat()
        status = {**NODE_STATUS, "conditions": [{"type": "Ready", "status": str(ready)}]}
        document = {"metadata": {"name": name, "creationTimestamp": created, **metadata}, "status": status}
        node = self.nodes.decode(msgspec.json.encode(document))
        self.nodes.apply("ADDED", node)
        self.ledger.reports.put_node_object(node, WALL)

    def put_exporter(self, node: str, *, ready: bool = True, namespace: str = "topowise-system") -> str:
        """Applies an event of the exporter's pod on a node. Returns its UID."""
        document = pod(f"exporter-{node}", node=node, labels=EXPORTER_LABELS)
        document["metadata"]["namespace"] = namespace
        document["metadata"]["uid"] += namespace
        document["spec"]["containers"] = [{"name": "exporter"}]
        document["status"]["conditions"] = [{"type": "Ready", "status": str(ready)}]
        return self.put(document).uid

    def wait(self, seconds: float) -> None:
        """Lets time pass, after which the ledger ticks once."""
        self.clock.now += seconds
        self.ledger.tick()

    def put(self, document: dict[str, Any], **options: Any) -> PodRecord:
        """Applies a pod event of the watch."""
        record = self.records.decode(msgspec.json.encode(document))
        self.ledger.put_pod(record, **options)
        return record

    def _record(self, pending: dict[str, Any] | PodRecord) -> PodRecord:
        record = self.put(pending) if isinstance(pending, dict) else pending
        assert record.needs is not None
        return record

    def reserve(self, pending: dict[str, Any] | PodRecord, node: str = "n1", **options: Any) -> PodRecord:
        """Expects a pod on a node, as the last verb before the bind does. A document is an event of the pod as well."""
        record = self._record(pending)
        self.ledger.reservations.put(record, record.needs, node, **options)
        return record

    def assume(self, pending: dict[str, Any] | PodRecord, node: str = "n1") -> str:
        """Books a pod as the bind verb does. Returns why the node is refused, "" if it is not."""
        record = self._record(pending)
        refusal = self.ledger.reservations.assume(record, record.needs, node)
        return "" if refusal is None else at_bind(refusal, self.ledger, record.uid, node)

    def bind(self, document: dict[str, Any], node: str) -> dict[str, Any]:
        """Books a pending pod as the bind verb does, and applies the event of its Binding. Returns the bound pod."""
        assert self.assume(document, node) == ""
        bound = {**document, "spec": {**document["spec"], "nodeName": node}}
        self.put(bound)
        return bound

    def refuse(self, document: dict[str, Any], node: str, reason: str = "TopologyAffinityError") -> None:
        """Binds a pending pod, which the kubelet then refuses."""
        bound = self.bind(document, node)
        self.put({**bound, "status": {**bound["status"], "phase": "Failed", "reason": reason}})

    def state(self, name: str = "n1") -> NodeState:
        """What the ledger knows of a node."""
        node_state = self.ledger.node_states.of(name)
        assert node_state is not None
        return node_state

    def node(self, name: str = "n1") -> Kubelet:
        """The kubelet as the ledger believes it."""
        node = self.state(name).kubelet
        assert node is not None
        return node

    def cpus(self, name: str = "n1") -> CpuManager:
        """The CPU manager as the ledger believes it."""
        manager = self.node(name).cpu
        assert manager is not None
        return manager

    def memory(self, name: str = "n1") -> MemoryTables:
        """The tables of the memory manager as the ledger believes them."""
        manager = self.node(name).memory
        assert manager is not None
        return manager.tables

    def free(self, name: str) -> list[int]:
        """Free CPUs per zone as the ledger believes."""
        available = self.cpus(name).available
        return [(cpus & available).bit_count() for cpus in self.node(name).topology.numa_cpus]

    def question(self, document: dict[str, Any], *names: str) -> Question:
        """Returns a question whose evaluation leaves no trace."""
        return self.answers.question(pods.decode(msgspec.json.encode(document)), names, is_simulation=True)

    def fits(self, document: dict[str, Any], *names: str) -> list[str]:
        """Returns the nodes on which a pod would fit, without a trace."""
        verdicts = self.answers.verdicts(self.question(document, *names))
        return [name for name, outcome in zip(names, verdicts.outcomes.tolist(), strict=True) if outcome == 1]


WAITS: list[dict[str, str]] = [
    {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": f"0/1 nodes are available: 1 {TEXTS[Refusal.NOT_NOW]}.",
    }
]
"""Conditions of a pod that waits after a refusal by topowise."""


def full() -> Service:
    """Returns a service whose only node, n1, is fully allocated to the pod "other"."""
    service = Service()
    service.report(counts("n1", "0", included=["other"]))
    service.put(pod("other", "8", node="n1"))
    return service


def sent(reply: Reply) -> Any:
    """What the client reads, and what follows is done, as the transport does it."""
    if reply.afterwards is not None:
        reply.afterwards(0.0015)
    return msgspec.json.decode(reply.body)


def place_together(cluster: Trial, pods: Sequence[Pod], names: Sequence[str]) -> GroupPlacement:
    """Returns the placement of all pods, without pauses between the steps."""
    placer = GroupPlacer(cluster, pods, names)
    list(placer.steps())
    return placer.placement
