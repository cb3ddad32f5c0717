"""The ledger books what a report cannot know yet, and only that."""

from typing import Any

import msgspec
import pytest

from ledger_check import check_ledger
from scheduling import Service, counts, decoded, exact, kubelet, pod, sent
from topowise_scheduler.explain.refusal_texts import TEXTS
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.verdicts.refusals import Refusal


def admit(node: Kubelet, document: dict[str, Any]) -> None:
    assert node.admit(decoded(document)).admitted


class TestReportsOfCounts:
    def test_a_pod_is_booked_from_its_assignment_until_a_report_includes_it(self, service: Service) -> None:
        service.report(counts("n1", "8", included=()))
        service.put(pod("a", "3", node="n1"))
        assert service.free("n1") == [5]
        service.report(counts("n1", "5", included=["a"]))
        assert service.free("n1") == [5]

    def test_a_report_that_came_before_the_pods_event_is_recognised(self, service: Service) -> None:
        service.report(counts("n1", "5", included=["a"]))
        service.put(pod("a", "3", node="n1"))
        assert service.free("n1") == [5]

    def test_a_report_without_the_newest_pod_is_recognised_for_the_earlier_pods(self, service: Service) -> None:
        service.report(counts("n1", "8", included=()))
        service.put(pod("a", "3", node="n1"))
        service.put(pod("b", "2", node="n1"))
        service.report(counts("n1", "5", included=["a"]))
        assert service.free("n1") == [3]
        service.report(counts("n1", "3", included=["a", "b"]))
        assert service.free("n1") == [3]

    def test_a_report_that_still_counts_an_ended_pod_is_recognised(self, service: Service) -> None:
        service.report(counts("n1", "5", included=["a"]))
        service.put(pod("a", "3", node="n1"))
        service.ledger.drop_pod("uid-a")
        service.put(pod("b", "2", node="n1"))
        service.report(counts("n1", "3", included=["a", "b"]))
        assert service.free("n1") == [3]
        service.report(counts("n1", "6", included=["b"]))
        assert service.free("n1") == [6]

    def test_of_several_that_ended_the_report_may_count_the_last(self, service: Service) -> None:
        for name in ("a", "b", "c"):
            service.put(pod(name, "2", node="n1"))
        service.report(counts("n1", "2", included=["a", "b", "c"]))
        service.ledger.drop_pod("uid-a")
        service.clock.now += 1
        service.ledger.drop_pod("uid-b")
        service.put(pod("d", "1", node="n1"))
        assert service.free("n1") == [1]
        service.report(counts("n1", "4", included=["b", "c"]))
        assert service.free("n1") == [3]

    def test_a_pod_that_ends_before_it_is_reported_is_no_longer_booked(self, service: Service) -> None:
        service.report(counts("n1", "8", included=()))
        service.put(pod("a", "3", node="n1"))
        service.put(pod("a", "3", node="n1", phase="Failed"))
        assert service.free("n1") == [8]

    def test_a_deleted_pod_that_was_reported_stays_in_the_numbers_until_the_next_report(self, service: Service) -> None:
        service.report(counts("n1", "5", included=["a"]))
        service.put(pod("a", "3", node="n1"))
        service.ledger.drop_pod("uid-a")
        assert service.free("n1") == [5]
        service.report(counts("n1", "8", included=()))
        assert service.free("n1") == [8]

    def test_method_all_counts_pods_without_exclusive_resources(self, service: Service) -> None:
        service.report(counts("n1", "8", included=(), method="all"))
        service.put(pod("shared", "500m", node="n1"))
        service.put(pod("a", "3", node="n1"))
        service.report(counts("n1", "5", included=["a", "shared"], method="all"))
        assert service.free("n1") == [5]

    def test_without_a_fingerprint_the_next_new_report_is_believed(self, service: Service) -> None:
        service.report(counts("n1", "8", version="1"))
        service.put(pod("a", "3", node="n1"))
        assert service.free("n1") == [5]
        service.report(counts("n1", "8", version="1"))
        assert service.free("n1") == [5]
        service.report(counts("n1", "5", version="2"))
        assert service.free("n1") == [5]

    def test_without_a_fingerprint_pods_that_ran_before_us_are_in_the_report(self, service: Service) -> None:
        service.report(counts("n1", "4"))
        service.put(pod("a", "4", node="n1"), is_news=False)
        assert service.free("n1") == [4]

    def test_amounts_without_usage_include_no_pod(self, service: Service) -> None:
        """koordlet reports totals only, and anew with every change of the node."""
        for version in range(3):
            service.report(counts("n1", ("8", "8"), version=str(version)))
            service.put(pod("a", "8", node="n1"))
            assert service.free("n1") == [0, 8]

    def test_amounts_without_a_fingerprint_include_only_pods_that_fit(self, service: Service) -> None:
        service.report(counts("n1", "8", version="1"))
        service.put(pod("a", "3", node="n1"))
        service.put(pod("b", "2", node="n1"))
        service.report(counts("n1", "5", version="2"))
        assert service.free("n1") == [3]

    def test_pods_seen_before_the_first_report_are_kept_for_it(self, service: Service) -> None:
        service.put(pod("a", "3", node="n1"))
        service.report(counts("n1", "8", included=()))
        assert service.free("n1") == [5]
        service.ledger.reports.drop("n1")
        assert service.ledger.node_states.reported() == []
        assert service.fits(pod("x", "8"), "n1") == ["n1"]


