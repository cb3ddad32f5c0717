"""A plan decides as the kubelets of the changed nodes would."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from topowise import pods
from topowise.kubeletconfig import MemoryReservation
from topowise_scheduler.overlay import plan
from topowise_scheduler.overlay.plan import Arrival, Change, Inventory, PlannedNode, Scenario
from topowise_scheduler.overlay.plan.scenario import with_markers
from topowise_scheduler.overlay.simulated_ledger import reported_state
from topowise_scheduler.report import Report
from topowise_scheduler.verdicts import kube_scheduler
from topowise_scheduler.verdicts.kube_scheduler import Pod
from topowise_scheduler.verdicts.refusals import Refusal

from .conftest import GPU, Site, node_type, workload


def decide(inventory: Inventory, *workloads: plan.Workload, **options: object) -> plan.Result:
    return plan.decide(Scenario(inventory, workloads, **options))  # type: ignore[arg-type]


def test_a_policy_change_admits_what_the_model_admits(site: Site) -> None:
    wide = workload("wide", 1, gpus=4, cpus=40)
    assert decide(site(), wide).placed == 0
    after = decide(site(), wide, change=Change(policy="restricted"))
    assert after.placed == 1 and after.fits and after.spread == 1


def test_the_reasons_count_nodes(site: Site) -> None:
    result = decide(site(3), workload("wide", 1, gpus=4, cpus=40))
    assert result.workloads[0].why == {Refusal.NEVER: 3}


def test_as_many_as_fit_equals_a_node_filled_by_its_kubelet(site: Site) -> None:
    result = decide(site(3), workload("small", None, cpus=6))
    node, count = node_type().kubelet(), 0
    pod = plan.pod_of("small", {"cpu": "6", "memory": "8Gi"})
    while node.admit(msgspec.structs.replace(pod, metadata=pods.Metadata(uid=f"u{count}"))).admitted:
        count += 1
    assert result.placed == 3 * count


def test_random_pods_are_where_the_model_admits_them(site: Site) -> None:
    """Each node's state equals the state of a kubelet that admits the same pods."""
    random = Random(5)
    workloads = [
        workload(f"w{number}", random.randint(1, 5), gpus=random.choice([0, 0, 1, 2]), cpus=random.randint(1, 20))
        for number in range(30)
    ]
    result = decide(site(3), *workloads)
    assert result.refused > 0 and result.placed > 20
    for kubelet in result.kubelets.values():
        fresh = node_type().kubelet()
        for uid, active in kubelet.active.items():
            assert active.pod is not None
            assert fresh.admit_view(active.pod).admitted
            assert fresh.placements(uid) == kubelet.placements(uid)


def test_priority_comes_first(site: Site) -> None:
    low = workload("low", 4, cpus=28)
    high = workload("high", 2, cpus=28)
    pod = high.pod
    high = msgspec.structs.replace(
        high, pod=msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, priority=9))
    )
    result = decide(site(1), low, high)
    assert [(entry.name, entry.placed) for entry in result.workloads] == [("low", 0), ("high", 2)]


def test_a_kubelet_that_does_not_start_is_an_error(site: Site) -> None:
    result = decide(site(), workload("small"), change=Change(cpu_manager="odd"))
    assert result.error == 'unknown policy: "odd"' and not result.fits


def test_without_topowise_kubelets_refuse_pods(site: Site) -> None:
    blind = decide(site(2), workload("mid", 6, cpus=20), change=Change(scheduler=plan.KUBE_SCHEDULER))
    aware = decide(site(2), workload("mid", 6, cpus=20))
    assert blind.kubelet_refusals == 2 and aware.kubelet_refusals == 0
    assert blind.placed == aware.placed == 4


def test_steering_needs_markers_that_the_plan_adds(site: Site) -> None:
    result = decide(site(1), workload("small", 4), change=Change(steering=True))
    assert result.placed == 4
    marked = with_markers(workload("small").pod)
    assert marked.spec.containers[0].resources.limits["topowise.io/numa"] == "1"  # type: ignore[index, union-attr]


def running(name: str, node: str, amounts: dict[str, str], started: int = 0, kind: str = "ReplicaSet") -> Pod:
    pod = plan.pod_of(name, amounts)
    owner = kube_scheduler.Owner(kind, True)
    created = f"2026-11-20T08:00:{started:02}Z"
    metadata = msgspec.structs.replace(
        pod.metadata, uid=f"uid-{name}", ownerReferences=(owner,), creationTimestamp=created
    )
    spec = msgspec.structs.replace(pod.spec, nodeName=node)
    return msgspec.structs.replace(pod, metadata=metadata, spec=spec, status=pods.Status("Running", startTime=created))


