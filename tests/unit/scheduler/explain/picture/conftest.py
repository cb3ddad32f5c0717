"""Pictures of machines, most from kubelets with admitted pods."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import pytest

from topowise import pods
from topowise_scheduler.explain.picture import Picture, read
from topowise_scheduler.explain.picture.contents import (
    Cache,
    Device,
    Devices,
    Memory,
    Owner,
    Share,
    Socket,
    Thread,
    Zone,
)
from topowise_scheduler.explain.picture.contents import Core as DrawnCore
from topowise_scheduler.kubelet import (
    Core,
    DevicePlugin,
    Kubelet,
    KubeletConfiguration,
    Machine,
    MemoryReservation,
    NumaNode,
)
from topowise_scheduler.kubelet import Device as PluginDevice

GI = 1 << 30
GPU = "nvidia.com/gpu"
VF = "intel.com/e810_vf"


def nodes(
    cores: Sequence[int],
    *,
    threads: int = 2,
    memory: Sequence[int] | int = 64,
    nodes_per_socket: int = 1,
    cores_per_cache: int | None = None,
    hugepages: Sequence[Mapping[int, int]] = (),
    distances: Sequence[Sequence[int]] = (),
    ids: Sequence[int] = (),
) -> tuple[NumaNode, ...]:
    """NUMA nodes by number of cores, `memory` in GiB. CPU ids as on Linux: first threads, then second threads."""
    total, first, numa_nodes = sum(cores), 0, []
    for at, count in enumerate(cores):
        node_cores = [
            Core(
                socket=at // nodes_per_socket,
                threads=tuple(core + total * thread for thread in range(threads)),
                uncore=core // cores_per_cache if cores_per_cache else None,
            )
            for core in range(first, first + count)
        ]
        first += count
        numa_nodes.append(
            NumaNode(
                id=ids[at] if ids else at,
                memory=(memory if isinstance(memory, int) else memory[at]) * GI,
                cores=tuple(node_cores),
                hugepages=dict(hugepages[at]) if hugepages else {},
                distances=tuple(distances[at]) if distances else None,
            )
        )
    return tuple(numa_nodes)


def static(machine: Machine, policy: str = "single-numa-node", reserved: str = "0", **fields: Any) -> Kubelet:
    """Static CPU and memory managers; the `reserved` CPUs and 1 GiB of the first NUMA node are reserved."""
    configuration = KubeletConfiguration(
        topologyManagerPolicy=policy,
        cpuManagerPolicy="static",
        reservedSystemCPUs=reserved,
        memoryManagerPolicy="Static",
        systemReserved={"cpu": str(len(reserved.split(","))), "memory": "1Gi"},
        reservedMemory=(MemoryReservation(machine.nodes()[0].id, {"memory": "1Gi"}),),
        **fields,
    )
    return Kubelet(machine, configuration, predicates=False)


def run(kubelet: Kubelet, name: str, *, guaranteed: bool = True, **amounts: str) -> None:
    """Admits a pod with a single container with these requests and, if guaranteed, limits.

    "namespace/name" is its uid too. Resources are written as Python names: `hugepages_2Mi`, `gpu` and `vf` are devices.
    """
    full_names = {"gpu": GPU, "vf": VF, "hugepages_2Mi": "hugepages-2Mi", "hugepages_1Gi": "hugepages-1Gi"}
    requests = {full_names.get(key, key): amount for key, amount in amounts.items()}
    resources = pods.Resources(requests=requests, limits=requests if guaranteed else {})
    namespace, _, short = name.partition("/")
    pod = pods.Pod(
        metadata=pods.Metadata(name=short, namespace=namespace, uid=name),
        spec=pods.Spec(containers=(pods.Container("app", resources),)),
    )
    admission = kubelet.admit(pod)
    assert admission.admitted, (name, admission.message)


def drawn(kubelet: Kubelet, machine: Machine, node: str, **options: Any) -> Picture:
    """The picture of a kubelet whose pods have names as uids."""
    return read(kubelet, {uid: uid for uid in kubelet.active}, node=node, machine=machine, **options)


def tiny() -> Picture:
    """A NUMA node with two CPUs and no manager: no CPU has an owner."""
    machine = Machine(numa=nodes([2], threads=1, memory=4))
    kubelet = Kubelet(machine, KubeletConfiguration(), predicates=False)
    run(kubelet, "default/web", cpu="1", memory="1Gi")
    return drawn(kubelet, machine, "tiny", age="2s old")


def two_zones(precision: str = "exact") -> Picture:
    """Two sockets with GPUs, virtual functions (a single unhealthy), hugepages, and pods with all resources."""
    numa = nodes(
        [16, 16],
        hugepages=[{2048: 2048, 1 << 20: 4}, {2048: 2048, 1 << 20: 4}],
        distances=[[10, 21], [21, 10]],
    )
    functions = [
        PluginDevice(f"0000:{bus}:00.{number}", (at,), healthy=(at, number) != (1, 4))
        for at, bus in enumerate(("18", "98"))
        for number in range(1, 5)
    ]
    gpus = [PluginDevice("0000:3b:00.0", (0,)), PluginDevice("0000:bb:00.0", (1,))]
    machine = Machine(numa=numa, devices=(DevicePlugin(VF, tuple(functions)), DevicePlugin(GPU, tuple(gpus))))
    kubelet = static(
        machine, "single-numa-node", "0,32", cpuManagerPolicyOptions={"full-pcpus-only": "true"}, maxPods=250
    )
    run(kubelet, "default/router", cpu="8", memory="4Gi", vf="1", hugepages_2Mi="512Mi")
    run(kubelet, "ml/trainer-rank-0", cpu="6", memory="20Gi", gpu="1")
    run(kubelet, "ml/trainer-rank-1", cpu="6", memory="20Gi", gpu="1")
    run(kubelet, "default/database-0", cpu="4", memory="16Gi", hugepages_1Gi="2Gi")
    run(kubelet, "default/web-6d4b75cb6d-hx7xk", cpu="500m", memory="512Mi")
    run(kubelet, "default/sidecar", cpu="1500m")
    return drawn(kubelet, machine, "metal-2s", precision=precision, age="3s old")


def large(precision: str = "exact") -> Picture:
    """Two sockets of four NUMA nodes, 512 CPUs in caches of eight cores, eight GPUs, 40 pods."""
    rows = [[10 if a == b else 12 if a // 4 == b // 4 else 32 for b in range(8)] for a in range(8)]
    numa = nodes(
        [32] * 8,
        nodes_per_socket=4,
        memory=192,
        cores_per_cache=8,
        hugepages=[{2048: 8192} for _ in range(8)],
        distances=rows,
    )
    gpus = [PluginDevice(f"GPU-{at}f1c3a7e-5b2d-4c7e-9a10-6d2f8e4b7c{at:02}", (at,)) for at in range(8)]
    functions = [PluginDevice(f"0000:{16 + at:x}:0{n // 8}.{n % 8}", (at,)) for at in range(8) for n in range(24)]
    machine = Machine(numa=numa, devices=(DevicePlugin(GPU, tuple(gpus)), DevicePlugin(VF, tuple(functions))))
    kubelet = static(machine, "single-numa-node", "0,256", topologyManagerScope="pod")
    for number in range(6):
        run(kubelet, f"ml/llama-finetune-worker-{number}", cpu="24", memory="96Gi", gpu="1", vf="2")
    for number in range(18):
        run(kubelet, f"telco/upf-{number}", cpu="8", memory="8Gi", hugepages_2Mi="1Gi", vf="4")
    for number in range(16):
        run(
            kubelet, f"web/cache-7c9f9c9d5f-{'bcdfghjklmnpqrst'[number]}x2zz", cpu=str(2 + number % 3 * 2), memory="6Gi"
        )
    for number in range(60):
        run(kubelet, f"web/frontend-{number}", guaranteed=False, cpu="500m", memory="1Gi")
    return drawn(kubelet, machine, "metal-epyc-9755", precision=precision, age="12s old")


def group() -> Picture:
    """A pod with more memory than a NUMA node, which groups two NUMA nodes; the third stays ungrouped."""
    machine = Machine(numa=nodes([4, 4, 4], memory=8, distances=[[10, 16, 22], [16, 10, 22], [22, 22, 10]]))
    kubelet = static(machine, "restricted")
    run(kubelet, "db/warehouse", cpu="10", memory="10Gi")
    run(kubelet, "db/small", cpu="2", memory="3Gi")
    return drawn(kubelet, machine, "joined", age="1s old")


def wide_group() -> Picture:
    """Two pods in the same memory group: the memory manager has only their sum."""
    machine = Machine(numa=nodes([4, 4], memory=8))
    kubelet = static(machine, "best-effort")
    run(kubelet, "db/first", cpu="500m", memory="9Gi")
    assert kubelet.memory is not None
    kubelet.memory.hold("db/second", "app", (kubelet.memory.allocations["db/first"]["app"][0]._replace(size=3 * GI),))
    return drawn(kubelet, machine, "summed")


def odd() -> Picture:
    """NUMA nodes without CPUs (CXL) and without memory, gaps in the ids, devices of several nodes and of no node."""
    numa = nodes(
        [6, 6, 0],
        threads=2,
        memory=[32, 0, 128],
        ids=[0, 1, 4],
        distances=[[10, 21, 14], [21, 10, 24], [14, 24, 10]],
    )
    devices = (
        DevicePlugin("example.com/nvlink", (PluginDevice("nvlink-0", (0, 1)), PluginDevice("nvlink-1", (0, 1)))),
        DevicePlugin("example.com/license", tuple(PluginDevice(f"seat-{number}") for number in range(3))),
        DevicePlugin(GPU, (PluginDevice("0000:3b:00.0", (0,)),)),
    )
    machine = Machine(numa=numa, devices=devices)
    kubelet = static(machine, "best-effort", "0")
    run(kubelet, "default/one", cpu="4", memory="8Gi", **{"example.com/nvlink": "1", "example.com/license": "1"})
    run(kubelet, "default/cxl", cpu="2", memory="48Gi")
    return drawn(kubelet, machine, "odd", age="5s old")


def long_names() -> Picture:
    """Names of the maximum length in Kubernetes."""
    resource = f"{'very-long-vendor-domain.' * 3}example.com/{'r' * 63}"
    machine = Machine(
        numa=nodes([4, 4], memory=16, distances=[[10, 255], [255, 10]]),
        devices=(DevicePlugin(resource, tuple(PluginDevice(f"{'d' * 120}-{number}", (0,)) for number in range(2))),),
    )
    kubelet = static(machine)
    for letter in "ab":
        run(kubelet, f"{letter * 63}/{letter.upper() * 58}-{letter * 4}", cpu="2", memory="2Gi", **{resource: "1"})
    return drawn(kubelet, machine, "n" * 253, age="2 hours 14 minutes old, as the exporter does not answer any more")


def every_state() -> Picture:
    """Rare states: offline CPUs, unknown owners, zones of two sockets, cores of one and four threads."""

    def cores(first: int, threads: int, states: Iterable[Any]) -> tuple[DrawnCore, ...]:
        return tuple(
            DrawnCore(tuple(Thread(first + at * threads + number, *state) for number in range(threads)))
            for at, state in enumerate(states)
        )

    free, owned = ("free",), ("exclusive", 0)
    big = cores(0, 4, [("reserved",), free, owned, ("exclusive",), ("offline",)])
    little = cores(20, 1, [("shared",), free, ("exclusive", 1), free, free])
    shares = (Share("reserved", GI), Share("hugepages", GI), Share("held", GI), Share("held", 2 * GI, (0, 1)))
    zones = (
        Zone(
            id=7,
            sockets=(Socket(0, (Cache(0, big), Cache(1, little))), Socket(1, (Cache(None, cores(40, 2, [free] * 9)),))),
            memory=(Memory("memory", 8 * GI, (*shares, Share("free", 3 * GI))), Memory("hugepages-16Gi", 0, ())),
            devices=(
                Devices(
                    VF,
                    (
                        Device("<&\"'>", owner=1, is_held=True),
                        Device("bro\x1b[31mken\u202e", is_healthy=False),
                        Device("größe-機器", owner=None, is_held=True),
                        Device("", is_held=True, owner=0, is_healthy=False),
                    ),
                ),
            ),
        ),
        Zone(
            id=12,
            sockets=(),
            memory=(Memory("memory", 64 * GI, (Share("shared", 64 * GI),)), Memory("hugepages-16Gi", 0, ())),
        ),
    )
    owners = (Owner('a/<b attr="x">&', 4, frozenset(range(8, 12))), Owner("c/d", 1, frozenset({22})))
    return Picture(
        node="<&>", policy="none", scope="container", precision="exact", zones=zones, owners=owners, other_pods=1
    )


def crowded() -> Picture:
    """More pods than letters, and than characters of a bar on a terminal."""
    machine = Machine(numa=nodes([160], threads=1, memory=256))
    kubelet = static(machine, maxPods=250)
    for number in range(120):
        run(kubelet, f"crowd/pod-{number:03}", cpu="1", memory="1Gi")
    return drawn(kubelet, machine, "crowded")


SCENES: dict[str, Callable[[], Picture]] = {
    "tiny": tiny,
    "two-zones": two_zones,
    "two-zones-counts": lambda: two_zones("counts"),
    "large": large,
    "large-counts": lambda: large("counts"),
    "group": group,
    "summed": wide_group,
    "odd": odd,
    "long-names": long_names,
    "every-state": every_state,
    "crowded": crowded,
}


@cache
def _picture(name: str) -> Picture:
    return SCENES[name]()


@pytest.fixture
def picture_of() -> Callable[[str], Picture]:
    """The picture of a name; pictures are frozen and cached."""
    return _picture


@pytest.fixture(params=list(SCENES))
def picture(request: pytest.FixtureRequest) -> Picture:
    """Every picture in turn."""
    return _picture(request.param)
