"""/fit-together places all pods or none; a reservation expires."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Any

import pytest

from ledger_check import check_ledger
from scheduling import Service, exact, kubelet, pod, sent
from topowise import pods
from topowise.errors import ParseError
from topowise_scheduler.ledger.pods.pod_states import State
from topowise_scheduler.overlay.fit_together import FitTogether, FitTogetherService
from topowise_scheduler.serve.extender.explaining import fit_together
from topowise_scheduler.serve.extender.replies import BadRequestError
from topowise_scheduler.verdicts import kube_scheduler


@pytest.fixture
def service() -> Service:
    """Two nodes, each with a zone of three free CPUs and a zone of four."""
    service = Service("TightFit")
    for name in ("n1", "n2"):
        service.report(exact(kubelet(), name=name))
    return service


def ask(fitting: FitTogetherService, **request: Any) -> dict[str, Any]:
    verb = partial(fit_together, fitting, lambda: None)
    answer: dict[str, Any] = sent(asyncio.run(verb(json.dumps(request).encode())))
    return answer


def template(cpu: str) -> dict[str, Any]:
    document = pod("job", cpu)
    del document["metadata"]["uid"]
    return document


def test_all_pods_fit_or_none(service: Service) -> None:
    answer = ask(service.fitting(), template=template("3"), count=4)
    assert answer["fits"]
    assert [placement["pod"] for placement in answer["placements"]] == [f"default/job-{number}" for number in range(4)]
    assert sorted(placement["node"] for placement in answer["placements"]) == ["n1", "n1", "n2", "n2"]
    assert answer["placements"][0]["containers"]["c"]["aligned"]
    short = ask(service.fitting(), template=template("3"), count=5)
    assert not short["fits"]
    assert len(short["placements"]) == 4
    assert short["why"] == "0/2 nodes: 2 taken by the pods before it"


def test_a_reservation_lasts_until_its_release_or_expiry(service: Service) -> None:
    fitting = service.fitting(most_reserved=8)
    answer = ask(fitting, template=template("3"), count=4, reserveSeconds=60)
    assert answer["fits"]
    assert service.fits(pod("other", "3"), "n1", "n2") == []
    assert ask(fitting, release=answer["reservation"]) == {"released": True}
    assert ask(fitting, release=answer["reservation"]) == {"released": False}
    assert service.fits(pod("other", "3"), "n1", "n2") == ["n1", "n2"]
    ask(fitting, template=template("3"), count=4, reserveSeconds=60)
    service.clock.now += 61
    service.ledger.tick()
    assert service.fits(pod("other", "3"), "n1", "n2") == ["n1", "n2"]
    check_ledger(service.ledger)


def test_a_pod_uses_its_own_reservation(service: Service) -> None:
    fitting = service.fitting(most_reserved=8)
    members = [pod(f"m{number}", "3") for number in range(4)]
    assert ask(fitting, pods=members, reserveSeconds=60)["fits"]
    assert service.fits(pod("other", "3"), "n1", "n2") == []
    for member in members:
        question = service.answers.question(pods.decode(json.dumps(member).encode()), ["n1", "n2"])
        outcomes = service.answers.verdicts(question).outcomes.tolist()
        assert 1 in outcomes, "its own room is free for it"
        at = outcomes.index(1)
        assert question.requests.needs is not None
        assert not service.ledger.reservations.assume(question.record, question.requests.needs, question.names[at])
    check_ledger(service.ledger)


def test_a_release_keeps_later_reservations_and_bindings(service: Service) -> None:
    """Pod m is being bound, pod o has a later reservation."""
    fitting = service.fitting(most_reserved=8)
    member, waiting = pod("m", "3"), pod("o", "3")
    first = ask(fitting, pods=[member, waiting], reserveSeconds=60)["reservation"]
    service.clock.now += 1
    later = ask(fitting, pods=[waiting], reserveSeconds=60)["reservation"]
    question = service.answers.question(pods.decode(json.dumps(member).encode()), ["n1", "n2"])
    service.answers.expect(question, 0)
    assert ask(fitting, release=first) == {"released": True}
    assert len(service.ledger.reservations) == 2
    assert ask(fitting, release=later) == {"released": True}
    assert len(service.ledger.reservations) == 1


def test_reservations_are_bounded_by_the_configuration(service: Service) -> None:
    fitting = service.fitting(most_reserved=3)
    ask(fitting, template=template("1"), count=2, reserveSeconds=60)
    with pytest.raises(ParseError, match=r"'2 pods beside 2': expected 3 at the most \(fitTogether.mostReserved\)"):
        ask(fitting, template=template("1"), count=2, reserveSeconds=60)
    assert ask(fitting, template=template("1"), count=2)["fits"], "a question keeps nothing"
    with pytest.raises(ParseError, match="expected 0 at the most"):
        ask(service.fitting(), template=template("1"), reserveSeconds=1)
    service.clock.now += 61
    assert "reservation" in ask(fitting, template=template("1"), count=2, reserveSeconds=60)


def test_pods_that_do_not_fit_reserve_nothing(service: Service) -> None:
    answer = ask(service.fitting(most_reserved=100), template=template("3"), count=5, reserveSeconds=60)
    assert not answer["fits"]
    assert "reservation" not in answer
    assert len(service.ledger.reservations) == 0


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        (b"{", "no FitTogether"),
        (b'{"count": 2}', "pods '0': expected 1 to 1024 of them"),
        (b'{"template": {"metadata": {}, "spec": {"containers": []}}, "count": 2000}', "1024"),
        (b'{"pods": [], "sideways": 1}', "sideways"),
        (b'{"template": {"metadata": {}, "spec": {"containers": []}}, "reserveSeconds": 3600}', "600"),
    ],
)
def test_an_invalid_request_is_refused_with_a_line(service: Service, request_: bytes, problem: str) -> None:
    verb = partial(fit_together, service.fitting(), lambda: None)
    with pytest.raises((BadRequestError, ParseError), match=problem):
        asyncio.run(verb(request_))


def test_before_the_first_list_there_is_no_answer(service: Service) -> None:
    verb = partial(fit_together, service.fitting(), lambda: "not yet listed: nodes")
    with pytest.raises(BadRequestError, match="not ready: not yet listed: nodes"):
        asyncio.run(verb(b"{}"))


def test_a_pod_that_is_bound_without_a_query_takes_the_place_of_a_copy(service: Service) -> None:
    """kube-scheduler has asked another replica. The copy on the node of the pod goes first."""
    fitting = service.fitting(most_reserved=8)
    request = FitTogether(
        template=kube_scheduler.decode(json.dumps(template("3")).encode()), count=4, reserve_seconds=60
    )
    asyncio.run(fitting.fit(request, hand_over=True))
    ledger = service.ledger
    for number, node in enumerate(("n1", "n2", "n2", "n1")):
        assert len(ledger.reservations) == 4 - number
        service.put(pod(f"job-{number}", "3", node=node))
        reserved = [state.node for _, state in ledger.pods if state.state is State.RESERVED]
        assert reserved.count(node) == [1, 1, 0, 0][number]
    assert not ledger.reservations.copies
    service.put(pod("late", "3", node="n1"))
    check_ledger(ledger)
