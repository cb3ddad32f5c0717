"""API server faults: both daemons continue, recover by themselves, and log each fault once."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from faults import HALF_LINE, MID_CHUNK, Fault, assert_said_once
from faults.site import Site, pod


def status(code: int, reason: str) -> bytes:
    """A Status object."""
    head = {"kind": "Status", "apiVersion": "v1", "status": "Failure"}
    return json.dumps({**head, "code": code, "reason": reason, "message": "m"}).encode()


def refusing(code: int, reason: str, **headers: str) -> Fault:
    return Fault(answer=(code, {"Content-Type": "application/json", **headers}, status(code, reason)))


async def assert_caught_up(place: Site) -> None:
    await place.has_caught_up()
    # The daemons also follow later changes.
    await place.delete("/api/v1/namespaces/default/pods/q")
    await place.has({"n2": 6})
    place.kubelet.pods = ()
    await place.publishes(3)
    place.assert_alive()


async def assert_outlasted(place: Site, seconds: float) -> None:
    """Changes everything during some further seconds of the fault, then ends the fault."""
    lines = place.log_lengths()
    began = time.monotonic()
    await asyncio.sleep(seconds / 3)
    place.change_everything()
    await asyncio.sleep(seconds * 2 / 3)
    # Five watches, the exporter's write and what follows from each; a loop without back-off makes thousands.
    requests = place.proxy.count(began)
    assert requests <= 12 * (seconds + 3), f"{requests} requests in {seconds}s"
    # The ledger answers all the while.
    assert await place.room("n2") == 6
    place.proxy.mend()
    await assert_caught_up(place)
    place.assert_said_once(lines)


async def test_killed_and_back(place: Site) -> None:
    lines = place.log_lengths()
    await place.proxy.down()
    place.change_everything()
    await asyncio.sleep(8)
    assert await place.room("n2") == 6
    await place.proxy.up()
    await assert_caught_up(place)
    place.assert_said_once(lines)


async def test_taking_requests_and_never_answering(place: Site) -> None:
    place.proxy.spoil(Fault(swallow=True))
    place.proxy.close_watches()
    await assert_outlasted(place, 12)


async def test_answering_after_two_seconds_each_time(place: Site) -> None:
    place.proxy.spoil(Fault(delay=1.9))
    place.proxy.close_watches()
    lines = place.log_lengths()
    place.change_everything()
    await assert_caught_up(place)
    place.assert_said_once(lines, 1)


async def test_a_binding_of_two_seconds_is_made_once_and_stays_booked(place: Site) -> None:
    place.proxy.spoil(Fault(path="*/binding", delay=2.0, count=1))
    place.server.create("pods", pod("slow", 6))
    slow = next(pod for pod in place.server.store.objects("pods") if pod["metadata"]["name"] == "slow")
    assert "no answer" in await place.bind("slow", slow["metadata"]["uid"], "n2")
    # The result of the bind is unknown: no other pod gets the capacity.
    assert await place.room("n2") == 0
    await asyncio.sleep(3)
    assert await place.room("n2") == 0
    await place.delete("/api/v1/namespaces/default/pods/slow")
    await place.has({"n2": 6})


async def test_history_that_is_gone_for_watches_and_lists(place: Site) -> None:
    gone = status(410, "Expired")
    place.proxy.spoil(Fault(method="GET", answer=(410, {"Content-Type": "application/json"}, gone)))
    place.proxy.close_watches()
    await assert_outlasted(place, 9)


async def test_history_that_is_gone_in_the_middle_of_a_watch(place: Site) -> None:
    event = b'{"type":"ERROR","object":' + status(410, "Expired") + b"}"
    place.proxy.spoil(Fault(watch=True, edit=lambda line: (event,)))
    lines = place.log_lengths()
    began = time.monotonic()
    place.change_everything()
    await asyncio.sleep(9)
    # Every watch ends with its first event, and a list follows: seldom, and more seldom each time.
    assert place.proxy.count(began, "/api/v1/pods") <= 30
    place.proxy.mend()
    await assert_caught_up(place)
    place.assert_said_once(lines)


async def test_too_many_requests_are_taken_at_their_word(place: Site) -> None:
    place.proxy.spoil(refusing(429, "TooManyRequests", **{"Retry-After": "4"}))
    place.proxy.close_watches()
    began = time.monotonic()
    await assert_outlasted(place, 10)
    # A request at once, and a request every four seconds.
    for path in ("/api/v1/pods", "/api/v1/nodes", "*/noderesourcetopologies/n1"):
        requests = [request for request in place.proxy.asked if Fault(path=path).matches(request)]
        times = [request.at for request in requests if request.at >= began]
        during = [at for at in times if at < began + 9]
        assert len(during) <= 4, f"{path} was asked {len(during)} times"


async def test_too_many_requests_that_do_not_say_for_how_long(place: Site) -> None:
    place.proxy.spoil(refusing(429, "TooManyRequests"))
    place.proxy.close_watches()
    await assert_outlasted(place, 9)


async def test_a_burst_of_server_errors(place: Site) -> None:
    place.proxy.spoil(refusing(500, "InternalError"))
    place.proxy.close_watches()
    await assert_outlasted(place, 9)


async def test_an_answer_that_is_no_http(place: Site) -> None:
    place.proxy.spoil(Fault(garbage=b"\x00\x01\x02SSH-2.0-OpenSSH_9.2\r\n\r\n"))
    place.proxy.close_watches()
    await assert_outlasted(place, 9)


@pytest.mark.parametrize("cut", [MID_CHUNK, HALF_LINE], ids=["reset in the middle of a chunk", "half a line"])
async def test_a_watch_that_breaks_within_an_event(place: Site, cut: Any) -> None:
    lines = place.log_lengths()
    # The first event of each watch, and some later events.
    place.proxy.spoil(Fault(watch=True, edit=lambda line: cut, count=8))
    place.change_everything()
    await assert_caught_up(place)
    assert_said_once(place.exporter, lines[0], at_most=2)
    assert_said_once(place.scheduler, lines[1], at_most=8)
