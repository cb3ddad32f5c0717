"""Sequences of events that once left a wrong state, and objects that once ended the process."""

from __future__ import annotations

import json

import msgspec
import pytest

from sandbox.exported import exported
from scheduling import Service, configuration, container, counts, decoded, exact, kubelet, machine, pod, topology_of
from stories import table, tell
from topowise import nrt
from topowise_scheduler import report
from topowise_scheduler.kubelet import Core, Kubelet, Machine, NumaNode
from topowise_scheduler.ledger.budgets import Budgets
from topowise_scheduler.ledger.rows.node_states import NodeStates
from topowise_scheduler.ledger.watch import reflectors


def of_zones(zones: int, version: str) -> nrt.NodeResourceTopology:
    return of_hardware(machine(zones), Kubelet(machine(zones), configuration()), version)


def of_hardware(hardware: Machine, node: Kubelet, version: str = "1") -> nrt.NodeResourceTopology:
    return topology_of(hardware, configuration(), node, version)


@table("""
a report of before the end of a pod that ended while there was no report
    exact; bound a 3; drop; end a; exact a:3; free 3 4
    # State without a report expires.
    wait 200; free 0 4; drop; known no
an unreported node is forgotten once its pods have ended
    bound a 3; end a; known; wait 200; known no
a reservation that comes to nothing has not moved a bound pod
    counts 8 4 of=-; counts 8 4 of=- on=n2; reserve q 6; bound p 4; bound q 6 on=n2; free 4 4
a pod bound out of the order of reservations is placed as by the kubelet
    counts 8 8 of=-; reserve x 4; reserve y 6; free 4 2; bound y 6; free 2 4
a reservation beside an expired reservation is placed as by the kubelet
    counts 8 8 of=-; counts 8 8 of=- on=n2; reserve x 6; reserve y 6; free 2 2; bound x 6 on=n2; free 2 8
a nomination does not make a bound pod vanish
    counts 8 of=-; pod nominated 8 priority=1 nominated=n1; bound a 8 priority=5; fits 8 not n1 priority=9
# kube-scheduler has decided a pod in binding, and counts it as assumed whatever its priority is.
a nominated pod that is assumed does not yield to a higher priority
    counts 8 of=-; pod a 6 nominated=n1 priority=1; fits 4 n1 priority=9; assume a 6 nominated=n1 priority=1
    fits 4 not n1 priority=9; assume b 4 priority=9 why=TopologyAffinityError
a nominated pod that is reserved does not yield to a higher priority
    counts 8 of=-; pod a 6 nominated=n1 priority=1; fits 4 n1 priority=9; reserve a 6 nominated=n1 priority=1
    fits 4 not n1 priority=9; assume b 4 priority=9 why=TopologyAffinityError
a nominated pod bound before a reserved pod is placed as by the kubelet
    counts 8 8 of=-; pod a 6 nominated=n1; reserve b 4; counts 8 8 of=-; free 4 2; reserve a 6 nominated=n1; bound a 6
    free 2 4
a pod resized during its bind has its new request
    counts 8 of=-; pod a 2 nominated=n1; reserve a 5 nominated=n1; free 3
counts of the predecessor of the same name are not taken for the new pod
    counts 4 of=web-0; bound web-0 4; end web-0; bound web-0 3 uid=new; free 1
a list of the predecessor of the same name is not taken for the new pod
    exact web-0:1; bound web-0 1; end web-0; bound web-0 4 uid=new; free 3 0; exact web-0:1; free 3 0
a pod deleted by force keeps what its kubelet still lists
    exact a:4; bound a 4; end a; free 3 4; wait 121; free 3 0

an expected pod that is listed is there once    # The answer to its Binding was lost, and the watch is late.
    exact; reserve early; free 1 4; exact early:2; free 1 4; fits 4 n1
    # It is not in its own way.
    fits 2 n1 name=early; bound early; free 1 4
an expected pod has what is listed
    exact; reserve early; exact first:3 early:2 -first; free 3 2
what an ended pod of the name has is not that of the expected pod
    running early 2 uid=uid-old; exact early:2; end old; reserve early 3; exact early:2; free 0 4

a pod stays beside the pod that was there when its kubelet admitted it    # Reports from before its admission come late.
    exact ended:3; running ended 3; running late 3; free 0 1; later 10; end ended; free 3 1
    later 0.1; exact ended:3; free 3 1; later 0.1; exact ended:3; free 3 1
    # The second NUMA node has 4 CPUs, of which the pod "late" has 3.
    fits 4 not n1
# The model would place the pod "late" on either NUMA node: a pod must fit in both cases.
a pod is uncertain if the report is older than the pod that ended
    exact; running ended 3; later 10; running late 3; free 0 1; later 10; end ended; later 10; exact
    fits 4 not n1; fits 1 n1
# A report that lists the pod two minutes later is newer than the end: its kubelet has not got the CPUs back.
a pod that ended before the service started has nothing
    bound ended 3 phase=Succeeded started=2026-11-23T12:00:00Z news=no; exact ended:3; free 3 4; wait 121; free 0 4
    end ended; exact; free 3 4
""")
def test_the_state_is_that_of_the_kubelet(story: str) -> None:
    tell(story)


