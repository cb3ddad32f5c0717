"""Pods with allocations before a disturbance, and what must hold after the disturbance.

The object must equal the node, the pods must have the same allocations, and kubelets must admit the next pods as
predicted.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from lab.api import PODS, Json, wait
from lab.cluster import Lab, is_refused
from lab.errors import LabError
from lab.placing import ORDER, Placing, Tally, until_placed
from lab.results import Part
from lab.series import Series, small
from lab.truth import Held, exclusive

# More pods than a disturbance has time for.
LOADED: Final = 10_000
SETTLED_S: Final = 300.0
PLACED_S: Final = 120.0
# A container needs seconds to start under emulation.
_RUNNING_S: Final = 240.0
# A kubelet compares its statuses with the API server's every ten seconds (syncPeriod), and emulation is slow.
_REFUSED_S: Final = 60.0
_NEXT: Final = 5
# A kubelet that has started does not report a pod as Failed before its pod workers know all pods (mergePodStatus,
# CouldHaveRunningContainers); then the status manager writes it within its sync period of 10 s.
REFUSED_S: Final = 20.0
Found = tuple[list[str], dict[str, Any]]
"""Problems in words, and figures by name."""
Act = Callable[[Lab, str, list[str]], Found]
"""From a node's name and the names of its pods with allocations."""


def fresh(label: str) -> str:
    """Returns a name that no pod of an earlier part has. Under a known name, a report may list the ended pod, and the
    service waits for a report that excludes it (confirmation.is_old)."""
    return f"{label}-{int(time.time())}"


def occupy(lab: Lab, node: str) -> list[str]:
    """Creates a pod that never starts, a pod that runs, and a running pod with a device; returns the pods' names."""
    label = fresh("held")
    names = [f"{label}-{number}" for number in range(3)]
    devices = {lab.machines[node].devices[-1].resource: "1"} if lab.machines[node].devices else {}
    until_placed(lab, small(names[0], node), PLACED_S)
    for name, sizes in ((names[1], {}), (names[2], devices)):
        until_placed(lab, small(name, node, sizes, starts=True), PLACED_S)
    for name in names[1:]:
        until_phase(lab, name, "Running")
    return names


def until_phase(lab: Lab, name: str, phase: str, seconds: float = _RUNNING_S) -> Json:
    """Waits until the pod has the phase, and returns the pod. Raises LabError."""

    def pod() -> Json | None:
        pod = lab.pods.objects.get(name)
        return pod if pod is not None and pod["status"].get("phase") == phase else None

    return wait(pod, seconds, f"{name} is {phase}")


def allocations(lab: Lab, node: str, names: Sequence[str]) -> dict[str, dict[str, Held]]:
    """Returns the kubelet's allocations of these pods, by name; pods without an allocation are absent."""
    listed = exclusive(lab.holding(node))
    return {name: listed["default", name] for name in names if ("default", name) in listed}


def place_next(lab: Lab, node: str, label: str) -> Tally:
    """Places pods of all kinds through kube-scheduler, and returns how kubelets decided."""
    placing, prefix = Placing(lab, 11), fresh(label)
    for pod in Series(lab.machines[node], 11, prefix).pods(_NEXT):
        placing.place(pod)
    lab.delete([name for name in lab.live() if name.startswith(prefix)])
    return placing.tally


def disturbed(title: str, lab: Lab, act: Act) -> Part:
    """Runs `act` on each node beside pods with allocations, then checks objects, allocations and the next pods."""
    problems: list[str] = []
    figures: dict[str, Any] = {}
    for node in lab.nodes:
        lab.clear()
        names = occupy(lab, node)
        problems += lab.settle(SETTLED_S)
        before = allocations(lab, node, names)
        of_act, more = act(lab, node, names)
        problems += [*of_act, *lab.settle(SETTLED_S)]
        after = allocations(lab, node, names)
        until_refused(lab, [name for name in before if name not in after])
        refused = [name for name in names if is_refused(lab.pods.objects[name])]
        problems += [
            f"{name} on {node}: {after.get(name)} allocated, expected {allocation} as before"
            for name, allocation in before.items()
            if name not in refused and after.get(name) != allocation
        ]
        next_pods = place_next(lab, node, "next")
        problems += next_pods.problems
        reasons = {reason_of(lab.pods.objects[name]) for name in refused}
        figures |= {**more, "running pods refused when admitted once more": len(refused)}
        figures |= {**({"reasons": "; ".join(sorted(reasons))} if reasons else {}), **in_short(next_pods)}
        lab.clear()
    return Part(title, not problems, figures, tuple(problems))


def reason_of(pod: Json) -> str:
    """Returns reason and message of a refused pod."""
    status = pod["status"]
    return f"{status['reason']}: {' '.join(status.get('message', '').split())}"


def in_short(tally: Tally, prefix: str = "next ") -> dict[str, int]:
    """Returns the counts of a tally that are not zero."""
    return {f"{prefix}{kind}": tally.counts[kind] for kind in ORDER if tally.counts[kind]}


def restart_with(lab: Lab, node: str, changed: Json) -> None:
    """Restarts the kubelet with these fields and with its state files; pods stay. Returns when the kubelet has written
    which of them it refuses."""
    lab.changed[node] = changed
    lab.configure(node)
    lab.restart_kubelet(node)
    lab.until_devices(node)
    time.sleep(REFUSED_S)


def until_refused(lab: Lab, names: Sequence[str]) -> list[str]:
    """Waits until all these pods are refused, or for a minute, and returns the refused pods.

    A refused pod stays Running on the API server as long as it could have running containers, and a kubelet that has
    just started assumes so for every pod (mergePodStatus and PodCouldHaveRunningContainers). The next comparison of
    statuses writes Failed, about ten seconds later.
    """

    def refused() -> list[str]:
        return [name for name in names if name in lab.pods.objects and is_refused(lab.pods.objects[name])]

    with contextlib.suppress(LabError):
        wait(lambda: len(refused()) == len(names), _REFUSED_S, f"{', '.join(names)} are refused")
    return refused()


def patch(lab: Lab, name: str, subresource: str, spec: Json) -> None:
    """Applies a strategic merge patch to a subresource of the pod."""
    kind = "application/strategic-merge-patch+json"
    lab.api.call("PATCH", f"{PODS}/{name}/{subresource}", {"spec": spec}, kind)
