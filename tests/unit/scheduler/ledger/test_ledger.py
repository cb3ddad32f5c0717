"""The ledger books what a report cannot know yet, and only that."""

from typing import Any

import msgspec
import pytest

from ledger_check import check_ledger
from scheduling import Service, counts, decoded, exact, kubelet, pod, sent
from stories import table, tell
from topowise_scheduler.kubelet import Kubelet


@table("""
a pod is booked from its assignment until a report includes it
    counts 8 of=-; bound a 3; free 5; counts 5 of=a; free 5
a report that came before the pod's event is recognised
    counts 5 of=a; bound a 3; free 5
a report without the newest pod is recognised for the earlier pods
    counts 8 of=-; bound a 3; bound b 2; counts 5 of=a; free 3; counts 3 of=a,b; free 3
a report that still counts an ended pod is recognised
    counts 5 of=a; bound a 3; end a; bound b 2; counts 3 of=a,b; free 3; counts 6 of=b; free 6
of several that ended the report may count the last
    bound a 2; bound b 2; bound c 2; counts 2 of=a,b,c; end a; later 1; end b; bound d 1; free 1
    counts 4 of=b,c; free 3
a pod that ends before it is reported is no longer booked
    counts 8 of=-; bound a 3; bound a 3 phase=Failed; free 8
a deleted pod that was reported stays in the numbers until the next report
    counts 5 of=a; bound a 3; end a; free 5; counts 8 of=-; free 8
method all counts pods without exclusive resources
    counts 8 of=- by=all; bound shared 500m; bound a 3; counts 5 of=a,shared by=all; free 5
without a fingerprint the next new report is believed
    counts 8 version=1; bound a 3; free 5; counts 8 version=1; free 5; counts 5 version=2; free 5
without a fingerprint pods that ran before us are in the report
    counts 4; bound a 4 news=no; free 4
amounts without usage include no pod    # koordlet reports totals only, and anew with every change of the node.
    counts 8 8 version=0; bound a 8; free 0 8; counts 8 8 version=1; bound a 8; free 0 8
    counts 8 8 version=2; bound a 8; free 0 8
amounts without a fingerprint include only pods that fit
    counts 8 version=1; bound a 3; bound b 2; counts 5 version=2; free 3
pods seen before the first report are kept for it
    bound a 3; counts 8 of=-; free 5; drop; reported -; fits 8 n1

numaplacement: resources of an ended pod are free at once    # RTE writes it from 0.25 on.
    bound a 3; bound b 4; counts 5 4 of=a,b at=a:0,b:1; free 5 4; end b; free 5 8; bound c 2; free 3 8
numaplacement: it is known as soon as the last of the pods is
    counts 5 4 of=a,b at=a:0,b:1; bound a 3; bound b 4; free 5 4; end a; free 8 4
numaplacement: what does not add up stays with the zone
    bound a 6; counts 5 4 of=a at=a:0; free 5 4; end a; free 5 4

our exporter: what is confirmed replaces the prediction and is counted
    exact; bound a 3; free 0 4; exact a:3; free 0 4; events prediction_ids=1 prediction_missed=0
our exporter: a pod placed elsewhere is moved and counted
    exact; bound a 3; exact unseen:2 a:3; free 1 1; events prediction_missed=1
our exporter: pods not in the report yet stay booked on top
    exact; bound a 3; bound b 2; exact a:3; free 0 2
our exporter: a reported pod that ends is free at once, and an old report does not bring it back
    exact a:3; bound a 3; end a; free 3 4; exact a:3; free 3 4; later 121; exact a:3; free 0 4
our exporter: allocations of unknown pods are in use
    exact a:3; free 0 4; bound a 3; free 0 4; end a; free 3 4
our exporter: a pod that did not fit gets the resources of an ended pod
    exact; bound a 4; bound b 4; free 3 0; end a; free 3 0
our exporter: a pod that is gone from its report may be there under another UID    # The same name in the same place.
    running again 3; exact again:3; end again; exact; free 3 4; running again 3 uid=second; exact again:3; free 0 4

a reservation keeps resources on a single node until it expires
    exact; exact on=n2; reserve a 4; fits 4 n2 not n1; reserve a 4 on=n2; fits 4 n1 not n2; later 31; expire 1
    fits 4 n1 n2
a reserved pod is not in its own way
    exact; reserve a 4; fits 4 n1 name=a
assume refuses without free resources and books with them
    exact; exact on=n2; bound other 4; assume a 4 why=TopologyAffinityError; assume a 4 on=n2; free 3 0 on=n2
    unassume a; free 3 4 on=n2
a nominated pod blocks lower-priority pods only
    exact; pod a 4 nominated=n1 priority=10; fits 4 not n1 priority=5; fits 4 not n1 priority=10
    fits 4 n1 priority=11; fits 4 n1 name=a priority=10; pod a 4 priority=10; fits 4 n1 priority=5
a bind that lost a race keeps the other bookings
    exact; exact on=n2; assume a 4; bound a 4 on=n2; unassume a; free 3 4; free 3 0 on=n2
a reservation that ends leaves the nomination
    exact; reserve a 4 nominated=n1 priority=10; release a; fits 4 not n1

a refused pod is booked nowhere, and its like is kept away until the next report
    exact; refuse a 4; free 3 4; fits 4 not n1; fits 3 n1; events refusal_TopologyAffinityError=1
    mark; exact; changed; fits 4 n1
# Its kubelet would most likely refuse the reserved pod, and the pod would fail.
a pod that was on its way to the node is not bound to it either
    exact; reserve late 3; refuse a 3; assume late 3 why=QUARANTINED; reservations 0; exact; assume late 3
a refusal before the service's start quarantines no node
    exact; bound a 4 phase=Failed reason=TopologyAffinityError news=no; fits 4 n1
# After a reboot the kubelet admits its pods before the device plug-ins have registered. Controllers make pods of the
# same requests, which waited for five minutes.
a refusal of a pod that is admitted again quarantines no node
    exact; assume a 4; bound a 4; running a 4; bound a 4 phase=Failed reason=UnexpectedAdmissionError
    events refusal_UnexpectedAdmissionError=1; quarantined 0; fits 4 n1
a refusal of a pod that another scheduler has bound quarantines no node
    exact; bound a 4; bound a 4 phase=Failed reason=UnexpectedAdmissionError
    events refusal_UnexpectedAdmissionError=1; quarantined 0; fits 4 n1
a pod that was reserved and bound without the service was predicted    # kube-scheduler without `bindVerb`.
    exact; reserve a 4; bound a 4; bound a 4 phase=Failed reason=TopologyAffinityError; fits 4 not n1
the same refusal seen again counts once
    exact; bound a 4 phase=Failed reason=SMTAlignmentError version=1
    bound a 4 phase=Failed reason=SMTAlignmentError version=2; events refusal_SMTAlignmentError=1
a quarantine ends by itself where nothing changes
    exact; refuse a 4; wait 299; fits 4 not n1; improved any; wait 2; improved n1; fits 4 n1; quarantined 0
""")
def test_the_ledger_books_what_a_report_cannot_know_yet(story: str) -> None:
    check_ledger(tell(story).ledger)


