"""Pods that come and go while something else happens: nobody waits for an object before the next one is sent.

A pod that a kubelet refuses was bound there by a service that had said "fits" a moment before, whatever was going on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from lab.api import PODS, Json
from lab.cluster import Lab, is_decided, is_refused
from lab.errors import LabError

# Pods that stay, and how long one may take before the next is sent.
_STAY: Final = 4
_PATIENCE_S: Final = 5.0
_PAUSE_S: Final = 1.5
# Sent when all is over, so that the first moments after it are seen too.
_AFTER: Final = 4


class Load(NamedTuple):
    """`problems` are refusals of kubelets, and what kept the thing itself from being done; `readmitted` pods had been
    admitted, and were refused by a kubelet that has restarted: it admits all of its pods once more, and one whose
    containers do not run finds no healthy device before the plug-in has registered."""

    sent: int
    bound: int
    refused: int
    readmitted: int
    problems: list[str]


def under_load(lab: Lab, disturb: Callable[[], None], pods: Iterator[Json]) -> Load:
    """Sends pods from before it begins until after it has ended."""
    start = time.time()
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
    return Load(len(sent), bound, len(refused), len(again), failed + refused)


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
    """Pods that a kubelet has refused, in words: those that it had not admitted before, and those that it had."""
    admitted: set[str] = set()
    refused: dict[str, str] = {}
    again: dict[str, str] = {}
    for _, name, pod in changes:
        if is_refused(pod):
            where, status = pod["spec"].get("nodeName"), pod["status"]
            words = f"{name} on {where}: {status['reason']}: {status.get('message', '')[:160]}"
            (again if name in admitted else refused)[name] = words
        elif pod["spec"].get("nodeName") and is_decided(pod):
            admitted.add(name)
    return list(refused.values()), list(again.values())