class TestWhatIsOnlyExpected:
    def test_pods_predicted_on_a_removed_numa_node_may_be_on_all_remaining_numa_nodes(self, service: Service) -> None:
        service.report(of_zones(3, "1"))
        for name in ("a", "b", "c"):
            assert service.assume(pod(name, "3")) == ""
            service.put(pod(name, "3", node="n1"))
        service.report(of_zones(2, "2"))
        assert service.free("n1") == [0, 1]
        # The kubelet may refuse either pod.
        assert service.fits(pod("d", "1"), "n1") == []
        service.ledger.reports.drop("n1")
        service.report(of_zones(1, "3"))
        assert service.free("n1") == [0]

    def test_cpus_that_an_uneven_machine_gives_twice_are_not_free_when_the_second_does_not_come(
        self, service: Service
    ) -> None:
        # An average core has one CPU: half of a core of two CPUs counts as a core, and is allocated with its sibling.
        cores = tuple(Core(0, threads) for threads in ((0,), (1,), (2, 4), (3, 5)))
        hardware = Machine(numa=(NumaNode(0, 16 << 30, cores),))
        node = Kubelet(hardware, configuration())
        documents = [pod(name, "1", node="n1") for name in ("a", "b")]
        for document in documents:
            assert node.admit(decoded(document)).admitted
        service.report(of_hardware(hardware, node))
        for document in documents:
            service.put(document)
        free = service.cpus().available
        service.reserve(pod("c", "2"))
        allocations = service.cpus().allocations
        assert allocations["uid-c"]["c"] & allocations["uid-b"]["c"]
        service.ledger.reservations.release("uid-c")
        assert service.cpus().available == free

    def test_a_judged_pod_is_judged_again_once_a_nominated_pod_is_in_binding(self, service: Service) -> None:
        """Before, the nominated pod had its predicted placement; now its placement is uncertain."""
        service.report(counts("n1", ("8", "8"), included=()))
        service.put(pod("bound", "1", node="n1"))
        nominated = service.put(pod("a", "5", nominatedNodeName="n1", priority=9))
        judged = service.reserve(pod("b", "5"), judged_at=service.ledger.node_states.changes)
        node_state = service.state()
        assert node_state.is_as_judged(judged.uid)
        service.reserve(nominated)
        assert not node_state.is_as_judged(judged.uid)

    def test_a_judged_pod_is_judged_again_once_another_pod_is_bound(self, service: Service) -> None:
        service.report(counts("n1", ("8", "8"), included=()))
        judged = service.reserve(pod("a", "5"), judged_at=service.ledger.node_states.changes)
        service.put(pod("nominated", "5", nominatedNodeName="n1", priority=9))
        assert service.state().is_as_judged(judged.uid)
        service.put(pod("bound", "1", node="n1"))
        assert not service.state().is_as_judged(judged.uid)

    def test_a_reserved_pod_that_is_first_seen_running_has_done_with_its_init_containers(
        self, service: Service
    ) -> None:
        service.report(exact(kubelet()))
        document = pod("a", "1", "1Gi", initContainers=[container({"cpu": "1", "memory": "6Gi"}, "i")])
        service.reserve(document)
        document["spec"]["nodeName"] = "n1"
        document["status"]["phase"] = "Running"
        service.put(document)
        assert service.memory().free["memory"][0] == 14 << 30


