"""A series by the scheduling gate: topowise places pods, and a kube-scheduler without topowise binds them.

Pods arrive alone and in bursts, and pods end beside a burst. The NUMA nodes of a pod that arrives alone are compared
with its explanation; of all pods, the service compares its bookings with the reports. A pod that fits nowhere keeps its
gate until other pods have ended.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from lab import truth
from lab.api import Json, until_still
from lab.cluster import Lab, is_decided, is_failed
from lab.placing import ADMITTED, MOST_PROBLEMS, NOWHERE, REFUSED, SENT, STAY, UNSETTLED, Tally, requests_of
from lab.results import Figure, Part
from topowise.placement import PLACED_ON

_BURSTS: Final = (1, 1, 4, 8)
_STILL_S: Final = 4.0
_DECIDED_S: Final = 60.0
_EVENTS: Final = "/api/v1/namespaces/default/events?fieldSelector=reason=PlacementLost"
# The kubelet logs it when it begins to admit a container.
_ADMISSION: Final = re.compile(r'"TopologyHints" hints=.* pod="default/([^"]+)"')
_OUTCOMES: Final = 'topowise_scheduler_placements_total{outcome="'
IN_BURSTS: Final = "of them in bursts"
AS_EXPLAINED: Final = "alone: on the explained NUMA nodes"
OTHERWISE: Final = "alone: on other NUMA nodes"
ELSEWHERE: Final = "on another node than placed"
IN_ORDER: Final = "admitted in the order of decisions"
OVERTAKEN: Final = "admitted after a later decision"
BESIDE_ROOM: Final = "waiting although an empty node takes them"
LOST: Final = "lost placements"
MISSED: Final = "missed without ends"
MISSED_BESIDE_ENDS: Final = "missed beside ends"
_FIGURES: Final = (
    *(SENT, IN_BURSTS, ADMITTED, REFUSED, NOWHERE, AS_EXPLAINED, OTHERWISE, ELSEWHERE, IN_ORDER, OVERTAKEN, LOST),
    *(MISSED, MISSED_BESIDE_ENDS),
)
_FAILURES: Final = (REFUSED, OTHERWISE, ELSEWHERE, UNSETTLED, BESIDE_ROOM, LOST, MISSED)


class ByGate:
    """A series on a lab, like lab.placing.Placing."""

    def __init__(self, lab: Lab, seed: int) -> None:
        self._lab, self._random = lab, random.Random(seed)
        self._since, self._logs = time.time(), {name: node.log.stat().st_size for name, node in lab.nodes.items()}
        self._before, self._missed = lab.counts(), lab.predictions()["missed"]
        self._pods: dict[str, Json] = {}
        self._looked_at: set[str] = set()
        self._burst: list[Json] = []
        self._size = 1
        self.tally = Tally()

    def place(self, pod: Json) -> None:
        """Places the pods of a burst with its last pod."""
        self._burst.append(pod)
        if len(self._burst) == self._size:
            self._send()
            self._size = self._random.choice(_BURSTS)

    def part(self, name: str) -> Part:
        """Returns the part, once all pods have run that an empty node takes."""
        if self._burst:
            self._send()
        while waiting := self._undecided():
            self._end(list(self._looked_at & {*self._lab.live()}))
            self._until_decided(MISSED_BESIDE_ENDS)
            if self._undecided() == waiting:
                break
        self.tally.counts[NOWHERE] = len(waiting)
        for name_, said in ((each, self._lab.explain(self._pods[each])) for each in waiting):
            if fits := [node for node, verdict in said.items() if verdict["verdict"] == "fits"]:
                self.tally.wrong(BESIDE_ROOM, f"{name_} {requests_of(self._pods[name_])} fits on {fits}")
        self._compare_order()
        for event in self._lab.api.items(_EVENTS):
            if event["involvedObject"]["name"] in self._pods:
                self.tally.wrong(LOST, f"{event['involvedObject']['name']}: {event['message']}")
        figures: dict[str, Figure] = {kind: self.tally.counts[kind] for kind in _FIGURES}
        after = self._lab.counts()
        for key in (key for key in after if key.startswith(_OUTCOMES)):
            figures[f"placements: {key[len(_OUTCOMES) : -2]}"] = int(after[key] - self._before.get(key, 0))
        passed = not any(self.tally.counts[kind] for kind in _FAILURES)
        return Part(name, passed, figures, tuple(self.tally.problems[:MOST_PROBLEMS]))

    def _send(self) -> None:
        pods, self._burst = self._burst, []
        is_alone = len(pods) == 1
        ends_beside = not is_alone and self._random.random() < 0.5
        if not ends_beside:
            self._make_room()
            self._until_decided(MISSED_BESIDE_ENDS)
        said = self._lab.explain(pods[0]) if is_alone and not self._undecided() else {}
        for pod in pods:
            self._pods[pod["metadata"]["name"]] = pod
            self._lab.create(pod)
        self.tally.counts[SENT] += len(pods)
        self.tally.counts[IN_BURSTS] += 0 if is_alone else len(pods)
        if ends_beside:
            self._make_room()
        self._until_decided(MISSED_BESIDE_ENDS if ends_beside else MISSED, said)

    def _until_decided(self, missed: str, said: Mapping[str, Json] = MappingProxyType({})) -> None:
        """Waits until kubelets have decided about all pods that fit, and looks at these pods; `missed` is the kind of
        predictions that the service has missed meanwhile."""
        until_still(self._undecided, _STILL_S, _DECIDED_S)
        if different := self._lab.settle():
            self.tally.wrong(UNSETTLED, "; ".join(different)[:400])
        for name, pod in list(self._lab.pods.objects.items()):
            if name in self._pods and name not in self._looked_at and _has_outcome(pod):
                self._look_at(pod, said)
        before, self._missed = self._missed, self._lab.predictions()["missed"]
        self.tally.counts[missed] += int(self._missed - before)

    def _look_at(self, pod: Json, said: Mapping[str, Json]) -> None:
        name, node, status = pod["metadata"]["name"], pod["spec"]["nodeName"], pod["status"]
        self._looked_at.add(name)
        if is_failed(pod):
            why = f"{status.get('reason')}: {status.get('message')}"
            self.tally.wrong(REFUSED, f"{name} on {node}: {why} {requests_of(pod)}")
            self._lab.discard(name)
            return
        self.tally.counts[ADMITTED] += 1
        if (chosen := pod["metadata"]["annotations"][PLACED_ON]) not in ("", node):
            self.tally.wrong(ELSEWHERE, f"{name} on {node}, placed on {chosen}")
        if said:
            self._compare(pod, said[node])

    def _undecided(self) -> list[str]:
        pods = self._lab.pods.objects
        return [name for name in self._pods if name not in self._looked_at and not _has_outcome(pods.get(name, {}))]

    def _compare(self, pod: Json, verdict: Json) -> None:
        """Compares the NUMA nodes of each container, or of the pod, with the explanation."""
        identity, node = ("default", pod["metadata"]["name"]), pod["spec"]["nodeName"]
        actual = truth.located(pod["metadata"]["uid"], identity, self._lab.holding(node), self._lab.numa_nodes(node))
        whole = frozenset[int]().union(*actual.values())
        different = [
            f"{step['container'] or 'pod'}: NUMA nodes {step['chosen']} explained, {sorted(given)} given"
            for step in verdict["steps"]
            if step["chosen"] is not None
            and not (given := actual.get(step["container"], frozenset()) if step["container"] else whole)
            <= {*step["chosen"]}
        ]
        if different:
            self.tally.wrong(OTHERWISE, f"{identity[1]} on {node}: {'; '.join(different)} {requests_of(pod)}")
        else:
            self.tally.counts[AS_EXPLAINED] += 1

    def _make_room(self) -> None:
        for node in self._lab.nodes:
            there = [name for name in self._lab.live(node) if name in self._looked_at]
            if len(there) > self._random.choice(STAY):
                self._end(self._random.sample(there, self._random.randint(len(there) // 2, len(there))))

    def _end(self, names: list[str]) -> None:
        for name in names:
            self._lab.discard(name)

    def _compare_order(self) -> None:
        """Compares, by node, the order in which gates were removed with the order of admissions in its log."""
        decisions: dict[str, int] = {}
        for _, name, pod in self._lab.pods.since(self._since):
            if name in self._pods and not pod["spec"].get("schedulingGates"):
                decisions.setdefault(name, len(decisions))
        for node, start in self._logs.items():
            log = self._lab.nodes[node].log.read_bytes()[start:].decode(errors="replace")
            last = -1
            for name in dict.fromkeys(_ADMISSION.findall(log)):
                if name in decisions:
                    self.tally.counts[IN_ORDER if decisions[name] > last else OVERTAKEN] += 1
                    last = max(last, decisions[name])


def _has_outcome(pod: Json) -> bool:
    """Returns whether a kubelet has admitted or refused the pod."""
    return bool(pod.get("spec", {}).get("nodeName")) and is_decided(pod)
