"""Watches that are dead without anybody having said so."""

from __future__ import annotations

import time
from typing import Final

from daemons import assert_eventually
from faults import assert_said_once
from faults.site import LONG_S, Site

# Of both daemons: the last part of the path.
COLLECTIONS: Final = {"pods", "nodes", "noderesourcetopologies", "poddisruptionbudgets"}
SILENCE_S: Final = 150.0
KEEP_ALIVE_S: Final = 60.0


def watched(place: Site, since: float, agent: str) -> set[str]:
    """Collections that a daemon has begun to watch since a monotonic time."""
    watches = [request for request in place.proxy.asked if request.is_watch and request.at >= since]
    return {request.path.rpartition("/")[2] for request in watches if request.agent.startswith(agent)}


async def assert_resumed(place: Site, since: float, *, within: float) -> None:
    """Every collection is watched anew in time, and what happened meanwhile is known."""
    lines = place.log_lengths()
    place.bound("q", "n2", 2)
    place.add_node("n3", 5)
    assert await place.room("n2") == 6
    # A busy machine may be late, and a watch may have said something just before.
    within += LONG_S
    await assert_eventually(lambda: watched(place, since, "topowise-scheduler") >= COLLECTIONS, within=within)
    await assert_eventually(
        lambda: "noderesourcetopologies" in watched(place, since, "topowise-exporter"), within=within
    )
    await place.has({"n2": 4, "n3": 5})
    # The exporter's own object is looked after as before.
    await place.delete("/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies/n1")
    await place.publishes(3)
    place.assert_alive()
    assert_said_once(place.exporter, lines[0])
    assert_said_once(place.scheduler, lines[1])


async def test_watches_that_stay_open_and_say_nothing(place: Site) -> None:
    began = time.monotonic()
    place.proxy.silence_watches()
    await assert_resumed(place, began, within=SILENCE_S)
    # Not sooner either: a bookmark may be as far away as the API server likes.
    assert time.monotonic() - began >= SILENCE_S - 30


async def test_connections_that_are_gone_without_a_word(place: Site) -> None:
    began = time.monotonic()
    place.proxy.vanish()
    await assert_resumed(place, began, within=KEEP_ALIVE_S)
