"""Reads what a pod demands of NUMA nodes: the NUMA node that it requires, and pods to be beside or apart from.

    topowise.io/numa-node: "1"
    topowise.io/numa-affinity: "require same: app=cache; prefer apart: pod/noisy"

The pods selected by numa-affinity are bound pods of the pod's own namespace on the same Node that have CPUs, memory or
devices of a NUMA node. `same` is a NUMA node with at least one selected pod, as with pod affinity. `apart` is a NUMA
node without any. A term without `require` or `prefer` is preferred.

A required term refuses a node while a selected pod may be elsewhere than predicted: a report of the node ends that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec

from topowise import digits, pods
from topowise.errors import ParseError
from topowise.steering import RESOURCE as MARKER
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.ledger.pods.demands import OptionDemand, Reader
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.options.steering.choice import Demand, refusal_of, views_of
from topowise_scheduler.verdicts.refusals import Refusal

ANNOTATION: Final = "topowise.io/numa-node"
AFFINITY: Final = "topowise.io/numa-affinity"
_HIGHEST: Final = 63
# A term of eight labels.
_TERM_BYTES: Final = 2048

Strength = Literal["require", "prefer"]
Relation = Literal["same", "apart"]
Operator = Literal["=", "!="]

_STRENGTHS: Final[Mapping[str, Strength]] = {"require": "require", "prefer": "prefer"}
_RELATIONS: Final[Mapping[str, Relation]] = {"same": "same", "apart": "apart"}
_POD: Final = "pod/"
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)
_WORD: Final = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_KEY: Final = re.compile(rf"([a-z0-9]([a-z0-9.-]{{0,251}}[a-z0-9])?/)?{_WORD}", re.ASCII)
_VALUE: Final = re.compile(rf"({_WORD})?", re.ASCII)
_REQUIREMENT: Final = re.compile(r"\s*([^=!\s]+)\s*(==|=|!=)\s*([^=!\s]*)\s*")
_LONGEST: Final = 1024
_MOST: Final = 8
_FORM: Final = "entries as 'require same: app=cache' or 'prefer apart: pod/NAME', with ';' between them"
_CONSEQUENCE: Final = "the pod is not placed until it is corrected"


class PodTerm(msgspec.Struct, frozen=True, gc=False):
    """An entry of the annotation. It selects pods of `namespace` by `name`, or by `labels` if the name is "".

    `selects_itself`: the pod with the annotation is selected too, so it may be the first of its group on a node.
    """

    strength: Strength
    relation: Relation
    namespace: str
    name: str = ""
    labels: tuple[tuple[str, Operator, str], ...] = ()
    selects_itself: bool = False

    def __str__(self) -> str:
        selector = ",".join("".join(requirement) for requirement in self.labels) or f"{_POD}{self.name}"
        return f"{self.strength} {self.relation}: {selector}"

    def selects(self, namespace: str, name: str, labels: Mapping[str, str]) -> bool:
        """Returns whether the term selects a pod. As in Kubernetes, `!=` selects pods without the label too."""
        if namespace != self.namespace:
            return False
        if self.name:
            return name == self.name
        return all((labels.get(key) == value) is (operator == "=") for key, operator, value in self.labels)


def pod_terms(annotations: Mapping[str, str], metadata: pods.Metadata) -> tuple[PodTerm, ...]:
    """Returns the terms of a pod without duplicates. Raises ParseError, whose text names the consequence."""
    text = annotations.get(AFFINITY, "")
    if not text.strip():
        return ()
    if len(text) > _LONGEST:
        raise _error(text, f"at most {_LONGEST} characters")
    entries = [entry for entry in (part.strip() for part in text.split(";")) if entry]
    if not 0 < len(entries) <= _MOST:
        raise _error(text, f"1 to {_MOST} {_FORM}")
    return tuple(dict.fromkeys(_entry(entry, metadata) for entry in entries))


def _entry(text: str, metadata: pods.Metadata) -> PodTerm:
    head, colon, selector = text.partition(":")
    words, selector = head.split(), selector.strip()
    strength = _STRENGTHS.get(words[0]) if len(words) == 2 else "prefer" if len(words) == 1 else None
    relation = _RELATIONS.get(words[-1]) if words else None
    if not colon or strength is None or relation is None:
        raise _error(text, _FORM)
    if selector.startswith(_POD):
        name = selector.removeprefix(_POD)
        if not _NAME.fullmatch(name):
            raise _error(text, f"the name of a pod after {_POD}")
        term = PodTerm(strength, relation, metadata.namespace, name)
    else:
        term = PodTerm(strength, relation, metadata.namespace, labels=_requirements(selector))
    selects_itself = term.selects(metadata.namespace, metadata.name, metadata.labels or {})
    return msgspec.structs.replace(term, selects_itself=selects_itself)


def _requirements(text: str) -> tuple[tuple[str, Operator, str], ...]:
    parts = text.split(",")
    found = [_REQUIREMENT.fullmatch(part) for part in parts]
    requirements: list[tuple[str, Operator, str]] = []
    for match in found:
        if match is None or not _KEY.fullmatch(match[1]) or not _VALUE.fullmatch(match[3]) or len(parts) > _MOST:
            expected = f"{_POD}NAME, or 1 to {_MOST} labels as key=value or key!=value, with ',' between them"
            raise _error(text, expected)
        requirements.append((match[1], "!=" if match[2] == "!=" else "=", match[3]))
    return tuple(requirements)


def _error(text: str, expected: str) -> ParseError:
    return ParseError(f"annotation {AFFINITY}", text, f"{expected}; {_CONSEQUENCE}")


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
        required_numa_node(annotations), pod_terms(annotations, metadata), needs.requests.get(MARKER, 0)
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


READER: Final = Reader(frozenset((ANNOTATION, AFFINITY)), frozenset((MARKER,)), read)
