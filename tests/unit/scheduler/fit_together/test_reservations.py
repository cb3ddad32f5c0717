"""/fit-together: all or nothing, and room that is kept for a while and never for ever."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from scheduling import Service, exact, kubelet, pod, sent
from topowise import pods
from topowise.errors import ParseError
from topowise_scheduler.extender.fitting import FittingVerb
from topowise_scheduler.extender.replies import BadRequestError
from topowise_scheduler.fit_together import FitTogetherService


@pytest.fixture
def service() -> Service:
    """Two nodes with a zone of three and one of four free CPUs each."""
    made = Service("TightFit")
    for name in ("n1", "n2"):
        made.report(exact(kubelet(), name=name))
    return made


def ask(fitting: FitTogetherService, **request: Any) -> dict[str, Any]:
    verb = FittingVerb(fitting, lambda: None)
    answer: dict[str, Any] = sent(asyncio.run(verb.answer(json.dumps(request).encode())))
    return answer


def template(cpu: str) -> dict[str, Any]:
    made = pod("job", cpu)
    del made["metadata"]["uid"]
    return made


def test_all_of_them_or_none(service: Service) -> None:
    found = ask(service.fitting(), template=template("3"), count=4)
    assert found["fits"]
    assert [one["pod"] for one in found["placements"]] == [f"default/job-{number}" for number in range(4)]
    assert sorted(one["node"] for one in found["placements"]) == ["n1", "n1", "n2", "n2"]
    assert found["placements"][0]["containers"]["c"]["aligned"]
    short = ask(service.fitting(), template=template("3"), count=5)
    assert not short["fits"]
    assert len(short["placements"]) == 4
    assert short["why"] == "0/2 nodes: 2 taken by the pods before it"


def test_room_is_kept_until_it_is_released_or_its_time_is_over(service: Service) -> None:
    fitting = service.fitting(most_reserved=8)
    kept = ask(fitting, template=template("3"), count=4, reserveSeconds=60)
    assert kept["fits"]
    assert service.fits(pod("other", "3"), "n1", "n2") == []
    assert ask(fitting, release=kept["reservation"]) == {"released": True}
    assert ask(fitting, release=kept["reservation"]) == {"released": False}
    assert service.fits(pod("other", "3"), "n1", "n2") == ["n1", "n2"]
    ask(fitting, template=template("3"), count=4, reserveSeconds=60)
    service.clock.now += 61
    service.ledger.tick()
    assert service.fits(pod("other", "3"), "n1", "n2") == ["n1", "n2"]
    service.ledger.check()


def test_a_pod_that_is_there_takes_the_room_that_was_kept_for_it(service: Service) -> None:
    fitting = service.fitting(most_reserved=8)
    members = [pod(f"m{number}", "3") for number in range(4)]
    assert ask(fitting, pods=members, reserveSeconds=60)["fits"]
    assert service.fits(pod("other", "3"), "n1", "n2") == []
    for member in members:
        asked = service.answers.question(pods.decode(json.dumps(member).encode()), ["n1", "n2"])
        outcomes = service.answers.verdicts(asked).outcomes.tolist()
        assert 1 in outcomes, "its own room is free for it"
        at = outcomes.index(1)
        assert asked.requests.needs is not None
        assert not service.ledger.reservations.assume(asked.record, asked.requests.needs, asked.names[at])
    service.ledger.check()


def test_a_release_leaves_what_the_pods_were_given_since(service: Service) -> None:
    """One is on its way to its node, the other has room by a later request."""
    fitting = service.fitting(most_reserved=8)
    member, other = pod("m", "3"), pod("o", "3")
    first = ask(fitting, pods=[member, other], reserveSeconds=60)["reservation"]
    service.clock.now += 1
    later = ask(fitting, pods=[other], reserveSeconds=60)["reservation"]
    asked = service.answers.question(pods.decode(json.dumps(member).encode()), ["n1", "n2"])
    service.answers.expect(asked, 0)
    assert ask(fitting, release=first) == {"released": True}
    assert len(service.ledger.reservations) == 2
    assert ask(fitting, release=later) == {"released": True}
    assert len(service.ledger.reservations) == 1


def test_no_more_is_kept_than_is_configured(service: Service) -> None:
    fitting = service.fitting(most_reserved=3)
    ask(fitting, template=template("1"), count=2, reserveSeconds=60)
    with pytest.raises(ParseError, match=r"'2 pods beside 2': expected 3 at the most \(fitTogether.mostReserved\)"):
        ask(fitting, template=template("1"), count=2, reserveSeconds=60)
    assert ask(fitting, template=template("1"), count=2)["fits"], "a question keeps nothing"
    with pytest.raises(ParseError, match="expected 0 at the most"):
        ask(service.fitting(), template=template("1"), reserveSeconds=1)
    service.clock.now += 61
    assert "reservation" in ask(fitting, template=template("1"), count=2, reserveSeconds=60)


def test_what_does_not_fit_reserves_nothing(service: Service) -> None:
    found = ask(service.fitting(most_reserved=100), template=template("3"), count=5, reserveSeconds=60)
    assert not found["fits"]
    assert "reservation" not in found
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
def test_what_cannot_be_asked_is_refused_with_a_line(service: Service, request_: bytes, problem: str) -> None:
    verb = FittingVerb(service.fitting(), lambda: None)
    with pytest.raises((BadRequestError, ParseError), match=problem):
        asyncio.run(verb.answer(request_))


def test_before_the_first_list_there_is_no_answer(service: Service) -> None:
    verb = FittingVerb(service.fitting(), lambda: "not yet listed: nodes")
    with pytest.raises(BadRequestError, match="not ready: not yet listed: nodes"):
        asyncio.run(verb.answer(b"{}"))
