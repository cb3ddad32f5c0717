"""Reads what a pod demands of NUMA nodes: the NUMA node that it requires, and pods to be beside or apart from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from topowise import digits, pods
from topowise.errors import ParseError
from topowise.steering import RESOURCE as MARKER
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.ledger.pods.demands import OptionDemand, Reader
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.options.steering import numa_affinity
from topowise_scheduler.options.steering.choice import Demand, refusal_of, views_of
from topowise_scheduler.options.steering.numa_affinity import PodTerm
from topowise_scheduler.verdicts.refusals import Refusal

ANNOTATION: Final = "topowise.io/numa-node"
_HIGHEST: Final = 63
# A term of eight labels.
_TERM_BYTES: Final = 2048


class SteeringDemand(OptionDemand, frozen=True, gc=False):
    """`numa_node`: the id of the required NUMA node. `numa_affinity`: the pods on whose NUMA node, or apart from which,
    the pod is to be. `markers`: the number of markers that the pod requests."""

    numa_node: int | None = None
    numa_affinity: tuple[PodTerm, ...] = ()
    markers: int = 0

    @property
    def size(self) -> int:
        """See `OptionDemand`."""
        return _TERM_BYTES * len(self.numa_affinity)

    @property
    def concerns_pods(self) -> bool:
        """See `OptionDemand`."""
        return bool(self.numa_affinity)

    def expected(self, record: PodRecord) -> PodRecord:
        """See `OptionDemand`."""
        return record if self.numa_node is None else msgspec.structs.replace(record, steered=self.numa_node)

    def refusal_in(self, record: PodRecord, states: Sequence[Kubelet]) -> Refusal | None:
        """See `OptionDemand`. Some kubelets admit a pod elsewhere than it requires."""
        if self.numa_node is None:
            return None
        demand = Demand(frozenset((self.numa_node,)), f"numa-node {self.numa_node}")
        return refusal_of(states, views_of(record), [demand])

    def selects(self, namespace: str, name: str, labels: Mapping[str, str]) -> bool:
        """See `OptionDemand`."""
        return any(term.selects(namespace, name, labels) for term in self.numa_affinity)


NO_DEMAND: Final = SteeringDemand()


def read(annotations: Mapping[str, str], metadata: pods.Metadata, needs: pods.Needs) -> SteeringDemand:
    """Returns what a pod demands. Raises ParseError."""
    return SteeringDemand(
        required_numa_node(annotations), numa_affinity.pod_terms(annotations, metadata), needs.requests.get(MARKER, 0)
    )


def required_numa_node(annotations: Mapping[str, str]) -> int | None:
    """Returns the id of the required NUMA node, None without the annotation. Raises ParseError."""
    text = annotations.get(ANNOTATION)
    if text is None:
        return None
    numa = digits.natural(text, 2)
    if numa is None or numa > _HIGHEST:
        raise ParseError(f"annotation {ANNOTATION}", text, f"the id of a NUMA node, 0 to {_HIGHEST}")
    return numa


READER: Final = Reader(frozenset((ANNOTATION, numa_affinity.ANNOTATION)), frozenset((MARKER,)), read)
