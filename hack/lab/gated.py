"""A series by the scheduling gate: topowise places pods, and a kube-scheduler without topowise binds them.

Pods arrive alone and in bursts, and pods end beside half of the bursts. The NUMA nodes of a pod that arrives alone are
compared with its explanation; of all pods, the service compares its bookings with the reports. A pod that fits nowhere
keeps its gate until other pods have ended.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from lab import truth
from lab.api import Json, until_still
from lab.cluster import Lab, has_outcome, is_failed
from lab.placing import ADMITTED, MOST_PROBLEMS, NOWHERE, OTHERWISE, REFUSED, SENT, UNSETTLED, Placing, requests_of
from lab.results import Figure, Part
from topowise.placement import PLACED_ON

_BURSTS: Final = (1, 1, 1, 3, 8)
_STILL_S: Final = 3.0
_DECIDED_S: Final = 60.0
_LOST_PATH: Final = "/api/v1/namespaces/default/events?fieldSelector=reason=PlacementLost"
# The kubelet logs it when it begins to admit a container.
_ADMISSION: Final = re.compile(r'"TopologyHints" hints=.* pod="default/([^"]+)"')
_OUTCOMES: Final = 'topowise_scheduler_placements_total{outcome="'
IN_BURSTS: Final = "of them in bursts"
AS_EXPLAINED: Final = "alone: on the explained NUMA nodes"
ELSEWHERE: Final = "on another node than placed"
IN_ORDER: Final = "admitted in the order of decisions"
OVERTAKEN: Final = "admitted after a later decision"
BY_CHANCE: Final = "refused by chance, as explained"
BESIDE_ROOM: Final = "waiting although an empty node takes them"
LOST: Final = "lost placements"
MISSED: Final = "missed without ends"
MISSED_BESIDE_ENDS: Final = "missed beside ends"
_FIGURES: Final = (
    *(SENT, IN_BURSTS, ADMITTED, REFUSED, BY_CHANCE, NOWHERE, AS_EXPLAINED, OTHERWISE, ELSEWHERE),
    *(IN_ORDER, OVERTAKEN, LOST, MISSED, MISSED_BESIDE_ENDS),
)
_FAILURES: Final = (REFUSED, OTHERWISE, ELSEWHERE, UNSETTLED, BESIDE_ROOM, LOST, MISSED)


class ByGate(Placing):
    """A series on a lab. Of the pods that have been created, those in `_placed` have been looked at."""

    def __init__(self, lab: Lab, seed: int) -> None:
        super().__init__(lab, seed)
        self._since, self._logs = time.time(), {name: node.log.stat().st_size for name, node in lab.nodes.items()}
        self._before, self._missed = lab.counts(), lab.predictions()["missed"]
        self._pods: dict[str, Json] = {}
        self._refused: dict[str, tuple[str, str]] = {}
        self._burst: list[Json] = []
        self._size = 1

    def place(self, pod: Json) -> None:
        """Creates the pods of a burst with its last pod."""
        self._burst.append(pod)
        if len(self._burst) == self._size:
            self._send()
            self._size = self._random.choice(_BURSTS)

    def part(self, name: str) -> Part:
        """Returns the part, once all pods have run that an empty node takes."""
        if self._burst:
            self._send()
        while waiting := self._undecided():
            self._lab.delete([pod for pod in self._lab.live() if pod not in waiting])
            self._until_decided(MISSED_BESIDE_ENDS)
            if self._undecided() == waiting:
                break
        self._compare_order()
        self._lab.clear()
        self._lab.settle()
        for pod, (node, text) in self._refused.items():
            is_chance = "by chance" in self._lab.explain(self._pods[pod])[node]["text"]
            self.tally.wrong(BY_CHANCE if is_chance else REFUSED, text)
        for pod in waiting:
            is_possible = any(said["verdict"] == "fits" for said in self._lab.explain(self._pods[pod]).values())
            self.tally.wrong(BESIDE_ROOM if is_possible else NOWHERE, f"{pod} {requests_of(self._pods[pod])}")
        for event in self._lab.api.items(_LOST_PATH):
            if event["involvedObject"]["name"] in self._pods:
                self.tally.wrong(LOST, f"{event['involvedObject']['name']}: {event['message']}")
        figures: dict[str, Figure] = {kind: self.tally.counts[kind] for kind in _FIGURES}
        for key, count in self._lab.counts().items():
            if key.startswith(_OUTCOMES):
                figures[f"placements {key[len(_OUTCOMES) : -2]}"] = int(count - self._before.get(key, 0))
        passed = not any(self.tally.counts[kind] for kind in _FAILURES)
        return Part(name, passed, figures, tuple(self.tally.problems[:MOST_PROBLEMS]))

    def _send(self) -> None:
        pods, self._burst = self._burst, []
        is_alone = len(pods) == 1
        ends_beside = not is_alone and self._random.random() < 0.5
        if not ends_beside:
            self._make_room()
            self._until_decided(MISSED_BESIDE_ENDS)
        # The pods that wait fit nowhere now, so the next decision is about a pod that arrives alone.
        said = self._explained(pods[0]) if is_alone else {}
        for pod in pods:
            self._pods[pod["metadata"]["name"]] = pod
            self._lab.create(pod)
        self.tally.counts[SENT] += len(pods)
        self.tally.counts[IN_BURSTS] += 0 if is_alone else len(pods)
        if ends_beside:
            self._make_room()
        self._until_decided(MISSED_BESIDE_ENDS if ends_beside else MISSED, said)

    def _undecided(self) -> list[str]:
        pods = self._lab.pods.objects
        return [name for name in self._pods if name not in self._placed and not has_outcome(pods.get(name, {}))]

    def _until_decided(self, missed: str, said: Mapping[str, Json] = MappingProxyType({})) -> None:
        """Waits until kubelets have decided about all pods that fit, and looks at these pods; `missed` is the kind of
        predictions that the service has missed meanwhile."""
        until_still(self._undecided, _STILL_S, _DECIDED_S)
        if different := self._lab.settle():
            self.tally.wrong(UNSETTLED, "; ".join(different)[:400])
        for name, pod in list(self._lab.pods.objects.items()):
            if name in self._pods and name not in self._placed and has_outcome(pod):
                self._look_at(pod, said)
        for name in self._undecided():
            if all(verdict["verdict"] == "never" for verdict in self._lab.explain(self._pods[name]).values()):
                self.tally.counts[NOWHERE] += 1
                self._placed.add(name)
                self._lab.discard(name)
        before, self._missed = self._missed, self._lab.predictions()["missed"]
        self.tally.counts[missed] += int(self._missed - before)

    def _look_at(self, pod: Json, said: Mapping[str, Json]) -> None:
        name, node, status = pod["metadata"]["name"], pod["spec"]["nodeName"], pod["status"]
        self._placed.add(name)
        if is_failed(pod):
            text = f"{name} on {node}: {status.get('reason')}: {status.get('message')} {requests_of(pod)}"
            self._refused[name] = node, text
            self._lab.discard(name)
            return
        self.tally.counts[ADMITTED] += 1
        if (chosen := pod["metadata"]["annotations"][PLACED_ON]) not in ("", node):
            self.tally.wrong(ELSEWHERE, f"{name} on {node}, placed on {chosen}")
        if said:
            actual = truth.located(pod, self._lab.holding(node), self._lab.numa_nodes(node))
            different = truth.unexplained(said[node]["steps"], actual)
            if different:
                self.tally.wrong(OTHERWISE, f"{name} on {node}: {'; '.join(different)} {requests_of(pod)}")
            else:
                self.tally.counts[AS_EXPLAINED] += 1

    def _compare_order(self) -> None:
        """Compares, by node, the order in which gates were removed with the order of admissions in its log."""
        decisions: dict[str, int] = {}
        for _, name, pod in self._lab.pods.since(self._since):
            if name in self._pods and not pod["spec"].get("schedulingGates"):
                decisions.setdefault(name, len(decisions))
        for node, start in self._logs.items():
            log = self._lab.nodes[node].log.read_bytes()[start:].decode(errors="replace")
            in_order, overtaken = admissions(log, decisions)
            self.tally.counts[IN_ORDER] += in_order
            for text in overtaken:
                self.tally.wrong(OVERTAKEN, f"{text} on {node}")


def admissions(log: str, decisions: Mapping[str, int]) -> tuple[int, list[str]]:
    """Returns how many pods a kubelet's log shows admitted in the order of these numbers, and which were overtaken."""
    admitted = [name for name in dict.fromkeys(_ADMISSION.findall(log)) if name in decisions]
    overtaken, last = [], ""
    for name in admitted:
        if decisions[name] < decisions.get(last, -1):
            overtaken.append(f"{name} after {last}")
        else:
            last = name
    return len(admitted) - len(overtaken), overtaken
