"""Places pods one after the other on copies of the nodes: do all of them fit, aligned?

Pods go where kube-scheduler would send them: to the node with the best score for their template that admits them beside
the pods before. Verdicts and scores are made once for all copies of a template. A node that has refused a copy gets no
further copy, because nothing is removed in between. Nodes without a report do not count: what their kubelets can align
is not known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec
import numpy as np

from topowise import pods
from topowise.pods import Amounts
from topowise_scheduler.explain.cluster_view import ClusterView
from topowise_scheduler.kubelet import Kubelet, numa_placement, trial
from topowise_scheduler.kubelet.numa_placement import Placed
from topowise_scheduler.ledger.answers import Answers
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.options.claims.objects import DeviceRequestAllocationResult
from topowise_scheduler.verdicts.engine import Outcome
from topowise_scheduler.verdicts.kube_scheduler import RESOURCE_CLAIMS, Pod, lacks_devices, unexamined
from topowise_scheduler.verdicts.refusals import Reason, Refusal

MOST_PODS: Final = 1024
"""The most pods of a request; each new template costs milliseconds in a large cluster."""
Devices: TypeAlias = Sequence[DeviceRequestAllocationResult]
_encode = msgspec.json.Encoder(order="deterministic").encode


class PodPlacement(msgspec.Struct, frozen=True):
    """The node of a pod, and the placements of its containers."""

    record: PodRecord
    node: str
    containers: Mapping[str, Placed]


class GroupPlacement(msgspec.Struct, frozen=True):
    """The placed pods. `refused` has the number of nodes by reason against the first pod that is not placed, nothing if
    all are placed. `not_examined`: requirements of pods that the placement does not consider. `refusing` is the node
    of a pod that cannot be reserved there, "" if no reservation was tried."""

    placements: Sequence[PodPlacement]
    refused: Mapping[Reason, int] = {}
    not_examined: Sequence[str] = ()
    refusing: str = ""

    @property
    def fits(self) -> bool:
        """Whether all pods are placed."""
        return not self.refused


class Copy(msgspec.Struct, frozen=True):
    """A node with placed pods: its states, the amounts that these pods request, their UIDs there, and the devices of
    their claims.

    Which devices of device plug-ins the pods would get is not known.
    """

    states: tuple[Kubelet, ...]
    requested: Amounts = {}
    uids: tuple[str, ...] = ()
    claimed: Devices = ()

    def taken(self, states: tuple[Kubelet, ...], record: PodRecord, uid: str, claimed: Devices) -> Copy:
        """Returns the copy with another pod, which is in these states and has these `claimed` devices."""
        assert record.needs is not None
        requested = dict(self.requested)
        for resource, amount in {**record.needs.requests, "pods": 1}.items():
            requested[resource] = requested.get(resource, 0) + amount
        return Copy(states, requested, (*self.uids, uid), (*self.claimed, *claimed))


class _Template:
    """Pods that differ only by name: the nodes that may admit a copy, the best first."""

    def __init__(self, answers: Answers, view: ClusterView, pod: Pod, names: Sequence[str]) -> None:
        self._pod = pod
        self.question = answers.question(pod, names, is_simulation=True)
        verdicts = answers.verdicts(self.question)
        fits = (verdicts.outcomes == Outcome.FITS) & (self.question.rows >= 0)
        order = np.argsort(-answers.scores(self.question), kind="stable")
        self._left = [names[at] for at in order[fits[order]].tolist()]
        refused = [verdicts.refusal(at) for at in np.flatnonzero(~fits).tolist()]
        self.refused: Counter[Reason] = Counter(refusal or Refusal.NO_REPORT for refusal in refused)
        self._passed = 0
        self._view = view
        self._suitable = ""

    def nodes(self) -> Iterator[str]:
        """Nodes that have not refused a copy; "" for a node that kube-scheduler refuses."""
        for name in self._left[self._passed :]:
            words = "" if name == self._suitable else self._view.refusals(self._pod, [name])[name]
            if words:
                self.refuse(words)
            else:
                self._suitable = name
            yield "" if words else name

    def refuse(self, reason: Reason) -> None:
        """The first of the nodes admits no further copy."""
        self._passed += 1
        self.refused[reason] += 1


class GroupPlacer:
    """Places pods on these nodes in order, in steps between which the caller can do other work. Reserves nothing.

    `copies`: the nodes with pods that were placed before. Raises ParseError for a pod that cannot be read.
    """

    def __init__(
        self,
        answers: Answers,
        view: ClusterView,
        group: Sequence[Pod],
        names: Sequence[str],
        copies: Mapping[str, Copy] | None = None,
    ) -> None:
        self._answers = answers
        self._view = view
        self._pods = group
        self._names = names
        self._templates: dict[bytes, _Template] = {}
        self.copies = dict(copies or {})
        """The nodes with placed pods."""
        self._not_examined: dict[str, None] = {}
        self.placement = GroupPlacement(())

    def steps(self) -> Iterator[None]:
        """Tries one node a step; `placement` is the answer after the last step."""
        placements: list[PodPlacement] = []
        for pod in self._pods:
            template = yield from self._template(pod)
            placement = yield from self._place(template, pod)
            if placement is None:
                self.placement = GroupPlacement(placements, template.refused, tuple(self._not_examined))
                return
            placements.append(placement)
            yield
        self.placement = GroupPlacement(placements, not_examined=tuple(self._not_examined))

    def _template(self, pod: Pod) -> Generator[None, None, _Template]:
        key = _encode((pod.spec, pod.metadata.labels, pod.metadata.annotations, pod.metadata.namespace))
        template = self._templates.get(key)
        if template is None:
            yield from self._answers.steps(self._answers.question(pod, self._names, is_simulation=True))
            template = self._templates[key] = _Template(self._answers, self._view, pod, self._names)
            examines_claims = self._view.ledger.gates.claims.applies(template.question.record)
            for words in unexamined(pod.spec):
                if words != RESOURCE_CLAIMS or not examines_claims:
                    self._not_examined[words] = None
        return template

    def _place(self, template: _Template, pod: Pod) -> Generator[None, None, PodPlacement | None]:
        of_template = template.question.record
        # Each copy has its own claims.
        claims = pods.claim_names(pod) if of_template.claims else ()
        record = msgspec.structs.replace(of_template, name=pod.metadata.name, claims=claims)
        for name in template.nodes():
            if not name:
                yield
                continue
            copy = self.copies.get(name)
            lacks = "" if copy is None else self._view.lacks(pod, name, copy.requested)
            if lacks:
                template.refuse(lacks)
                yield
                continue
            if copy is None:
                copy = Copy(tuple(self._answers.states_for(template.question, name)))
            uid = f"\0together/{name}/{len(copy.uids)}"
            expected, claimed, reason = self._expected(msgspec.structs.replace(record, uid=uid), name, copy.states)
            taken = None if reason else trial.place(copy.states, expected.view)
            if taken is None:
                reason = reason or Refusal.TAKEN_BEFORE
            else:
                reason = self._answers.affinity_refusal(expected, name, copy.states, copy.uids)
            if taken is None or reason:
                assert reason
                template.refuse(reason)
                yield
                continue
            self.copies[name] = copy.taken(taken, record, uid, claimed)
            containers = numa_placement.of(taken[0], uid, is_exact=self._view.precision(name) == "exact")
            return PodPlacement(msgspec.structs.replace(expected, uid=pod.metadata.uid or uid), name, containers)
        return None

    def _expected(
        self, record: PodRecord, name: str, states: Sequence[Kubelet]
    ) -> tuple[PodRecord, Devices, Reason | None]:
        """Returns the pod as the kubelet of a node in these states would get it, the devices of its claims, and the
        refusal of a node without such devices."""
        gates = self._view.ledger.gates
        taken = [device for copy in self.copies.values() for device in copy.claimed]
        expected = gates.claims.expected_in(record, name, states, taken=taken)
        devices = expected.devices
        if devices.is_short:
            return record, (), lacks_devices(devices.problem).words
        if devices.problem:
            self._not_examined[RESOURCE_CLAIMS] = None
        elif expected.record is None and gates.claimed.is_required(record):
            return record, (), Refusal.CLAIMS_APART
        is_steered = expected.record is not None and expected.record.steered is not None
        steered = expected.record if is_steered else None
        return steered or self._answers.as_expected(record, name), expected.results, None
