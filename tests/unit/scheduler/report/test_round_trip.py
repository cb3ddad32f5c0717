"""A node model restored from its report decides as the original, at each admission of recorded scenarios.

Each limit of podresources has a name and a condition here; a difference without a limit is an error. The tests count
the differences per limit.
"""

from __future__ import annotations

import lzma
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from sandbox.exported import exported
from topowise import pods
from topowise_scheduler import report
from topowise_scheduler.kubelet import Kubelet, KubeletStartError, Machine
from topowise_scheduler.report import replay
from topowise_scheduler.report.replay import Event, Scenario

RECORDED = Path(__file__).parents[1] / "kubelet/recorded/every-tenth.jsonl.xz"


def _init_containers_hold_devices(kubelet: Kubelet) -> bool:
    for uid, containers in kubelet.devices.allocations.items():
        pod = kubelet.active[uid].pod
        kinds = {} if pod is None else {container.name: container.kind for container in pod.containers}
        app_devices: Counter[str] = Counter()
        for name, holding in containers.items():
            if kinds.get(name) != "init":
                for resource, devices in holding.items():
                    app_devices[resource] |= devices
        for holding in containers.values():
            if any(devices & ~app_devices[resource] for resource, devices in holding.items()):
                return True
    return False


def _devices_are_unhealthy(kubelet: Kubelet) -> bool:
    return any(not table.healthy or table.reported & ~table.healthy for table in kubelet.devices.tables.values())


LIMITS: Mapping[str, Callable[[Kubelet], bool]] = {
    "devices held by init containers are in no list": _init_containers_hold_devices,
    "unhealthy devices are in no list": _devices_are_unhealthy,
}


class RoundTrip(msgspec.Struct):
    """Number of `compared` admissions, differences `explained` per limit, and unexplained differences in `wrong`."""

    reports: int = 0
    compared: int = 0
    explained: Counter[str] = msgspec.field(default_factory=Counter)
    wrong: list[str] = []

    def compare(self, label: str, seen: Kubelet, both: tuple[Kubelet, Kubelet], events: tuple[Event, ...]) -> None:
        """Applies events to both nodes up to the first difference. `seen` is the reported node."""
        original, restored = both
        for event in events:
            if event.op == "admit" and event.pod is not None:
                self.compared += 1
                expected, actual = original.admit(event.pod), restored.admit(event.pod)
                if expected != actual:
                    limits = (name for name, holds in LIMITS.items() if holds(seen))
                    limit = next(limits, None) if _asks_for_devices(event.pod, seen) else None
                    if limit is None:
                        self.wrong.append(f"{label}: {actual}, expected {expected}")
                    else:
                        self.explained[limit] += 1
                    return
            elif event.op == "devices" or _has_more_than_listed(seen, event.uid):
                return
            elif event.op == "remove":
                original.remove(event.uid)
                restored.remove(event.uid)
            else:
                original.start(event.uid, event.containers)
                restored.start(event.uid, event.containers)


def _asks_for_devices(pod: pods.Pod, kubelet: Kubelet) -> bool:
    return any(container.limits.keys() & kubelet.devices.tables for container in pods.needs(pod).containers)


def _has_more_than_listed(kubelet: Kubelet, uid: str) -> bool:
    """Whether podresources omits memory blocks of the pod: of size 0, or of unfinished init containers.

    The report's free memory is right, but lists no owner of the blocks; the next report follows the pod's next step.
    """
    active = kubelet.active.get(uid)
    if active is None or active.pod is None or kubelet.memory is None:
        return False
    init = {container.name for container in active.pod.containers if container.kind == "init"}
    return any(
        name in init or not block.size
        for name, blocks in kubelet.memory.allocations.get(uid, {}).items()
        for block in blocks
    )


def _restored(scenario: Scenario, machine: Machine, kubelet: Kubelet, *ended: str) -> Kubelet:
    """The kubelet restored from its NRT object, plus the pods without exclusive resources, which no object lists."""

    def requests_of(name: report.PodName) -> tuple[str, Mapping[str, int]] | None:
        active = kubelet.active.get(name[1])
        return None if active is None else (name[1], active.requests)

    node_report = report.read(exported(machine, scenario.config, kubelet))
    assert (node_report.precision, node_report.problems) == ("exact", ()), scenario.id
    names = {(namespace, uid) for uid in ended for namespace in ("default", "")}
    restored = report.kubelet_of(node_report, requests_of, names)
    restored.predicates = kubelet.predicates
    for uid, active in kubelet.active.items():
        if uid not in restored.active and uid not in ended:
            restored.hold(uid, active.requests, {})
    return restored


def _nodes() -> Iterator[tuple[Scenario, Machine, Kubelet]]:
    """Every scenario whose kubelet starts. No report has the preferences of plugins, so plugins have none here."""
    for line in lzma.decompress(RECORDED.read_bytes()).splitlines():
        scenario = replay.read_scenario(line)
        plugins = tuple(msgspec.structs.replace(plugin, preferred="") for plugin in scenario.machine.devices)
        machine = msgspec.structs.replace(scenario.machine, devices=plugins)
        try:
            kubelet = Kubelet(machine, scenario.config, predicates=scenario.config.predicates)
        except KubeletStartError:
            continue
        yield scenario, machine, kubelet


def test_every_admission_after_a_report_equals_the_admission_on_the_node() -> None:
    round_trip = RoundTrip()
    for scenario, machine, kubelet in _nodes():
        node = replay.Replay(scenario, kubelet)
        for number, event in enumerate(scenario.events):
            rest = scenario.events[number : number + 6]
            if event.op == "admit" and number % 4 == 0:
                round_trip.reports += 1
                restored = _restored(scenario, machine, kubelet)
                round_trip.compare(f"{scenario.id}, event {number}", kubelet, (kubelet.fork(), restored), rest)
            if event.op == "remove" and not _has_more_than_listed(kubelet, event.uid):
                round_trip.reports += 1
                restored = _restored(scenario, machine, kubelet, event.uid)
                original = kubelet.fork()
                original.remove(event.uid)
                round_trip.compare(f"{scenario.id}, without {event.uid}", kubelet, (original, restored), rest[1:])
            node.apply(event)
            node.settle()
    assert round_trip.wrong == []
    assert (round_trip.reports, round_trip.compared) == (889, 2385)
    assert tuple(round_trip.explained[limit] for limit in LIMITS) == (1, 7)
