"""Watches a cluster and counts wrong answers by cause (judgement.py, causes.py)."""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from burst import evidence
from sandbox.hollow import HollowNode, Refusal
from sandbox.kubescheduler import Attempt
from sandbox.kubescheduler.cache import PodInfo
from soak import causes, differences
from soak.edge import Answer
from soak.heard import Heard, Look
from soak.judgement import Fate, Truth, judge
from soak.tally import Tally
from soak.waits import Waits
from topowise import pods
from topowise_scheduler.kubelet import Kubelet

if TYPE_CHECKING:
    from soak.world import World

BLIND: Final = "default-scheduler"
_EVIDENCE: Final = 3
_ENDS: Final = 32
# What is known grows old: the same is judged again after so many seconds.
_AGAIN_S: Final = 5
# In the history of a node, after a pod's name.
_GONE: Final = (" ended", " REFUSED", " not admitted again")


class Referee:
    """Knows the truth, and what the service has heard of it."""

    def __init__(self, world: World, heard: Heard) -> None:
        self._world = world
        self._heard = heard
        self.tally = Tally(seeds=1)
        self.told: set[str] = set()
        """Pods that were bound where their kubelet was known to refuse them by chance."""
        self.unreported: set[str] = set()
        """Pods that were decided while their node had no object, by a service that has never seen it."""
        self.names: dict[str, str] = {}
        """namespace/name of all pods, by uid: a report has nothing else of one that is being admitted."""
        self.before_releases: dict[str, deque[tuple[float, Kubelet]]] = {}
        """By node, what it was before its last pods gave something back, and when that was."""
        self.deleted_reports: dict[str, float] = {}
        self._attempts: dict[str, list[Attempt]] = {}
        self._waits = Waits()
        # Of the last answer: by uid, the cause of a "no" that was wrong.
        self._wrong: dict[str, str] = {}
        self._judged: dict[tuple[object, ...], str] = {}
        self._looks: dict[str, Look] = {}
        self._look_of: dict[tuple[str, str], Look] = {}

    def watch(self, node: HollowNode) -> None:
        """A node that is to be watched."""
        ends = self.before_releases[node.name] = deque(maxlen=_ENDS)
        node.kubelet.before_release = lambda model: ends.append((_now(), model.fork()))
        node.reporter.looked = partial(self._note_look, node)

    def note_report(self, name: str, body: bytes) -> None:
        """An object of a node was written."""
        version = msgspec.json.decode(body)["metadata"]["resourceVersion"]
        if name in self._looks:
            self._look_of.setdefault((name, version), self._looks[name])

    def note_answer(self, answer: Answer) -> None:
        """An answer to `filter`: whether it was wrong of a node, if no node is left."""
        uid = answer.pod.metadata.uid
        self._wrong.pop(uid, None)
        if answer.kept:
            return
        for name, text in {**answer.refused, **answer.for_ever}.items():
            truth = self.truth(answer.pod, name)
            if truth is None:
                continue
            cause = self._judge(answer.pod, name, text, truth)
            # A single node without a cause is enough.
            if not cause or uid not in self._wrong:
                self._wrong[uid] = cause
            if not cause:
                self._tell(f"{self.names.get(uid, uid)} was not let onto {name}: {text}", name, answer.pod)
                return

    def note_attempt(self, attempt: Attempt) -> None:
        """kube-scheduler has tried a pod."""
        self._attempts.setdefault(attempt.uid, []).append(attempt)
        wrong = self._wrong.pop(attempt.uid, None)
        if attempt.error:
            return
        if attempt.chosen is not None:
            self._note_chosen(attempt, attempt.chosen)
        if attempt.chosen is not None or wrong is None:
            self._waits.end(attempt.uid, _now())
            return
        self.tally.kept_waiting[wrong] += 1
        self._waits.begin(attempt.uid, wrong, _now())

    def note_refusal(self, refusal: Refusal) -> None:
        """A kubelet has refused a pod."""
        if refusal.pod.spec.schedulerName == BLIND:
            return
        seen = evidence.scene(refusal, self._world.fleet.nodes[refusal.node])
        why = causes.of_refusal(self._world, seen)
        self.tally.refused[why] += 1
        if not why:
            description = evidence.describe(seen, self._attempts.get(refusal.pod.metadata.uid, []), "")
            self._tell(description, refusal.node, refusal.pod)

    def finish(self) -> None:
        """Ends the game when nothing changes any more: counts pods that wait although a node would admit them."""
        for info in self._world.scheduler.pending:
            for name, node in self._world.fleet.nodes.items():
                if not _knows(node, info) or (truth := self.truth(info.pod, name)) is None:
                    continue
                last = self._attempts.get(info.uid, [])[-1:]
                said = last[0].refused.get(name) if last else None
                text = "" if said is None or not said.reasons else said.reasons[0]
                why = causes.of_left_out(self._world, info, name, said, self._judge(info.pod, name, text, truth))
                self.tally.left_out[why] += 1
                if not why:
                    self._tell(f"{info.key} waits beside {name}: {said}", name, info.pod)
                break
        deletions = self._world.api.deletions
        gone = {
            uid: at for uid, name in self.names.items() if (at := deletions.get(name.rpartition("/")[2])) is not None
        }
        self.tally.seconds = self._waits.seconds(_now(), gone)

    def truth(self, pod: pods.Pod, name: str) -> Truth | None:
        """Returns the true state of a node, None if its kubelet would refuse the pod after the pods on their way."""
        world, node, uid = self._world, self._world.fleet.nodes[name], pod.metadata.uid
        model, there = node.kubelet.model, self._objects()
        gone = {event[: event.index(end)] for _, event in node.lifecycle.history for end in _GONE if end in event}
        sent = {record.uid: record.pod for record in world.scheduler.pods_on(name)}
        sent |= {
            key: pods.decode(msgspec.json.encode(member))
            for key, member in there.items()
            if member["spec"].get("nodeName") == name and key not in sent
        }
        coming = [
            member
            for key, member in sent.items()
            if key != uid and not node.kubelet.runs(key) and not member.is_terminal and self.names.get(key) not in gone
        ]
        after, reported = model.fork(), node.kubelet.as_told()
        for arrival in coming:
            after.admit(arrival)
            reported.admit(arrival)
        if not after.fork().admit(pod).admitted:
            return None
        present = frozenset({*model.active, *(arrival.metadata.uid for arrival in coming)})
        return Truth(
            after,
            reported,
            present,
            partial(self._fate, node, there),
            tuple(at for at, event in node.lifecycle.history if event == "kubelet restarts"),
        )

    def _judge(self, pod: pods.Pod, name: str, text: str, truth: Truth) -> str:
        report = self._heard.reports.get(name)
        # A watch may be faster than the answer to the write, which is then the write of the last look.
        look = None if report is None else self._look_of.get((name, report.version), self._looks.get(name))
        known = self._heard.known(name, look)
        # The same is asked again and again while nothing happens.
        key = (known.key, len(known.refused), pod.metadata.uid, text, truth.present, known.now // _AGAIN_S)
        if key not in self._judged:
            self._judged[key] = judge(pod, text, known, truth)
        return self._judged[key]

    def _fate(self, node: HollowNode, there: dict[str, dict[str, dict[str, str]]], uid: str) -> Fate:
        """What became of a pod that is not on a node, and that the service must believe there."""
        heard, now = self._heard.pods.get(uid), there.get(uid)
        if heard is None:
            return "old report"
        if heard.unlisted is not None:
            return "unlisted"
        if node.kubelet.runs(uid):
            return "refused"
        if now is not None and now["spec"].get("nodeName") != node.name:
            return "unbound"
        return "untold" if now is not None and now["status"].get("phase") not in ("Succeeded", "Failed") else "unheard"

    def _objects(self) -> dict[str, dict[str, dict[str, str]]]:
        return {document["metadata"]["uid"]: document for document in self._world.server.store.objects("pods")}

    def _note_look(self, node: HollowNode) -> None:
        unplugged = node.kubelet.unregistered
        kubelet = node.kubelet.model.fork() if unplugged else node.kubelet.as_told()
        leftovers = _hold_leftovers(kubelet, node)
        self._looks[node.name] = Look(_now(), kubelet, node.lifecycle.living, leftovers)

    def _note_chosen(self, attempt: Attempt, name: str) -> None:
        self.tally.bound += 1
        history = self._world.fleet.nodes[name].lifecycle.history
        history.append((_now(), f"{attempt.namespace}/{attempt.name} decided"))
        was_known = self.deleted_reports.get(name, 0.0) > self._world.replica.began
        if self._is_by_chance(attempt.uid, name):
            self.told.add(attempt.uid)
        if name not in causes.reported(self._world) and not was_known:
            self.unreported.add(attempt.uid)

    def _is_by_chance(self, uid: str, name: str) -> bool:
        service = self._world.replica.service
        state = service.ledger.node_states.of(name)
        booking = None if state is None else state.history.entry(uid)
        return booking is not None and service.answers.may_be_refused(booking.record, name)

    def _tell(self, text: str, name: str, pod: pods.Pod) -> None:
        if len(self.tally.evidence) >= _EVIDENCE:
            return
        node = self._world.fleet.nodes[name]
        lines = [
            f"seed {self._world.seed} at {_now():.3f}: {text}",
            f"  it asks for {msgspec.json.encode(pods.needs(pod)).decode()}",
            f"  on {msgspec.json.encode(node.config).decode()}",
            differences.told(node, self._world.replica, pod),
        ]
        self.tally.evidence.append("\n".join(lines))


def _hold_leftovers(kubelet: Kubelet, node: HollowNode) -> frozenset[str]:
    """The state files have pods that have ended until the next pod is admitted, and nothing in them says so."""
    managers = node.kubelet.managers
    leftovers = frozenset(managers.holders) - node.kubelet.model.active.keys()
    for uid in sorted(leftovers):
        kubelet.hold(uid, {}, {})
        for name, cpus in (managers.cpu.allocations.get(uid, {}) if managers.cpu is not None else {}).items():
            if kubelet.cpu is not None and not cpus & ~kubelet.cpu.available:
                kubelet.cpu.hold(uid, name, cpus)
        for name, blocks in (managers.memory.allocations.get(uid, {}) if managers.memory is not None else {}).items():
            if kubelet.memory is not None:
                kubelet.memory.hold(uid, name, blocks)
    return leftovers


def _knows(node: HollowNode, info: PodInfo) -> bool:
    """kube-scheduler's NodeResourcesFit; a kubelet lets pass what its node does not know."""
    known = node.kubelet.allocatable()
    return all(name in known for name, amount in info.requests.items() if amount > 0)


def _now() -> float:
    return asyncio.get_running_loop().time()