def test_an_ended_pods_init_container_leaves_nothing_behind_in_an_old_report(service: Service) -> None:
    node = kubelet()
    waits = pod("a", "2")
    waits["spec"]["initContainers"] = [{**waits["spec"]["containers"][0], "name": "i"}]
    waits["spec"]["initContainers"][0]["resources"] = {"limits": {"cpu": "4", "memory": "1Gi"}}
    assert node.admit(decoded(waits)).admitted
    node.start("uid-a")
    service.report(exact(node))
    service.put({**waits, "spec": {**waits["spec"], "nodeName": "n1"}})
    assert service.free("n1") == [3, 0]
    service.ledger.drop_pod("uid-a")
    assert service.free("n1") == [3, 4]
    service.report(exact(node, "2"))
    assert service.free("n1") == [3, 4]


@pytest.mark.parametrize(
    ("change", "ends"),
    [
        ({"allocatable": {"cpu": "8", "example.com/gpu": "3"}}, True),
        ({"nodeInfo": {"kubeletVersion": "v1.36.0", "bootID": "of-the-next"}}, True),
        ({"conditions": [{"type": "Ready", "status": "False"}]}, True),
        ({"images": [{"names": ["a:1"]}]}, False),
        ({}, False),
    ],
)
def test_a_quarantine_ends_with_a_change_of_the_node_that_could_matter(
    service: Service, change: dict[str, Any], ends: bool
) -> None:
    """A device plug-in registers: the exporter may have written its devices before the refusal came."""
    status = {
        "allocatable": {"cpu": "8"},
        "nodeInfo": {"kubeletVersion": "v1.36.0", "bootID": "first"},
        "conditions": [{"type": "Ready", "status": "True"}],
    }

    def put_node(status: dict[str, Any]) -> None:
        node = service.nodes.decode(msgspec.json.encode({"metadata": {"name": "n1"}, "status": status}))
        service.ledger.reports.put_node_object(node, 0.0)

    put_node(status)
    service.report(exact(kubelet()))
    service.refuse(pod("a", "4"), "n1")
    assert service.fits(pod("b", "4"), "n1") == []
    service.ledger.node_states.take_improved()
    put_node({**status, **change})
    assert (len(service.ledger.gates.quarantine) == 0) is ends
    assert service.ledger.node_states.take_improved() == ({"n1"} if ends else set())