class TestReportsOfCountsThatTellPlaces:
    """numaplacement, which RTE writes from 0.25 on."""

    def test_resources_of_an_ended_pod_are_free_at_once(self, service: Service) -> None:
        for name, cpu in (("a", "3"), ("b", "4")):
            service.put(pod(name, cpu, node="n1"))
        service.report(counts("n1", ("5", "4"), included=["a", "b"], placed={"a": 0, "b": 1}))
        assert service.free("n1") == [5, 4]
        service.ledger.drop_pod("uid-b")
        assert service.free("n1") == [5, 8]
        service.put(pod("c", "2", node="n1"))
        assert service.free("n1") == [3, 8]

    def test_it_is_known_as_soon_as_the_last_of_the_pods_is(self, service: Service) -> None:
        service.report(counts("n1", ("5", "4"), included=["a", "b"], placed={"a": 0, "b": 1}))
        for name, cpu in (("a", "3"), ("b", "4")):
            service.put(pod(name, cpu, node="n1"))
        assert service.free("n1") == [5, 4]
        service.ledger.drop_pod("uid-a")
        assert service.free("n1") == [8, 4]

    def test_what_does_not_add_up_stays_with_the_zone(self, service: Service) -> None:
        service.put(pod("a", "6", node="n1"))
        service.report(counts("n1", ("5", "4"), included=["a"], placed={"a": 0}))
        assert service.free("n1") == [5, 4]
        service.ledger.drop_pod("uid-a")
        assert service.free("n1") == [5, 4]


