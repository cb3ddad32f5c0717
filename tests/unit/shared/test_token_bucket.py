"""Tokens are there at once up to a burst, and then at a rate."""

import pytest

from topowise.runtime.backoff import TokenBucket


def test_tokens_come_at_once_up_to_a_burst_and_then_at_a_rate() -> None:
    now = [0.0]
    bucket = TokenBucket(10, 3, lambda: now[0])
    delays = []
    for _ in range(5):
        bucket.take()
        delays.append(bucket.delay())
    assert delays == [0, 0, 0, pytest.approx(0.1), pytest.approx(0.2)]
    now[0] = 10
    assert (bucket.left(), bucket.delay()) == (3, 0)