class TestBinds:
    def test_a_bound_pod_is_not_bound_again(self, service: Service) -> None:
        for name in ("n1", "n2"):
            service.report(counts(name, "8", included=()))
        record = service.put(pod("a", "4"))
        service.put(pod("a", "4", node="n1"))
        assert "n1 already" in service.assume(record, "n2")
        assert (service.free("n1"), service.free("n2")) == ([4], [8])

    def test_a_bound_pod_without_list_entry_and_event_is_removed(self, service: Service) -> None:
        """It was deleted while the watch was down, before this watch had ever seen it."""
        sources = reflectors(object(), service.ledger, service.records, Budgets(), service.nodes)  # type: ignore[arg-type]
        assert list(sources[0]._consumer.replace([]) or ()) == []
        service.report(counts("n1", "8", included=()))
        bound = [service.records.decode(msgspec.json.encode(pod(name, "2"))) for name in ("gone", "seen", "late")]
        for record in bound[:2]:
            assert service.assume(record) == ""
        assert list(sources[0]._consumer.replace([]) or ()) == []
        assert bound[2].needs is not None
        assert service.ledger.reservations.assume(bound[2], bound[2].needs, "n1") is None
        service.put(pod("seen", "2", node="n1"))
        service.wait(119)
        assert service.free("n1") == [2]
        service.wait(2)
        assert service.free("n1") == [4]


class TestTime:
    def test_ended_pods_are_forgotten_without_a_new_report(self, service: Service) -> None:
        service.report(counts("n1", "8", included=()))
        for number in range(50):
            service.put(pod(f"p{number}", "1", node="n1"))
            service.ledger.drop_pod(f"uid-p{number}")
        assert service.state().remembers
        service.wait(121)
        assert not service.state().remembers


class TestGates:
    def test_a_pod_listed_by_containers_alone_has_its_pod_level_resources(self, service: Service) -> None:
        """Pod-level resources where neither the kubelet nor the exporter reports what a pod has as a whole."""
        config = configuration(topologyManagerScope="pod", featureGates={"PodLevelResourceManagers": True})
        amounts = {"cpu": "3", "memory": "12Gi"}
        document = pod("a", "1", "1Gi", resources={"requests": amounts, "limits": amounts})
        # Two CPUs and two gigabytes are its containers', the rest is kept for it.
        document["spec"]["containers"].append({**document["spec"]["containers"][0], "name": "other"})
        node = Kubelet(machine(), config)
        assert node.admit(decoded(document)).admitted
        topology = topology_of(machine(), config, node)
        listed = [
            msgspec.structs.replace(entry, value=json.dumps([pod[:3] for pod in json.loads(entry.value)]))
            if entry.name == "topowise.io/holdings"
            else entry
            for entry in topology.attributes
        ]
        service.report(exact(Kubelet(machine(), config)))
        service.put(document)
        service.put({**document, "spec": {**document["spec"], "nodeName": "n1"}})
        service.report(msgspec.structs.replace(topology, attributes=tuple(listed)))
        assert service.node().active.keys() == {"uid-a"}
        assert service.memory().free["memory"] == [3 << 30, 16 << 30]
        assert service.free("n1") == [0, 4]

    def test_a_pod_with_resources_of_its_own_is_confirmed_by_its_containers_in_scope_container(
        self, service: Service
    ) -> None:
        config = configuration(featureGates={"PodLevelResourceManagers": True})
        amounts = {"cpu": "3", "memory": "12Gi"}
        document = pod("a", "1", "1Gi", resources={"requests": amounts, "limits": amounts})
        node = Kubelet(machine(), config)
        assert node.admit(decoded(document)).admitted
        service.put({**document, "spec": {**document["spec"], "nodeName": "n1"}})
        topology = topology_of(machine(), config, node)
        service.report(topology)
        assert service.state().is_reported("uid-a")

    def test_a_kubelet_without_pod_level_resources_sees_the_containers_only(self, service: Service) -> None:
        old = configuration(featureGates={"PodLevelResources": False})
        service.report(exported(machine(), old, Kubelet(machine(), old)))
        whole = pod("a", "3")
        whole["spec"]["resources"] = {
            "requests": {"cpu": "4", "memory": "2Gi"},
            "limits": {"cpu": "4", "memory": "2Gi"},
        }
        whole["spec"]["containers"].append({**whole["spec"]["containers"][0], "name": "d"})
        truth = Kubelet(machine(), old)
        decided = truth.admit(decoded(whole)).admitted
        assert (service.fits(whole, "n1") == ["n1"]) is decided


