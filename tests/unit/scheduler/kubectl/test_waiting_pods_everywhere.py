"""A waiting pod in 40 situations: every screen, event and metric gives the same answer, and the next step is true."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
import pytest
from tests.unit.scheduler.kubectl.conftest import Ask, Save, written

from scheduling import EXPORTER_LABELS, Service, configuration, topology_of
from topowise import nrt, pods
from topowise.attributes import PCI, pci_devices
from topowise.attributes.pci_devices import Located
from topowise.kube.api import Api
from topowise.pci import Place
from topowise.placement import GATE
from topowise_scheduler.controllers.waiting_pods import WaitingPods
from topowise_scheduler.dashboard import Decisions
from topowise_scheduler.dashboard.cluster_state import Reader
from topowise_scheduler.dashboard.details import PodReader
from topowise_scheduler.explain.shortage import Waits
from topowise_scheduler.explain.waiting import WaitingPod, waiting_pod
from topowise_scheduler.explain.waiting_texts import next_step, text
from topowise_scheduler.kubelet import Core, Device, DevicePlugin, Kubelet, Machine, NumaNode
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.verdicts import kube_scheduler

Json = dict[str, Any]
GIB = 1 << 30
GPU = "nvidia.com/gpu"
WALL = 1_779_990_000.0
STARTED = datetime.fromtimestamp(WALL, UTC).isoformat().replace("+00:00", "Z")
CREATED = datetime.fromtimestamp(WALL - 20, UTC).isoformat().replace("+00:00", "Z")
ASKED = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes are available"}]
TAINT = {"key": "only", "value": "x", "effect": "NoSchedule"}
VOLUME = [{"name": "v", "persistentVolumeClaim": {"claimName": "v"}}]


def amounts(cpu: str, memory: str = "1Gi", gpus: int = 0, **more: str) -> Json:
    return {"cpu": cpu, "memory": memory, **({GPU: str(gpus)} if gpus else {}), **more}


def container(name: str, limits: Json) -> Json:
    return {"name": name, "resources": {"requests": limits, "limits": limits}}


def pod(name: str, *limits: Json, node: str = "", spec: Json | None = None, **metadata: Any) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{name}",
            "creationTimestamp": STARTED,
            **metadata,
        },
        "spec": {
            **({"nodeName": node} if node else {}),
            "containers": [container(f"c{at}", each) for at, each in enumerate(limits)],
            **(spec or {}),
        },
        "status": {"phase": "Running", "startTime": STARTED} if node else {"phase": "Pending", "conditions": ASKED},
    }


class Node(NamedTuple):
    """Two NUMA nodes with `cores` CPUs each, of which CPU 0 is reserved; `running` are CPUs or (CPUs, priority).

    The report lacks the pods of `unreported`; `ports` are the PCIe switches of the GPUs.
    `exporter` is the condition Ready of the exporter's pod, "" for no pod.
    """

    name: str = "n1"
    cores: int = 4
    gpus: tuple[int, int] = (0, 0)
    running: tuple[Json | tuple[str, int], ...] = ()
    spec: Mapping[str, Any] = {}
    labels: Mapping[str, str] = {}
    ready: str = "True"
    kubelet: Mapping[str, Any] = {}
    allocatable: Mapping[str, str] = {}
    unconfirmed: str = ""
    is_reported: bool = True
    pages: int = 0
    created: str = ""
    exporter: str = ""
    unreported: tuple[Json, ...] = ()
    ports: tuple[int, ...] = ()

    def all_pods(self) -> list[Json]:
        exporters = []
        if self.exporter:
            exporter = pod("exporter", {}, node=self.name, namespace="topowise-system", labels=EXPORTER_LABELS)
            exporter["status"]["conditions"] = [{"type": "Ready", "status": self.exporter}]
            exporters.append(exporter)
        return [*self.pods(), *self.unreported, *exporters]

    def pods(self) -> list[Json]:
        made = []
        for at, each in enumerate(self.running):
            if isinstance(each, dict):
                made.append({**each, "spec": {**each["spec"], "nodeName": self.name}})
            else:
                made.append(pod(f"{self.name}-{at}", amounts(each[0]), node=self.name, spec={"priority": each[1]}))
        return made

    def object(self) -> Json:
        allocatable = {"cpu": str(2 * self.cores - 1), "memory": "31Gi", "pods": "110"}
        if any(self.gpus):
            allocatable[GPU] = str(sum(self.gpus))
        if self.pages:
            allocatable["hugepages-2Mi"] = f"{4 * self.pages}Mi"
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": self.name, "labels": dict(self.labels), "creationTimestamp": self.created or None},
            "spec": dict(self.spec),
            "status": {
                "allocatable": {**allocatable, **self.allocatable},
                "conditions": [{"type": "Ready", "status": self.ready}],
            },
        }

    def topology(self, version: str = "7") -> nrt.NodeResourceTopology:
        plugins = tuple(Device(f"g{zone}{at}", (zone,)) for zone in range(2) for at in range(self.gpus[zone]))
        machine = Machine(
            numa=tuple(
                NumaNode(
                    id=zone,
                    memory=16 * GIB,
                    cores=tuple(Core(socket=zone, threads=(zone * self.cores + core,)) for core in range(self.cores)),
                    hugepages={2048: self.pages} if self.pages else {},
                    distances=(10, 20) if zone == 0 else (20, 10),
                )
                for zone in range(2)
            ),
            devices=(DevicePlugin(GPU, plugins),) if plugins else (),
        )
        config = configuration(**self.kubelet)
        kubelet = Kubelet(machine, config)
        for document in self.pods():
            admission = kubelet.admit(pods.decode(json.dumps(document).encode()))
            assert admission.admitted, admission.message
        topology = topology_of(machine, config, kubelet, version, self.name)
        added = []
        if self.unconfirmed:
            added.append(nrt.Attribute("topowise.io/unconfirmed", self.unconfirmed))
        if self.ports:
            located = {
                device.id: Located(
                    f"0000:{at + 1:02x}:00.0", Place(("pci0000:00", f"0000:00:{port:02x}.0"), *(device.numa or ()))
                )
                for at, (device, port) in enumerate(zip(plugins, self.ports, strict=True))
            }
            added.append(nrt.Attribute(PCI, pci_devices.write(located).text))
        return msgspec.structs.replace(topology, attributes=(*topology.attributes, *added))


class Case(NamedTuple):
    """The verdicts are in the order of the nodes: f(its), n(ot now), N(ever), x (excluded), - (not reported).

    `event` happens only in the service: a saved cluster does not have it.
    """

    nodes: tuple[Node, ...]
    pod: Json
    verdicts: str
    cause: str
    step: str
    event: str = ""


VERDICTS = {"f": "fits", "n": "not now", "N": "never", "x": "excluded", "-": "not reported"}
# One CPU is free on NUMA node 0, two on NUMA node 1.
BUSY = (("2", 0), ("2", 0))
NONE = {"topologyManagerPolicy": "none"}
W = "w"
REQUIRE = {"topowise.io/device-affinity": f"require {GPU}: pcie-switch"}


def w(*limits: Json, spec: Json | None = None, **metadata: Any) -> Json:
    return pod(W, *limits, spec=spec, **metadata)


def selecting(pool: str) -> Json:
    term = {"matchExpressions": [{"key": "pool", "operator": "In", "values": [pool]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    return {"affinity": {"nodeAffinity": required}}


CASES: dict[str, Case] = {
    "free": Case((Node(),), w(amounts("2")), "f", "retry", "the pod fits on n1"),
    "cordon": Case((Node(spec={"unschedulable": True}),), w(amounts("2")), "x", "excluded", "uncordon n1"),
    "cordon and taint": Case(
        (Node(spec={"unschedulable": True, "taints": [TAINT]}),), w(amounts("2")), "x", "excluded",
        "uncordon n1 and remove the taint only=x:NoSchedule from n1",
    ),
    "taint": Case((Node(spec={"taints": [TAINT]}),), w(amounts("2")), "x", "excluded", "remove the taint only=x:"),
    "tolerated taint": Case(
        (Node(spec={"taints": [TAINT]}),), w(amounts("2"), spec={"tolerations": [{"operator": "Exists"}]}), "f",
        "retry", "fits on n1",
    ),
    "not ready": Case((Node(ready="False"),), w(amounts("2")), "x", "excluded", "repair n1: it is not ready"),
    "selector": Case(
        (Node(labels={"pool": "b"}),), w(amounts("2"), spec={"nodeSelector": {"pool": "a"}}), "x", "excluded",
        "change what the pod requires of nodes so that it selects n1",
    ),
    "node affinity": Case((Node(),), w(amounts("2"), spec=selecting("a")), "x", "excluded", "so that it selects n1"),
    "two pools": Case(
        (Node("a", labels={"pool": "a"}, running=BUSY), Node("b", labels={"pool": "b"})),
        w(amounts("3"), spec=selecting("a")), "nx", "alignment", "so that it selects b",
    ),
    "CPUs by sum": Case((Node(running=(("3", 0), ("3", 0))),), w(amounts("2")), "n", "resources", "1 CPU less"),
    "CPUs by alignment": Case((Node(running=BUSY),), w(amounts("3")), "n", "alignment", "1 CPU less would fit on n1"),
    "larger than a NUMA node": Case(
        (Node(),), w(amounts("5")), "N", "never", "no node can ever take it: cpu 5 on one NUMA node, the largest has 4"
    ),
    "larger than a node": Case(
        (Node(),), w(amounts("50")), "N", "never", "it asks for cpu 50, the largest node has 7"
    ),
    "memory": Case(
        (Node(running=(pod("m0", amounts("1", "10Gi"), node="n1"), pod("m1", amounts("1", "10Gi"), node="n1"))),),
        w(amounts("1", "8Gi")), "n", "alignment", "memory 2048Mi less would fit on n1",
    ),
    "hugepages": Case(
        (Node(pages=512, running=(pod("h", amounts("1", "1Gi", **{"hugepages-2Mi": "600Mi"}), node="n1"),)),),
        w(amounts("1", "1Gi", **{"hugepages-2Mi": "1100Mi"})), "N", "never", "hugepages-2Mi 1.1Gi on one NUMA node",
    ),
    "GPU on the other NUMA node": Case(
        (Node(gpus=(0, 2), running=(("3", 0),)),), w(amounts("2", gpus=1)), "f", "retry", "fits on n1"
    ),
    "GPU beside full CPUs": Case(
        (Node(gpus=(0, 2), running=(pod("g", amounts("3", gpus=1), node="n1"),)),), w(amounts("2", gpus=1)), "n",
        "alignment", "1 CPU less would fit on n1",
    ),
    "no GPU anywhere": Case(
        (Node(), Node("n2")), w(amounts("1", gpus=1)), "NN", "never", f"it asks for {GPU} 1, no node has it"
    ),
    "GPU only on a busy node": Case(
        (Node(), Node("n2"), Node("gpu", gpus=(1, 0), running=(pod("g", amounts("1", gpus=1), node="gpu"),))),
        w(amounts("1", gpus=1)), "NNn", "resources", "wait until default/g on gpu ends",
    ),
    "8 GPUs on one NUMA node": Case(
        (Node(gpus=(4, 4)),), w(amounts("1", gpus=8)), "N", "never", f"{GPU} 8 on one NUMA node, the largest has 4"
    ),
    "quarantine": Case((Node(),), w(amounts("2")), "n", "unconfirmed", "wait: n1: kubelet refused", "quarantine"),
    "quarantine of a full node": Case(
        (Node(running=BUSY),), w(amounts("3")), "n", "alignment", "1 CPU less", "quarantine"
    ),
    "quarantine of a small node": Case(
        (Node(),), w(amounts("5")), "N", "never", "the largest has 4", "quarantine"
    ),
    "unconfirmed": Case((Node(unconfirmed="pods"),), w(amounts("2")), "n", "unconfirmed", "wait: n1: .*pods"),
    "unconfirmed, BestEffort": Case((Node(unconfirmed="pods"),), w({}), "f", "retry", "fits on n1"),
    "not reported": Case((Node(is_reported=False),), w(amounts("2")), "-", "retry", "n1 has no report"),
    "new node": Case(
        (Node(is_reported=False, created=CREATED, exporter="False"),), w(amounts("2")), "n", "unconfirmed",
        r"^wait: n1 has not reported yet \(expected within 2m\)$",
    ),
    "exporter down": Case(
        (Node(exporter="False", unreported=(pod("late", amounts("1"), node="n1"),)),), w(amounts("2")), "n",
        "unconfirmed", "^repair the exporter on n1: no exporter is Ready on the node and its report lacks pods$",
        "grace",
    ),
    "device affinity require": Case(
        (Node(gpus=(2, 2), ports=(0, 1, 2, 2), running=(pod("g", amounts("4", gpus=1), node="n1"),)),),
        w(amounts("1", gpus=2), annotations=REQUIRE), "n", "alignment",
        "^topowise.io/device-affinity with prefer instead of require would fit on n1$",
    ),
    "not reported, too few CPUs": Case(
        (Node(is_reported=False, running=(("6", 0),)),), w(amounts("2")), "n", "resources", "1 CPU less"
    ),
    "too many containers": Case(
        (Node(),), w(*[amounts("1m", "1Mi")] * 257), "N", "never", "use several pods: expected at most 256 containers"
    ),
    "lower priority in the way": Case(
        (Node(running=(("2", -5), ("2", 0))),), w(amounts("3")), "n", "alignment",
        "evicting default/n1-0 would make room on n1|1 CPU less",
    ),
    "all of lower priority": Case(
        (Node(running=(("3", -5), ("4", -5))),), w(amounts("3")), "n", "resources", "evicting default/n1-. would"
    ),
    "reserved by another pod": Case(
        (Node(cores=2),), w(amounts("2")), "n", "resources", "^1 CPU less would fit on n1$", "reserve"
    ),
    "nominated pod in the way": Case(
        (Node(cores=2),), w(amounts("2")), "n", "resources", "^1 CPU less would fit on n1$", "nominate"
    ),
    "policy none": Case(
        (Node(kubelet=NONE, running=BUSY),), w(amounts("3")), "f", "retry", "fits on n1"
    ),
    "policy none, full": Case(
        (Node(kubelet=NONE, running=(("4", 0),)),), w(amounts("4")), "n", "resources", "1 CPU less"
    ),
    "policy best-effort": Case(
        (Node(kubelet={"topologyManagerPolicy": "best-effort"}, running=BUSY),), w(amounts("3")), "f", "retry", "n1"
    ),
    "policy restricted": Case(
        (Node(kubelet={"topologyManagerPolicy": "restricted"}, running=BUSY),), w(amounts("3")), "n", "alignment",
        "1 CPU less",
    ),
    "weaker policy": Case(
        (Node(kubelet=NONE),), w(amounts("1"), annotations={"topowise.io/numa-policy": "restricted"}), "N", "never",
        "no node can ever take it: on n1 Topology Manager policy is weaker",
    ),
    "scope pod": Case(
        (Node(kubelet={"topologyManagerScope": "pod"}),), w(amounts("2"), amounts("3")), "N", "never", "cpu 5 on one"
    ),
    "scope container": Case((Node(),), w(amounts("3"), amounts("4")), "f", "retry", "fits on n1"),
    "init containers": Case(
        (Node(running=BUSY),), w(amounts("1"), spec={"initContainers": [container("i", amounts("3"))]}), "n",
        "alignment", "1 CPU less",
    ),
    "pod-level resources": Case(
        (Node(),), w({}, spec={"resources": {"requests": amounts("9"), "limits": amounts("9")}}), "N", "never",
        "it asks for cpu 9, the largest node has 7",
    ),
    "volumes": Case((Node(),), w(amounts("2"), spec={"volumes": VOLUME}), "f", "not examined", "does not check its"),
    "uncertain placement": Case((Node(),), w(amounts("4")), "n", "unconfirmed", "wait: n1: pod does not fit", "bind"),
    "several nodes": Case(
        (
            Node("a", spec={"unschedulable": True}), Node("b", running=BUSY), Node("c", cores=2),
            Node("d", spec={"taints": [TAINT]}), Node("e", running=(("3", 0), ("4", 0))),
        ),
        w(amounts("3")), "xnNxn", "alignment", "uncordon a",
    ),
}  # fmt: skip


class Recorder(Api):
    """An API server that takes every event and condition."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    async def request(self, method: str, _path: str, **options: Any) -> bytes:
        if method == "POST":
            self.notes.append(json.loads(options["body"])["note"])
        return b"{}"