class TestReportsOfOurExporter:
    def test_what_is_confirmed_replaces_the_prediction_and_is_counted(self, service: Service) -> None:
        truth = kubelet()
        service.report(exact(truth))
        service.put(pod("a", "3", node="n1"))
        assert service.free("n1") == [0, 4]
        admit(truth, pod("a", "3"))
        service.report(exact(truth, "2"))
        assert service.free("n1") == [0, 4]
        assert (service.ledger.events["prediction_ids"], service.ledger.events["prediction_missed"]) == (1, 0)

    def test_a_pod_placed_elsewhere_is_moved_and_counted(self, service: Service) -> None:
        truth = kubelet()
        service.report(exact(truth))
        service.put(pod("a", "3", node="n1"))
        admit(truth, pod("unseen", "2"))
        admit(truth, pod("a", "3"))
        service.report(exact(truth, "2"))
        assert service.free("n1") == [1, 1]
        assert service.ledger.events["prediction_missed"] == 1

    def test_pods_not_in_the_report_yet_stay_booked_on_top(self, service: Service) -> None:
        truth = kubelet()
        service.report(exact(truth))
        service.put(pod("a", "3", node="n1"))
        service.put(pod("b", "2", node="n1"))
        admit(truth, pod("a", "3"))
        service.report(exact(truth, "2"))
        assert service.free("n1") == [0, 2]

    def test_a_reported_pod_that_ends_is_free_at_once_and_an_old_report_does_not_bring_it_back(
        self, service: Service
    ) -> None:
        truth = kubelet()
        admit(truth, pod("a", "3"))
        service.report(exact(truth))
        service.put(pod("a", "3", node="n1"))
        service.ledger.drop_pod("uid-a")
        assert service.free("n1") == [3, 4]
        service.report(exact(truth, "2"))
        assert service.free("n1") == [3, 4]
        service.clock.now += 121
        service.report(exact(truth, "3"))
        assert service.free("n1") == [0, 4]

    def test_an_ended_pods_init_container_leaves_nothing_behind_in_an_old_report(self, service: Service) -> None:
        node = kubelet()
        waits = pod("a", "2")
        waits["spec"]["initContainers"] = [{**waits["spec"]["containers"][0], "name": "i"}]
        waits["spec"]["initContainers"][0]["resources"] = {"limits": {"cpu": "4", "memory": "1Gi"}}
        admit(node, waits)
        node.start("uid-a")
        service.report(exact(node))
        service.put({**waits, "spec": {**waits["spec"], "nodeName": "n1"}})
        assert service.free("n1") == [3, 0]
        service.ledger.drop_pod("uid-a")
        assert service.free("n1") == [3, 4]
        service.report(exact(node, "2"))
        assert service.free("n1") == [3, 4]

    def test_allocations_of_unknown_pods_are_in_use(self, service: Service) -> None:
        truth = kubelet()
        admit(truth, pod("a", "3"))
        service.report(exact(truth))
        assert service.free("n1") == [0, 4]
        service.put(pod("a", "3", node="n1"))
        assert service.free("n1") == [0, 4]
        service.ledger.drop_pod("uid-a")
        assert service.free("n1") == [3, 4]

    def test_a_pod_that_did_not_fit_gets_the_resources_of_an_ended_pod(self, service: Service) -> None:
        service.report(exact(kubelet()))
        service.put(pod("a", "4", node="n1"))
        service.put(pod("b", "4", node="n1"))
        assert service.free("n1") == [3, 0]
        service.ledger.drop_pod("uid-a")
        assert service.free("n1") == [3, 0]


class TestPodsThatAreExpected:
    @pytest.fixture(autouse=True)
    def _reported(self, service: Service) -> None:
        service.report(exact(kubelet()))
        service.report(exact(kubelet(), name="n2"))

    def test_a_reservation_keeps_resources_on_a_single_node_until_it_expires(self, service: Service) -> None:
        record = service.reserve(pod("a", "4"))
        assert service.fits(pod("b", "4"), "n1", "n2") == ["n2"]
        service.reserve(record, "n2")
        assert service.fits(pod("b", "4"), "n1", "n2") == ["n1"]
        service.clock.now += 31
        assert service.ledger.reservations.expire() == 1
        assert service.fits(pod("b", "4"), "n1", "n2") == ["n1", "n2"]

    def test_the_pod_itself_does_not_stand_in_its_own_way(self, service: Service) -> None:
        service.reserve(pod("a", "4"))
        assert service.fits(pod("a", "4"), "n1") == ["n1"]

    def test_assume_refuses_without_free_resources_and_books_with_them(self, service: Service) -> None:
        service.put(pod("other", "4", node="n1"))
        record = service.put(pod("a", "4"))
        assert service.assume(record) == "TopologyAffinityError"
        assert service.assume(record, "n2") == ""
        assert service.free("n2") == [3, 0]
        service.ledger.reservations.forget(record.uid)
        assert service.free("n2") == [3, 4]

    def test_a_nominated_pod_blocks_lower_priority_pods_only(self, service: Service) -> None:
        service.put(pod("a", "4", nominatedNodeName="n1", priority=10))
        assert service.fits(pod("b", "4", priority=5), "n1") == []
        assert service.fits(pod("b", "4", priority=10), "n1") == []
        assert service.fits(pod("b", "4", priority=11), "n1") == ["n1"]
        assert service.fits(pod("a", "4", priority=10), "n1") == ["n1"]
        service.put(pod("a", "4", priority=10))
        assert service.fits(pod("b", "4", priority=5), "n1") == ["n1"]

    def test_a_bind_that_lost_a_race_keeps_the_other_bookings(self, service: Service) -> None:
        record = service.put(pod("a", "4"))
        assert service.assume(record) == ""
        service.put(pod("a", "4", node="n2"))
        service.ledger.reservations.forget(record.uid)
        assert (service.free("n1"), service.free("n2")) == ([3, 4], [3, 0])

    def test_a_reservation_that_ends_leaves_the_nomination(self, service: Service) -> None:
        record = service.reserve(pod("a", "4", nominatedNodeName="n1", priority=10))
        service.ledger.reservations.release(record.uid)
        assert service.fits(pod("b", "4"), "n1") == []