def test_a_drain_places_pods_again_and_pods_of_the_node_stay() -> None:
    of_all = node_type()
    inventory = Inventory(
        tuple(PlannedNode(name, of_all) for name in ("n1", "n2")),
        (
            running("a", "n1", {"cpu": "8", "memory": "8Gi"}),
            running("agent", "n1", {"cpu": "2", "memory": "1Gi"}, kind="DaemonSet"),
            running("huge", "n1", {"cpu": "30", "memory": "8Gi"}, 1),
            running("b", "n2", {"cpu": "30", "memory": "8Gi"}, 2),
            running("c", "n2", {"cpu": "30", "memory": "8Gi"}, 3),
        ),
    )
    removed = decide(inventory, change=Change(remove=("n1",)))
    assert removed.nodes == 1 and removed.replaced == 0
    assert removed.displaced == ("default/a", "default/huge")
    today = decide(inventory, existing="stay")
    names = {today.pod_names[uid] for uid in today.kubelets["n1"].active}
    assert "default/agent" in names and not today.displaced


def test_added_nodes_have_the_change_too(site: Site) -> None:
    wide = workload("wide", 3, gpus=4, cpus=40)
    assert decide(site(1), wide, change=Change(add={"n1": 2}, policy="restricted")).placed == 3
    assert "neither a node" in decide(site(1), wide, change=Change(add={"absent": 1})).error


def test_only_selected_nodes_change(site: Site) -> None:
    wide = workload("wide", 2, gpus=4, cpus=40)
    assert decide(site(2), wide, change=Change(policy="restricted", nodes=("n2",))).placed == 1


def test_stranded_is_free_where_no_planned_pod_fits(site: Site) -> None:
    result = decide(site(1), workload("large", None, cpus=20))
    cpus = next(entry for entry in result.resources if entry.name == "cpu")
    assert (cpus.allocatable, cpus.used, cpus.free, cpus.stranded) == (62000, 40000, 22000, 22000)
    # GPUs that no planned pod requests are not stranded.
    assert next(entry for entry in result.resources if entry.name == GPU).stranded is None


def test_a_stopped_plan_is_incomplete(site: Site) -> None:
    result = plan.decide(Scenario(site(), (workload("small", 9),)), lambda text, done, total: done == 3)
    assert result.placed == 3 and not result.is_complete and not result.fits


def test_a_trace_waits_for_ends(site: Site) -> None:
    job = workload("job", 1, cpus=30)
    arrivals = tuple(Arrival(at, job, 100.0) for at in (0.0, 1.0, 2.0, 150.0))
    result = decide(site(1), trace=arrivals)
    waits = result.waits
    assert waits is not None and (waits.started, waits.never) == (4, 0)
    assert (waits.median, waits.longest, waits.end) == (0.0, 98.0, 250.0)
    assert result.workloads[0].placed == 4


def test_a_waiting_pod_does_not_delay_others(site: Site) -> None:
    wide, small = workload("wide", 1, cpus=60), workload("small", 1, cpus=2)
    result = decide(site(1), trace=(Arrival(0, wide, 10.0), Arrival(1, small, 10.0)))
    assert result.waits is not None and (result.waits.started, result.waits.never) == (1, 1)
    assert not result.fits


