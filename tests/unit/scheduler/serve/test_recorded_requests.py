"""The bodies that the stock kube-scheduler really sent, answered by the verbs."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from scheduling import Service, counts
from topowise_scheduler.serve.extender import wire
from topowise_scheduler.serve.extender.verbs import Verbs

RECORDED = Path(__file__).parents[1] / "recorded"


@pytest.fixture
def answering() -> Verbs:
    service = Service()
    for name in ("metal-0", "metal-1"):
        service.report(counts(name, "4", allocatable="4", included=()))
    return service.verbs()


def recorded(name: str) -> tuple[bytes, Any]:
    body = (RECORDED / f"{name}.json").read_bytes()
    return body, json.loads(body)


@pytest.mark.parametrize("name", sorted(path.stem for path in RECORDED.glob("filter*.json")))
def test_filter(answering: Verbs, name: str) -> None:
    body, sent = recorded(name)
    shown = json.loads(answering.filter(body).body)
    assert shown["Error"] == ""
    if sent["NodeNames"] is not None:
        assert {*shown["NodeNames"], *shown["FailedNodes"], *shown["FailedAndUnresolvableNodes"]} == set(
            sent["NodeNames"]
        )
        assert shown["Nodes"] is None
    else:
        names = [item["metadata"]["name"] for item in shown["Nodes"]["items"]]
        assert {*names, *shown["FailedNodes"]} == {item["metadata"]["name"] for item in sent["Nodes"]["items"]}


@pytest.mark.parametrize("name", sorted(path.stem for path in RECORDED.glob("prioritize*.json")))
def test_prioritize(answering: Verbs, name: str) -> None:
    body, sent = recorded(name)
    shown = json.loads(answering.prioritize(body).body)
    offered = sent["NodeNames"] or [item["metadata"]["name"] for item in sent["Nodes"]["items"]]
    assert [item["Host"] for item in shown] == offered


@pytest.mark.parametrize("name", sorted(path.stem for path in RECORDED.glob("preempt*.json")))
def test_preempt(answering: Verbs, name: str) -> None:
    body, sent = recorded(name)
    shown = json.loads(asyncio.run(answering.preempt(body)).body)["NodeNameToMetaVictims"]
    proposed = sent["NodeNameToMetaVictims"] or sent["NodeNameToVictims"]
    assert set(shown) <= set(proposed)
    assert all(victims["Pods"] for victims in shown.values())


def test_bind() -> None:
    args = wire.decode_binding(recorded("bind")[0])
    assert all((args.PodName, args.PodNamespace, args.PodUID, args.Node))
