"""Watches that die silently."""

from __future__ import annotations

import time
from typing import Final

from daemons import assert_eventually
from faults.site import LONG_S, Site

# The last path segment of each collection, of both daemons.
COLLECTIONS: Final = {"pods", "nodes", "noderesourcetopologies", "poddisruptionbudgets"}
SILENCE_S: Final = 150.0
KEEP_ALIVE_S: Final = 60.0


def watched(place: Site, since: float, agent: str) -> set[str]:
    """Collections whose watch a daemon started after a monotonic time."""
    watches = [request for request in place.proxy.asked if request.is_watch and request.at >= since]
    return {request.path.rpartition("/")[2] for request in watches if request.agent.startswith(agent)}


async def assert_resumed(place: Site, since: float, *, within: float) -> None:
    """Asserts that every collection is watched again in time, and that no change is lost."""
    lines = place.log_lengths()
    place.bound("q", "n2", 2)
    place.add_node("n3", 5)
    assert await place.room("n2") == 6
    # A busy machine may be late, and a watch may have delivered an event just before.
    within += LONG_S
    await assert_eventually(lambda: watched(place, since, "topowise-scheduler") >= COLLECTIONS, within=within)
    await assert_eventually(
        lambda: "noderesourcetopologies" in watched(place, since, "topowise-exporter"), within=within
    )
    await place.has({"n2": 4, "n3": 5})
    # The exporter still restores its own object.
    await place.delete("/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies/n1")
    await place.publishes(3)
    place.assert_alive()
    place.assert_said_once(lines, 1)


async def test_watches_that_stay_open_and_say_nothing(place: Site) -> None:
    began = time.monotonic()
    place.proxy.silence_watches()
    await assert_resumed(place, began, within=SILENCE_S)
    # And not sooner: the API server chooses the interval of bookmarks.
    assert time.monotonic() - began >= SILENCE_S - 30


async def test_connections_that_are_gone_without_a_word(place: Site) -> None:
    began = time.monotonic()
    place.proxy.vanish()
    await assert_resumed(place, began, within=KEEP_ALIVE_S)
