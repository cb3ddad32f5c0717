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

from topowise import feature_gates
from topowise_scheduler import replay
from topowise_scheduler.kubelet import Kubelet, KubeletStartError, KubeletVersion, version_of
from topowise_scheduler.kubelet.behaviour import CHANGES, ROWS
from topowise_scheduler.kubelet.hints import NEVER_ENDS
from topowise_scheduler.kubelet.policy_options import OPTIONS, stages


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
