"""Replays recorded scenarios through the kubelet model: the results for a machine, a configuration and events.

Each input line is a scenario, bare or as `{"scenario": ...}`, and each output line has the results of its events. An
unreadable line is reported on stderr and skipped; without any readable line the command fails.
"""

from __future__ import annotations

import gzip
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

import msgspec

from topowise import cpuset
from topowise.errors import TopowiseError
from topowise.pods import Pod
from topowise.runtime import output
from topowise.runtime.output import Progress
from topowise.text import escaped_json
from topowise_scheduler.kubelet import (
    Admission,
    Device,
    Kubelet,
    KubeletConfiguration,
    KubeletStartError,
    Machine,
    Placement,
    Rejection,
    version_of,
)
from topowise_scheduler.kubelet.configuration import Evidence
from topowise_scheduler.kubelet.hints import NEVER_ENDS
from topowise_scheduler.kubelet.masks import members
from topowise_scheduler.kubelet.restart import CPU_FILE, MEMORY_FILE, restart
from topowise_scheduler.kubelet.versions import NEWEST_RECORDED

_GZIP_MAGIC = b"\x1f\x8b"


class Configuration(KubeletConfiguration, frozen=True, gc=False):
    """The kubelet's configuration; `predicates` false ends an admission after the topology manager."""

    predicates: bool = True


class Event(msgspec.Struct, frozen=True, gc=False):
    """An event on the node; its fields depend on `op`.

    A restart has the names of running containers by pod UID, a changed configuration or machine, and whether device
    plugins register before the pods are admitted.
    """

    op: Literal["admit", "start", "remove", "devices", "restart"]
    uid: str = ""
    pod: Pod | None = None
    containers: tuple[str, ...] | None = None
    resource: str = ""
    devices: tuple[Device, ...] = ()
    running: Mapping[str, tuple[str, ...]] | None = None
    plugins: bool = True
    config: Configuration | None = None
    machine: Machine | None = None
    kubeletVersion: str | None = None


class Scenario(msgspec.Struct, frozen=True, gc=False):
    """`kubeletVersion` is as in a Node. By default it is the newest version whose code was run, and drafts are allowed.

    The gates of alpha and beta options are on unless `featureGates` sets them to false. With `gateDefaults` they have
    the defaults of the version, as in a kubelet that starts.
    """

    machine: Machine
    config: Configuration
    id: Any = None
    events: tuple[Event, ...] = ()
    kubeletVersion: str | None = None
    gateDefaults: bool = False


class _Line(msgspec.Struct, frozen=True, gc=False):
    scenario: Scenario | None = None


_wrapped = msgspec.json.Decoder(_Line).decode
_bare = msgspec.json.Decoder(Scenario).decode
_encode = msgspec.json.Encoder().encode