def test_nothing_stays_of_pods_that_ended(site: Site) -> None:
    """After a trace the nodes are as empty as before, whatever the order of ends."""
    random = Random(3)
    jobs = [workload(f"j{size}", 1, cpus=size, gpus=size // 8) for size in (2, 4, 8, 16)]
    arrivals = tuple(
        Arrival(random.random() * 1000, random.choice(jobs), 50 + 300 * random.random()) for _ in range(80)
    )
    result = decide(site(2), trace=arrivals)
    assert result.waits is not None and result.waits.started == 80
    empty = node_type().kubelet()
    for kubelet in result.kubelets.values():
        assert not kubelet.active
        assert kubelet.cpu is not None and empty.cpu is not None and kubelet.cpu.default == empty.cpu.default


@pytest.mark.parametrize("policy", ["single-numa-node", "restricted", "best-effort"])
def test_a_node_on_which_pods_come_and_end_is_its_kubelet(policy: str) -> None:
    """Verdicts, CPUs and memory equal those of a kubelet that sees the same pods in the same order."""
    of_all = node_type(
        numa=4,
        topologyManagerPolicy=policy,
        memoryManagerPolicy="Static",
        systemReserved={"memory": "1Gi"},
        reservedMemory=(MemoryReservation(0, {"memory": "1Gi"}),),
    )
    fleet = plan.fleet_of(Inventory((PlannedNode("n1", of_all),)), plan.Scheduler())
    node, random, running = of_all.kubelet(), Random(policy), list[str]()
    kinds = [
        fleet.kind(workload(f"w{cpus}", 1, cpus=cpus, gpus=int(cpus % 3 == 0), memory=f"{cpus * 3}Gi").pod)
        for cpus in (1, 2, 3, 5, 6, 9, 20)
    ]
    refused = 0
    for number in range(150):
        if running and random.random() < 0.45:
            uid = running.pop(random.randrange(len(running)))
            fleet.end(uid)
            node.remove(uid)
        kind, uid = random.choice(kinds), f"uid-{number}"
        found = fleet.find(kind)
        view = msgspec.structs.replace(kind.record.view(node), uid=uid)
        assert (found is not None) == node.expect(view).admitted
        refused += found is None
        if found is not None:
            fleet.bind(kind, uid, ("default", uid), found)
            running.append(uid)
        now = fleet.ledger.kubelet("n1")
        assert now is not None and now.cpu is not None and now.memory is not None
        assert node.cpu is not None and node.memory is not None
        assert now.cpu.default == node.cpu.default and now.memory.tables.free == node.memory.tables.free
        assert now.devices.allocated == node.devices.allocated
    assert 20 < refused < 130


def test_kube_schedulers_answers_are_those_of_the_present_sums(site: Site) -> None:
    random = Random(1)
    fleet = plan.fleet_of(site(4), plan.Scheduler())
    kinds = [fleet.kind(workload(f"w{cpus}", 1, gpus=cpus % 3, cpus=cpus).pod) for cpus in (1, 5, 12)]
    running: list[str] = []
    refused = 0
    for serial in range(60):
        kind = random.choice(kinds)
        if running and random.random() < 0.3:
            fleet.end(running.pop(random.randrange(len(running))))
        elif (node := fleet.find(kind)) is not None:
            running.append(f"uid-{serial}")
            fleet.bind(kind, running[-1], ("default", f"p{serial}"), node)
        for asked in random.sample(kinds, 2):
            present = [refusal is None for _, refusal in fleet.ledger.trial.refusals(asked.record, fleet.names)]
            assert fleet.accepted(asked).tolist() == present
            refused += present.count(False)
    assert refused


@pytest.mark.parametrize("strategy", ["TightFit", "LeastAllocated", "NUMAAware"])
def test_every_strategy_places_the_same_sums(site: Site, strategy: str) -> None:
    assert decide(site(2), workload("one", 8, gpus=1, cpus=7), change=Change(scheduler=strategy)).placed == 8


def test_a_quantity_that_cannot_be_read_is_an_error(site: Site) -> None:
    assert "'much'" in decide(site(), change=Change(reserved_memory={0: "much"})).error


def test_pods_of_other_namespaces_and_labels_are_other_kinds(site: Site) -> None:
    fleet = plan.fleet_of(site(1), plan.Scheduler())
    amounts = {"cpu": "2", "memory": "1Gi"}
    kinds = [fleet.kind(plan.pod_of("a", amounts, namespace=name)) for name in ("x", "y", "x")]
    assert kinds[0] is kinds[2] and kinds[0] is not kinds[1]


def test_unknown_names_are_errors(site: Site) -> None:
    assert "scheduler 'Odd'" in decide(site(), change=Change(scheduler="Odd")).error
    assert "not in the inventory" in decide(site(), change=Change(remove=("n9",))).error


def test_moves_make_room_on_reported_nodes() -> None:
    """The resources of a moved pod are free, though the report of its node listed the pod."""
    of_all, names = node_type(), ("n1", "n2")
    there = [running(f"p{at}", names[at % 2], {"cpu": "16", "memory": "8Gi"}, at) for at in range(4)]
    kubelets = {name: of_all.kubelet() for name in names}
    for pod in there:
        assert kubelets[pod.spec.nodeName].admit(pod).admitted
    uids = {pod.metadata.uid: ("default", pod.metadata.name) for pod in there}
    nodes = tuple(
        PlannedNode(name, of_all, reported_state(Report(name, "1", "exact", of_all.kubelet()), kubelet, uids))
        for name, kubelet in kubelets.items()
    )
    inventory = Inventory(nodes, tuple(there))
    wide = workload("wide", 1, cpus=30)
    assert decide(inventory, wide).placed == 0
    moved = decide(inventory, wide, change=Change(moves=2))
    assert moved.placed == 1 and moved.moves == 1 and moved.fits
    busy = [uid for kubelet in moved.kubelets.values() for uid in kubelet.active]
    assert len(busy) == len(set(busy)) == 5
