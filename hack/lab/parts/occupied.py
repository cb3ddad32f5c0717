"""Pods before and during a disturbance, and what must hold after it.

The object must equal the node, the pods must have the same allocations, and kubelets must admit the next pods as
predicted. Pods that arrive meanwhile do not wait for the NRT object between two of them. A refusal by a kubelet is a
wrong answer: the service has said "fits" a moment before the bind.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from lab.api import PODS, Json, LabError, wait
from lab.cluster import Lab, has_outcome, is_refused
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


# Pods that stay, and the time limit until the next pod is created.
_STAY: Final = 4
_PATIENCE_S: Final = 5.0
_PAUSE_S: Final = 1.5
# The beginning of the message of an evicted pod. The kubelet refuses pods with the same reason, but another message.
_EVICTION: Final = "The node was low on resource"
# Pods that are created after the disturbance.
_AFTER: Final = 4


class Load(NamedTuple):
    """Counts of pods and verdicts. `problems` are refusals by kubelets, and errors of the disturbance itself.

    `readmitted` are messages about pods that were refused by a restarted kubelet: it repeats all admissions, and a pod
    without running containers finds no healthy device before the plug-in has registered. `waits` is the number of
    verdicts that wait for a report.
    """

    sent: int
    bound: int
    refused: int
    readmitted: list[str]
    verdicts: int
    waits: int
    problems: list[str]


def under_load(lab: Lab, disturb: Callable[[], None], pods: Iterator[Json]) -> Load:
    """Sends pods from before it begins until after it has ended."""
    start, before = time.time(), lab.predictions()
    failed: list[str] = []
    sent: list[str] = []
    thread = threading.Thread(target=lambda: failed.extend(_failure(disturb)))
    _send(lab, pods, sent)
    thread.start()
    while thread.is_alive():
        _send(lab, pods, sent)
    for _ in range(_AFTER):
        _send(lab, pods, sent)
    seen = {name: pod for _, name, pod in lab.pods.since(start)}
    refused, again = refusals(lab.pods.since(start))
    bound = sum("nodeName" in seen[name]["spec"] for name in sent if name in seen)
    after = lab.predictions()
    verdicts, waits = (int(after[name] - before[name]) for name in ("verdicts", "waits"))
    return Load(len(sent), bound, len(refused), again, verdicts, waits, failed + refused)


def _failure(disturb: Callable[[], None]) -> list[str]:
    try:
        disturb()
    except LabError as exc:
        return [str(exc)]
    return []


def _send(lab: Lab, pods: Iterator[Json], sent: list[str]) -> None:
    pod = next(pods)
    lab.api.create(PODS, pod)
    sent.append(pod["metadata"]["name"])
    lab.outcome(sent[-1], _PATIENCE_S)
    # Not waited for: between two that wait the kubelet has several things to do at once.
    for name in sent[-_STAY - 1 : -_STAY]:
        lab.api.delete(f"{PODS}/{name}", grace=1)
    time.sleep(_PAUSE_S)


def refusals(changes: Iterable[tuple[float, str, Json]]) -> tuple[list[str], list[str]]:
    """Returns messages about refused pods: refused at first, and refused after an earlier admission."""
    admitted: set[str] = set()
    refused: dict[str, str] = {}
    again: dict[str, str] = {}
    for _, name, pod in changes:
        if is_refused(pod) and not pod["status"].get("message", "").startswith(_EVICTION):
            where, status = pod["spec"].get("nodeName"), pod["status"]
            words = f"{name} on {where}: {status['reason']}: {status.get('message', '')[:160]}"
            (again if name in admitted else refused)[name] = words
        elif has_outcome(pod):
            admitted.add(name)
    return list(refused.values()), list(again.values())