def replay(lines: Iterable[bytes | str]) -> Iterator[dict[str, Any]]:
    """The result of every scenario, in order. Empty lines are skipped, malformed lines are reported on stderr."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield replay_scenario(read_scenario(line))
        except (msgspec.MsgspecError, UnicodeDecodeError, TopowiseError) as exc:
            output.note(f"error: line {number}: {exc}; the line is skipped")


def read_scenario(line: bytes | str) -> Scenario:
    """The scenario of a line in either form. Raises MsgspecError."""
    return _wrapped(line).scenario or _bare(line)


def replay_scenario(scenario: Scenario) -> dict[str, Any]:
    """The result of a scenario. Raises ParseError for a malformed quantity or CPU list."""
    result: dict[str, Any] = {"id": scenario.id, "events": []}
    if scenario.kubeletVersion is not None:
        result["kubelet"] = _version_of(scenario)
    try:
        node = Replay(scenario)
    except KubeletStartError as exc:
        return {**result, "configError": str(exc)}
    if node.kubelet.settings.drafts:
        result["drafts"] = node.kubelet.settings.drafts
    for event in scenario.events:
        outcome = node.apply(event)
        if outcome.get("reason") == NEVER_ENDS:
            # A kubelet that never answers does not process the next event.
            result["hang"] = outcome["message"]
            break
        result["events"].append(outcome)
        if event.op == "restart" and "error" in outcome:
            break
    return result


class Replay:
    """The node of a scenario. Raises KubeletStartError and ParseError.

    The allocations of a pod that has ended, or was refused, stay until the next admission, as in the kubelet. The
    device manager writes its checkpoint only when it allocates, and when a plugin sends a list. The other managers
    write the form of PodLevelResourceManagers when their state changes, not when they start (`_with_pods`).
    """

    def __init__(self, scenario: Scenario, kubelet: Kubelet | None = None) -> None:
        self._scenario = scenario
        self.kubelet = kubelet or _kubelet_of(scenario)
        self._pods: dict[str, Pod] = {}
        self._ended: list[str] = []
        self._checkpoint = self.kubelet.devices.fork()
        has_gate = self.kubelet.settings.pod_level_resource_managers
        self._with_pods: set[str] = {CPU_FILE, MEMORY_FILE} if has_gate else set()

    def apply(self, event: Event) -> dict[str, Any]:
        """Applies an event to the node; returns the result."""
        kubelet = self.kubelet
        match event.op:
            case "admit":
                return self._admit(event)
            case "restart":
                return self._restart(event)
            case "devices":
                kubelet.report_devices(event.resource, event.devices)
                self._checkpoint = kubelet.devices.fork()
                return {"op": "devices", "resource": event.resource}
            case "start":
                known = kubelet.start(event.uid, event.containers)
            case "remove":
                known = kubelet.forget(event.uid)
                self._ended.append(event.uid)
        result: dict[str, Any] = {"op": event.op, "uid": event.uid}
        if not known:
            result["error"] = "unknown uid"
        elif event.op == "start":
            result["containers"] = _containers(kubelet.placements(event.uid))
        return result

    def settle(self) -> None:
        """Releases the allocations of ended and refused pods."""
        for uid in self._ended:
            if uid not in self.kubelet.active:
                self.kubelet.release(uid)
        self._ended = []

    def _admit(self, event: Event) -> dict[str, Any]:
        if event.pod is None:
            raise msgspec.ValidationError(f"event admit of {event.uid!r}: expected a pod")
        pod = event.pod
        if event.uid and pod.metadata.uid != event.uid:
            pod = msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, uid=event.uid))
        before, ended = self.kubelet.fork(), self._ended
        self.settle()
        view = self.kubelet.view_of(pod)
        admission = self.kubelet.decide(view)
        if admission.uid in self.kubelet.devices.allocations:
            self._checkpoint = self.kubelet.devices.fork()
        if admission.admitted:
            self._pods[admission.uid] = pod
        else:
            self._ended = [admission.uid]
            rejection = admission.rejection
            if rejection is not None and rejection.container == view.containers[0].name:
                self._keep_stale(before, ended, rejection.provider)
        self._note_write(before)
        return {"op": "admit", **_decision(self.kubelet, admission)}

    def _keep_stale(self, before: Kubelet, ended: list[str], provider: str) -> None:
        """Restores the stale allocations that a kubelet keeps if `provider` refuses the first container.

        With policy none a manager releases stale allocations when it allocates, after the managers before it.
        """
        if self.kubelet.settings.topology.policy == "none" and provider in ("device", "cpu"):
            self.kubelet.memory = before.memory
            if provider == "device":
                self.kubelet.cpu = before.cpu
            self._ended += ended

    def _note_write(self, before: Kubelet) -> None:
        """Sets the form of the state files whose manager's state has changed since `before`."""
        old, new = _stored(before), _stored(self.kubelet)
        changed = {file for file in old.keys() & new.keys() if old[file] != new[file]}
        has_gate = self.kubelet.settings.pod_level_resource_managers
        self._with_pods = self._with_pods | changed if has_gate else self._with_pods - changed

    def _restart(self, event: Event) -> dict[str, Any]:
        scenario = self._scenario = msgspec.structs.replace(
            self._scenario,
            machine=event.machine or self._scenario.machine,
            config=event.config or self._scenario.config,
            kubeletVersion=event.kubeletVersion or self._scenario.kubeletVersion,
        )
        try:
            after = _kubelet_of(scenario)
        except KubeletStartError as exc:
            return {"op": "restart", "error": str(exc)}
        pods = sorted(
            [self._pods[uid] for uid in self.kubelet.active], key=lambda pod: pod.metadata.creationTimestamp or ""
        )
        before = self.kubelet.fork()
        before.devices = self._checkpoint
        result = restart(
            before,
            after,
            [after.view_of(pod) for pod in pods],
            event.running or {},
            plugins_first=event.plugins,
            with_pods=self._with_pods,
        )
        self.kubelet, self._ended = result.node, [*result.stale]
        self._checkpoint = result.node.devices.fork()
        self._note_write(before)
        if result.problem is not None:
            return {"op": "restart", "file": result.file, **result.problem._asdict()}
        return {
            "op": "restart",
            "readmitted": [_decision(self.kubelet, admission) for admission in result.admissions],
        }


