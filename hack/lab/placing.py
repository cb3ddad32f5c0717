"""A series: schedules pods serially through kube-scheduler, and compares each outcome with the explanation.

For every node that the service refused, a copy of the pod is bound to the node, and the kubelet must refuse it too.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Mapping
from typing import Final

import msgspec

from lab import truth
from lab.api import PODS, Json, LabError, wait
from lab.cluster import Lab, attribute, is_failed
from lab.machine import Machine
from lab.results import Part
from lab.series import bound_by_hand

# Pods that stay on a node: enough that most places are taken, not so many that nothing fits any more.
_STAY: Final = (2, 4, 6)
# Verdicts that are about the kubelet, which alone a kubelet can contradict.
_JUDGED: Final = ("not now", "never")
MOST_PROBLEMS: Final = 40
# The object is as the node already, so that the service needs only read it.
_REPORT_S: Final = 30.0


class Tally(msgspec.Struct):
    """Counts of a series, and what was otherwise than it should be, in words."""

    counts: Counter[str] = msgspec.field(default_factory=Counter)
    problems: list[str] = msgspec.field(default_factory=list)

    def wrong(self, kind: str, text: str) -> None:
        self.counts[kind] += 1
        self.problems.append(f"{kind}: {text}")

    def part(self, name: str) -> Part:
        """Returns the part: passed if no kubelet refused a pod after "fits", or took a pod after a refusal."""
        figures = {kind: self.counts[kind] for kind in (*ORDER, *sorted(self.counts.keys() - set(ORDER)))}
        failed = sum(self.counts[kind] for kind in (REFUSED, TAKEN, UNSETTLED, UNDECIDED, STUCK))
        return Part(name, failed == 0, dict(figures), tuple(self.problems[:MOST_PROBLEMS]))


SENT: Final = "pods"
ADMITTED: Final = "admitted"
NOWHERE: Final = "fit nowhere"
REFUSED: Final = "refused after fits"
EXACT: Final = "all ids as predicted"
EQUAL: Final = "other ones of equal devices"
OTHERWISE: Final = "placed otherwise"
UNPREDICTED: Final = "hold nothing of a node"
BY_HAND: Final = "refused pairs bound by hand"
SAME: Final = "refused by the kubelet for the same reason"
OTHER: Final = "refused for another reason"
TAKEN: Final = "taken by the kubelet"
UNSETTLED: Final = "objects that did not follow"
UNDECIDED: Final = "not decided in time"
WAITED: Final = "explained after a wait for a report"
STUCK: Final = "waiting for a report that does not come"
ORDER: Final = (SENT, ADMITTED, NOWHERE, REFUSED, EXACT, EQUAL, OTHERWISE, UNPREDICTED, BY_HAND, SAME, OTHER, TAKEN)


class Placing:
    """A series on a lab; `by_hand` is the share of refused pairs that are tried."""

    def __init__(self, lab: Lab, seed: int, by_hand: float = 1.0) -> None:
        self._lab, self._random, self._by_hand = lab, random.Random(seed), by_hand
        self._placed: set[str] = set()
        self.tally = Tally()

    def part(self, name: str) -> Part:
        """Returns the part."""
        return self.tally.part(name)

    def place(self, pod: Json) -> None:
        """Places a pod, compares the outcome with the explanation, and makes room for the next pod."""
        name = pod["metadata"]["name"]
        if different := self._lab.settle():
            self.tally.wrong(UNSETTLED, f"before {name}: {'; '.join(different)[:400]}")
        said = self._explained(pod)
        self._lab.api.create(PODS, pod)
        self._placed.add(name)
        self.tally.counts[SENT] += 1
        decided = self._lab.outcome(name)
        node = "" if decided is None else decided["spec"].get("nodeName", "")
        self._judge(pod, decided, said)
        if not node or is_failed(decided):
            self._lab.discard(name)
        for candidate, verdict in said.items():
            is_certain = is_judged(verdict) and is_offered(pod, self._lab.machines[candidate])
            if candidate != node and is_certain and self._random.random() < self._by_hand:
                self._bind(pod, candidate, verdict)
        self._make_room()

    def _explained(self, pod: Json) -> dict[str, Json]:
        """Returns the explanation once no verdict waits for a report, as such a verdict is not about the kubelet."""
        deadline = time.monotonic() + _REPORT_S
        said = self._lab.explain(pod)
        if is_waiting(said):
            self.tally.counts[WAITED] += 1
        while is_waiting(said) and time.monotonic() < deadline:
            time.sleep(0.2)
            said = self._lab.explain(pod)
        if is_waiting(said):
            texts = [f"{node}: {verdict['text'][:200]}" for node, verdict in said.items()]
            self.tally.wrong(STUCK, f"{pod['metadata']['name']} {requests_of(pod)}: {'; '.join(texts)}")
        return said

    def _judge(self, pod: Json, decided: Json | None, said: dict[str, Json]) -> None:
        name, sizes = pod["metadata"]["name"], requests_of(pod)
        if decided is None:
            self.tally.wrong(UNDECIDED, f"{name} {sizes}")
        elif not decided["spec"].get("nodeName"):
            self.tally.counts[NOWHERE] += 1
        elif decided["status"].get("phase") == "Failed":
            node, status = decided["spec"]["nodeName"], decided["status"]
            verdict = said.get(node, {}).get("verdict")
            self.tally.wrong(
                REFUSED, f"{name} on {node}, said {verdict!r}: {status.get('reason')}: {status.get('message')} {sizes}"
            )
        else:
            self.tally.counts[ADMITTED] += 1
            self._compare(decided)

    def _compare(self, pod: Json) -> None:
        """Compares the prediction of the Binding with the kubelet's allocation."""
        node, uid = pod["spec"]["nodeName"], pod["metadata"]["uid"]
        identity = (pod["metadata"]["namespace"], pod["metadata"]["name"])
        predicted = truth.predicted(pod)
        has_hints = attribute(self._lab.reports.objects[node], "topologyManagerPolicy") != "none"
        outcome = truth.agreement(
            predicted, uid, identity, self._lab.holding(node), self._lab.numa_nodes(node), has_hints=has_hints
        )
        if outcome.exact:
            self.tally.counts[EXACT if predicted else UNPREDICTED] += 1
        elif outcome.equal:
            self.tally.counts[EQUAL] += 1
        else:
            self.tally.wrong(OTHERWISE, f"{identity[1]} on {node}: {'; '.join(outcome.why)[:400]} {requests_of(pod)}")

    def _bind(self, pod: Json, node: str, verdict: Json) -> None:
        copy = bound_by_hand(pod, node)
        name = copy["metadata"]["name"]
        self._lab.api.create(PODS, copy)
        self.tally.counts[BY_HAND] += 1
        decided = self._lab.outcome(name)
        status = {} if decided is None else decided["status"]
        if decided is None:
            self.tally.wrong(UNDECIDED, name)
        elif status.get("phase") != "Failed":
            self.tally.wrong(TAKEN, f"{name}, said {verdict['text'][:200]!r} {requests_of(pod)}")
        elif status.get("reason") == verdict["reason"]:
            self.tally.counts[SAME] += 1
        else:
            self.tally.wrong(
                OTHER, f"{name}: {status.get('reason')!r} and not {verdict['reason']!r} {requests_of(pod)}"
            )
        if is_failed(decided):
            self._lab.discard(name)
        else:
            self._lab.delete([name])

    def _make_room(self) -> None:
        """Deletes many pods at once: ending several pods takes a kubelet no longer than ending a single pod. So nodes
        are filled and emptied, and most pods fit somewhere. Pods of other origin stay."""
        for node in self._lab.nodes:
            there = [name for name in self._lab.live(node) if name in self._placed]
            if len(there) > self._random.choice(_STAY):
                self._lab.delete(self._random.sample(there, self._random.randint(len(there) // 2, len(there))))


def is_judged(verdict: Json) -> bool:
    """Returns whether the kubelet refuses the pod. A refusal by the sums of kube-scheduler alone has no reason."""
    return verdict["verdict"] in _JUDGED and bool(verdict["reason"])


def is_waiting(said: Mapping[str, Json]) -> bool:
    """Returns whether a verdict says that the service waits for a report of the node."""
    return any("waiting for a" in verdict.get("text", "") for verdict in said.values())


def is_offered(pod: Json, machine: Machine) -> bool:
    """Returns whether the machine has every requested kind of device. A kubelet ignores requests for unknown devices
    (removeMissingExtendedResources); kube-scheduler filters them."""
    spec = pod["spec"]
    offered = {plugin.resource for plugin in machine.devices}
    listed = [*spec.get("initContainers", ()), *spec["containers"]]
    limited = {name for container in listed for name in container["resources"].get("limits", {}) if "/" in name}
    return limited <= offered


def requests_of(pod: Json) -> str:
    """Returns the requests of the containers, in short."""
    spec = pod["spec"]
    listed = [*spec.get("initContainers", ()), *spec["containers"]]
    return "; ".join(
        ",".join(f"{name}={size}" for name, size in container["resources"].get("limits", {}).items())
        for container in listed
    )


def until_placed(lab: Lab, pod: Json, seconds: float) -> Json:
    """Creates it, and waits until a kubelet has admitted it. Raises LabError."""
    name = pod["metadata"]["name"]
    lab.api.create(PODS, pod)

    def admitted() -> Json | None:
        outcome = lab.outcome(name, 1.0)
        if outcome is None or not outcome["spec"].get("nodeName"):
            return None
        if outcome["status"].get("phase") == "Failed":
            raise LabError(f"{name} was refused by {outcome['spec']['nodeName']}: {outcome['status'].get('reason')}")
        return outcome

    return wait(admitted, seconds, f"{name} is placed")
