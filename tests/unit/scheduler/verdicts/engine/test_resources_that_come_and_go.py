"""Invented resource names of single nodes: their cost for the remaining nodes, and verdicts equal to the model's.

The tests count cells, the elements of the engine's arrays, so no test depends on the speed of the machine.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from examples import examples
from kubelets import pod_of
from sandbox.judging import judge
from servers import GPU
from topowise import pods
from topowise_scheduler.kubelet import Core, Device, DevicePlugin, Kubelet, KubeletConfiguration, Machine, NumaNode
from topowise_scheduler.report.shape import PodRequests
from topowise_scheduler.verdicts.engine import Candidates, Engine, Outcome, node_arrays
from topowise_scheduler.verdicts.engine import engine as engine_module
from topowise_scheduler.verdicts.engine.node_arrays import NodeArrays
from topowise_scheduler.verdicts.strategies import ranks
from topowise_scheduler.verdicts.strategies.tight_fit import TightFit

POOL = [f"example.com/r{number}" for number in range(90)]


def node(names: list[str], devices: int = 1, policy: str = "single-numa-node") -> Kubelet:
    """Two NUMA nodes, each with four CPUs and `devices` devices of each resource."""
    numa = tuple(NumaNode(zone, 8 << 30, tuple(Core(zone, (4 * zone + core,)) for core in range(4))) for zone in (0, 1))
    plugins = tuple(
        DevicePlugin(name, tuple(Device(f"d{zone}-{number}", (zone,)) for zone in (0, 1) for number in range(devices)))
        for name in names
    )
    configuration = KubeletConfiguration(
        topologyManagerPolicy=policy, cpuManagerPolicy="static", reservedSystemCPUs="0", systemReserved={"cpu": "1"}
    )
    return Kubelet(Machine(numa=numa, devices=plugins), configuration)


def requests_for(**amounts: str) -> PodRequests:
    limits = {"cpu": "1", "memory": "1Gi", **amounts}
    container = pods.Container("c", pods.Resources(limits=limits))
    return PodRequests(
        pods.needs(pods.Pod(metadata=pods.Metadata(name="p", uid="p"), spec=pods.Spec(containers=(container,))))
    )


def arrays(engine: Engine) -> list[NodeArrays]:
    return [
        array for group in engine._groups.values() for array in (group.arrays, group.kinds.empty, group.kinds.fixed)
    ]


def cells(engine: Engine) -> int:
    return sum(array._data.size for array in arrays(engine))


def cluster(count: int) -> Engine:
    engine = Engine()
    like = node([GPU])
    for number in range(count):
        engine.put(f"n{number}", like.fork())
    return engine


def test_resource_names_of_a_single_node_take_no_cells_of_other_nodes() -> None:
    engine = cluster(200)
    before = cells(engine)
    engine.put("hostile", node([f"example.com/{number}" for number in range(1000)]))
    added = cells(engine) - before
    assert added < 1000 * 3 * 12 * 4, f"{added} cells"
    engine.drop("hostile")
    assert cells(engine) == before


def test_a_node_that_renames_its_resources_at_each_report_does_not_grow_arrays() -> None:
    engine = cluster(20)
    most = 0
    for turn in range(60):
        engine.put("hostile", node([f"example.com/{turn}-{number}" for number in range(turn % 20)]))
        most = max(most, cells(engine))
        if turn == 20:
            first = most
    assert most <= 2 * first
    assert len(engine._groups) <= 2
    # A column for each kind of hardware, and one that the next kind reuses.
    assert all(len(group.kinds._keys) <= 3 for group in engine._groups.values())
    engine.drop("hostile")
    assert {name for array in arrays(engine) for name in array.names("device") + array.names("devices")} == {GPU}
    # Unused rows are freed when they are the majority.
    assert all(array._unused <= max(node_arrays._FEW_ROWS, array._height // 2) for array in arrays(engine))


def test_a_node_that_changes_its_settings_at_each_report_leaves_no_group_behind() -> None:
    engine = cluster(4)
    for limit in range(2, 60):
        options = {"max-allowable-numa-nodes": str(8 + limit)}
        configuration = KubeletConfiguration(
            topologyManagerPolicy="best-effort", topologyManagerPolicyOptions=options, cpuManagerPolicy="none"
        )
        engine.put("hostile", Kubelet(Machine(numa=(NumaNode(0, 8 << 30, (Core(0, (0,)),)),)), configuration))
        assert judge(engine, requests_for()).reason_of(0) == ""
    assert len(engine._groups) == 2
    assert max(engine._groups) <= 2
    engine.drop("hostile")
    assert len(engine._groups) == len(engine._group_of) == 1


def test_a_verdict_of_a_removed_group_is_not_reused_for_the_next_group() -> None:
    """Both groups have the same number, and their first kinds of hardware have the same number."""
    engine = Engine()
    pod = requests_for(**{GPU: "2"})
    engine.put("n", node([GPU], devices=1))
    assert judge(engine, pod).outcome[0] == Outcome.UNRESOLVABLE
    engine.drop("n")
    full = node([GPU], devices=2, policy="restricted")
    assert full.admit(_pod("first", {"cpu": "3", GPU: "2"})).admitted
    assert full.admit(_pod("second", {"cpu": "3", GPU: "2"})).admitted
    engine.put("n", full)
    assert list(engine._groups) == [0]
    assert judge(engine, pod).outcome[0] == Outcome.UNSCHEDULABLE


def _pod(uid: str, limits: dict[str, str]) -> pods.Pod:
    container = pods.Container("c", pods.Resources(limits={"memory": "1Gi", **limits}))
    return pods.Pod(metadata=pods.Metadata(name=uid, uid=uid), spec=pods.Spec(containers=(container,)))


def test_equal_nodes_stay_in_the_same_group_despite_invented_resources() -> None:
    engine = cluster(8)
    engine.put("hostile", node([f"example.com/{number}" for number in range(300)]))
    engine.put("extra", node([GPU, "example.com/nic"]))
    assert sorted(group.count for group in engine._groups.values()) == [1, 9]


@settings(max_examples=examples(12), deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.integers(0, 5),
            st.sampled_from([0, 1, 2, 3, 25, 60]),
            st.integers(0, 30),
            st.booleans(),
            st.integers(1, 2),
        ),
        min_size=1,
        max_size=14,
    )
)
def test_verdicts_and_scores_equal_the_model_while_resource_names_change(
    steps: list[tuple[int, int, int, bool, int]],
) -> None:
    engine, kubelets = Engine(), dict[str, Kubelet]()
    rater = Scores()
    for number, count, first, is_gone, devices in steps:
        name = f"n{number}"
        if is_gone:
            engine.drop(name)
            kubelets.pop(name, None)
        else:
            kubelets[name] = node([GPU, *POOL[first : first + count]], devices)
            engine.put(name, kubelets[name])
        names = sorted(kubelets)
        fresh = Engine()
        for member in names:
            fresh.put(member, kubelets[member])
        for pod in (
            requests_for(**{GPU: "1"}),
            requests_for(**{POOL[first]: "2"}),
            requests_for(**{"hugepages-4Ki": "4Ki"}),
        ):
            judgement = judge(engine, pod, engine.rows(names))
            for at, member in enumerate(names):
                copy = kubelets[member].fork()
                admission = copy.admit_view(copy.view("p", pod.needs))
                assert judgement.reason_of(at) == ("OutOf" if admission.shortages else admission.reason)
            warm = engine.rated(pod, engine.rows(names), rater)
            cold = fresh.rated(pod, fresh.rows(names), rater)
            assert [list(array) for array in warm] == [list(array) for array in cold]


def test_a_resource_may_disappear_while_a_pod_is_judged() -> None:
    engine = cluster(3)
    engine.put("other", node([GPU, "example.com/nic"], devices=8))
    containers = tuple(
        pods.Container(f"c{number}", pods.Resources(limits={"example.com/nic": str(1 + number % 2)}))
        for number in range(8)
    )
    pod = PodRequests(
        pods.needs(pods.Pod(metadata=pods.Metadata(name="p", uid="p"), spec=pods.Spec(containers=containers)))
    )
    names = ["n0", "n1", "n2", "other"]
    for _ in range(70):
        engine.put("n0", node([GPU]))
    for step, _ in enumerate(engine.steps(pod, engine.rows(names))):
        if step == 2:
            engine.put("other", node([GPU]))
            engine.put("n1", node([f"example.com/{number}" for number in range(12)]))
    judgement = judge(engine, pod, engine.rows(names))
    assert [judgement.reason_of(at) for at in range(4)] == [""] * 4


def used(devices: int, policy: str, *pods_before: dict[str, str]) -> Kubelet:
    kubelet = node([GPU], devices, policy)
    for number, limits in enumerate(pods_before):
        assert kubelet.admit(_pod(f"p{number}", limits)).admitted
    return kubelet


def _reuse_the_column(engine: Engine) -> None:
    engine.drop("small")
    engine.put("new", used(2, "best-effort", {"cpu": "1", GPU: "2"}, {"cpu": "1", GPU: "2"}))


def _reuse_the_row(engine: Engine) -> None:
    engine.drop("small")
    engine.put("new", used(2, "restricted", {"cpu": "1", GPU: "2"}, {"cpu": "1", GPU: "2"}))


def _reuse_the_hardware(engine: Engine) -> None:
    engine.put("small", used(3, "best-effort"))
    engine.put("new", used(4, "best-effort", {"cpu": "1", GPU: "3"}, {"cpu": "1", GPU: "3"}))


def _remove_a_group(engine: Engine) -> None:
    engine.drop("small")
    engine.drop("split")


@pytest.mark.parametrize("change", [_reuse_the_column, _reuse_the_row, _reuse_the_hardware, _remove_a_group])
def test_nodes_may_change_at_any_step_of_a_decision(
    change: Callable[[Engine], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last container needs three GPUs: `small` never has them, `split` has CPUs on two NUMA nodes only."""
    limits = [{"cpu": "3", "memory": "1Gi"}, *[{"cpu": "100m", "memory": "1Mi"}] * 3]
    pod = PodRequests(pods.needs(pod_of("p", *limits, {"cpu": "1", "memory": "1Gi", GPU: "3"})))
    nodes = {
        "first": used(2, "restricted"),
        "small": used(1, "best-effort"),
        "split": used(2, "best-effort", {"cpu": "2"}, {"cpu": "2"}),
    }
    # Otherwise only many changes are worth steps.
    monkeypatch.setattr(engine_module, "_FEW_CHANGES", 0)
    for at in range(30):
        engine, fresh = Engine(), Engine()
        for name, kubelet in nodes.items():
            engine.put(name, kubelet)
            fresh.put(name, kubelet)
        for step, _ in enumerate(engine.steps(pod, engine.rows(list(nodes)))):
            if step == at:
                change(engine)
        change(fresh)
        if step < at:
            break
        warm, cold = (judge(each, pod, each.rows([*nodes, "new"]), located=True) for each in (engine, fresh))
        for array in ("outcome", "zones", "aligned"):
            assert getattr(warm, array).tolist() == getattr(cold, array).tolist(), f"step {at}"
    assert at > 8


class Scores:
    """Scores of TightFit, which depend on devices that a pod leaves idle."""

    def __init__(self) -> None:
        self._strategy = TightFit({}, "spread")

    def rate(self, candidates: Candidates) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int8]]:
        scores = self._strategy.raw(candidates)
        return scores, ranks.of(candidates), np.zeros(len(scores), dtype=np.int8)
