"""Stories: events of a cluster and what the ledger must say in between, as text.

    counts 8 of=-; bound a 3; free 5; counts 5 of=a; free 5

A story is steps separated by ";". The first word of a step is a method of `Story`, whose docstring says what the other
words are; NAME=VALUE is an option. Nodes are n1 if the option `on` does not name another; "-" is nothing. Amounts of a
pod are CPUs and memory, 1Gi by default. Other options of a pod are fields of its document, as of `scheduling.pod`.

A table of stories is text too: a line with the name of the story, and indented lines with its steps. "#" begins a
comment.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from scheduling import Service, counts, decoded, exact, kubelet, pod
from topowise import nrt
from topowise_scheduler.explain.refusal_texts import TEXTS
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.verdicts.refusals import Refusal

STARTED = "2026-01-01T00:00:00Z"


def table(text: str) -> pytest.MarkDecorator:
    """Returns the parametrization of a test with the argument `story`."""
    stories: dict[str, list[str]] = {}
    name = ""
    for line in text.strip().splitlines():
        steps = line.partition("#")[0].strip().strip(";")
        if steps and line.startswith(" "):
            stories[name].append(steps)
        elif steps:
            assert steps not in stories, f"two stories {steps!r}"
            name = steps
            stories[name] = []
    return pytest.mark.parametrize("story", ["; ".join(steps) for steps in stories.values()], ids=list(stories))


def tell(text: str, service: Service | None = None) -> Service:
    """Tells a story to a service, a new one by default. Returns the service."""
    story = Story(service or Service())
    run(story, text)
    return story.service


def run(story: Story, text: str) -> None:
    """Does the steps of a story. Raises AssertionError with the step."""
    for number, step in enumerate(text.split(";"), 1):
        verb, *words = step.split()
        options = dict(word.split("=", 1) for word in words if "=" in word)
        try:
            getattr(story, verb)(*(word for word in words if "=" not in word), **options)
        except AssertionError as error:
            error.add_note(f"step {number}: {step.strip()}")
            raise


def _listed(text: str) -> list[str]:
    return [] if text == "-" else text.split(",")


def _equal(actual: object, expected: object) -> None:
    assert actual == expected, f"{actual!r}, expected {expected!r}"


class Story:
    """The steps."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._version = 0
        self._changes = 0

    # Reports

    def counts(self, *free: str, on: str = "n1", of: str = "", at: str = "", by: str = "", **options: str) -> None:
        """FREE CPUs of each zone, of another exporter. `of`: pods of its fingerprint. `at`: POD:ZONE,… of
        numaplacement. `by`: the method of the fingerprint."""
        fields: dict[str, Any] = {"included": _listed(of)} if of else {}
        if at:
            fields["placed"] = {name: int(zone) for name, zone in (place.split(":") for place in at.split(","))}
        if by:
            fields["method"] = by
        self.service.report(counts(on, free, **fields, **options))

    def exact(self, *admitted: str, on: str = "n1", **attributes: str) -> None:
        """A report of the exporter: its kubelet has admitted NAME:CPU or NAME:CPU:MEMORY in this order; -NAME has
        ended. Options are attributes: unconfirmed, boot-id."""
        node = kubelet()
        for entry in admitted:
            if entry.startswith("-"):
                assert node.remove(f"uid-{entry[1:]}")
                continue
            assert node.admit(decoded(pod(*entry.split(":")))).admitted
        self._version += 1
        topology = exact(node, str(self._version), on)
        more = [nrt.Attribute(f"topowise.io/{name}", value) for name, value in attributes.items()]
        self.service.report(msgspec.structs.replace(topology, attributes=(*(topology.attributes or ()), *more)))

    def lose(self, on: str = "n1") -> None:
        """The report is deleted, and its node is still there."""
        self.service.ledger.reports.lose(on)

    def drop(self, on: str = "n1") -> None:
        """Report and state of the node are forgotten."""
        self.service.ledger.reports.drop(on)

    # Nodes

    def node(self, boot: str = "", on: str = "n1") -> None:
        """A Node event, of this boot."""
        self.service.ledger.reports.put_node(on, *([boot] if boot else []))

    def join(self, on: str = "n1", age: str = "0", ready: str = "yes", **labels: str) -> None:
        """A Node event with creation time, `age` seconds ago ("-": none). Other options are labels."""
        fields = {"labels": labels} if labels else {}
        self.service.join(on, age=None if age == "-" else float(age), ready=ready == "yes", **fields)

    def gone(self, on: str = "n1") -> None:
        """The Node is deleted."""
        self.service.ledger.reports.drop_node(on)

    def kubelet(self, version: str, on: str = "n1") -> None:
        """The Node has a kubelet of this version."""
        self.service.ledger.reports.put_kubelet(on, version)

    def exporter(self, ready: str = "yes", on: str = "n1", **options: str) -> None:
        """An event of the exporter's pod: ready yes, no, or gone."""
        uid = self.service.put_exporter(on, ready=ready != "no", **options)
        if ready == "gone":
            self.service.ledger.drop_pod(uid)

    # Pods

    def pod(self, name: str, *amounts: str, **fields: str) -> None:
        """An event of a pending pod."""
        is_news = fields.pop("news", "yes") == "yes"
        self.service.put(self._document(name, amounts, fields), is_news=is_news)

    def bound(self, name: str, *amounts: str, on: str = "n1", **fields: str) -> None:
        """An event of a pod with a node. `news=no`: it was there before the service."""
        self.pod(name, *amounts, node=on, **fields)

    def running(self, name: str, *amounts: str, on: str = "n1", **fields: str) -> None:
        """An event of a pod that its kubelet has admitted."""
        self.pod(name, *amounts, **{"node": on, "phase": "Running", "startTime": STARTED, **fields})

    def resized(self, name: str, requested: str, allocated: str, news: str = "yes") -> None:
        """An event of a running pod while its kubelet has `allocated` of the `requested` CPUs."""
        document = pod(name, requested, node="n1", phase="Running", startTime=STARTED)
        status = {"name": "c", "allocatedResources": {"cpu": allocated, "memory": "1Gi"}}
        document["status"] |= {"qosClass": "Guaranteed", "containerStatuses": [status]}
        self.service.put(document, is_news=news == "yes")

    def shared(self, name: str, *, cpu: str = "1", on: str = "n1") -> None:
        """An event of a running pod without exclusive resources."""
        document = pod(name, node=on, phase="Running", startTime=STARTED)
        document["spec"]["containers"][0]["resources"] = {"requests": {"cpu": cpu}}
        self.service.put(document)

    def end(self, name: str) -> None:
        """A pod is deleted."""
        self.service.ledger.drop_pod(f"uid-{name}")

    def reserve(self, name: str, *amounts: str, on: str = "n1", **fields: str) -> None:
        """A pod is expected on the node."""
        self.service.reserve(self._document(name, amounts, fields), on)

    def release(self, name: str) -> None:
        """A reservation ends."""
        self.service.ledger.reservations.release(f"uid-{name}")

    def assume(self, name: str, *amounts: str, on: str = "n1", why: str = "", **fields: str) -> None:
        """The bind verb books a pod, or refuses it because of `why`, a name of `Refusal` or a kubelet's reason."""
        _equal(
            self.service.assume(self._document(name, amounts, fields), on),
            TEXTS[Refusal[why]] if why in Refusal.__members__ else why,
        )

    def unassume(self, name: str) -> None:
        """A Binding has failed."""
        self.service.ledger.reservations.forget(f"uid-{name}")

    def refuse(self, name: str, *amounts: str, on: str = "n1") -> None:
        """A pod is bound, and its kubelet refuses it."""
        self.service.refuse(self._document(name, amounts, {}), on)

    # Time

    def wait(self, seconds: str) -> None:
        """Time passes, and the ledger ticks."""
        self.service.wait(float(seconds))

    def later(self, seconds: str) -> None:
        """Time passes."""
        self.service.clock.now += float(seconds)

    def expire(self, count: str) -> None:
        """So many reservations expire."""
        _equal(self.service.ledger.reservations.expire(), int(count))

    def tick(self) -> None:
        """The ledger ticks."""
        self.service.ledger.tick()

    # What the ledger must say

    def free(self, *amounts: str, on: str = "n1") -> None:
        """Free CPUs of each zone."""
        _equal(self.service.free(on), [int(amount) for amount in amounts])

    def sum(self, amount: str, on: str = "n1") -> None:
        """Free CPUs of all zones."""
        _equal(sum(self.service.free(on)), int(amount))

    def fits(self, amounts: str, *names: str, **fields: str) -> None:
        """A pod of CPU, CPU:MEMORY, or NAME=CPU fits on these nodes, and not on those after the word "not"."""
        cpu, _, memory = amounts.partition(":")
        document = self._document(fields.pop("name", "asked"), [cpu, *([memory] if memory else [])], fields)
        asked = [name for name in names if name != "not"]
        fitting = list(names[: names.index("not")]) if "not" in names else asked
        _equal(self.service.fits(document, *asked), fitting)

    def possible(self, *states: str, on: str = "n1") -> None:
        """Free CPUs of each zone, as 3,4, in each state in which the node may be."""
        found = self.service.state(on).possible(self.service.clock.now)
        assert found is not None
        kubelets = (found.node, *found.states())
        zones = [[(cpus & _free(node)).bit_count() for cpus in node.topology.numa_cpus] for node in kubelets]
        _equal({",".join(map(str, free)) for free in zones}, set(states))

    def sure(self, how: str = "yes", on: str = "n1") -> None:
        """All pods of the node have a known placement, or not."""
        found = self.service.state(on).possible(self.service.clock.now)
        assert found is not None
        _equal(found.is_sure, how == "yes")

    def uncertain(self, count: str) -> None:
        """So many pods of all nodes have an uncertain placement."""
        _equal(self.service.ledger.node_states.possible.pods, int(count))

    def reported(self, *names: str) -> None:
        """Nodes with a report."""
        _equal(self.service.ledger.node_states.reported(), _names(names))

    def why(self, *causes: str, on: str = "n1") -> None:
        """Why the node is unconfirmed."""
        _equal(self.service.ledger.gates.unconfirmed.why(on), tuple(_names(causes)))

    def unconfirmed(self, count: str) -> None:
        """So many nodes are unconfirmed."""
        _equal(len(self.service.ledger.gates.unconfirmed), int(count))

    def improved(self, *names: str) -> None:
        """Nodes that have improved since the last such step; "any": they do not matter."""
        improved = self.service.ledger.node_states.take_improved()
        if names != ("any",):
            _equal(improved, set(_names(names)))

    def events(self, **numbers: str) -> None:
        """How often something was counted."""
        for name, number in numbers.items():
            _equal((name, self.service.ledger.events[name]), (name, int(number)))

    def quarantined(self, count: str) -> None:
        """So many pairs are in quarantine."""
        _equal(len(self.service.ledger.gates.quarantine), int(count))

    def reservations(self, count: str) -> None:
        """So many pods are expected."""
        _equal(len(self.service.ledger.reservations), int(count))

    def mark(self) -> None:
        """The next `changed` compares with the changes up to here."""
        self._changes = self.service.ledger.node_states.changes

    def changed(self, how: str = "yes") -> None:
        """Nodes have changed since `mark`, or not."""
        _equal(self.service.ledger.node_states.changes > self._changes, how == "yes")

    def known(self, how: str = "yes", on: str = "n1") -> None:
        """There is a state of the node, or none."""
        _equal(self.service.ledger.node_states.of(on) is not None, how == "yes")

    def listed(self, name: str, how: str = "yes", on: str = "n1") -> None:
        """The report of the node lists the pod, or not."""
        _equal(self.service.state(on).is_reported(f"uid-{name}"), how == "yes")

    @staticmethod
    def _document(name: str, amounts: Iterable[str], fields: dict[str, str]) -> dict[str, Any]:
        renamed = {"nominated": "nominatedNodeName", "started": "startTime", "version": "resourceVersion"}
        named = {renamed.get(key, key): int(value) if key == "priority" else value for key, value in fields.items()}
        return pod(name, *amounts, **named)


def _free(node: Kubelet) -> int:
    assert node.cpu is not None
    return node.cpu.available


def _names(words: tuple[str, ...]) -> list[str]:
    return [] if words == ("-",) else list(words)
