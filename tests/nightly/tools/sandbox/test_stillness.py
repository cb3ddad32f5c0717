"""When a cluster counts as quiet."""

import asyncio

import pytest

from sandbox import simulated_time
from stillness import until_still

pytestmark = pytest.mark.own_time


async def test_a_stall_of_our_own_loop_is_no_quiet() -> None:
    """As after a SIGSTOP: what was due during the stall has not happened when we look again."""
    done = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.call_later(0.1, simulated_time.skip, 0.8)
    loop.call_later(0.4, done.set)

    async def look() -> bool:
        return done.is_set()

    assert await until_still(look, seconds=0.5, limit=5.0, state=done.is_set) is True


async def test_what_moves_between_two_looks_starts_anew() -> None:
    values = iter([1, 1, 2, None, 2, 2, 2])
    looks = []

    async def look() -> int | None:
        looks.append(next(values))
        return looks[-1]

    assert await until_still(look, seconds=0.1, limit=5.0, state=lambda: looks) == 2
    assert len(looks) == 7


async def test_a_component_that_never_rests_is_reported_with_its_state() -> None:
    async def look() -> None:
        return None

    with pytest.raises(AssertionError, match=r"still moving after 0s: three pods"):
        await until_still(look, seconds=0.1, limit=0.0, state=lambda: "three pods")
