"""Which pods are requeued, when, and how often."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from scheduling import WAITS, Service, counts, full, pod
from stories import Story, run, table
from topowise.kube.api import Api
from topowise.placement import GATE
from topowise_scheduler.controllers.requeue import Requeuer
from topowise_scheduler.ledger.pods.records import PodRecord


@pytest.fixture
def service() -> Service:
    return full()


def requeuer(service: Service, per_second: float = 1000.0) -> Requeuer:
    # due() sends no request; tests/integration tests the requests with a server.
    return Requeuer(
        object.__new__(Api),
        service.ledger,
        service.answers.fits,
        interval=0.1,
        per_second=per_second,
        clock=service.clock,
    )


def due(pod_requeuer: Requeuer) -> list[str]:
    return [record.name for record in pod_requeuer._steps() if record is not None]


def free(service: Service, cpus: str, version: str) -> None:
    service.report(counts("n1", cpus, included=(), version=version))


class Requeueing(Story):
    """Stories of a full node, on which the pod "other" runs."""

    def __init__(self) -> None:
        super().__init__(full())
        self.requeuer = requeuer(self.service)

    def waits(self, name: str, *amounts: str, **fields: str) -> None:
        """An event of a pod that topowise has refused."""
        document = self._document(name, amounts, fields)
        document["status"]["conditions"] = WAITS
        self.service.put(document)

    def due(self, *names: str) -> None:
        """Pods that are requeued now."""
        assert due(self.requeuer) == [name for name in names if name != "-"]


@table("""
a pod is requeued once when enough resources become free
    waits a 4; due -; end other; counts 8 of=- version=2; due a; due -; later 1; counts 7 of=- version=3; due a
a pod that begins to wait after the node has improved is requeued
    # It was refused before, but the event of its condition comes after this.
    waits huge 9; due -; end other; counts 8 of=- version=2; due -; due -; waits late 4; due late; due -
    # This pod was refused after the node had improved.
    later 11; waits later 3; due -
the most important come first, and as many as there are nodes for them
    waits low 8 priority=1; waits high 8 priority=9; waits middle 8 priority=5; end other; counts 8 of=- version=2
    due high; bound high 8; due -
while a node has free resources the next pod of the shape follows
    waits a 4 creationTimestamp=2026-01-01T00:00:01Z; waits b 4 creationTimestamp=2026-01-01T00:00:02Z
    waits c 4 creationTimestamp=2026-01-01T00:00:03Z; end other; counts 8 of=- version=2; due a; bound a 4; due b
    bound b 4; due -
a quarantined node requeues no pod
    waits a 4; end other; counts 8 of=- version=2; refuse b 4; due -
an exact report of freed resources requeues too
    waits a 4; exact; due a
""")
def test_pods_are_requeued_when_it_helps(story: str) -> None:
    run(Requeueing(), story)


def test_a_pod_requeued_in_vain_is_left_alone_for_longer_and_longer(service: Service) -> None:
    service.put(pod("a", "4", conditions=WAITS))
    pod_requeuer = requeuer(service)
    service.ledger.drop_pod("uid-other")
    times = 0
    for tick in range(600):
        free(service, "8" if tick % 2 else "7", str(tick + 2))
        times += len(due(pod_requeuer))
        service.clock.now += 0.1
    assert times == 6


@pytest.mark.parametrize(
    "fields",
    [
        {"conditions": WAITS, "annotations": {"volcano.sh/numa-topology-policy": "restricted"}},
        {"conditions": [{**WAITS[0], "message": "0/1 nodes are available: 1 Insufficient cpu."}]},
    ],
    ids=["a policy that no node has", "refused by other plugins"],
)
def test_a_pod_that_free_resources_do_not_help_is_not_requeued(service: Service, fields: dict[str, Any]) -> None:
    service.put(pod("a", "4", **fields))
    pod_requeuer = requeuer(service)
    service.ledger.drop_pod("uid-other")
    free(service, "8", "2")
    assert due(pod_requeuer) == []


def test_two_hundred_kinds_of_pods_that_fit_nowhere_cost_nothing_once_each_was_tried() -> None:
    service, tried = Service(), []
    for number in range(50):
        service.report(counts(f"n{number}", "0", included=()))
    for number in range(200):
        service.put(pod(f"p{number}", "1", memory=f"{number + 1}Mi", conditions=WAITS))
    pod_requeuer = requeuer(service)
    fits = pod_requeuer._fits

    def count(record: PodRecord, names: Sequence[str]) -> NDArray[np.bool_]:
        tried.append(record.name)
        return fits(record, names)

    pod_requeuer._fits = count
    for number in range(50):
        service.report(counts(f"n{number}", "0", included=(), version="2"))
        service.ledger.node_states.note_improved(f"n{number}")
    for _ in range(4):
        assert due(pod_requeuer) == []
    assert sorted(tried) == sorted(f"p{number}" for number in range(200))
    for _ in range(100):
        service.clock.now += 0.1
        assert due(pod_requeuer) == []
    assert len(tried) == 200


def test_of_more_groups_than_fit_into_a_tick_each_has_its_turn(service: Service) -> None:
    service.report(counts("n2", "0", included=()))
    for number in range(70):
        service.put(pod(f"p{number}", "9", memory=f"{number + 1}Mi", conditions=WAITS, priority=5))
    service.put(pod("small", "4", conditions=WAITS))
    pod_requeuer = requeuer(service)
    service.ledger.drop_pod("uid-other")
    free(service, "8", "2")
    requeued = [name for _ in range(3) for name in due(pod_requeuer)]
    assert requeued == ["small"]


def test_the_rate_is_limited_and_no_pod_is_forgotten(service: Service) -> None:
    for number in range(4):
        service.put(pod(f"p{number}", "1", memory=f"{number + 1}Mi", conditions=WAITS))
    pod_requeuer = requeuer(service, per_second=20.0)
    pod_requeuer._allowance = 2.0
    service.ledger.drop_pod("uid-other")
    free(service, "8", "2")
    first = due(pod_requeuer)
    pod_requeuer._allowance = 10.0
    assert len(first) == 2
    assert sorted(first + due(pod_requeuer)) == ["p0", "p1", "p2", "p3"]


def test_a_gated_pod_is_not_requeued() -> None:
    """No scheduler looks at it; with only such pods there is nothing to do."""
    service = Service(places=True)
    service.report(counts("n1", "2", included=(), version="1"))
    service.put(pod("gated", "4", schedulingGates=[{"name": GATE}]))
    pods = requeuer(service)
    assert due(pods) == []
    free(service, "8", "2")
    assert due(pods) == []
    service.put(pod("waits", "4", conditions=WAITS))
    free(service, "7", "3")
    assert due(pods) == ["waits"]
