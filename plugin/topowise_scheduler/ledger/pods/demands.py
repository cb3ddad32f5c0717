"""What the annotations and resources of a pod demand of its node beside amounts.

Each option reads its own demand (`Reader`). A pod that names nothing of an option has no demand on it, so no code of
the option runs for the pod.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from topowise import digits, pods
from topowise.attributes.pci_devices import Located
from topowise.errors import ParseError
from topowise.placement import GROUP_SIZE, KUEUE_GROUP_SIZE
from topowise_scheduler.kubelet import Kubelet, Placement
from topowise_scheduler.verdicts import policy_annotations
from topowise_scheduler.verdicts.refusals import Refusal

if TYPE_CHECKING:
    # A record has its demands.
    from topowise_scheduler.ledger.pods.records import PodRecord

MAX_GROUP: Final = 1024
"""Of more pods a group that is placed together cannot be."""


class OptionDemand(msgspec.Struct, frozen=True, gc=False):
    """What a pod demands of an option; each option has a type of its own."""

    @property
    def size(self) -> int:
        """Bytes, about, beside some hundred."""
        return 0

    @property
    def concerns_pods(self) -> bool:
        """Whether bound pods of the same namespace (`selects`) change which nodes take the pod."""
        return False

    def selects(self, namespace: str, name: str, labels: Mapping[str, str]) -> bool:
        """Returns whether a bound pod is one of these pods."""
        return False

    def expected(self, record: PodRecord) -> PodRecord:
        """Returns the pod as the kubelet of a node that the cluster does not have is expected to get it."""
        return record

    def refusal_in(self, record: PodRecord, states: Sequence[Kubelet]) -> Refusal | None:
        """Returns why a node that the cluster does not have does not take the pod in these states, None if it does."""
        return None

    def observed(
        self, needs: pods.Needs, held: Mapping[str, Placement], places: Mapping[str, Located]
    ) -> Iterator[tuple[bool | None, str]]:
        """Yields for each part of the demand whether what the kubelet gave the containers meets it (None if that is not
        known), and the part with the devices that it concerns. `places`: the PCI functions of devices by id."""
        return iter(())


class Demands(msgspec.Struct, frozen=True, gc=False):
    """`policy`: the Topology Manager policy. `of_options`: at most one demand on each option. `group_size`: of how many
    pods the group is with which the pod is to be placed, 0 for no group."""

    policy: policy_annotations.Demand = policy_annotations.NOTHING
    of_options: tuple[OptionDemand, ...] = ()
    group_size: int = 0


NO_DEMANDS: Final = Demands()


class Reader(NamedTuple):
    """Reads the demand on an option from pods with one of its annotations, or a request of one of its resources.

    `read` raises ParseError for an annotation that cannot be read.
    """

    annotations: frozenset[str]
    resources: frozenset[str]
    read: Callable[[Mapping[str, str], pods.Metadata, pods.Needs], Any]


def demands_of(metadata: pods.Metadata, needs: pods.Needs, readers: Sequence[Reader]) -> Demands:
    """Returns what a pod demands. Raises ParseError."""
    annotations = metadata.annotations or {}
    found = [
        reader.read(annotations, metadata, needs)
        for reader in readers
        if not (reader.annotations.isdisjoint(annotations) and reader.resources.isdisjoint(needs.requests))
    ]
    if not annotations:
        return Demands(of_options=tuple(found)) if found else NO_DEMANDS
    return Demands(policy_annotations.demand(annotations), tuple(found), _group_size(annotations))


def _group_size(annotations: Mapping[str, str]) -> int:
    for key in (GROUP_SIZE, KUEUE_GROUP_SIZE):
        text = annotations.get(key)
        if text is not None:
            size = digits.int64(text)
            if size is None or not 0 < size <= MAX_GROUP:
                raise ParseError(f"annotation {key}", text, f"a number from 1 to {MAX_GROUP}")
            return size
    return 0