class TestWhatBindingChanges:
    """A bind as reserved does not change the node and writes no engine row; any other event writes the row."""

    @pytest.fixture
    def engine_puts(self, service: Service, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        names: list[str] = []
        put = service.engine.put

        def noted(name: str, node: Kubelet) -> None:
            names.append(name.partition("/")[0])
            put(name, node)

        service.report(exact(kubelet()))
        monkeypatch.setattr(service.engine, "put", noted)
        return names

    def reserve(self, service: Service, name: str, cpu: str = "2") -> Any:
        record = service.records.decode(msgspec.json.encode(pod(name, cpu)))
        service.reserve(record)
        return record

    def bind(self, service: Service, record: Any) -> None:
        assert service.assume(record) == ""

    def test_the_pod_that_was_reserved(self, service: Service, engine_puts: list[str]) -> None:
        record = self.reserve(service, "a")
        free = service.free("n1")
        engine_puts.clear()
        self.bind(service, record)
        assert engine_puts == []
        assert service.free("n1") == free

    def test_of_two_reserved_pods_the_second_is_bound_first(self, service: Service, engine_puts: list[str]) -> None:
        self.reserve(service, "a", "1")
        second = self.reserve(service, "b", "3")
        engine_puts.clear()
        self.bind(service, second)
        assert engine_puts

    def test_a_pod_has_ended_since_the_reservation(self, service: Service, engine_puts: list[str]) -> None:
        service.put(pod("old", "2", node="n1"))
        record = self.reserve(service, "a", "3")
        assert service.free("n1") == [1, 1]
        service.ledger.drop_pod("uid-old")
        # Its kubelet will place the pod after the end.
        assert service.free("n1") == [0, 4]
        engine_puts.clear()
        self.bind(service, record)
        assert engine_puts == []
        assert service.free("n1") == [0, 4]

    def test_a_nominated_pod_is_uncertain_once_it_is_bound(self, service: Service, engine_puts: list[str]) -> None:
        service.put(pod("a", "3", nominatedNodeName="n1"))
        assert service.ledger.node_states.possible.pods == 0
        service.put(pod("a", "3", node="n1"))
        assert service.ledger.node_states.possible.pods == 1


def test_a_pod_that_was_asked_about_and_is_deleted_before_its_bind_is_forgotten() -> None:
    service = Service()
    service.report(counts("n1", ("4", "4")))
    record = service.put(pod("p"))
    service.ledger.remember(record)
    assert service.ledger.remembered(record.uid) is record
    service.ledger.drop_pod(record.uid)
    assert service.ledger.remembered(record.uid) is None


def ask_gang(service: Service, *names: str, cpu: str = "1") -> list[bool]:
    """kube-scheduler asks about each member of a gang in turn, and goes on as if it were there if it fits."""
    fits = []
    for name in names:
        document = pod(name, cpu, schedulingGroup={"podGroupName": "gang"})
        service.put(document)
        question = service.answers.question(decoded(document), ["n1"])
        fits.append(service.answers.verdicts(question).outcomes.tolist() == [1])
        if fits[-1]:
            service.answers.expect(question, 0)
    return fits


def test_reservations_of_a_gang_last_while_it_is_decided_and_not_long_after() -> None:
    """kube-scheduler asks about each member and then binds all members or none, without an event that says so."""
    service = Service()
    service.report(exact(kubelet()))
    for name in ("a", "b", "c"):
        ask_gang(service, name)
        # Longer than the first reservation lasts without a question about its gang.
        service.clock.now += 0.4
        service.ledger.reservations.expire()
    assert len(service.ledger.reservations) == 3
    service.clock.now += 0.3
    service.ledger.reservations.expire()
    assert len(service.ledger.reservations) == 0
    assert sum(service.free("n1")) == 7


def test_a_gang_that_is_tried_again_at_once_is_not_in_its_own_way() -> None:
    """Three CPUs and four: of a gang of three pods of three CPUs two fit, again and again."""
    service = Service()
    service.report(exact(kubelet()))
    for names in (("a", "b", "c"), ("a", "b", "c"), ("b", "a", "c")):
        assert ask_gang(service, *names, cpu="3") == [True, True, False], names
    assert len(service.ledger.reservations) == 2
    check_ledger(service.ledger)


def test_a_failed_gang_blocks_no_pod() -> None:
    """kube-scheduler retries the pod, and asks about other pods in between."""
    service = Service()
    service.report(exact(kubelet()))
    served = service.verbs()
    for name in ("a", "b", "c", "other"):
        group = {} if name == "other" else {"schedulingGroup": {"podGroupName": "gang"}}
        body = msgspec.json.encode({"Pod": pod(name, "3", **group), "Nodes": None, "NodeNames": ["n1"]})
        answer = sent(served.filter(body))
        assert answer["NodeNames"] == ([] if name == "c" else ["n1"]), name
    assert len(service.ledger.reservations) == 1


def test_resources_of_a_failed_gang_are_free_within_a_second() -> None:
    service = Service()
    service.report(exact(kubelet()))
    ask_gang(service, "a", "b", "c", cpu="3")
    assert service.fits(pod("other", "3"), "n1") == []
    service.clock.now += 0.75
    service.ledger.reservations.expire()
    assert service.fits(pod("other", "3"), "n1") == ["n1"]
