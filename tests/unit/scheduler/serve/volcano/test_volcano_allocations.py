"""What a session of Volcano books, and gives back."""

from __future__ import annotations

import pytest

from refusal_words import refusals
from scheduling import Service, counts, pod
from stories import Story, run, table
from topowise_scheduler.serve.volcano.allocations import LEAVING_S, Allocations
from volcano import PIPELINED, RELEASING, Volcano


@pytest.fixture
def service() -> Service:
    made = Service()
    for name in ("n1", "n2"):
        made.report(counts(name, ("8", "8"), included=()))
    return made


@pytest.fixture
def volcano(service: Service) -> Volcano:
    return Volcano(service)


class Session(Story):
    """Stories of a session: two nodes with two zones of eight CPUs each."""

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        self.volcano = Volcano(service)

    def allocate(self, name: str, cpu: str, on: str = "n1", why: str = "", pipelined: str = "") -> None:
        """The session allocates a pod, or is refused with a text that has these_words."""
        error = self.volcano.allocate(pod(name, cpu), on, *([PIPELINED] if pipelined else []))
        assert why.replace("_", " ") in error and bool(why) == bool(error), error

    def give_back(self, name: str, cpu: str) -> None:
        """The session takes an allocation back."""
        assert self.volcano.deallocate(pod(name, cpu), "n1") == ""

    def evict(self, name: str, cpu: str) -> None:
        """The session evicts a pod."""
        assert self.volcano.deallocate(pod(name, cpu), "n1", RELEASING) == ""

    def takes(self, name: str, cpu: str, on: str = "n1") -> None:
        """The node takes the pod."""
        assert self.volcano.fits(pod(name, cpu), on)

    def refuses(self, name: str, cpu: str, code: str) -> None:
        """The node refuses the pod now: code 2 if an eviction may help, and 1 if not."""
        assert self.volcano.predicate(pod(name, cpu), "n1") == (int(code), refusals.NOT_NOW)

    def close(self) -> None:
        """The session ends."""
        self.volcano.ask("onSessionClose", {})


CROWDED = "counts 0 0 of=old-a,old-b at=old-a:0,old-b:1 version=2; running old-a 8; running old-b 8"


@table("""
an allocation that is refused is no bind that failed
    allocate nine 9 why=refuse; events bind_conflict=0; assume other-nine 9 why=TopologyAffinityError
    events bind_conflict=1
# Volcano binds side by side. Three, four and four CPUs first, and no five are left on one NUMA node.
pods of a session must fit in every order in which they may be bound
    allocate five 5; allocate four 4; allocate other-four 4
    # No pod is evicted for what the next session finds settled.
    refuses three 3 1; allocate three 3 why=in_another_order; takes three 3 on=n2; give_back five 5; takes three 3
    allocate three 3
a pod is not in its own way
    allocate a 8; allocate b 8; takes a 8; allocate a 8
a pod allocated elsewhere is booked there alone
    allocate a 8; allocate a 8 on=n2; free 8 8; sum 8 on=n2
eight CPUs are free together only if two pods are on one NUMA node, which their order decides
    allocate a 5; allocate b 3; allocate c 8 why=refuse
an allocation that is never bound ends by itself
    allocate a 8; wait 31; free 8 8
a bind takes the place of the allocation
    allocate a 8; bound a 8; reservations 0; free 0 8; allocate a 8
    allocate a 8 on=n2 why=kubelet_of_n2_would_refuse_the_pod:_it_is_bound_to_n1_already; give_back a 8; free 0 8
a node without a report takes everything
    allocate a 64 on=unknown-node; reservations 0
an evicted pod makes room for a pipelined pod alone
    CROWDED; refuses new 8 2; evict old-a 8; takes new 8
    # It still runs, so nothing can be bound there now.
    allocate new 8 why=refuse; allocate new 8 pipelined=yes; refuses late 8 2; fits 1 not n1; end old-a
    counts 8 0 of=old-b at=old-b:1 version=3; free 0 0; allocate new 8
free resources that a pipelined pod counts on are not given away
    counts 2 0 of=old-a,old-b at=old-a:0,old-b:1 version=2; running old-a 6; running old-b 8; evict old-a 6
    takes small 1; allocate new 8 pipelined=yes; refuses small 1 2
    allocate small 1 why=n1_reserves_its_free_resources_for_a_pipelined_pod
an evicted pod is left out of account in later sessions, so that no other pod is evicted
    CROWDED; evict old-a 8; allocate new 8 pipelined=yes; close; wait 60; takes new 8; later LEAVING; refuses new 8 2
two evictions make room for two pods
    CROWDED; evict old-a 8; evict old-b 8; allocate new-a 8 pipelined=yes; takes new-b 8
    allocate new-b 8 pipelined=yes; allocate new-c 1 pipelined=yes why=refuse; give_back new-a 8; takes new-c 8
""")
def test_what_a_session_books(service: Service, story: str) -> None:
    run(Session(service), story.replace("CROWDED", CROWDED).replace("LEAVING", str(LEAVING_S)))


def test_allocations_outlive_questions_about_other_tasks_and_the_same(volcano: Volcano, service: Service) -> None:
    first, second = pod("a", "8"), pod("b", "8")
    assert volcano.allocate(first, "n1") == ""
    for one in (first, second):
        volcano.fits(one, "n1")
        volcano.scores(one, "n1", "n2")
    assert volcano.allocate(second, "n1") == ""
    assert service.free("n1") == [0, 0]


def test_evictions_of_pods_that_are_not_there_are_not_kept(service: Service) -> None:
    allocations = Allocations(service.ledger, service.clock)
    service.put(pod("old", "8", node="n1"))
    for uid in ("uid-old", *(f"made-up-{number}" for number in range(100))):
        allocations.evict(uid, "n1")
        allocations.evict(uid, "nowhere")
    allocations.evict("uid-old", "n1")
    assert len(allocations._leaving) == 1
    assert allocations.leaving("n1") == {"uid-old"}
