"""A NUMA node with less memory than its reservation: the kubelet subtracts unsigned numbers.

memorymanager/policy_static.go, getDefaultMachineState, the same in 1.28 to 1.36.
"""

from __future__ import annotations

import itertools

from kubelets import GI, kubelet_of, machine_of, pod_of
from topowise_scheduler.kubelet import MemoryReservation
from topowise_scheduler.kubelet.masks import members, reaching
from topowise_scheduler.kubelet.memory_tables import MemoryPolicy
from topowise_scheduler.kubelet.panics import hazards

WIDTH = 1 << 64
RESERVED = {
    "systemReserved": {"cpu": "1", "memory": "3Gi"},
    "evictionHard": {},
    "reservedMemory": (MemoryReservation(0, {"memory": "1Gi"}), MemoryReservation(1, {"memory": "2Gi"})),
}


def test_a_node_below_its_reservation_admits_every_pod() -> None:
    kubelet = kubelet_of(
        machine_of(4, 4, threads=1, memory=(16 * GI, GI)), topologyManagerPolicy="single-numa-node", **RESERVED
    )
    assert hazards(kubelet) == ("reserved-memory",)
    for uid in ("a", "b"):
        assert kubelet.admit(pod_of(uid, {"cpu": "3", "memory": "12Gi"})).admitted
    assert kubelet.memory is not None
    assert sorted(block.mask for pod in kubelet.memory.allocations.values() for block in pod["c0"]) == [1, 2]
    assert kubelet.memory.tables.free["memory"] == [3 * GI, -13 * GI]
    kubelet.remove("b")
    assert kubelet.memory.tables.free["memory"][1] in (-GI, -13 * GI)


def test_enough_memory_has_no_hazard() -> None:
    assert hazards(kubelet_of(machine_of(4, 4, memory=(16 * GI, 2 * GI)), **RESERVED)) == ()


def test_sums_wrap_around_as_unsigned_numbers() -> None:
    values = (3, -1, 5, -4)
    for wanted, mask in itertools.product(range(12), range(1, 16)):
        unsigned = sum(values[position] for position in members(mask)) % WIDTH
        assert bool(reaching(values, wanted) >> mask & 1) == (unsigned >= wanted), (wanted, mask)


def test_the_smallest_set_of_nodes_counts_nodes_that_have_wrapped_around() -> None:
    nodes = machine_of(1, 1, 1, memory=(4 * GI, GI, 4 * GI)).nodes()
    policy = MemoryPolicy(nodes, [{}, {"memory": 2 * GI}, {}])
    assert policy.smallest_mask({"memory": 6 * GI}) == 1
    assert policy.is_large_enough(0b010, {"memory": 6 * GI})
    assert not policy.is_large_enough(0b011, {"memory": 6 * GI})
    # A byte less than none has wrapped around, and none has not.
    assert MemoryPolicy(nodes, [{}, {"memory": GI + 1}, {"memory": 4 * GI}]).wrapped == {"memory": 0b010}
