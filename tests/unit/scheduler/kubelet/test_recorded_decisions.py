"""The model's decision and state equal the recorded kubelet code's, for each event of 250 scenarios beside the tests.

All 2,500 scenarios are compared where the recording exists. The comparison omits random values only: the kubelet names
a random resource among several missing devices or scalars.
"""

from __future__ import annotations

import gzip
import json
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from topowise import cpuset, quantity
from topowise_scheduler import replay
from topowise_scheduler.kubelet import Kubelet, KubeletStartError
from topowise_scheduler.kubelet.masks import members

EXCERPT = Path(__file__).parent / "recorded" / "every-tenth.jsonl.xz"
RECORDED = Path(__file__).parents[5] / "shared" / "data" / "kubelet-admission.jsonl.gz"
CHUNKS = 10


@pytest.fixture(scope="module")
def recorded() -> list[bytes]:
    if not RECORDED.exists():
        pytest.skip("every tenth recorded decision is checked; the others are not beside this repository")
    with gzip.open(RECORDED) as lines:
        return lines.read().splitlines()


def test_every_decision_and_every_state_equals_the_recording() -> None:
    lines = lzma.decompress(EXCERPT.read_bytes()).splitlines()
    assert len(lines) == 250
    assert next((problem for line in lines for problem in _differences(line)), None) is None


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_all_recorded_decisions(recorded: list[bytes], chunk: int) -> None:
    wrong = [problem for line in recorded[chunk::CHUNKS] for problem in _differences(line)]
    assert wrong == []


def _differences(line: bytes) -> Iterator[str]:
    want = json.loads(line)["result"]
    scenario = replay.read_scenario(line)
    try:
        node = replay.Replay(scenario)
    except KubeletStartError as exc:
        if str(exc) != want.get("configError"):
            yield f"{scenario.id}: {exc}, recorded {want.get('configError')}"
        return
    kubelet = node.kubelet
    reserved = (want["initial"].get("cpu") or {}).pop("reserved", None)
    if kubelet.cpu is not None and _spelled(kubelet.cpu.policy.reserved) != reserved:
        yield f"{scenario.id}: reserved CPUs are not {reserved}"
    if _state(kubelet) != want["initial"]:
        yield f"{scenario.id}: the initial state differs"
    allocatable = {name: quantity.for_resource(name, text) for name, text in want["nodeAllocatable"].items()}
    if kubelet.allocatable() != allocatable:
        yield f"{scenario.id}: allocatable is {kubelet.allocatable()}, recorded {allocatable}"
    for number, (event, expected) in enumerate(zip(scenario.events, want["events"], strict=True)):
        got = json.loads(msgspec.json.encode(node.apply(event)))
        state = expected.pop("state")
        # The recording releases ended pods before it writes the state.
        node.settle()
        if _comparable(got) != _comparable(expected):
            yield f"{scenario.id}, event {number}: {got}, recorded {expected}"
        if _state(kubelet) != state:
            yield f"{scenario.id}, event {number}: {_state(kubelet)}, recorded {state}"


def _comparable(event: dict[str, Any]) -> dict[str, Any]:
    fields = {key: value for key, value in event.items() if key != "resource"}
    if "allReasons" in fields:
        fields["allReasons"] = sorted(fields["allReasons"])
        if len(fields["allReasons"]) > 1:
            del fields["reason"], fields["message"]
    if "requested number of devices" in fields.get("message", ""):
        del fields["message"], fields["rejected"]["error"]
    return fields


def _spelled(bits: int) -> str:
    return cpuset.to_text(members(bits))


def _state(kubelet: Kubelet) -> dict[str, Any]:
    state: dict[str, Any] = {}
    if kubelet.cpu is not None:
        available = kubelet.cpu.available
        state["cpu"] = {
            "default": _spelled(kubelet.cpu.default),
            "available": _spelled(available),
            "perNUMA": {
                str(kubelet.node_ids[numa.id]): (numa.cpus & available).bit_count() for numa in kubelet.topology.numas
            },
        }
    if kubelet.memory is not None:
        state["memory"] = {str(node): _memory(kubelet, position) for position, node in enumerate(kubelet.node_ids)}
    if kubelet.devices.tables:
        state["devices"] = {resource: _devices(kubelet, resource) for resource in kubelet.devices.tables}
    return state


def _memory(kubelet: Kubelet, position: int) -> dict[str, Any]:
    assert kubelet.memory is not None
    tables, policy = kubelet.memory.tables, kubelet.memory.policy
    return {
        "assignments": tables.assignments[position],
        "cells": list(kubelet.ids(tables.cells[position])),
        "memory": {
            name: {
                "total": policy.total[name][position],
                "systemReserved": policy.system_reserved[position].get(name, 0),
                "allocatable": policy.allocatable[name][position],
                "reserved": tables.reserved(name, position),
                "free": tables.free[name][position],
            }
            for name in policy.total
        },
    }


def _devices(kubelet: Kubelet, resource: str) -> dict[str, Any]:
    table, free = kubelet.devices.tables[resource], kubelet.devices.free(resource)
    counts = {str(node): (free & table.touching(1 << at)).bit_count() for at, node in enumerate(kubelet.node_ids)}
    counts["-1"] = (free & table.without_nodes).bit_count()
    return {"free": list(table.names(free)), "perNUMA": {node: count for node, count in counts.items() if count}}