class TestRefusals:
    def test_a_refused_pod_is_booked_nowhere_and_its_like_is_kept_away_until_the_next_report(
        self, service: Service
    ) -> None:
        service.report(exact(kubelet()))
        service.refuse(pod("a", "4"), "n1")
        assert service.free("n1") == [3, 4]
        assert service.fits(pod("b", "4"), "n1") == []
        assert service.fits(pod("b", "3"), "n1") == ["n1"]
        assert service.ledger.events["refusal_TopologyAffinityError"] == 1
        changes = service.ledger.node_states.changes
        service.report(exact(kubelet(), "2"))
        assert service.ledger.node_states.changes > changes
        assert service.fits(pod("b", "4"), "n1") == ["n1"]

    def test_a_pod_that_was_on_its_way_to_the_node_is_not_bound_to_it_either(self, service: Service) -> None:
        """The pod was reserved before the refusal. Its kubelet would most likely refuse it, and the pod would fail."""
        service.report(exact(kubelet()))
        late = service.reserve(pod("late", "3"))
        service.refuse(pod("a", "3"), "n1")
        assert service.assume(late) == TEXTS[Refusal.QUARANTINED]
        assert len(service.ledger.reservations) == 0
        service.report(exact(kubelet(), "2"))
        assert service.assume(late) == ""

    def test_a_refusal_before_the_services_start_quarantines_no_node(self, service: Service) -> None:
        service.report(exact(kubelet()))
        service.put(pod("a", "4", node="n1", phase="Failed", reason="TopologyAffinityError"), is_news=False)
        assert service.fits(pod("b", "4"), "n1") == ["n1"]

    @pytest.mark.parametrize("is_admitted", [True, False], ids=["readmitted", "bound by another scheduler"])
    def test_a_refusal_that_contradicts_no_prediction_quarantines_no_node(
        self, service: Service, is_admitted: bool
    ) -> None:
        """After a reboot the kubelet admits its pods before the device plug-ins have registered. Controllers make pods
        of the same requests, which waited for five minutes."""
        service.report(exact(kubelet()))
        if is_admitted:
            bound = service.bind(pod("a", "4"), "n1")
            service.put({**bound, "status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"}})
        else:
            service.put(pod("a", "4", node="n1"))
        service.put(pod("a", "4", node="n1", phase="Failed", reason="UnexpectedAdmissionError"))
        assert service.ledger.events["refusal_UnexpectedAdmissionError"] == 1
        assert len(service.ledger.gates.quarantine) == 0
        assert service.fits(pod("b", "4"), "n1") == ["n1"]

    def test_a_pod_that_was_reserved_and_bound_without_the_service_was_predicted(self, service: Service) -> None:
        """kube-scheduler without `bindVerb`."""
        service.report(exact(kubelet()))
        service.reserve(pod("a", "4"))
        service.put(pod("a", "4", node="n1"))
        service.put(pod("a", "4", node="n1", phase="Failed", reason="TopologyAffinityError"))
        assert service.fits(pod("b", "4"), "n1") == []

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
        self, service: Service, change: dict[str, Any], ends: bool
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

    def test_the_same_refusal_seen_again_counts_once(self, service: Service) -> None:
        service.report(exact(kubelet()))
        for version in ("1", "2"):
            service.put(pod("a", "4", node="n1", phase="Failed", reason="SMTAlignmentError", resourceVersion=version))
        assert service.ledger.events["refusal_SMTAlignmentError"] == 1

    def test_a_quarantine_ends_by_itself_where_nothing_changes(self, service: Service) -> None:
        service.report(exact(kubelet()))
        service.refuse(pod("a", "4"), "n1")
        service.wait(299)
        assert service.fits(pod("b", "4"), "n1") == []
        service.ledger.node_states.take_improved()
        service.wait(2)
        assert service.ledger.node_states.take_improved() == {"n1"}
        assert service.fits(pod("b", "4"), "n1") == ["n1"]
        assert len(service.ledger.gates.quarantine) == 0


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