def _stored(kubelet: Kubelet) -> dict[str, object]:
    """Returns what the managers write to their state files, by file."""
    cpu, memory = kubelet.cpu, kubelet.memory
    return {
        **({CPU_FILE: (cpu.default, cpu.allocations)} if cpu is not None else {}),
        **({MEMORY_FILE: (memory.allocations, memory.bubbles)} if memory is not None else {}),
    }


def _kubelet_of(scenario: Scenario) -> Kubelet:
    version = NEWEST_RECORDED if scenario.kubeletVersion is None else version_of(scenario.kubeletVersion)
    evidence: Evidence = "runs" if scenario.kubeletVersion is None else "options"
    return Kubelet(
        scenario.machine,
        scenario.config,
        version=version,
        evidence="none" if scenario.gateDefaults else evidence,
        predicates=scenario.config.predicates,
    )


def _version_of(scenario: Scenario) -> dict[str, str]:
    version = version_of(scenario.kubeletVersion or "")
    described = {"version": version.name, "certainty": version.certainty}
    return {**described, "remark": version.remark} if version.remark else described


def main_replay(path: str, progress: Callable[[str], None] | None = None) -> int:
    """Runs `topowise-scheduler replay FILE[.gz]`: a result per line on stdout. Returns 1 without any result, else 0."""
    count, progress = 0, progress or Progress()
    try:
        with _open(path) as (lines, share):
            output.encode("utf-8")
            for result in replay(lines):
                output.write(escaped_json(_encode(result).decode()) + "\n")
                count += 1
                progress(f"{count} scenarios done{share()}")
    except BrokenPipeError:
        raise
    # Damage inside a gzip file raises other exceptions than OSError.
    except (OSError, EOFError, zlib.error) as exc:
        output.note(f"error: {path}: {exc}")
        return 1
    if not count:
        output.note(f"error: {path}: no readable scenario, expected a scenario per line")
        return 1
    return 0


@contextmanager
def _open(path: str) -> Iterator[tuple[BinaryIO, Callable[[], str]]]:
    """The decompressed lines of a file, or of stdin for "-", and a function that returns the progress as text."""
    with cast("BufferedReader", sys.stdin.buffer) if path == "-" else Path(path).open("rb") as file:
        size = os.fstat(file.fileno()).st_size if file.seekable() else 0

        def share() -> str:
            return f", {100 * file.tell() // size} % of {path}" if size else ""

        if file.peek(2)[:2] == _GZIP_MAGIC:
            with gzip.open(file, "rb") as unpacked:
                yield cast("BinaryIO", unpacked), share
        else:
            yield file, share


def _decision(kubelet: Kubelet, admission: Admission) -> dict[str, Any]:
    result: dict[str, Any] = {"uid": admission.uid, "admitted": admission.admitted, "qos": admission.qos}
    if admission.admitted:
        result["containers"] = _containers(admission.placements)
        return result
    result["stage"] = admission.stage
    result["reason"] = admission.reason
    result["message"] = admission.message
    if admission.rejection is not None:
        result["rejected"] = _rejected(kubelet, admission.rejection)
    if admission.shortages:
        result["allReasons"] = [shortage.reason for shortage in admission.shortages]
    return result


def _rejected(kubelet: Kubelet, rejection: Rejection) -> dict[str, Any]:
    merged = rejection.merged
    if merged is None:
        return {"container": rejection.container, "provider": rejection.provider, "error": rejection.error}
    numa = None if merged.mask is None else kubelet.ids(merged.mask)
    return {"container": rejection.container, "merged": {"numa": numa, "preferred": merged.preferred}}


def _containers(placements: Mapping[str, Placement]) -> dict[str, Any]:
    shown = {}
    for name, placement in placements.items():
        entry: dict[str, Any] = {
            "kind": placement.kind,
            "hint": {"numa": placement.numa, "preferred": placement.preferred},
            "cpus": None if placement.cpus is None else cpuset.to_text(members(placement.cpus)),
        }
        if placement.memory:
            entry["memory"] = sorted(placement.memory, key=lambda block: block.type)
        if placement.devices:
            entry["devices"] = placement.devices
        shown[name] = entry
    return shown
