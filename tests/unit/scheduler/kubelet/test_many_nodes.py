"""Machines with dozens of NUMA nodes: the model is fast, and estimates how slow the kubelet is."""

from __future__ import annotations

import time

import msgspec
import pytest

from kubelets import GI, pod_of
from topowise import pods
from topowise.errors import ConfigError
from topowise_scheduler.kubelet import (
    Admission,
    Core,
    Device,
    DevicePlugin,
    Kubelet,
    KubeletConfiguration,
    Machine,
    MemoryReservation,
    NumaNode,
    cost,
    version_of,
)
from topowise_scheduler.kubelet.cpu_manager import CpuManager
from topowise_scheduler.kubelet.hints import Hint, Hints
from topowise_scheduler.kubelet.masks import masks_in

GPUS = "nvidia.com/gpu"
POLICIES = ("best-effort", "restricted", "single-numa-node")


def _grace(bare: int = 32, *, memory: int = 0, distances: bool = False) -> Machine:
    """A machine such as GB200: two sockets with CPUs, memory and four GPUs, and NUMA nodes of GPU memory."""
    total = 2 + bare
    rows = [tuple(10 if row == column else 20 + abs(row - column) for column in range(total)) for row in range(total)]
    numa = tuple(
        NumaNode(
            id=number,
            memory=480 * GI if number < 2 else memory,
            cores=tuple(Core(number, (72 * number + core,)) for core in range(72)) if number < 2 else (),
            distances=rows[number] if distances else None,
        )
        for number in range(total)
    )
    gpus = tuple(Device(f"gpu{number}", (number // 2,)) for number in range(4))
    return Machine(numa=numa, devices=(DevicePlugin(GPUS, gpus),))


def _config(policy: str, **fields: object) -> KubeletConfiguration:
    changed = {
        "topologyManagerPolicy": policy,
        "topologyManagerPolicyOptions": {"max-allowable-numa-nodes": "64"},
        "cpuManagerPolicy": "static",
        "reservedSystemCPUs": "0,72",
        "systemReserved": {"memory": "1Gi"},
    }
    return msgspec.convert(changed | fields, KubeletConfiguration)


MEMORY: dict[str, object] = {
    "memoryManagerPolicy": "Static",
    "reservedMemory": [{"numaNode": 0, "limits": {"memory": "1Gi"}}],
}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("version", ["v1.33.5", "v1.36.2", "v1.38.0"])
def test_a_pod_is_decided_in_milliseconds_on_34_nodes(policy: str, version: str) -> None:
    kubelet = Kubelet(_grace(), _config(policy, **MEMORY), version=version_of(version))
    kubelet.admit(pod_of("warm", {"cpu": "4", "memory": "1Gi", GPUS: "1"}))
    started = time.process_time()
    for number in range(3):
        assert kubelet.admit(pod_of(f"p{number}", {"cpu": "30", "memory": "100Gi", GPUS: "1"})).admitted
    assert time.process_time() - started < 0.3


def test_a_hint_of_all_nodes_includes_omitted_nodes() -> None:
    kubelet = Kubelet(_grace(), _config("best-effort"))
    assert len(kubelet.node_ids) == 8
    placed = kubelet.admit(pod_of("p", {"cpu": "500m", "memory": "1Gi"}))
    assert placed.placements["c0"].numa == tuple(range(34))
    assert kubelet.admit(pod_of("two", {"cpu": "100", "memory": "1Gi"})).placements["c0"].numa == (0, 1)


def test_memory_of_omitted_nodes_counts() -> None:
    kubelet = Kubelet(_grace(memory=96 * GI), _config("best-effort"))
    assert kubelet.allocatable()["memory"] == (2 * 480 + 32 * 96 - 1) * GI
    assert kubelet.devices.positions == {number: number for number in range(8)}


Decided = tuple[Admission, tuple[int, ...] | None]


def _shown(kubelet: Kubelet, admission: Admission) -> Decided:
    """The admission and its merged mask as node ids; positions in a mask depend on the modelled nodes."""
    rejection = admission.rejection
    if rejection is None or rejection.merged is None:
        return admission, None
    mask = rejection.merged.mask
    bare = msgspec.structs.replace(rejection, merged=Hint(None, rejection.merged.preferred))
    return msgspec.structs.replace(admission, rejection=bare), None if mask is None else kubelet.ids(mask)


def _lives(machine: Machine, config: KubeletConfiguration, version: str) -> list[Decided]:
    kubelet = Kubelet(machine, config, version=version_of(version))
    requests = [
        {"cpu": "40", "memory": "100Gi", GPUS: "1"},
        {"cpu": "50", "memory": "500Gi"},
        {"cpu": "500m", "memory": "1Gi", GPUS: "3"},
        {"cpu": "90", "memory": "300Gi"},
        {"memory": "1Gi"},
        {"cpu": "20", "memory": "1Gi", GPUS: "0"},
    ]
    decisions = []
    for number, limits in enumerate(requests):
        decisions.append(_shown(kubelet, kubelet.admit(pod_of(f"p{number}", limits))))
        if number == 3:
            kubelet.remove("p0")
    return decisions


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("memory", [{}, MEMORY], ids=["cpus-and-devices", "memory-too"])
@pytest.mark.parametrize("version", ["v1.33.5", "v1.36.2", "v1.38.0"])
@pytest.mark.parametrize("closest", ["false", "true"])
def test_omitted_nodes_do_not_change_decisions(
    monkeypatch: pytest.MonkeyPatch, policy: str, memory: dict[str, object], version: str, closest: str
) -> None:
    # Eleven nodes are few enough to be modelled in full.
    machine = _grace(9, distances=True)
    options = {"max-allowable-numa-nodes": "64", "prefer-closest-numa-nodes": closest}
    config = _config(policy, topologyManagerPolicyOptions=options, **memory)
    shortened = _lives(machine, config, version)
    assert len(Kubelet(machine, config).node_ids) == 8
    monkeypatch.setattr(Machine, "modelled", lambda self, *, with_memory: self)
    assert shortened == _lives(machine, config, version)


def test_too_many_relevant_nodes_for_masks_are_refused() -> None:
    with pytest.raises(ConfigError, match="has 34 NUMA nodes, masks are modelled up to 16"):
        Kubelet(_grace(memory=96 * GI), _config("restricted", **MEMORY))


def test_a_new_device_near_an_omitted_node_is_an_error() -> None:
    kubelet = Kubelet(_grace(), _config("restricted"))
    kubelet.report_devices(GPUS, [Device("gpu0", (1,)), Device("gpu1", (7,))])
    with pytest.raises(ConfigError, match="gpu is now near NUMA nodes"):
        kubelet.report_devices(GPUS, [Device("gpu0", (33,))])


ALL_OF_EIGHT = (1 << 256) - 2


@pytest.mark.parametrize(
    ("hints", "policy", "expected"),
    [
        pytest.param([Hints(ALL_OF_EIGHT, 0)] * 4, "restricted", 255**4, id="four resources on eight nodes"),
        pytest.param([], "restricted", 1, id="nothing to align"),
        pytest.param([Hints(0, 0), Hints(0b110, 0b110)], "best-effort", 2, id="an impossible resource is one hint"),
        pytest.param([Hints(ALL_OF_EIGHT, 0b10110)] * 2, "single-numa-node", 9, id="only preferred single nodes"),
        pytest.param([Hints(0, 0), Hints(0b110, 0b110)], "single-numa-node", 0, id="nothing left to merge"),
    ],
)
def test_a_merge_tries_one_hint_of_each_resource(hints: list[Hints], policy: str, expected: int) -> None:
    assert cost.combinations(hints, policy=policy, nodes=8) == expected


def test_the_reported_21_minutes_are_estimated() -> None:
    assert 15 < cost.Cost(4 * 255, 255**4).seconds / 60 < 30


def _machine(nodes: int) -> Machine:
    cores = [tuple(Core(node // 4, (8 * node + core,)) for core in range(8)) for node in range(nodes)]
    devices = DevicePlugin(GPUS, (Device("gpu0", (0,)), Device("gpu1", (1,))))
    return Machine(
        numa=tuple(NumaNode(node, 16 * GI, node_cores, {2048: 512}) for node, node_cores in enumerate(cores)),
        devices=(devices,),
    )


def test_the_cost_of_a_pod_is_counted_by_merge_and_manager() -> None:
    config = _config("restricted", **(MEMORY | {"reservedSystemCPUs": "0"}))
    limits = {"cpu": "1", "memory": "1Gi", "hugepages-2Mi": "2Mi", GPUS: "1"}
    spent = {}
    for version in ("v1.35.6", "v1.36.2"):
        kubelet = Kubelet(_machine(8), config, version=version_of(version))
        before = kubelet.fork()
        spent[version] = cost.estimate(kubelet, kubelet.view("p", pods.needs(pod_of("p", limits))))
        assert kubelet.active == before.active
    # CPUs, memory and hugepages have all masks; devices have masks with node 0 or 1, or only masks of these nodes.
    assert spent["v1.35.6"] == cost.Cost(3 * 255, 255**3 * 192)
    assert spent["v1.36.2"] == cost.Cost(2 * 255 + 3, 255**3 * 3)
    assert spent["v1.35.6"].seconds > 900 > 20 > spent["v1.36.2"].seconds


def test_only_an_old_kubelet_enumerates_masks_of_34_nodes() -> None:
    needs = pods.needs(pod_of("p", {"cpu": "4", "memory": "1Gi", GPUS: "1"}))
    hours = {}
    for version in ("v1.35.6", "v1.36.2"):
        kubelet = Kubelet(_grace(), _config("restricted"), version=version_of(version))
        hours[version] = cost.estimate(kubelet, kubelet.view("p", needs)).seconds / 3600
    assert hours["v1.35.6"] > 3
    assert hours["v1.36.2"] < 1e-6


@pytest.mark.parametrize("version", ["v1.35.6", "v1.36.2"])
@pytest.mark.parametrize("memory", [{}, MEMORY], ids=["cpus-and-devices", "memory-too"])
def test_omitted_nodes_do_not_change_the_cost(
    monkeypatch: pytest.MonkeyPatch, version: str, memory: dict[str, object]
) -> None:
    needs = pods.needs(pod_of("p", {"cpu": "4", "memory": "1Gi", GPUS: "1"}, {"cpu": "80", "memory": "1Gi"}))

    def spent() -> cost.Cost:
        kubelet = Kubelet(_grace(9), _config("restricted", **memory), version=version_of(version))
        return cost.estimate(kubelet, kubelet.view("p", needs))

    shortened = spent()
    monkeypatch.setattr(Machine, "modelled", lambda self, *, with_memory: self)
    full = spent()
    assert shortened.masks == full.masks
    # The kubelet groups no node that is in single-node use; the estimate ignores that.
    assert shortened.combinations == pytest.approx(full.combinations, rel=0.001)


def test_policy_none_costs_nothing() -> None:
    kubelet = Kubelet(_machine(8), _config("none"))
    needs = pods.needs(pod_of("p", {"cpu": "4", "memory": "1Gi"}))
    assert cost.estimate(kubelet, kubelet.view("p", needs)) == cost.Cost()


def test_reserved_memory_stays_on_its_node() -> None:
    # The reservation of a node is found by its id, independent of omitted nodes.
    nodes = tuple(
        NumaNode(number, 8 * GI if number in (0, 12) else 0, (Core(number, (number,)),) if number in (0, 12) else ())
        for number in range(13)
    )
    reserved = (MemoryReservation(12, {"memory": "1Gi"}),)
    fields = {"reservedSystemCPUs": "0", "memoryManagerPolicy": "Static", "systemReserved": {"memory": "1Gi"}}
    config = msgspec.structs.replace(_config("restricted", **fields), reservedMemory=reserved)
    kubelet = Kubelet(Machine(numa=nodes), config)
    assert kubelet.node_ids == (0, 1, 2, 3, 4, 5, 6, 12)
    assert kubelet.memory is not None
    assert kubelet.memory.policy.allocatable["memory"] == (8 * GI, 0, 0, 0, 0, 0, 0, 7 * GI)


def _sockets(*nodes: tuple[int, ...]) -> Machine:
    """NUMA nodes of four CPUs each, by the sockets of the CPUs; () is a node without CPUs."""
    numa = tuple(
        NumaNode(node, 16 * GI, tuple(Core(sockets[cpu % len(sockets)], (4 * node + cpu,)) for cpu in range(4)))
        if sockets
        else NumaNode(node, 16 * GI)
        for node, sockets in enumerate(nodes)
    )
    return Machine(numa=numa)


def _aligned(machine: Machine) -> CpuManager:
    config = _config("restricted", cpuManagerPolicyOptions={"align-by-socket": "true"}, reservedSystemCPUs="0")
    manager = Kubelet(machine, config).cpu
    assert manager is not None
    return manager


@pytest.mark.parametrize(
    "machine",
    [
        pytest.param(_sockets((0,), (0,), (1,), (1,)), id="two sockets of two nodes"),
        pytest.param(_sockets((0, 1), (0,), (1,), (1,), (), (2,)), id="a node on two sockets, and one without CPUs"),
        pytest.param(_sockets((0,), (1,), (2,), (3,), (0,)), id="more sockets than nodes of one"),
    ],
)
def test_a_mask_is_aligned_on_as_few_sockets_as_the_smallest_mask(machine: Machine) -> None:
    manager = _aligned(machine)
    topology = manager.policy.topology
    per_socket = len(topology.numas) // topology.sockets_total
    for count in range(1, topology.cpus.bit_count()):
        view = Kubelet(machine, _config("none")).view(
            "p", pods.needs(pod_of("p", {"cpu": str(count), "memory": "1Gi"}))
        )
        hints = manager.hints(view, view.containers[0])["cpu"]
        smallest = topology.smallest_mask(count)
        for mask in masks_in(hints.fits):
            # isHintSocketAligned for each mask.
            sockets = {
                socket.id for numa in topology.numas if mask >> numa.id & 1 for socket in topology.sockets_of[numa]
            }
            aligned = bool(per_socket) and len(sockets) == -(-smallest // per_socket)
            assert bool(hints.preferred >> mask & 1) == (aligned or mask.bit_count() == smallest)


def test_alignment_by_socket_takes_milliseconds_on_16_nodes() -> None:
    manager = _aligned(_sockets(*[(node // 4,) for node in range(16)]))
    kubelet = Kubelet(_sockets((0,)), _config("none"))
    started = time.process_time()
    for count in range(1, 41):
        view = kubelet.view("p", pods.needs(pod_of("p", {"cpu": str(count), "memory": "1Gi"})))
        assert manager.hints(view, view.containers[0])["cpu"].preferred
    assert time.process_time() - started < 2


def test_a_numa_node_with_a_device_is_not_bare() -> None:
    machine = _grace()
    near = DevicePlugin("x.io/nic", (Device("n0", (33,)), Device("n1", None)))
    with_nic = msgspec.structs.replace(machine, devices=(*machine.devices, near))
    kept = [[node.id for node in each.modelled(with_memory=False).nodes()] for each in (machine, with_nic)]
    assert kept == [[*range(8)], [*range(7), 33]]