class TestDamage:
    def test_problems_that_come_and_go_with_two_exporters_are_said_once_in_a_while(
        self, service: Service, caplog: pytest.LogCaptureFixture
    ) -> None:
        odd = counts("n1", "8", allocatable="9e99x")
        for _ in range(20):
            service.report(odd)
            service.report(counts("n1", "8"))
        said = [entry for entry in caplog.records if "cannot be used" in entry.message]
        assert len(said) == 1
        service.clock.now += 301
        service.report(odd)
        assert len([entry for entry in caplog.records if "cannot be used" in entry.message]) == 2

    @pytest.mark.parametrize("cpu", ["20P", "9E", "9223372036854775807"])
    def test_an_amount_that_no_machine_has_is_that_pods_problem(self, service: Service, cpu: str) -> None:
        service.report(counts("n1", "8", included=()))
        record = service.put(pod("a", cpu, node="n1"))
        assert record.needs is None
        assert "2^53" in str(record.problem)
        assert service.free("n1") == [8]

    @pytest.mark.parametrize("resource", ["cpu", "memory", "hugepages-2Mi", "example.com/gpu"])
    def test_an_nrt_with_endless_amounts_is_read(self, service: Service, resource: str) -> None:
        endless = {"name": resource, **dict.fromkeys(("capacity", "allocatable", "available"), "9223372036854775807")}
        document = {
            "metadata": {"name": "n1"},
            "attributes": [{"name": "topologyManagerPolicy", "value": "restricted"}],
            "zones": [{"name": f"node-{zone}", "type": "Node", "resources": [endless]} for zone in (0, 1)],
        }
        service.ledger.reports.put(report.read(nrt.decode(msgspec.json.encode(document))))
        assert service.fits(pod("p", "1"), "n1") in ([], ["n1"])


def test_the_collections_are_listed_pods_first() -> None:
    service = Service()
    sources = reflectors(object(), service.ledger, service.records, Budgets(), service.nodes)  # type: ignore[arg-type]
    assert next(source.name for source in sources) == "pods"


def test_a_node_without_its_lower_priority_nominated_pods_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    questions: list[str] = []
    states = NodeStates.states
    monkeypatch.setattr(
        NodeStates, "states", lambda self, name, without: questions.append(name) or states(self, name, without)
    )
    service = Service()
    names = [f"n{number}" for number in range(40)]
    for number, name in enumerate(names):
        service.report(counts(name, "8", included=()))
        service.put(pod(f"lesser-{number}", "8", nominatedNodeName=name, priority=1))
    urgent = pod("urgent", "8", priority=10)
    assert service.fits(urgent, *names) == names
    assert sorted(questions) == sorted(names)
    questions.clear()
    assert service.fits(urgent, *reversed(names)) == list(reversed(names))
    assert questions == []
    # Reports and nominations of a node concern that node alone.
    service.report(counts("n3", "7", included=(), version="2"))
    service.put(pod("equal", "1", nominatedNodeName="n5", priority=10))
    assert service.fits(urgent, *names) == [name for name in names if name not in ("n3", "n5")]
    assert set(questions) == {"n3", "n5"}
    # No resources are reserved for the pod against pods of lower priority.
    assert service.fits(pod("least", "8"), *names) == []
