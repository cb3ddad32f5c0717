"""Random machines, kubelets with pods, and pods, as odd as the model allows."""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

from kubelets import kubelet_of, machine_of, pod_of
from topowise import pods
from topowise.errors import ConfigError
from topowise_scheduler.kubelet import (
    Core,
    Device,
    DevicePlugin,
    Kubelet,
    KubeletConfiguration,
    KubeletStartError,
    Machine,
    MemoryBlock,
    MemoryReservation,
    NumaNode,
    Placement,
)
from topowise_scheduler.kubelet.versions import version_of

GI = 1 << 30
GPU, NIC, FPGA = "x.io/gpu", "x.io/nic", "x.io/fpga"
# A version for each behaviour; the newest recorded version twice.
VERSIONS = ("v1.28.15", "v1.30.14", "v1.31.14", "v1.33.13", "v1.34.9", "v1.36.2", "v1.36.2", "v1.37.0", "v1.38.0")
POLICIES = ("none", "best-effort", "restricted", "single-numa-node")


class Node(NamedTuple):
    """A loaded kubelet, and an empty kubelet with the same hardware and devices."""

    kubelet: Kubelet
    empty: Kubelet


def node(rng: Random, policy: str | None = None, *, load: int | None = None) -> Node:
    """Returns a node with up to `load` pods."""
    while True:
        hardware = machine(rng)
        config = configuration(rng, hardware, policy or rng.choice(POLICIES))
        checked = rng.random() < 0.7
        version = version_of(rng.choice(VERSIONS))
        try:
            kubelet = Kubelet(hardware, config, version=version, predicates=checked)
        except (KubeletStartError, ConfigError):
            continue
        empty = kubelet.fork()
        _load(rng, kubelet, rng.randint(0, 10) if load is None else load)
        for resource, table in kubelet.devices.tables.items():
            empty.devices.report(resource, table)
        return Node(kubelet, empty)


def even_node(rng: Random) -> Node:
    """Returns a node of equal cores and NUMA nodes, on which amounts decide how many CPUs each NUMA node gives."""
    zones = rng.choice((1, 2, 2, 2, 4))
    gpus = [Device(f"gpu{number}", (number % zones,)) for number in range(2 * zones)]
    kubelet = kubelet_of(
        machine_of(
            *[rng.choice((2, 3, 4, 6))] * zones,
            threads=rng.choice((1, 2, 2)),
            nodes_per_socket=rng.choice((1, 1, 2)),
            devices={GPU: gpus} if rng.random() < 0.4 else {},
        ),
        topologyManagerPolicy=rng.choice(POLICIES[1:]),
        topologyManagerScope=rng.choice(("container", "container", "pod")),
        cpuManagerPolicyOptions={"full-pcpus-only": "true"} if rng.random() < 0.2 else {},
        memoryManagerPolicy="None",
        reservedMemory=(),
    )
    empty = kubelet.fork()
    for number in range(rng.randint(0, 4)):
        kubelet.admit(pod_of_cpus(rng, f"p{number}"))
        if rng.random() < 0.3:
            kubelet.remove(f"p{rng.randint(0, number)}")
    return Node(kubelet, empty)


def pod_of_cpus(rng: Random, uid: str = "new") -> pods.Pod:
    """Returns a Guaranteed pod of several containers with exclusive CPUs, often after init containers and sidecars."""

    def limits(most: int) -> list[dict[str, str]]:
        return [
            {"cpu": rng.choice("1123457"), "memory": "64Mi"} | ({GPU: "1"} if rng.random() < 0.2 else {})
            for _ in range(rng.randint(0, most))
        ]

    return pod_of(uid, *limits(2), {"cpu": rng.choice("1234"), "memory": "64Mi"}, init=limits(3), sidecars=limits(1))


