"""Recorded decisions of kubelets of several versions, and mistakes in the table of versions that they have to notice.

A line of a recording is `{"scenario": ..., "results": [...], "of": {"1.33.13": 0, ...}}`: which of the results the
kubelet of each version gave.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from topowise import cpuset, feature_gates, quantity
from topowise_scheduler.kubelet import Kubelet, KubeletStartError, KubeletVersion, version_of
from topowise_scheduler.kubelet.behaviour import CHANGES, OPTIONS, ROWS, stages
from topowise_scheduler.kubelet.hints import NEVER_ENDS, WOULD_PANIC
from topowise_scheduler.kubelet.masks import members
from topowise_scheduler.report import replay


class Decision(NamedTuple):
    """The decision of a kubelet version about a scenario."""

    scenario: replay.Scenario
    version: str
    result: dict[str, Any]


class Mistake(NamedTuple):
    """A version with an entry of its row replaced by the entry of a neighbouring row."""

    what: str
    version: KubeletVersion


def read(path: Path) -> Iterator[Decision]:
    """Yields all decisions of a recording, scenario by scenario."""
    with lzma.open(path) as lines:
        for line in lines:
            recorded = json.loads(line)
            scenario = replay.read_scenario(line)
            for version, number in recorded["of"].items():
                yield Decision(scenario, version, recorded["results"][number])


def difference(decision: Decision, version: KubeletVersion | None = None) -> str:
    """Returns the first difference between recording and model, as `version` or the recorded version; "" if none."""
    got = _replayed(decision.scenario, version or version_of(decision.version))
    want = decision.result
    for key in ("configError", "hang"):
        if key in got or key in want:
            same = _comparable_error(got.get(key), decision) == _comparable_error(want.get(key), decision)
            return "" if same else f"{decision.scenario.id}: {key} {got.get(key)!r}, recorded {want.get(key)!r}"
    for number, (said, recorded) in enumerate(zip(got["events"], want["events"], strict=True)):
        if comparable(said) != comparable(recorded):
            return f"{decision.scenario.id}, event {number}: {said}, recorded {recorded}"
    return ""


def comparable(event: dict[str, Any]) -> dict[str, Any]:
    """An event without what is random in a kubelet: which of several missing devices or scalars is named first."""
    fields = {key: value for key, value in event.items() if key not in ("resource", "state")}
    fields["allReasons"] = sorted(fields.get("allReasons") or ())
    if len(fields["allReasons"]) > 1:
        del fields["reason"], fields["message"]
    if "requested number of devices" in fields.get("message", "") or "unhealthy devices" in fields.get("message", ""):
        del fields["message"]
        fields["rejected"] = {**fields["rejected"], "error": "devices"}
    return fields


def mistakes(minor: int) -> Iterator[Mistake]:
    """Each entry of a row, changed to what it is in the row before or after; a behaviour is changed in any case."""
    version = version_of(f"1.{minor}")
    for name in CHANGES:
        changed = msgspec.structs.replace(version.behaviour, **{name: not getattr(version.behaviour, name)})
        yield Mistake(name, msgspec.structs.replace(version, behaviour=changed))
    for neighbour in (minor - 1, minor + 1):
        if not ROWS[0].minor <= neighbour <= ROWS[-1].minor:
            continue
        for option in OPTIONS:
            stage = stages(neighbour).get(option.name)
            if stage != stages(minor).get(option.name):
                remaining = tuple((name, since) for name, since in version.options if name != option.name)
                planted = (*remaining, (option.name, stage)) if stage else remaining
                yield Mistake(f"{option.name} {stage}", msgspec.structs.replace(version, options=planted))
        for gate, life in feature_gates.lives(neighbour).items():
            lives = dict(version.gates)
            if life != lives[gate]:
                lives[gate] = life
                yield Mistake(f"{gate} {life}", msgspec.structs.replace(version, gates=tuple(lives.items())))


def _replayed(scenario: replay.Scenario, version: KubeletVersion) -> dict[str, Any]:
    try:
        kubelet = Kubelet(
            scenario.machine,
            scenario.config,
            version=version,
            evidence="options",
            predicates=scenario.config.predicates,
        )
    except KubeletStartError as exc:
        return {"configError": str(exc)}
    events, node = [], replay.Replay(scenario, kubelet)
    for event in scenario.events:
        said = node.apply(event)
        if said.get("reason") == NEVER_ENDS:
            return {"hang": said["message"]}
        events.append(json.loads(msgspec.json.encode(said)))
    return {"events": events}


def _comparable_error(text: str | None, decision: Decision) -> str | None:
    """Returns the comparable part of an error: a hang has no text, and of several refused options the kubelet names
    a random option."""
    if text is None or "140730" in text:
        return text and "hangs"
    config = decision.scenario.config
    several = max(len(config.cpuManagerPolicyOptions or ()), len(config.topologyManagerPolicyOptions or ())) > 1
    return "an option" if several and (text.endswith(" provided") or "Policy option:" in text) else text


def differences(line: bytes) -> list[str]:
    """Returns where the model differs from a line of {"scenario", "result"} without states: decisions and restarts."""
    want = json.loads(line)["result"]
    result = json.loads(msgspec.json.encode(replay.replay_scenario(replay.read_scenario(line))))
    events, recorded = result["events"], want.get("events", [])
    problems = [
        f"{result['id']}, event {number}: {got}, recorded {expected}"
        for number, (got, expected) in enumerate(zip(events, recorded, strict=False))
        if _of_event(got) != _of_event(expected)
    ]
    if "panic" in want:
        later = [pod for event in events[len(recorded) :] for pod in (event, *event.get("readmitted", ()))]
        foretold = any(pod.get("reason") == WOULD_PANIC for pod in later)
        return problems if foretold else [*problems, f"{result['id']}: recorded {want['panic']}"]
    if len(events) != len(recorded):
        problems.append(f"{result['id']}: {len(events)} events, recorded {len(recorded)}")
    return problems


def _of_event(event: dict[str, Any]) -> dict[str, Any]:
    """The deterministic part: the kubelet names a random resource among several short resources."""
    if event["op"] == "restart":
        # The checks of several containers run in random order.
        error = event.get("error", "").partition(" ")[0]
        return {"error": error, "pods": [_decision(pod) for pod in event.get("readmitted") or ()]}
    return _decision(event) if event["op"] == "admit" else {}


def _decision(pod: dict[str, Any]) -> dict[str, Any]:
    decision = {field: pod.get(field) for field in ("uid", "admitted", "stage")}
    decision["reason"] = "OutOf" if pod.get("reason", "").startswith("OutOf") else pod.get("reason")
    message = pod.get("message", "")
    # A random resource among several that are short, or that lack devices.
    decision["message"] = "" if decision["reason"] == "OutOf" or "devices" in message else message
    decision["containers"] = {
        name: {
            **container,
            "memory": sorted(container.get("memory") or (), key=lambda block: str(block["type"])),
            "devices": container.get("devices") or {},
        }
        for name, container in (pod.get("containers") or {}).items()
    }
    return decision


def state_differences(line: bytes) -> Iterator[str]:
    """Yields where the model differs from a line of {"scenario", "result"}: the start, decisions, and states."""
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
        if _comparable_of_states(got) != _comparable_of_states(expected):
            yield f"{scenario.id}, event {number}: {got}, recorded {expected}"
        if _state(kubelet) != state:
            yield f"{scenario.id}, event {number}: {_state(kubelet)}, recorded {state}"


def _comparable_of_states(event: dict[str, Any]) -> dict[str, Any]:
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
