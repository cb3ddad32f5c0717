"""Pods that arrive and end during a disturbance, without waiting for the NRT object between two pods.

A refusal by a kubelet is a wrong answer: the service has said "fits" a moment before the bind.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from lab.api import PODS, Json
from lab.cluster import Lab, is_decided, is_refused
from lab.errors import LabError

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
        elif pod["spec"].get("nodeName") and is_decided(pod):
            admitted.add(name)
    return list(refused.values()), list(again.values())