def pod(rng: Random, uid: str = "new") -> pods.Pod:
    """Returns a pod; often Guaranteed, sometimes with init containers, sidecars and pod-level resources."""
    guaranteed = rng.random() < 0.8
    steps = [_container(rng, f"c{number}", guaranteed) for number in range(rng.choice((1, 1, 1, 2, 2, 3)))]
    before = [
        _container(rng, f"i{number}", guaranteed, rng.choice((None, None, "Always")))
        for number in range(rng.choice((0, 0, 0, 1, 1, 2)))
    ]
    level = None
    if rng.random() < 0.06:
        amounts = {"cpu": str(rng.randint(2, 8)), "memory": f"{rng.randint(2, 8)}Gi"}
        level = pods.Resources(requests=amounts, limits=amounts)
    return pods.Pod(
        metadata=pods.Metadata(name=uid, namespace="default", uid=uid),
        spec=pods.Spec(
            containers=tuple(steps),
            initContainers=tuple(before),
            resources=level,
            overhead={"cpu": "100m"} if rng.random() < 0.05 else None,
        ),
        status=pods.Status(qosClass=rng.choice(("Guaranteed", "Burstable"))) if rng.random() < 0.03 else None,
    )


def machine(rng: Random) -> Machine:
    zones = rng.choice((1, 2, 2, 2, 3, 4, 4, 5, 8, 8))
    ids = sorted(rng.sample(range(zones + 3), zones)) if rng.random() < 0.2 else list(range(zones))
    threads = rng.choice((1, 2, 2, 2))
    even = rng.random() < 0.7
    per_socket = rng.choice((1, 1, 2, zones))
    cores = [rng.choice((2, 4, 6))] * zones if even else [rng.choice((0, 2, 4, 7)) for _ in range(zones)]
    if not any(cores):
        cores[0] = 2
    total, first = sum(cores), 0
    shown = rng.random() < 0.5
    memory = rng.choice((6, 12, 24))
    pages = rng.random() < 0.4
    numa = []
    for position, count in enumerate(cores):
        cores_of_zone = []
        for core in range(first, first + count):
            thread_numbers = range(threads if even or rng.random() < 0.9 else 1)
            cores_of_zone.append(
                Core(socket=position // per_socket, threads=tuple(core + total * thread for thread in thread_numbers))
            )
        first += count
        hugepages = {2048: rng.choice((0, 256, 512))} if pages else {}
        if pages and rng.random() < 0.3:
            hugepages[1 << 20] = rng.randint(0, 2)
        numa.append(
            NumaNode(
                id=ids[position],
                memory=memory * GI
                if even
                else rng.choice((0, 3, 8, 20) if rng.random() < 0.3 else (5, 8, 20)) * GI + rng.randint(0, 3),
                cores=tuple(cores_of_zone),
                hugepages=hugepages,
                distances=tuple(
                    10 if neighbour == position else rng.choice((12, 20, 20, 32)) for neighbour in range(zones)
                )
                if shown
                else None,
            )
        )
    return Machine(numa=tuple(numa), devices=tuple(_devices(rng, ids)), ephemeral_storage=rng.choice((None, 10 * GI)))


def _devices(rng: Random, ids: list[int]) -> list[DevicePlugin]:
    plugins = []
    for resource in (GPU, NIC, FPGA):
        if rng.random() < 0.25:
            continue
        kind = rng.choice(("all", "all", "some", "none", "odd"))
        near = ids if kind == "all" else rng.sample(ids, rng.randint(1, len(ids)))
        devices = []
        for number in range(rng.choice((0, 1, len(near), 2 * len(near), 3 * len(near)))):
            numa: tuple[int, ...] | None = (rng.choice(near),)
            if kind == "none":
                numa = rng.choice((None, None, ()))
            elif kind == "odd" and rng.random() < 0.4:
                numa = rng.choice((None, (), (99,), tuple(rng.sample(ids, min(2, len(ids))))))
            devices.append(Device(f"{resource[-3:]}{number}", numa, rng.random() < 0.93))
        plugins.append(DevicePlugin(resource, tuple(devices), rng.choice(("", "", "first", "last"))))
    return plugins


def configuration(rng: Random, machine: Machine, policy: str) -> KubeletConfiguration:
    fields: dict[str, Any] = {
        "topologyManagerPolicy": policy,
        "topologyManagerScope": rng.choice(("container", "container", "pod")),
        "systemReserved": {"cpu": rng.choice(("1", "2", "500m")), "memory": "1Gi"},
        "maxPods": rng.choice((110, 110, 3)),
    }
    options: dict[str, str] = {}
    if rng.random() < 0.2:
        options["prefer-closest-numa-nodes"] = "true"
    if policy == "single-numa-node" and rng.random() < 0.25:
        options["prefer-most-allocated-numa-node"] = "true"
    fields["topologyManagerPolicyOptions"] = options
    if rng.random() < 0.85:
        fields["cpuManagerPolicy"] = "static"
        on: dict[str, str] = {}
        for name, share in (
            ("full-pcpus-only", 0.25),
            ("strict-cpu-reservation", 0.2),
            ("distribute-cpus-across-numa", 0.1),
            ("align-by-socket", 0.05),
            ("prefer-align-cpus-by-uncorecache", 0.1),
            ("distribute-cpus-across-cores", 0.05),
        ):
            if rng.random() < share:
                on[name] = "true"
        fields["cpuManagerPolicyOptions"] = on
    if rng.random() < 0.85:
        fields["memoryManagerPolicy"] = "Static"
        where = max(machine.numa, key=lambda node: (node.memory, rng.random()))
        fields["reservedMemory"] = (MemoryReservation(where.id, {"memory": "1Gi"}),)
    gates = {}
    if rng.random() < 0.08:
        gates["PodLevelResourceManagers"] = True
    if rng.random() < 0.05:
        gates["PodLevelResources"] = False
    if rng.random() < 0.7:
        # Which 1.28 does not have on by itself.
        gates["SidecarContainers"] = True
    fields["featureGates"] = gates
    return KubeletConfiguration(**fields)


def _container(rng: Random, name: str, guaranteed: bool, policy: str | None = None) -> pods.Container:
    limits: dict[str, Any] = {
        "cpu": rng.choice(("1", "1", "2", "2", "2", "3", "4", "4", "6", "9", "14", "500m", "1500m")),
        "memory": rng.choice(("64Mi", "64Mi", "1Gi", "1Gi", "2Gi", "3Gi", "5Gi", "9Gi", "17Gi", "30Gi")),
    }
    if rng.random() < 0.01:
        limits["memory"] = "1500m"
    if rng.random() < 0.15:
        limits["hugepages-2Mi"] = rng.choice(("2Mi", "256Mi", "600Mi", "1Gi"))
    if rng.random() < 0.04:
        limits["hugepages-1Gi"] = "1Gi"
    for resource, share in ((GPU, 0.3), (NIC, 0.25), (FPGA, 0.06), ("x.io/unknown", 0.03)):
        if rng.random() < share:
            limits[resource] = rng.choice(("1", "1", "1", "1", "2", "3", "5", "0"))
    if rng.random() < 0.05:
        limits["ephemeral-storage"] = rng.choice(("1Gi", "20Gi"))
    requests = None
    if not guaranteed:
        if rng.random() < 0.3:
            del limits["cpu"], limits["memory"]
        else:
            requests = {**limits, "cpu": "100m"}
    return pods.Container(name, pods.Resources(requests=requests, limits=limits), policy)


def _load(rng: Random, kubelet: Kubelet, count: int) -> None:
    for number in range(count):
        uid = f"p{number}"
        if rng.random() < 0.06:
            _hold(rng, kubelet, uid)
            continue
        kubelet.admit(pod(rng, uid))
        if rng.random() < 0.3:
            kubelet.start(uid)
        if rng.random() < 0.15:
            kubelet.remove(f"p{rng.randint(0, number)}")


def _hold(rng: Random, kubelet: Kubelet, uid: str) -> None:
    """A pod as reported, wherever it is: not always where the model would have put it."""
    ids = kubelet.node_ids
    where = tuple(sorted(rng.sample(ids, rng.choice((1, 1, min(2, len(ids)))))))
    blocks = (MemoryBlock("memory", where, rng.choice((GI, 3 * GI))),)
    devices: dict[str, tuple[str, ...]] = {GPU: ("gpu0",)} if rng.random() < 0.3 else {}
    if rng.random() < 0.1:
        devices[NIC] = ("gone",)
    kubelet.hold(uid, {"cpu": 2000, "memory": GI}, {"c0": Placement("app", where, True, None, blocks, devices)})
