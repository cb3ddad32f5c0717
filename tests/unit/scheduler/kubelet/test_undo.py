"""Removed pods, refused pods and changes of a fork leave no trace in a kubelet model."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kubelets import GI, kubelet_of, machine_of, pod_of, state_of
from topowise_scheduler.kubelet import Device, Kubelet, MemoryBlock, Placement
from topowise_scheduler.kubelet.trial import is_same_node

_container = st.fixed_dictionaries(
    {"cpu": st.sampled_from(("1", "2", "3", "5", "500m")), "memory": st.sampled_from(("1Gi", "3Gi", "9Gi"))},
    optional={"x.io/nic": st.sampled_from(("1", "2")), "hugepages-2Mi": st.just("256Mi")},
)
_pods = st.lists(
    st.tuples(
        st.lists(_container, min_size=1, max_size=2),
        st.lists(_container, max_size=2),
        st.lists(_container, max_size=1),
    ),
    min_size=1,
    max_size=6,
)
_policies = st.fixed_dictionaries(
    {
        "topologyManagerPolicy": st.sampled_from(("none", "best-effort", "restricted", "single-numa-node")),
        "topologyManagerScope": st.sampled_from(("container", "pod")),
    }
)
_slow_fixtures = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def _node(policies: dict[str, str]) -> Kubelet:
    devices = {"x.io/nic": [Device(f"n{number}", (number % 2,)) for number in range(5)]}
    machine = machine_of(4, 4, hugepages=[{2048: 512}, {2048: 512}], devices=devices)
    return kubelet_of(machine, predicates=True, **policies)


@given(_pods, _policies)
@_slow_fixtures
def test_removing_the_only_pods_restores_the_empty_node(drawn: Any, policies: dict[str, str]) -> None:
    kubelet = _node(policies)
    empty = state_of(kubelet)
    for apps, init, sidecars in drawn:
        kubelet.admit(pod_of("p", *apps, init=init, sidecars=sidecars))
        kubelet.remove("p")
        assert state_of(kubelet) == empty


@given(_pods, _policies)
@_slow_fixtures
def test_an_emptied_copy_is_the_empty_node(drawn: Any, policies: dict[str, str]) -> None:
    kubelet = _node(policies)
    empty, capacity = state_of(kubelet), dict(kubelet.capacity)
    for number, (apps, init, sidecars) in enumerate(drawn):
        kubelet.admit(pod_of(f"p{number}", *apps, init=init, sidecars=sidecars))
    state, requested = state_of(kubelet), dict(kubelet.requested)
    emptied = kubelet.emptied()
    assert state_of(emptied) == empty
    assert not any(emptied.requested.values())
    assert emptied.capacity is kubelet.capacity
    assert kubelet.capacity == capacity
    assert (state_of(kubelet), kubelet.requested) == (state, requested)


@given(_pods, _policies)
@_slow_fixtures
def test_a_refused_pod_leaves_no_trace(drawn: Any, policies: dict[str, str]) -> None:
    kubelet = _node(policies)
    for number, (apps, init, sidecars) in enumerate(drawn):
        before = state_of(kubelet)
        if kubelet.admit(pod_of(f"p{number}", *apps, init=init, sidecars=sidecars)).admitted:
            continue
        after = state_of(kubelet)
        # Within a group of nodes, the kubelet may free memory on a node other than the allocated node; only sums are
        # restored, and the allocations.
        for state in (before, after):
            del state["cells"]
            state["memory"] = {name: sum(free) for name, free in state["memory"].items()}
        assert after == before


@given(_pods, _policies)
@_slow_fixtures
def test_a_fork_decides_the_same_and_does_not_change_its_origin(drawn: Any, policies: dict[str, str]) -> None:
    kubelet = _node(policies)
    for number, (apps, init, sidecars) in enumerate(drawn):
        before = state_of(kubelet)
        pod = pod_of(f"p{number}", *apps, init=init, sidecars=sidecars)
        trial = kubelet.fork()
        tried = trial.admit(pod)
        trial.start(f"p{number}")
        trial.remove("p0")
        trial.report_devices("x.io/nic", [Device("other", (0,))])
        assert state_of(kubelet) == before
        assert kubelet.admit(pod) == tried


def test_a_second_admission_reuses_nothing_of_the_first() -> None:
    kubelet = _node({"topologyManagerPolicy": "single-numa-node"})
    init = {"cpu": "5", "memory": "1Gi", "x.io/nic": "2"}
    assert not kubelet.admit(pod_of("p", {"cpu": "8", "memory": "1Gi"}, init=[init])).admitted
    # Now node 0 is full; reusable resources of the init container there would exclude the pod from node 1.
    assert kubelet.admit(pod_of("other", {"cpu": "7", "memory": "1Gi", "x.io/nic": "3"})).admitted
    placed = kubelet.admit(pod_of("p", {"cpu": "8", "memory": "1Gi", "x.io/nic": "2"}))
    assert placed.placements["c0"].numa == (1,)


def test_reported_allocations_are_booked_and_released() -> None:
    kubelet = _node({"topologyManagerPolicy": "single-numa-node"})
    empty = state_of(kubelet)
    placement = Placement(
        kind="app",
        numa=(0,),
        preferred=True,
        cpus=0b1110,
        memory=(MemoryBlock("memory", (0,), 2 * GI),),
        devices={"x.io/nic": ("n0", "gone")},
    )
    kubelet.hold("known", {"cpu": 3000, "memory": 2 * GI}, {"c0": placement})
    assert kubelet.cpu is not None and kubelet.memory is not None
    assert kubelet.cpu.available & 0b1110 == 0
    assert kubelet.memory.tables.free["memory"] == [4 * GI, 7 * GI]
    table = kubelet.devices.tables["x.io/nic"]
    assert table.names(kubelet.devices.free("x.io/nic")) == ("n1", "n2", "n3", "n4")
    assert kubelet.placements("known")["c0"].devices == {"x.io/nic": ("gone", "n0")}
    # A second report replaces the allocation of the first report.
    kubelet.hold("known", {"cpu": 1000}, {})
    assert kubelet.cpu.available & 0b1110 == 0b1110
    assert kubelet.memory.tables.free["memory"] == [6 * GI, 7 * GI]
    kubelet.remove("known")
    after = state_of(kubelet)
    after.pop("devices"), empty.pop("devices")
    assert after == empty
    assert table.names(kubelet.devices.free("x.io/nic")) == ("n0", "n1", "n2", "n3", "n4")


def test_only_managers_that_are_on_book_a_reported_allocation() -> None:
    placement = Placement("app", (0,), True, 0b10, (MemoryBlock("memory", (0,), GI),))
    off = kubelet_of(machine_of(4, 4), static=False)
    off.hold("p", {}, {"c0": placement})
    assert (off.cpu, off.memory, [*off.active]) == (None, None, ["p"])
    on = kubelet_of(machine_of(4, 4))
    on.hold("p", {}, {"c0": Placement("app", (0,), True, None, ())})
    assert on.cpu is not None and on.memory is not None
    assert (on.cpu.allocations, on.memory.allocations) == ({}, {})


def test_unknown_pods_change_nothing() -> None:
    kubelet = kubelet_of(machine_of(4, 4))
    assert not kubelet.start("nobody")
    assert not kubelet.remove("nobody")


def test_a_refused_prediction_leaves_a_memory_group_as_it_was() -> None:
    """A kubelet returns the memory of a refused pod to the lowest NUMA node of the group, whichever had provided it."""
    kubelet = kubelet_of(machine_of(4, 4), topologyManagerPolicy="best-effort", cpuManagerPolicy="none")
    assert kubelet.expect(kubelet.view_of(pod_of("group", {"cpu": "1", "memory": "9Gi"}))).admitted
    before = state_of(kubelet)
    pod = kubelet.view_of(pod_of("p", {"cpu": "1", "memory": "1Gi"}, {"cpu": "1", "memory": "9Gi"}))
    trial = kubelet.fork()
    assert not trial.admit_view(pod).admitted
    assert state_of(trial) != before
    assert not kubelet.expect(pod).admitted
    assert state_of(kubelet) == before


def test_a_refused_prediction_leaves_the_cpus_of_others_on_an_uneven_machine() -> None:
    """Node 1 has four of six CPUs free, the average of the sockets: a kubelet allocates all six, and releases all."""
    fields = {"reservedSystemCPUs": "8", "memoryManagerPolicy": "None", "reservedMemory": ()}
    kubelet = kubelet_of(machine_of(2, 6, 4, threads=1), **fields)
    kubelet.hold("other", {}, {"c0": Placement("app", (1,), True, 0b1100, ())})
    before = state_of(kubelet)
    pod = kubelet.view_of(pod_of("p", {"cpu": "8", "memory": "1Gi"}, {"cpu": "8", "memory": "1Gi"}))
    trial = kubelet.fork()
    assert not trial.admit_view(pod).admitted
    assert state_of(trial) != before
    assert not kubelet.expect(pod).admitted
    assert state_of(kubelet) == before


def test_a_fork_is_the_same_node_until_its_devices_change() -> None:
    kubelet = _node({})
    fork = kubelet.fork()
    assert fork.admit(pod_of("p", {"cpu": "1", "memory": "1Gi"})).admitted
    assert is_same_node(kubelet, fork)
    fork.report_devices("x.io/nic", [Device("other", (0,))])
    assert not is_same_node(kubelet, fork)
    assert not is_same_node(kubelet, _node({}))
