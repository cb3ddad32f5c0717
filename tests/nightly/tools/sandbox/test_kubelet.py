"""The emulated kubelet: what it shows between two checkpoints of an admission, after a refusal, and after a restart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sandbox import machines
from sandbox.hollow.fleet import scanned
from sandbox.kubelet.holdings import NodeHoldings
from sandbox.kubelet.node import EmulatedNode
from sandbox.kubelet.state_files import StateFiles
from topowise import pods
from topowise.errors import SourceError
from topowise.kubeletconfig import KubeletConfiguration, MemoryReservation
from topowise_scheduler.kubelet import Admission

GPU = "nvidia.com/gpu"
MIB = 1 << 20
MACHINE = machines.Machine(
    nodes=(machines.Node(0, 4096 * MIB, cores=4), machines.Node(1, 4096 * MIB, socket=1, cores=4)),
    distances=((10, 20), (20, 10)),
    threads_per_core=1,
    pci=tuple(
        function
        for node in (0, 1)
        for function in machines.gpu(f"0000:{0x20 + node:02x}:00.0", node, f"0000:{0x10 + node:02x}:00.0")
    ),
)
CONFIG = KubeletConfiguration(
    topologyManagerPolicy="single-numa-node",
    cpuManagerPolicy="static",
    reservedSystemCPUs="0",
    memoryManagerPolicy="Static",
    systemReserved={"memory": "156Mi"},
    evictionHard={"memory.available": "100Mi"},
    reservedMemory=(MemoryReservation(numaNode=0, limits={"memory": "256Mi"}),),
)


def container(name: str, cpus: int, mib: int = 64, gpus: int = 0) -> dict[str, Any]:
    amounts = {"cpu": str(cpus), "memory": f"{mib}Mi"} | ({GPU: str(gpus)} if gpus else {})
    return {"name": name, "resources": {"requests": amounts, "limits": amounts}}


def pod(name: str, *containers: dict[str, Any], init: tuple[dict[str, Any], ...] = ()) -> pods.Pod:
    spec = {"containers": containers, "initContainers": init}
    return pods.decode(
        json.dumps({"metadata": {"name": name, "namespace": "default", "uid": name}, "spec": spec}).encode()
    )


@pytest.fixture
def node() -> EmulatedNode:
    return EmulatedNode(scanned(MACHINE), CONFIG)


def allocated(holdings: NodeHoldings) -> dict[str, dict[str, tuple[int, int, int]]]:
    """By pod and container the number of CPUs, the MiB, and the number of devices."""
    return {
        pod_entry.uid: {
            inner.name: (
                len(inner.cpus),
                sum(block.size for block in inner.memory) // MIB,
                sum(map(len, inner.devices.values())),
            )
            for inner in pod_entry.containers
        }
        for pod_entry in holdings.pods
    }


def test_an_admission_is_seen_container_by_container_devices_first(node: EmulatedNode) -> None:
    two = pod("p", container("a", 2, gpus=1), container("b", 1))
    decision, steps = node.begin_admission(two)
    assert decision.admitted
    assert allocated(node.holdings()) == {"p": {"a": (0, 0, 0), "b": (0, 0, 0)}}
    shown, files = [], []
    for step in steps:
        node.reveal(step)
        shown.append(allocated(node.holdings())["p"])
        files.append(node.checkpoints())
    assert [(allocations["a"], allocations["b"]) for allocations in shown] == [
        ((0, 0, 1), (0, 0, 0)),
        # CPUs and memory leave the free set before a container gets them.
        ((0, 0, 1), (0, 0, 0)),
        ((2, 0, 1), (0, 0, 0)),
        ((2, 0, 1), (0, 0, 0)),
        ((2, 64, 1), (0, 0, 0)),
        ((2, 64, 1), (0, 0, 0)),
        ((2, 64, 1), (1, 0, 0)),
        ((2, 64, 1), (1, 0, 0)),
        ((2, 64, 1), (1, 64, 0)),
    ]
    assert [len(checkpoint_state.shared_cpus) for checkpoint_state in files] == [8, 6, 6, 6, 6, 5, 5, 5, 5]
    node.end_admission(two, decision)
    assert allocated(node.holdings()) == {"p": {"a": (2, 64, 1), "b": (1, 64, 0)}}


def test_what_a_refused_pod_got_lingers_until_each_manager_looks_again(node: EmulatedNode) -> None:
    too_much = pod("p", container("a", 2), container("b", 5))
    decision, steps = node.begin_admission(too_much)
    assert decision.reason == "TopologyAffinityError"
    for step in steps:
        node.reveal(step)
    node.end_admission(too_much, decision)
    assert allocated(node.holdings()) == {}
    assert allocated(node.checkpoints()) == {"p": {"a": (2, 64, 0)}}
    assert node.reconcile()
    assert allocated(node.checkpoints()) == {"p": {"a": (0, 64, 0)}}
    assert not node.reconcile()
    assert node.admit(pod("q", container("c", 4))).admitted
    assert allocated(node.checkpoints()) == {"q": {"c": (4, 64, 0)}}


def checkpoint(node: EmulatedNode, files: StateFiles) -> None:
    files.write(node.checkpoints(), cpu_policy="static", memory_policy="Static", admitted=True)


def admit_again(node: EmulatedNode, item: pods.Pod) -> Admission:
    decision, steps = node.begin_admission(item)
    for step in steps:
        node.reveal(step)
    node.end_admission(item, decision)
    return decision


def test_a_restarted_kubelet_lists_nothing_until_its_plugins_register(tmp_path: Path) -> None:
    node = EmulatedNode(scanned(MACHINE), CONFIG)
    there = pod("p", container("a", 2, gpus=1), init=(container("setup", 3),))
    node.admit(there)
    node.start("p")
    files = StateFiles(tmp_path)
    checkpoint(node, files)
    before, answer = node.holdings(), node.checkpoints()
    texts = {path: path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    assert len(texts) == 3

    again = EmulatedNode(scanned(MACHINE), CONFIG)
    again.restart(StateFiles(tmp_path))
    assert again.holdings() == NodeHoldings(frozenset(), (), frozenset(), {})
    assert allocated(again.checkpoints()) == allocated(answer)
    assert again.allocatable()[GPU] == "0"
    again.open_eyes()
    assert again.holdings().pods == ()
    assert again.holdings().allocatable_cpus == before.allocatable_cpus
    assert len(again.holdings().unhealthy) == 2
    assert admit_again(again, there).admitted
    (old,), (new,) = before.pods, again.holdings().pods
    assert new.containers[1:] == old.containers[1:]
    assert again.admit(pod("q", container("c", 1, gpus=1))).admitted is False
    again.plug(GPU)
    assert not again.holdings().unhealthy
    assert again.admit(pod("q", container("c", 1, gpus=1))).admitted


def test_a_pod_that_ended_while_the_kubelet_was_down_stays_until_the_next_admission(tmp_path: Path) -> None:
    node = EmulatedNode(scanned(MACHINE), CONFIG)
    node.admit(pod("gone", container("a", 3)))
    files = StateFiles(tmp_path)
    checkpoint(node, files)
    node.restart(files)
    node.open_eyes()
    node.forget_restored()
    assert allocated(node.checkpoints()) == {"gone": {"a": (3, 64, 0)}}
    assert node.admit(pod("q", container("c", 4))).admitted
    assert allocated(node.checkpoints()) == {"q": {"c": (4, 64, 0)}}


def test_memory_over_several_nodes_is_spread_after_a_restart_as_it_was_before(tmp_path: Path) -> None:
    config = KubeletConfiguration(
        **{field: getattr(CONFIG, field) for field in CONFIG.__struct_fields__}
        | {"topologyManagerPolicy": "best-effort"}
    )
    node = EmulatedNode(scanned(MACHINE), config)
    assert node.admit(pod("p", container("a", 1, mib=6000))).admitted
    files = StateFiles(tmp_path)
    checkpoint(node, files)
    before = node.checkpoints().memory_tables
    node.restart(files)
    assert node.checkpoints().memory_tables == before


def test_a_pod_with_a_shared_pool_of_its_own_is_refused_after_a_restart(tmp_path: Path) -> None:
    gates = {"topologyManagerScope": "pod", "featureGates": {"PodLevelResourceManagers": True}}
    fields = {field: getattr(CONFIG, field) for field in CONFIG.__struct_fields__}
    node = EmulatedNode(scanned(MACHINE), KubeletConfiguration(**fields | gates))
    amounts = {"cpu": "2", "memory": "64Mi"}
    level = {"requests": amounts, "limits": amounts}
    spec = {"containers": [container("a", 1, mib=32), {"name": "b"}], "resources": level}
    metadata = {"name": "p", "namespace": "default", "uid": "p"}
    there = pods.decode(json.dumps({"metadata": metadata, "spec": spec}).encode())
    assert node.admit(there).admitted
    files, before = StateFiles(tmp_path), node.checkpoints()
    checkpoint(node, files)
    assert json.loads((tmp_path / "cpu_manager_state").read_bytes())["podEntries"] == {"p": {"cpuSet": "1-2"}}
    node.restart(StateFiles(tmp_path))
    assert node.checkpoints().pods == before.pods
    # GetPodTopologyHints has no hint, as the stored CPUs of the second container are the pod's and not its own.
    assert admit_again(node, there).reason == "TopologyAffinityError"
    node.remove("p")
    assert node.model.cpu is not None and node.model.cpu.available == 0b11111110


@pytest.mark.parametrize("text", ["", "{", "[]", '{"policyName":"static","defaultCpuSet":"0-7","checksum":1}'])
def test_a_kubelet_does_not_start_with_a_damaged_checkpoint(node: EmulatedNode, tmp_path: Path, text: str) -> None:
    (tmp_path / "cpu_manager_state").write_text(text)
    with pytest.raises(SourceError):
        node.restart(StateFiles(tmp_path))


def test_a_kubelet_does_not_start_with_the_checkpoint_of_another_policy(node: EmulatedNode, tmp_path: Path) -> None:
    StateFiles(tmp_path).write(node.checkpoints(), cpu_policy="none", memory_policy="None", admitted=True)
    with pytest.raises(SourceError, match="configured policy 'static' differs"):
        node.restart(StateFiles(tmp_path))
