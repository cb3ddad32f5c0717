"""Small random courses of one node: what its kubelet did, what the service heard, and what else agrees with that.

The kubelet admits pods and releases pods at true times. The service hears of a Binding at once, of an admission within
a second, and of an end within `LATE_S`. A new pod that the service lets onto the node must not be refused there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import msgspec

from sandbox.exported import exported
from scheduling import Service, configuration, machine, pod
from topowise import pods
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.ledger.node.history import EARLY_S, LATE_S
from topowise_scheduler.verdicts.refusals import Refusal

_DRAWS = 60
_NEVER = float("inf")
Json = dict[str, Any]


class Life(msgspec.Struct):
    """A pod: true times of Binding, admission and end, and the times at which the service hears of the last two."""

    document: Json
    bound: float
    admitted: float
    acknowledged: float
    ended: float = _NEVER
    end_heard: float = _NEVER
    is_own: bool = False
    started: float = -0.5
    """When the init containers are done. A report of second 0 may be from before."""
    is_refused: bool = False

    @property
    def uid(self) -> str:
        return str(self.document["metadata"]["uid"])


class Course:
    """One node from second 0 to `now`. The pods of `before` are in the report of second 0."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        zones = random.choice((2, 2, 4))
        policy = random.choice(("restricted", "single-numa-node", "best-effort", "none"))
        changed: Json = {"topologyManagerPolicy": policy}
        if random.random() < 0.4:
            changed |= {"memoryManagerPolicy": "None", "reservedMemory": None}
        self._hardware, self._configuration = machine(zones), configuration(**changed)
        self.empty = Kubelet(self._hardware, self._configuration)
        self.now = random.uniform(4, 9)
        self.lives = [self._life(f"p{number}", was_there=False) for number in range(random.randint(1, 5))]
        self.before = [self._life(f"b{number}", was_there=True) for number in range(random.randint(0, zones))]
        self.newcomer = pod("newcomer", random.choice("1234"), random.choice(("1Gi", "8Gi", "20Gi")))

    def truth(self) -> Kubelet:
        """Returns the kubelet now, and notes the pods that it refused."""
        node, events = self.empty.fork(), []
        for life in self.before:
            life.is_refused = not node.admit(_decoded(life.document)).admitted
            if self.random.random() < 0.5:
                node.start(life.uid)
        self.reported = node.fork()
        for life in (*self.lives, *self.before):
            events += [(life.admitted, 0, life)] if life in self.lives else []
            events += [(life.started, 1, life), (life.ended, 2, life)]
        for at, kind, life in sorted(events, key=lambda event: event[:2]):
            if at > self.now:
                break
            if kind == 2:
                node.remove(life.uid)
            elif kind == 1:
                node.start(life.uid)
            else:
                life.is_refused = not node.admit(_decoded(life.document)).admitted
        return node

    def refuses(self, node: Kubelet, *, in_flight: list[Life] | None = None) -> bool:
        """Returns whether the kubelet refuses the newcomer, after the pods that are on their way."""
        trial = node.fork()
        for life in self._in_flight() if in_flight is None else in_flight:
            trial.admit(_decoded(life.document))
        return not trial.admit(_decoded(self.newcomer)).admitted

    def heard(self, service: Service) -> None:
        """The service hears of the course, event by event."""
        began = service.clock.now
        made = exported(
            self._hardware, self._configuration, self.reported, lambda uid: ("default", uid.removeprefix("uid-"))
        )
        for life in self.before:
            if not life.is_refused:
                service.put(_there(life.document, is_running=True))
        service.report(
            msgspec.structs.replace(
                made, metadata=msgspec.structs.replace(made.metadata, name="n1", resourceVersion="1")
            )
        )
        events = [(life.bound, 0, life) for life in self.lives]
        for life in (*self.lives, *self.before):
            if life.is_refused:
                events += [(life.acknowledged, 3, life)] if life in self.lives else []
                continue
            events += [(life.acknowledged, 1, life)] if life in self.lives and life.ended > life.acknowledged else []
            events += [(life.end_heard, 2, life)]
        for at, kind, life in sorted(events, key=lambda event: event[:2]):
            if at > self.now:
                break
            service.clock.now = began + at
            self._tell(service, kind, life)
        service.clock.now = began + self.now
        service.ledger.tick()

    def is_let_on(self, service: Service) -> bool | None:
        """Returns whether the service lets the newcomer onto the node, None if the newcomer is kept away anyway."""
        if not self._suits_kube_scheduler():
            return None
        verdicts = service.answers.verdicts(service.question(self.newcomer, "n1"))
        if verdicts.outcomes[0] == 1:
            return True
        return False if verdicts.refusal(0) is Refusal.UNCERTAIN else None

    def others(self) -> Iterator[Kubelet]:
        """Yields states of the kubelet that agree with what the service heard, drawn."""
        for _ in range(_DRAWS):
            if (node := self._drawn()) is not None:
                yield node

    def _life(self, name: str, *, was_there: bool) -> Life:
        random = self.random
        # On two NUMA nodes 20 GiB form a group.
        document = pod(name, random.choice("1223"), random.choice(("1Gi", "4Gi", "8Gi", "8Gi", "20Gi")))
        if random.random() < 0.1:
            first = {"name": "i", "resources": document["spec"]["containers"][0]["resources"]}
            document["spec"]["initContainers"] = [first]
        bound = -1.0 if was_there else random.uniform(0, 5)
        admitted = -1.0 if was_there else bound + random.uniform(0.01, 1)
        acknowledged = admitted + random.uniform(0.01, 0.6)
        life = Life(document, bound, admitted, acknowledged, is_own=random.random() < 0.5)
        if not was_there:
            life.started = random.uniform(admitted, acknowledged)
        if random.random() < 0.45:
            life.ended = random.uniform(max(admitted, 0) + 0.01, 8)
            life.end_heard = life.ended + random.uniform(0, LATE_S - 0.01)
            # The API server tells of the events of a pod in their order.
            life.acknowledged = min(life.acknowledged, life.end_heard)
            life.started = min(life.started, life.acknowledged)
        return life

    def _suits_kube_scheduler(self) -> bool:
        """Returns whether the requests of all pods that the API server knows leave enough for the newcomer."""
        known = [life for life in (*self.lives, *self.before) if life.bound <= self.now < life.end_heard]
        known = [life for life in known if not life.is_refused or (life in self.lives and self.now < life.acknowledged)]
        trial = Counter[str](pods.needs(_decoded(self.newcomer)).requests)
        for life in known:
            trial.update(pods.needs(_decoded(life.document)).requests)
        return all(amount <= self.empty.capacity.get(name, 0) for name, amount in trial.items())

    def _in_flight(self) -> list[Life]:
        return [life for life in self.lives if life.bound <= self.now < life.admitted]

    def _tell(self, service: Service, kind: int, life: Life) -> None:
        if kind == 0 and life.is_own:
            record = service.put(life.document)
            assert record.needs is not None
            service.ledger.reservations.put(record, record.needs, "n1")
        if kind == 0:
            service.put(_there(life.document))
        elif kind == 1:
            service.put(_there(life.document, is_running=True))
        elif kind == 2:
            service.ledger.drop_pod(life.uid)
        else:
            service.put(_there(life.document, reason="TopologyAffinityError", phase="Failed"))

    def _drawn(self) -> Kubelet | None:
        """Returns a state by other true times in the windows of what was heard, None if that contradicts itself."""
        random, events = self.random, []
        sure = set()
        for life in (*self.lives, *self.before):
            if life.bound > self.now or (life.is_refused and life in self.before):
                continue
            if life.is_refused and life.acknowledged <= self.now:
                # A pod that its kubelet refused is no more.
                continue
            came = -1.0
            is_acknowledged = life.acknowledged <= self.now and life.acknowledged < life.end_heard
            if life in self.lives:
                last = life.acknowledged if is_acknowledged else min(life.end_heard, self.now + 1)
                came = random.uniform(life.bound - EARLY_S, max(last, life.bound))
                events.append((came, 0, life))
                events.append((random.uniform(came, max(last, came)), 1, life))
                if is_acknowledged:
                    sure.add(life.uid)
            else:
                events.append((random.uniform(-1, 0), 1, life))
            if life.end_heard <= self.now:
                first = max(came, life.end_heard - LATE_S)
                events.append((random.uniform(first, max(first, life.end_heard)), 2, life))
            elif random.random() < 0.2:
                first = max(came, self.now - LATE_S)
                events.append((random.uniform(first, self.now + 1), 2, life))
        node = self.reported.fork()
        for _, kind, life in sorted(events, key=lambda event: event[:2]):
            if kind == 2:
                node.remove(life.uid)
            elif kind == 1:
                node.start(life.uid)
            elif not node.admit(_decoded(life.document)).admitted and life.uid in sure:
                return None
        return node


def _decoded(document: Json) -> pods.Pod:
    return pods.decode(msgspec.json.encode(document))


def _there(document: Json, *, is_running: bool = False, **status: str) -> Json:
    """Returns the object of a pod that is bound to the node."""
    if is_running:
        status = {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"}
    return {**document, "spec": {**document["spec"], "nodeName": "n1"}, "status": {**document["status"], **status}}
