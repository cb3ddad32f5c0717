"""The decisions of the recorded traces: 300 nodes with random machines and three policies, 300 pods of 20 shapes; and
12 nodes with markers and devices for claims, 400 pods that are steered or have claims.

`hack/trace` records and replays them, and says what is different. Explanations of all nodes are two thirds of the time
and change nothing of the service, so the usual run asks for some of them; `make nightly PART=thorough` asks for all.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import msgspec
import pytest

import decision_trace
import options_trace
from decision_trace import Line
from examples import USUAL, examples

# Requests that change no state, and which of them the usual run plays: every sixth.
READING = ("POST explain", "POST fit-together")
STEP = max(1, 6 * USUAL // examples())


def played(lines: list[Line]) -> Iterator[Line]:
    """Yields the lines of this run."""
    reading = 0
    for line in lines:
        reading += line.what in READING
        if line.what not in READING or reading % STEP == 0:
            yield line


@pytest.fixture(scope="module")
def lines() -> list[Line]:
    return decision_trace.read(decision_trace.RECORDED)


async def test_all_decisions_are_as_recorded(lines: list[Line]) -> None:
    different = [(number, line.what) async for number, line, _ in decision_trace.replay(played(lines))]
    assert different == []


def test_no_kubelet_has_refused_a_pod_that_the_service_bound(lines: list[Line]) -> None:
    bound = {json.loads(bytes(line.body))["PodUID"] for line in lines if line.what == "POST bind"}
    pods = [json.loads(bytes(line.body)) for line in lines if line.what == "MODIFIED pods"]
    refused = {pod["metadata"]["uid"] for pod in pods if pod["status"]["phase"] == "Failed"}
    assert len(bound) > 150
    # Pods that another scheduler has placed.
    assert refused
    assert not bound & refused


async def test_decisions_with_steering_and_claims_are_as_recorded() -> None:
    lines = decision_trace.read(options_trace.RECORDED)
    player = options_trace.OptionsPlayer()
    assert [(number, line.what) async for number, line, _ in decision_trace.replay(lines, player)] == []
    assert not [line for line in lines if b'"phase":"Failed"' in bytes(line.body)]
    steered = [line for line in lines if line.what == "POST bind" and line.writes and line.writes[0][0] == "steer"]
    refused = [line for line in lines if line.what == "POST filter" and b'"NodeNames":[]' in bytes(line.answer)]
    assert len(steered) > 50
    assert len(refused) > 10


async def test_another_answer_is_noticed(lines: list[Line]) -> None:
    number, line = next((number, line) for number, line in enumerate(lines, 1) if line.what == "POST filter")
    altered = [*lines[: number - 1], msgspec.structs.replace(line, answer=msgspec.Raw(b"{}"))]
    assert [found async for found, _, _ in decision_trace.replay(altered)] == [number]
