"""Templates of a cluster of loaded bare-metal servers: NRTs by topowise-exporter, and pods.

The kubelet model loads some dozens of servers of 8 NUMA nodes and 5 resources with pods. Node names in their objects
are placeholders, so that a server serves as template of any number of nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from random import Random
from typing import Any, Final, NamedTuple

import msgspec

from sandbox.exported import exported
from topowise import nrt, pods, quantity
from topowise.kubeletconfig import KubeletConfiguration, MemoryReservation
from topowise_scheduler.kubelet import Core, Device, DevicePlugin, Kubelet, Machine, NumaNode

GI: Final = 1 << 30
GPU, NIC, PAGES = "nvidia.com/gpu", "intel.com/e810_vf", "hugepages-1Gi"
# Placeholders in templates, which occur in no other text.
NODE, NAME, UID, VERSION = b"@NODE-NAME@", b"@POD-NAME@", b"@POD-UID@", b"@VERSION@"

DISTINCT: Final = 50
PODS: Final = 30
_ZONES: Final = 8
_CREATED = "2026-11-20T06:25:24Z"


class Kind(NamedTuple):
    """A model of server: cores, GiB, hugepages of 1 GiB, GPUs and virtual functions of a NUMA node."""

    cores: int
    memory: int
    pages: int
    gpus: int
    functions: int


KINDS: Final = (Kind(12, 96, 8, 1, 8), Kind(10, 96, 8, 2, 4), Kind(16, 128, 8, 1, 16), Kind(8, 96, 8, 0, 8))


class Container(NamedTuple):
    """Requests and limits of a container; `kind` is "app", "init" or "sidecar"."""

    amounts: dict[str, str]
    is_guaranteed: bool = True
    kind: str = "app"


def _one(cpu: str, memory: str, **more: str) -> tuple[Container, ...]:
    named = {"gpu": GPU, "nic": NIC, "pages": PAGES}
    return (Container({"cpu": cpu, "memory": memory, **{named[key]: amount for key, amount in more.items()}}),)


SHAPES: Final[tuple[tuple[Container, ...], ...]] = (
    _one("2", "4Gi"),
    _one("1", "2Gi"),
    _one("4", "8Gi"),
    (Container({"cpu": "500m", "memory": "1Gi"}, is_guaranteed=False),),
    _one("8", "16Gi"),
    _one("4", "24Gi", nic="1"),
    (Container({}, is_guaranteed=False),),
    _one("4", "8Gi", nic="2", pages="2Gi"),
    _one("8", "32Gi", gpu="1"),
    _one("2", "2Gi") + _one("1", "1Gi"),
    (Container({"cpu": "100m", "memory": "200Mi"}, is_guaranteed=False),),
    _one("12", "32Gi"),
    (Container({"cpu": "1", "memory": "1Gi"}, kind="init"), *_one("4", "12Gi")),
    _one("6", "20Gi", gpu="1", nic="1"),
    (Container({"cpu": "1", "memory": "1Gi"}, kind="sidecar"), *_one("3", "6Gi")),
    _one("6", "16Gi", gpu="1") + _one("6", "16Gi", gpu="1"),
    (Container({"cpu": "2", "memory": "8Gi", GPU: "1"}, is_guaranteed=False),),
    _one("4", "4Gi", pages="4Gi") + _one("1", "1Gi", nic="1") + _one("1", "1Gi"),
    _one("12", "48Gi"),
    _one("40", "150Gi"),
)
# Most running pods are small; calls are about large pods as often as about small pods.
_OFTEN: Final = (0, 1, 2, 2, 3, 4, 4, 5, 6, 7, 8, 8, 9, 10, 11, 11, 12, 13, 14, 15, 16)


class Server(NamedTuple):
    """A loaded server. `reports` are its NRT without and with the newest pod, `pods` the older pods, part of a list."""

    kubelet: Kubelet
    reports: tuple[bytes, bytes]
    pods: bytes


def servers(policy: str) -> list[Server]:
    """Returns the distinct servers, equal at every call."""
    rng = Random(policy)
    return [_server(rng, policy, KINDS[number % len(KINDS)], number) for number in range(DISTINCT)]


def node(name: str, number: int) -> bytes:
    """Returns a v1.Node with the relevant fields."""
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/arch": "amd64", "node.kubernetes.io/instance-type": "m1"}
    metadata = {"name": name, "uid": f"a7d1{number:08}", "resourceVersion": "1000", "labels": labels}
    return msgspec.json.encode({"metadata": metadata, "spec": {}, "status": {"images": [{"names": ["x" * 60]}] * 30}})


def extender_pod(shape: int, name: str, extra: int = 0) -> bytes:
    """The pod of a question, with a placeholder for its version. `extra` bytes of memory on top make it a shape of its
    own."""
    document = _document(shape, "team-0", name, uid_of(name), "Pending", extra=extra)
    document["metadata"]["resourceVersion"] = VERSION.decode()
    return msgspec.json.encode(document)


def uid_of(name: str) -> str:
    """Returns the uid of the pod of a call."""
    return f"5e7b1c9a-0000-4000-8000-{name}"


@lru_cache(maxsize=256)
def pod_template(shape: int, phase: str, is_assigned: bool, is_ending: bool = False) -> bytes:
    """Returns a pod of a watch event, with placeholders for all names."""
    node_name = NODE.decode() if is_assigned else ""
    document = _document(shape, "team-0", NAME.decode(), UID.decode(), phase, node_name)
    document["metadata"]["resourceVersion"] = VERSION.decode()
    if is_ending:
        document["metadata"]["deletionTimestamp"] = _CREATED
    return msgspec.json.encode(document)


def _server(rng: Random, policy: str, kind: Kind, number: int) -> Server:
    machine = _machine(kind)
    configuration = KubeletConfiguration(
        topologyManagerPolicy=policy,
        cpuManagerPolicy="static",
        reservedSystemCPUs=f"0,{_ZONES * kind.cores}",
        memoryManagerPolicy="Static",
        reservedMemory=tuple(MemoryReservation(zone, {"memory": "1Gi"}) for zone in range(_ZONES)),
        systemReserved={"cpu": "2", "memory": f"{_ZONES}Gi"},
        evictionHard={},
    )
    kubelet = Kubelet(machine, configuration)
    names: dict[str, tuple[str, str]] = {}
    documents: list[dict[str, Any]] = []
    # The last pod occurs in reports only: the API server's watch has not delivered it yet.
    while len(documents) < PODS + 1:
        place = PODS - len(documents)
        shape = rng.choice(_OFTEN) if documents else 0
        uid = f"3c9e2f4d-{NODE.decode()}-{place:08}"
        name = f"app-{shape}-{number:02}7d9c5b6f4-{NODE.decode()}-{place:02}"
        started = f"2026-11-{10 + place // 3:02}T{rng.randrange(24):02}:{number:02}:{place:02}Z"
        document = _document(shape, f"team-{shape}", name, uid, "Running", NODE.decode(), started=started)
        pod = msgspec.convert(document, pods.Pod)
        if kubelet.admit(pod).admitted:
            names[uid] = pod.metadata.namespace, name
            documents.append(document)
            kubelet.start(uid)
    before = kubelet.fork()
    before.remove(documents[0]["metadata"]["uid"])
    reports = [_report(machine, configuration, state, names) for state in (before, kubelet)]
    listed = b",".join(map(msgspec.json.encode, documents[1:]))
    return Server(kubelet, (reports[0], reports[1]), listed)


def _report(
    machine: Machine, configuration: KubeletConfiguration, kubelet: Kubelet, names: dict[str, tuple[str, str]]
) -> bytes:
    report = exported(machine, configuration, kubelet, names.__getitem__)
    owner = nrt.OwnerReference("v1", "Node", NODE.decode(), "b5f85688-6c62-4d35-97fc-5ec9db1d8c31")
    metadata = msgspec.structs.replace(
        report.metadata,
        name=NODE.decode(),
        uid="2bfd7787-e5b9-4625-b551-31539d998064",
        resourceVersion=VERSION.decode(),
        generation=3,
        creationTimestamp=_CREATED,
        ownerReferences=(owner,),
    )
    document = msgspec.to_builtins(msgspec.structs.replace(report, metadata=metadata))
    document["metadata"]["managedFields"] = _managed("topowise-exporter", ("attributes", "zones", "metadata"))
    return msgspec.json.encode(document)


def _machine(kind: Kind) -> Machine:
    total = _ZONES * kind.cores
    numa = tuple(
        NumaNode(
            id=zone,
            memory=kind.memory * GI,
            cores=tuple(
                Core(zone // 4, (core, core + total)) for core in range(zone * kind.cores, (zone + 1) * kind.cores)
            ),
            hugepages={1 << 20: kind.pages},
            distances=tuple(
                10 if zone == neighbour else 12 if zone // 4 == neighbour // 4 else 32 for neighbour in range(_ZONES)
            ),
        )
        for zone in range(_ZONES)
    )
    return Machine(numa=numa, devices=tuple(_devices(kind)))


def _devices(kind: Kind) -> Iterator[DevicePlugin]:
    # GPUs go by an UUID, which no two servers share; virtual functions by their address, which most do.
    gpus = [
        Device(f"GPU-8f2c1d{zone}{number}-{NODE.decode()}-4f6e", (zone,))
        for zone in range(8)
        for number in range(kind.gpus)
    ]
    functions = [
        Device(f"0000:{0x18 + 16 * zone:02x}:{1 + number // 8:02x}.{number % 8}", (zone,))
        for zone in range(_ZONES)
        for number in range(kind.functions)
    ]
    for resource, listed in ((GPU, gpus), (NIC, functions)):
        if listed:
            yield DevicePlugin(resource, tuple(listed))


def _document(
    shape: int,
    namespace: str,
    name: str,
    uid: str,
    phase: str,
    node_name: str = "",
    *,
    started: str = "",
    extra: int = 0,
) -> dict[str, Any]:
    """Returns a v1.Pod of the usual size; topowise ignores most of its fields."""
    lists = _containers(shape, extra)
    return {
        "metadata": _metadata(shape, namespace, name, uid, started, is_assigned=bool(node_name)),
        "spec": _spec(lists, node_name),
        "status": _status(shape, phase, started, lists["containers"]),
    }


def _containers(shape: int, extra: int) -> dict[str, list[dict[str, Any]]]:
    lists: dict[str, list[dict[str, Any]]] = {"initContainers": [], "containers": []}
    last = len(SHAPES[shape]) - 1
    for place, container in enumerate(SHAPES[shape]):
        where = "containers" if container.kind == "app" else "initContainers"
        lists[where].append(_container(f"c{place}", container, extra if place == last else 0))
    return lists


def _metadata(shape: int, namespace: str, name: str, uid: str, started: str, *, is_assigned: bool) -> dict[str, Any]:
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"app-{shape}-7d9c5b6f4", "uid": "1"}
    managed = _managed("kube-controller-manager", ("f:labels", "f:ownerReferences", "f:spec"))
    if is_assigned:
        managed += _managed("kubelet", ("f:conditions", "f:containerStatuses", "f:podIPs"))
    return {
        "name": name,
        "namespace": namespace,
        "uid": uid,
        "resourceVersion": "1000",
        "creationTimestamp": started or _CREATED,
        "labels": {"app.kubernetes.io/name": f"app-{shape}", "pod-template-hash": "7d9c5b6f4", "team": f"team-{shape}"},
        "annotations": {"prometheus.io/scrape": "true"},
        "ownerReferences": [{**owner, "controller": True}],
        "managedFields": managed,
    }


def _spec(lists: dict[str, list[dict[str, Any]]], node_name: str) -> dict[str, Any]:
    return {
        **{key: listed for key, listed in lists.items() if listed},
        "priority": 0,
        "schedulerName": "default-scheduler",
        "serviceAccountName": "default",
        "terminationGracePeriodSeconds": 30,
        "tolerations": [
            {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
            for key in ("not-ready", "unreachable")
        ],
        "volumes": [
            {"name": "kube-api-access", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}
        ],
        **({"nodeName": node_name} if node_name else {}),
    }


def _status(shape: int, phase: str, started: str, containers: list[dict[str, Any]]) -> dict[str, Any]:
    is_guaranteed = all(container.is_guaranteed for container in SHAPES[shape])
    asks = any(container.amounts for container in SHAPES[shape])
    qos = "Guaranteed" if is_guaranteed else "Burstable" if asks else "BestEffort"
    status: dict[str, Any] = {"phase": phase, "qosClass": qos}
    if started or phase == "Running":
        status |= {
            "startTime": started or _CREATED,
            "podIP": "10.128.7.31",
            "conditions": [
                {"type": kind, "status": "True", "lastTransitionTime": _CREATED}
                for kind in ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
            ],
            "containerStatuses": [
                {
                    "name": container["name"],
                    "ready": True,
                    "image": container["image"],
                    "containerID": "containerd://" + "0a" * 32,
                }
                for container in containers
            ],
        }
    return status


def _container(name: str, container: Container, extra: int) -> dict[str, Any]:
    amounts: dict[str, Any] = dict(container.amounts)
    if extra:
        amounts["memory"] = str(quantity.value(amounts.get("memory", "1Gi")) + extra)
    resources: dict[str, Any] = {"requests": amounts} if amounts else {}
    if container.is_guaranteed:
        resources["limits"] = amounts
    elif limits := {key: amount for key, amount in amounts.items() if key == GPU}:
        resources["limits"] = limits
    return {
        "name": name,
        "image": "registry.example.com/team/application@sha256:" + "1f" * 32,
        "env": [{"name": f"VARIABLE_{number}", "value": "some value of it"} for number in range(6)],
        "resources": resources,
        "volumeMounts": [{"name": "kube-api-access", "mountPath": "/var/run/secrets", "readOnly": True}],
        **({"restartPolicy": "Always"} if container.kind == "sidecar" else {}),
    }


def _managed(manager: str, fields: Iterable[str]) -> list[dict[str, Any]]:
    owned: dict[str, dict[str, dict[str, str]]] = {
        name: {f"f:{part}": {} for part in ("name", "value", "type", "status", "ready")} for name in fields
    }
    return [
        {
            "manager": manager,
            "operation": "Apply",
            "time": _CREATED,
            "fieldsType": "FieldsV1",
            "fieldsV1": {"f:x": owned},
        }
    ]
