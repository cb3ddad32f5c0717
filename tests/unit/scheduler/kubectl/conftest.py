"""A cluster of the model, in the form of `kubectl get noderesourcetopologies,nodes,pods -A -o json`."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from sandbox.exported import exported
from topowise import nrt, pods
from topowise_scheduler.kubectl import arguments
from topowise_scheduler.kubectl.console import Console, Output
from topowise_scheduler.kubelet import (
    Core,
    Device,
    DevicePlugin,
    Kubelet,
    KubeletConfiguration,
    Machine,
    MemoryReservation,
    NumaNode,
)

Json = dict[str, Any]


class Shown(NamedTuple):
    """An answer as written to stdout and stderr."""

    text: str
    status: int
    notes: Sequence[str]


Ask = Callable[..., Shown]
Save = Callable[..., str]

GIB = 1 << 30
GPU = "nvidia.com/gpu"
VF = "intel.com/e810_vf"
NOW = 1_780_000_000.0
"""2026-05-28T20:26:40Z."""


def ago(seconds: int) -> str:
    """RFC 3339."""
    return datetime.fromtimestamp(NOW - seconds, UTC).isoformat().replace("+00:00", "Z")


def machine(cores: tuple[int, ...], *, gpus: int = 0, functions: int = 0, memory: int = 64) -> Machine:
    """A socket for each number of cores, two threads per core, devices on every socket."""
    total, first, nodes = sum(cores), 0, []
    for at, count in enumerate(cores):
        own = tuple(Core(at, (core, core + total)) for core in range(first, first + count))
        row = tuple(10 if column == at else 21 for column in range(len(cores)))
        nodes.append(NumaNode(at, memory * GIB, own, {2048: 1024}, row))
        first += count
    plugins = [
        DevicePlugin(name, tuple(Device(f"{prefix}{at}-{n}", (at,)) for at in range(len(cores)) for n in range(count)))
        for name, prefix, count in ((GPU, "gpu", gpus), (VF, "vf", functions))
        if count
    ]
    return Machine(numa=tuple(nodes), devices=tuple(plugins))


def configuration(on: Machine, **changed: Any) -> KubeletConfiguration:
    """All managers static; a core and a GiB of the first NUMA node are reserved."""
    base = KubeletConfiguration(
        topologyManagerPolicy="single-numa-node",
        cpuManagerPolicy="static",
        memoryManagerPolicy="Static",
        reservedSystemCPUs=",".join(map(str, on.numa[0].cores[0].threads)),
        systemReserved={"memory": "1Gi"},
        reservedMemory=(MemoryReservation(0, {"memory": "1Gi"}),),
        evictionHard={},
    )
    return msgspec.structs.replace(base, **changed)


def pod(name: str, node: str = "", *, started: int = 3600, guaranteed: bool = True, **amounts: str) -> Json:
    """A pod with a single container; `gpu` and `vf` are devices; the name may be "namespace/name"."""
    full_names = {"gpu": GPU, "vf": VF, "hugepages_2Mi": "hugepages-2Mi"}
    requests = {full_names.get(key, key): amount for key, amount in amounts.items()}
    resources = {"requests": requests, "limits": requests} if guaranteed else {"requests": requests}
    namespace, _, short = name.rpartition("/")
    document: Json = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": short,
            "namespace": namespace or "default",
            "uid": f"uid-{short}",
            "creationTimestamp": ago(started),
        },
        "spec": {"containers": [{"name": "app", "image": "pause", "resources": resources}]},
        "status": {"phase": "Pending"},
    }
    if node:
        document["spec"]["nodeName"] = node
        document["status"] = {"phase": "Running", "startTime": ago(started)}
    return document


def node(name: str, labels: Json | None = None, *, cpu: str = "64", gpus: int = 0, **spec: Any) -> Json:
    """A ready Node."""
    allocatable = {"cpu": cpu, "memory": "120Gi", "hugepages-2Mi": "4Gi", "pods": "110", GPU: str(gpus), VF: "8"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "uid": f"uid-{name}", "labels": labels or {}},
        "spec": spec,
        "status": {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def report(name: str, on: Machine, config: KubeletConfiguration, running: Iterable[Json], changed: int = 200) -> Json:
    """The NRT object of topowise-exporter for a node that admitted the pods in this order."""
    kubelet = Kubelet(on, config)
    names: dict[str, tuple[str, str]] = {}
    for document in running:
        decoded = msgspec.convert(document, pods.Pod)
        admission = kubelet.admit(decoded)
        assert admission.admitted, admission.message
        names[decoded.metadata.uid] = (decoded.metadata.namespace, decoded.metadata.name)
    return written(exported(on, config, kubelet, names.__getitem__), name, changed, "topowise-exporter")


def written(topology: nrt.NodeResourceTopology, name: str, changed: int, *managers: str) -> Json:
    """The object as the API server returns it."""
    document: Json = msgspec.to_builtins(topology)
    document["metadata"] = {
        **document["metadata"],
        "name": name,
        "resourceVersion": "7",
        "creationTimestamp": ago(86_400),
        "managedFields": [
            {"manager": manager, "operation": "Apply", "time": ago(changed), "fieldsV1": {"f:zones": {}}}
            for manager in managers
        ],
    }
    return {"apiVersion": nrt.API_VERSION, "kind": nrt.KIND, **document}


def counted(name: str, free: tuple[str, ...], policy: str = "restricted") -> Json:
    """An object of another exporter: amounts only."""
    return {
        "apiVersion": nrt.API_VERSION,
        "kind": nrt.KIND,
        "metadata": {"name": name, "creationTimestamp": ago(86_400), "resourceVersion": "9"},
        "attributes": [
            {"name": "topologyManagerPolicy", "value": policy},
            {"name": "topologyManagerScope", "value": "pod"},
        ],
        "zones": [
            {
                "name": f"node-{at}",
                "type": "Node",
                "resources": [
                    {"name": "cpu", "capacity": "16", "allocatable": "16", "available": cpus},
                    {"name": "memory", "capacity": "32Gi", "allocatable": "32Gi", "available": "20Gi"},
                ],
            }
            for at, cpus in enumerate(free)
        ],
    }


TWO = machine((16, 16), gpus=1, functions=4)
EIGHT = machine((8,) * 8, memory=32)

ROUTER = pod("telco/router", "metal-a", cpu="8", memory="4Gi", vf="1", hugepages_2Mi="512Mi")
TRAINER = pod("ml/trainer", "metal-a", cpu="12", memory="20Gi", gpu="1", started=3000)
WEB = pod("web/frontend-7d9c", "metal-a", cpu="500m", memory="512Mi", guaranteed=False)
DATABASE = pod("db/postgres-0", "metal-b", cpu="20", memory="40Gi")
LATE = pod("ml/late", "metal-b", cpu="6", memory="8Gi", gpu="1", started=600)
SPREAD = [
    pod(f"batch/worker-{at}", "metal-c", cpu=str(2 + at % 3 * 4), memory="4Gi", started=900 - at) for at in range(7)
]


@cache
def cluster() -> tuple[Json, ...]:
    """Nodes: two with two sockets, a node of eight NUMA nodes, a node of counts, an unreported and a cordoned node."""
    return (
        report("metal-a", TWO, configuration(TWO), (ROUTER, TRAINER, WEB)),
        report("metal-b", TWO, configuration(TWO), (DATABASE,), changed=1800),
        report("metal-c", EIGHT, configuration(EIGHT, topologyManagerScope="pod"), SPREAD, changed=90_000),
        counted("edge-1", ("9", "2")),
        node("metal-a", {"pool": "metal"}, gpus=2),
        node("metal-b", {"pool": "metal"}, gpus=2),
        node("metal-c", cpu="126"),
        node("edge-1", cpu="32"),
        node("plain", cpu="4"),
        node("resting", cpu="96", gpus=8, unschedulable=True),
        *(ROUTER, TRAINER, WEB, DATABASE, LATE, *SPREAD),
    )


@cache
def many() -> tuple[Json, ...]:
    """Two machines and 300 small machines with different free amounts; half of the small reports are broken."""
    small = [counted(f"edge-{at:03}", (str(at % 7), str(at % 5)), "single-numa-node") for at in range(300)]
    for broken in small[::2]:
        broken["zones"][0]["resources"][0]["available"] = "much"
    return (*cluster()[:2], *small)


@pytest.fixture
def saved(tmp_path: Path) -> Save:
    """Writes objects as a List of kubectl; by default the objects of the cluster."""

    def save(*items: Json, name: str = "cluster.json") -> str:
        file = tmp_path / name
        file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(items or cluster())}))
        return str(file)

    return save


@pytest.fixture
def saved_many(saved: Save) -> str:
    """The file of hundreds of nodes."""
    return saved(*many(), name="many.json")


def ask_with(*words: str, width: int | None = None, **console: Any) -> Shown:
    """The answer of a command; `width` None is a pipe."""
    options = arguments.parser("0").parse_args(list(words))
    command = importlib.import_module(f"topowise_scheduler.kubectl.{options.command}")
    answer: Output = command.run(options, Console(width, width or 100, now=NOW, **console))
    return Shown(answer.text, answer.status, answer.notes)


@pytest.fixture
def ask() -> Ask:
    """Runs a command of the plugin from its command line."""
    return ask_with


@pytest.fixture
def metal_a() -> Kubelet:
    """The kubelet of metal-a, equal to its report."""
    kubelet = Kubelet(TWO, configuration(TWO))
    for document in (ROUTER, TRAINER, WEB):
        kubelet.admit(msgspec.convert(document, pods.Pod))
    return kubelet