class Live:
    """A service that watches the situation."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.service = Service("TightFit")
        for node in case.nodes:
            self.put_node(node.object())
            for document in node.all_pods():
                self.service.put(document, is_news=False)
        self.service.clock.now += 10_000
        for node in case.nodes:
            nodes = self.service.nodes
            self.service.ledger.reports.put_node_object(nodes.decode(json.dumps(node.object()).encode()), WALL)
            if node.is_reported:
                self.service.report(node.topology())
        self.record = self.service.put(case.pod)
        self.happen(case.event)

    def put_node(self, document: Json) -> None:
        nodes = self.service.nodes
        nodes.apply("MODIFIED", nodes.decode(json.dumps(document).encode()))

    def happen(self, event: str) -> None:
        service, name = self.service, self.case.nodes[0].name
        if event == "quarantine":
            service.ledger.gates.quarantine.put(self.record.shape, name, service.clock())
        elif event == "reserve":
            reserving = service.put(pod("first", amounts("2")))
            question = service.answers.about(reserving, [name])
            service.answers.expect(question, 0)
        elif event == "nominate":
            nominated = pod("first", amounts("2"), spec={"priority": 10})
            nominated["status"] = {"phase": "Pending", "nominatedNodeName": name}
            service.put(nominated)
        elif event == "grace":
            for _ in range(3):
                service.clock.now += 60
                service.ledger.tick()
        elif event == "bind":
            service.put(pod("late", amounts("3"), node=name))

    def now(self) -> WaitingPod:
        return waiting_pod(self.service.view, self.record)


@pytest.mark.parametrize("title", CASES)
def test_a_waiting_pod_has_the_same_answer_everywhere(title: str) -> None:
    case = CASES[title]
    live = Live(case)
    service, record = live.service, live.record
    names = [node.name for node in case.nodes]
    candidate = kube_scheduler.decode(json.dumps(case.pod).encode())
    seen = live.now()
    expected = {name: VERDICTS[letter] for name, letter in zip(names, case.verdicts, strict=True)}
    takes = {name for name, verdict in expected.items() if verdict in ("fits", "not reported")}
    assert {node.node: node.verdict for node in service.view.explanations(candidate, names)} == expected
    assert re.fullmatch(case.cause, seen.cause), seen
    assert re.search(case.step, next_step(seen.step)), seen
    assert seen.fits == len(takes)
    # kube-scheduler sends the nodes that pass its own filters.
    trial = service.trial
    sent = [name for name, refusal in trial.refusals(trial.record(candidate), names) if refusal is None]
    assert set(service.fits(case.pod, *sent)) == takes
    assert {room.node for room in service.view.rooms(candidate, names) if room.count} == takes
    assert_shown_by_the_service(service, record, seen)


def assert_shown_by_the_service(service: Service, record: PodRecord, seen: WaitingPod) -> None:
    decisions = Decisions(10, lambda: 0.0)
    states = Reader(service.ledger, service.view, decisions, lambda: None, lambda _: None)
    (shown,) = (pods for pods in asyncio.run(states.state()).waiting if pods.pod == f"default/{W}")
    assert shown.why == seen

    async def explain(_pod: str, _names: Any) -> list[Any]:
        return []

    reader = PodReader(service.ledger, service.view, decisions, explain, service.clock)
    assert asyncio.run(reader.read(f"default/{W}")).why == seen
    waits = Waits(service.ledger, service.view, lambda _: None, service.clock)
    for _ in waits.sync():
        pass
    assert waits.counts()[seen.cause] >= 1
    assert waits._waits[record.uid].cause == seen.cause
    if record.needs is None:
        return
    api = Recorder()
    service.ledger.put_pod(msgspec.structs.replace(record, status=msgspec.structs.replace(record.status, waits=True)))
    announcer = WaitingPods(api, service.ledger, service.view, service.clock)
    announcer.due()
    service.clock.now += 20
    (due,) = announcer.due().values()
    asyncio.run(announcer.post(due))
    assert api.notes == ([] if seen.fits else [text(seen)])


@pytest.mark.parametrize("title", [title for title, case in CASES.items() if not case.event])
def test_kubectl_says_the_same(title: str, ask: Ask, saved: Save) -> None:
    case = CASES[title]
    seen = Live(case).now()
    reports = [written(node.topology(), node.name, 200, "topowise-exporter") for node in case.nodes if node.is_reported]
    running = [document for node in case.nodes for document in node.all_pods()]
    file = saved(*reports, *(node.object() for node in case.nodes), *running, case.pod)
    step = " ".join(next_step(seen.step).split())
    listed = ask("explain", "--nodes-file", file, width=4000).text.splitlines()[1]
    assert re.split(r"\s{3,}", listed)[2:] == [seen.cause, step]
    explained = ask("explain", W, "--nodes-file", file, width=4000)
    assert f"fits {seen.counts.get('fits', 0)} of {len(case.nodes)} node" in explained.text
    assert explained.status == (0 if seen.counts.get("fits") else 1)
    fits = ask("fits", f"pod/{W}", "--nodes-file", file, width=4000)
    simulated = ask("simulate", f"pod/{W}", "--nodes-file", file, width=4000)
    assert (fits.status, simulated.status) == ((0, 0) if seen.fits else (1, 1))
    for shown in (explained.text, fits.text, simulated.text):
        assert (f"Next step: {step}" in shown) == (not seen.fits)
    (finding,) = (
        finding
        for finding in json.loads(ask("doctor", "-f", file, "-o", "json").text)
        if finding["names"] == [f"default/{W}"] and "cause" in finding["value"]
    )
    assert finding["mend"] == next_step(seen.step)
    assert f"cause {seen.cause}" in finding["value"]


@pytest.mark.parametrize("title", CASES)
def test_the_next_step_is_true(title: str) -> None:
    """The step is carried out, and the pod fits."""
    case = CASES[title]
    live = Live(case)
    seen = live.now()
    step = next_step(seen.step)
    if seen.fits or seen.cause == "never" or step.startswith("add a node"):
        return
    if uncordoned := re.match(r"uncordon (\S+)$", step):
        node = next(node for node in case.nodes if node.name == uncordoned[1])
        live.put_node(node._replace(spec={}).object())
    elif re.match(r"(uncordon|remove|repair \S+:)", step):
        for node in case.nodes:
            live.put_node(node._replace(spec={}, ready="True").object())
    elif step.startswith("change what the pod requires"):
        live.record = live.service.put({**case.pod, "spec": {"containers": case.pod["spec"]["containers"]}})
    elif less := re.match(r"(\d+) CPUs? less|memory (\d+)Mi less", step):
        document = json.loads(json.dumps(case.pod))
        changed = [*document["spec"].get("initContainers", ()), *document["spec"]["containers"]][0]
        for amount in (changed["resources"]["requests"], changed["resources"]["limits"]):
            if less[1]:
                amount["cpu"] = str(int(amount["cpu"]) - int(less[1]))
            else:
                amount["memory"] = f"{int(amount['memory'].removesuffix('Gi')) * 1024 - int(less[2])}Mi"
        live.record = live.service.put(document)
    elif names := re.findall(r"default/(\S+?)(?:,| |$)", step):
        for name in names:
            live.service.ledger.drop_pod(f"uid-{name}")
    elif step.startswith("topowise.io/device-affinity"):
        preferred = {name: text.replace("require", "prefer") for name, text in REQUIRE.items()}
        live.record = live.service.put({**case.pod, "metadata": {**case.pod["metadata"], "annotations": preferred}})
    elif step.startswith("repair the exporter"):
        repaired = case.nodes[0]._replace(exporter="True", running=case.nodes[0].unreported, unreported=())
        for document in repaired.all_pods():
            live.service.put(document)
        live.service.report(repaired.topology("8"))
        live.service.ledger.tick()
    elif step.startswith("wait: "):
        if case.event == "quarantine":
            live.service.clock.now += 301
            live.service.ledger.tick()
        elif case.event == "bind":
            late = pod("late", amounts("3"), node="n1")
            live.service.report(case.nodes[0]._replace(running=(late,)).topology())
        else:
            live.service.report(msgspec.structs.replace(case.nodes[0]._replace(unconfirmed="").topology()))
    else:
        raise AssertionError(f"no test carries out {step!r}")
    assert live.now().fits, live.now()


def test_a_pod_with_an_unreadable_annotation_waits_until_it_is_corrected() -> None:
    live = Live(CASES["free"]._replace(pod=w(amounts("2"), annotations={"topowise.io/numa-policy": "strict"})))
    seen = live.now()
    assert (seen.cause, seen.fits) == ("never", 0)
    assert next_step(seen.step).startswith("correct the pod: annotation topowise.io/numa-policy 'strict'")


def test_the_remaining_time_of_a_new_node_decreases_and_posts_no_further_event() -> None:
    live = Live(CASES["new node"])
    service = live.service
    first = live.now()
    service.clock.now += 61
    later = live.now()
    assert next_step(later.step) == "wait: n1 has not reported yet (expected within 40s)"
    assert later.topic == first.topic


def test_kubectl_and_the_service_name_the_constraint_between_pods(ask: Ask, saved: Save) -> None:
    """And only what neither examines is not evaluated."""
    nodes = [Node(name, labels={"kubernetes.io/hostname": name}) for name in ("n1", "n2")]
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "a"}}}
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    there = [pod(f"there-{node.name}", amounts("1"), node=node.name, labels={"app": "a"}) for node in nodes]
    gated = pod(W, amounts("1"), spec={"affinity": apart, "volumes": VOLUME, "schedulingGates": [{"name": GATE}]})
    service = Service("TightFit", places=True)
    for node in nodes:
        service.nodes.apply("ADDED", service.nodes.decode(json.dumps(node.object()).encode()))
        service.report(node.topology())
    for document in there:
        service.put(document)
    seen = waiting_pod(service.view, service.put(gated))
    assert (seen.cause, seen.counts, seen.unexamined) == ("other pods", {"not now": 2}, ("volumes",))
    reports = [written(node.topology(), node.name, 200, "topowise-exporter") for node in nodes]
    file = saved(*reports, *(node.object() for node in nodes), *there, gated)
    listed = ask("explain", "--nodes-file", file, width=4000)
    assert re.split(r"\s{3,}", listed.text.splitlines()[1])[2:] == ["other pods", next_step(seen.step)]
    explained = ask("explain", W, "--nodes-file", file, width=4000)
    assert "node(s) didn't match pod anti-affinity rules: kubernetes.io/hostname=n1" in explained.text
    for shown in (listed, explained):
        (note,) = [note for note in shown.notes if "not evaluated" in note]
        assert note.endswith("asks for volumes, which is not evaluated")


def test_gated_pods_are_listed_by_a_service_that_does_not_place(ask: Ask, saved: Save) -> None:
    """As by kubectl, with the reason; other duties do not see them."""
    node, service = Node(), Service("TightFit")
    service.nodes.apply("ADDED", service.nodes.decode(json.dumps(node.object()).encode()))
    service.report(node.topology())
    others = [{"name": GATE}, {"name": "example.com/other"}]
    gated = [
        pod("alone", amounts("1"), spec={"schedulingGates": [{"name": GATE}]}),
        pod("beside", amounts("2"), spec={"schedulingGates": others}),
    ]
    for document in gated:
        document["status"]["conditions"] = []
        service.put(document)
    states = Reader(service.ledger, service.view, Decisions(10, lambda: 0.0), lambda: None, lambda _: None)
    state = asyncio.run(states.state())
    assert {pods.pod: pods.why.cause for pods in state.waiting} == {
        "default/alone": "unplaced",
        "default/beside": "gated",
    }
    assert state.waiting_count == 2
    steps = {pods.pod: next_step(pods.why.step) for pods in state.waiting}
    assert steps["default/alone"] == f"set placement.enabled, or remove the gate {GATE}: nobody else removes it"
    assert not service.ledger.waiting
    assert not service.ledger.unscheduled
    file = saved(written(node.topology(), node.name, 200, "topowise-exporter"), node.object(), *gated)
    rows = [line.split()[0] for line in ask("explain", "--nodes-file", file, width=4000).text.splitlines()[1:]]
    assert rows == ["alone", "beside"]
    for document in gated:
        service.put({**document, "spec": {**document["spec"], "schedulingGates": None}})
    assert not service.ledger.without_node
