"""Whatever machine is described is the machine that is read."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from demo.cluster import EMULATED
from sandbox import machines
from topowise_exporter.machine import Cpu, Machine, NumaNode, PciFunction

Read = Callable[[Path], Machine]


def _expected_node(spec: machines.Machine, rank: int) -> NumaNode:
    node = spec.nodes[rank]
    own = [cpu for cpu in machines.layout(spec) if cpu.node == node.id]
    online = [cpu.id for cpu in own if cpu.id not in spec.offline]
    return NumaNode(
        id=node.id,
        cpus=tuple(online),
        memory_bytes=node.memory_bytes,
        hugepages=dict(sorted(node.hugepages.items())),
        distances={node.id: distance for node, distance in zip(spec.nodes, spec.distances[rank], strict=True)},
        sockets=(node.socket,) if online else (),
    )


def _expected_cpu(spec: machines.Machine, cpu: machines.Cpu) -> Cpu:
    running = [other for other in machines.layout(spec) if other.node == cpu.node and other.id not in spec.offline]
    cores_of_node = len({other.threads for other in running})
    threads = tuple(sorted(set(cpu.threads) - spec.offline))
    l3 = None if cpu.l3 is None else tuple(sorted(set(cpu.l3) - spec.offline))
    return Cpu(
        id=cpu.id,
        node=cpu.node,
        socket=cpu.socket,
        die=0,
        core=threads[0],
        core_id=cpu.core_id,
        threads=threads,
        l3=l3,
        l3_id=None if l3 is None else l3[0],
        uncore=None if l3 is None or len(l3) == cores_of_node * len(threads) else l3[0],
        kind="",
    )


def _expected_function(spec: machines.Machine, function: machines.Pci) -> PciFunction:
    return PciFunction(
        address=function.address,
        numa_node=function.node,
        class_code=function.class_code,
        vendor=function.vendor,
        device=function.device,
        driver=function.driver,
        physfn=function.physfn,
        path=machines.above(spec, function),
    )


def _expected(spec: machines.Machine) -> Machine:
    cpus = machines.layout(spec)
    every = tuple(cpu.id for cpu in cpus)
    online = tuple(cpu for cpu in every if cpu not in spec.offline)
    return Machine(
        nodes=tuple(_expected_node(spec, rank) for rank in range(len(spec.nodes))),
        cpus=tuple(_expected_cpu(spec, cpu) for cpu in cpus if cpu.id not in spec.offline),
        pci=tuple(_expected_function(spec, function) for function in spec.pci),
        online=online,
        present=every,
        possible=every,
        offline=tuple(sorted(spec.offline)),
        isolated=(),
        memory_bytes=sum(node.memory_bytes for node in spec.nodes),
    )


@st.composite
def _functions(draw: st.DrawFn, ids: list[int]) -> tuple[machines.Pci, ...]:
    functions: tuple[machines.Pci, ...] = ()
    for slot in range(draw(st.integers(0, 3))):
        domain = draw(st.sampled_from(("0000", "0001", "10000")))
        node = draw(st.none() | st.sampled_from(ids))
        device, port = f"{domain}:{2 * slot + 1:02x}:00.0", f"{domain}:{2 * slot:02x}:00.0"
        functions += draw(
            st.sampled_from(
                (
                    machines.gpu(device, node, port),
                    machines.nic(device, node, port, draw(st.integers(0, 3))),
                    (machines.Pci(device, node, "0x060100", "0x8086", "0x2918"),),
                )
            )
        )
    return tuple(sorted(functions, key=lambda function: (len(function.address), function.address)))


@st.composite
def _machines(draw: st.DrawFn) -> machines.Machine:
    ids = sorted(draw(st.sets(st.integers(0, 300), min_size=1, max_size=4)))
    pages = st.dictionaries(st.sampled_from((64 << 10, 2 << 20, 1 << 30)), st.integers(0, 9))
    nodes = tuple(
        machines.Node(
            node,
            draw(st.integers(0, 1 << 40)) * machines.KIB,
            socket=draw(st.integers(0, 2)),
            # The first node has a CPU, so that the machine has a CPU.
            cores=draw(st.integers(int(node == ids[0]), 3)),
            hugepages=draw(pages),
        )
        for node in ids
    )
    row = st.tuples(*[st.integers(0, 254)] * len(ids))
    spec = machines.Machine(
        nodes=nodes,
        distances=draw(st.tuples(*[row] * len(ids))),
        threads_per_core=draw(st.integers(1, 3)),
        numbering=draw(st.sampled_from(("blocks", "adjacent", "even-odd"))),
        cores_per_l3=draw(st.sampled_from((None, 0, 1, 2))),
        pci=draw(_functions(ids)),
    )
    # cpu0 can rarely be switched off.
    last = len(machines.layout(spec)) - 1
    offline = draw(st.sets(st.integers(1, last))) if last else set()
    return msgspec.structs.replace(spec, offline=frozenset(offline))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(spec=_machines())
def test_a_written_machine_is_read_as_it_was_described(read: Read, spec: machines.Machine) -> None:
    with tempfile.TemporaryDirectory() as root:
        machines.write_tree(spec, root)
        machine = read(Path(root))
    with_pages = {node.id for node in spec.nodes if node.hugepages}
    hugepages_listed = [problem for problem in machine.problems if "/hugepages: missing" in problem]
    # Where some nodes have hugepages, the scan names nodes without them, and nothing else.
    assert len(hugepages_listed) == (len(spec.nodes) - len(with_pages) if with_pages else 0)
    assert machine == msgspec.structs.replace(_expected(spec), problems=tuple(hugepages_listed))


@pytest.mark.parametrize("name", EMULATED)
def test_the_demo_machines_are_read_without_problems(tmp_path: Path, read: Read, name: str) -> None:
    machines.write_tree(EMULATED[name], tmp_path)
    assert read(tmp_path) == _expected(EMULATED[name])
