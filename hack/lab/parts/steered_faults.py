"""Faults while steered pods run: a kubelet restarts with a label in force, processes are killed, a NUMA node is full,
and a machine reboots.

The nodes run at the same time, except for the reboot. After each fault the next pods must be on their NUMA nodes.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from functools import partial
from typing import Any, Final

from lab.api import NODES, PODS, Json, LabError, Watch, wait
from lab.cluster import Lab, is_refused
from lab.controlplane import LEASES
from lab.parts.disturbing import reconfigure
from lab.parts.occupied import REFUSED_S
from lab.parts.steered_binds import (
    ON_CHOSEN,
    Steered,
    marked,
    note,
    on_all,
    reconfigure_node,
    until_decided,
    until_markers,
)
from lab.results import Figure, Part
from topowise import steering
from topowise.steering import Request, Status

# The policy that refuses the most.
_POLICY: Final = "single-numa-node"
_RUNNING: Final = 3
_NEXT: Final = 3
_KILL: Final = "pkill -KILL -f '[t]opowise-exporter {}'"
_RUNNING_S: Final = 300.0
_SHOWN_S: Final = 60.0
_STATUS_S: Final = 40.0
_EXPIRY_S: Final = 30.0


def steered_faults(lab: Lab) -> Part:
    """Steers pods through faults."""
    figures: dict[str, Figure] = {}
    problems: list[str] = []
    on_all(lab, partial(reconfigure_node, lab, _POLICY))
    on_all(lab, partial(_faults, lab, figures, problems))
    for node in lab.nodes:
        _reboot(lab, figures, problems, node)
        reconfigure(lab, node, {})
    return Part("Faults while steered pods run", not problems, figures, tuple(problems[:40]))


def _faults(lab: Lab, figures: dict[str, Figure], problems: list[str], node: str) -> None:
    faults = _Faults(lab, node)
    try:
        for turn in range(2):
            faults.restart_with_label(turn)
        faults.kill_exporter()
        faults.kill_plugin()
        faults.full_numa_node()
    except LabError as exc:
        faults.steered.problems.append(str(exc))
    faults.end()
    note(f"on {node}", {**faults.steered.counts, **faults.figures}, faults.steered, figures, problems)


class _Faults:
    """Faults on a node. Its running pods must survive each fault."""

    def __init__(self, lab: Lab, node: str) -> None:
        self._lab, self._node = lab, node
        self.steered = Steered(lab, node, "fault", 5 + len(node))
        self.figures: dict[str, Any] = {}
        self._running = run_pods(lab, self.steered)
        self._lease = steering.lease_name(node)
        self._leases = Watch(lab.api, LEASES)

    def end(self) -> None:
        self._leases.end()
        self._lab.delete(self._running)

    def _ask(self, numa: int) -> Status:
        """Writes a request, as another replica of the scheduler does, and returns its first status. Raises LabError."""
        request = Request(uuid.uuid4().hex[:16], numa, 1, _EXPIRY_S)
        annotations = {steering.REQUEST: steering.encode(request)}
        self._lab.api.merge(f"{LEASES}/{self._lease}", {"metadata": {"annotations": annotations}})

        def come(leases: dict[str, Json]) -> Status | None:
            text = (leases.get(self._lease, {}).get("metadata", {}).get("annotations") or {}).get(steering.STATUS)
            status = None if text is None else steering.decode_status(text)
            return status if status is not None and status.id == request.id else None

        status = self._leases.until(come, _STATUS_S)
        if status is None:
            raise LabError(f"request {request.id} got no status within {_STATUS_S:.0f} s")
        return status

    def restart_with_label(self, turn: int) -> None:
        """Restarts the kubelet with a label in force, while pods wait for the end of this label."""
        status = self._ask(turn % 2)
        if status.state != "labelled":
            raise LabError(f"the request of {self._node} before its restart: {status.state}, {status.reason}")
        pending = [self.steered.create(containers=1) for _ in range(_NEXT)]
        self._lab.restart_kubelet(self._node)
        until_markers(self._lab, self._node)
        time.sleep(REFUSED_S)
        self._expect(f"kubelet restart {turn} with a label", pending)

    def kill_exporter(self) -> None:
        self._lab.nodes[self._node].run(_KILL.format("run"))
        self._expect("exporter killed")

    def kill_plugin(self) -> None:
        """Kills the marker plug-in with a label in force, while pods wait for the end of this label."""
        self._ask(0)
        pending = [self.steered.create(containers=1) for _ in range(_NEXT)]
        self._lab.nodes[self._node].run(_KILL.format("steer"))
        wait(lambda: _markers(self._lab, self._node) == 0, _SHOWN_S, f"{self._node} has no markers")
        until_markers(self._lab, self._node)
        self._expect("plug-in killed with a label", pending)

    def full_numa_node(self) -> None:
        """A pod requires a full NUMA node: it waits, and is bound there once another pod has ended."""
        numa = max(self._lab.numa_nodes(self._node))
        filling = []
        while self.steered.free(numa):
            name, created = self.steered.create(numa, 1)
            self.steered.expect(name, created)
            filling.append(name)
        name = f"full-{self._node}"
        self._lab.api.create(PODS, marked(name, self._node, 1, numa))

        def is_unschedulable() -> bool:
            pod = self._lab.pods.objects.get(name, {})
            conditions = pod.get("status", {}).get("conditions", ())
            return any("has no room" in each.get("message", "") for each in conditions)

        wait(is_unschedulable, _SHOWN_S, f"{name} waits for room on NUMA node {numa}")
        self._lab.delete(filling[:1])
        pod = until_decided(self._lab, name)
        is_bound = pod is not None and not is_refused(pod)
        self.figures["pods that a full NUMA node kept waiting"] = 1
        self.figures["of them bound after an end"] = int(is_bound)
        if not is_bound:
            self.steered.problems.append(f"{name} is not bound, after a pod on NUMA node {numa} has ended")
        self._lab.delete([*filling[1:], name])

    def _expect(self, event: str, pending: list[tuple[str, float]] | None = None) -> None:
        """Counts refusals of running pods, and where the next pods are."""
        self.figures[f"running pods refused, {event}"] = self.steered.refused(self._running)
        before = Counter(self.steered.counts)
        next_pods = [self.steered.create(containers=1) for _ in range(_NEXT)] if pending is None else pending
        for name, created in next_pods:
            self.steered.expect(name, created)
        there = self.steered.counts[ON_CHOSEN] - before[ON_CHOSEN]
        self.figures[f"next pods on the chosen NUMA node, {event}"] = f"{there} of {len(next_pods)}"
        names = [name for name, _ in next_pods]
        self._lab.delete(names)
        self.steered.forget(names)


def run_pods(lab: Lab, steered: Steered) -> list[str]:
    """Creates steered pods and waits until they run; returns their names."""
    names = []
    for _ in range(_RUNNING):
        name, created = steered.create(containers=1, starts=True)
        steered.expect(name, created)
        names.append(name)
    wait(lambda: all(_phase(lab, name) == "Running" for name in names), _RUNNING_S, f"{', '.join(names)} run")
    return names


def _reboot(lab: Lab, figures: dict[str, Figure], problems: list[str], node: str) -> None:
    """Reboots the machine while steered pods run. The plug-in is a pod too, so the kubelet may refuse them."""
    steered = Steered(lab, node, "reboot", 7 + len(node))
    own: dict[str, Any] = {}
    try:
        running = run_pods(lab, steered)
        lab.reboot(node)
        until_markers(lab, node)
        time.sleep(REFUSED_S)
        refused = [name for name in running if is_refused(lab.pods.objects.get(name, {}))]
        own["running pods refused at the reboot"] = f"{len(refused)} of {len(running)}"
        reasons = {lab.pods.objects[name]["status"].get("message", "") for name in refused}
        own["reasons"] = "; ".join(sorted(reasons)) or "none"
        lab.delete(running)
        steered.forget(running)
        before = steered.counts[ON_CHOSEN]
        for _ in range(_NEXT):
            steered.expect(*steered.create(containers=1))
        own["next pods on the chosen NUMA node, reboot"] = f"{steered.counts[ON_CHOSEN] - before} of {_NEXT}"
    except LabError as exc:
        steered.problems.append(str(exc))
    note(f"reboot of {node}", own, steered, figures, problems)
    lab.clear()


def _markers(lab: Lab, node: str) -> int:
    status = lab.api.call("GET", f"{NODES}/{node}")["status"]
    return int(status["allocatable"].get(steering.RESOURCE, 0))


def _phase(lab: Lab, name: str) -> str:
    return str(lab.pods.objects.get(name, {}).get("status", {}).get("phase", ""))
