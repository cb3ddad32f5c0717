"""The annotation `topowise.io/numa-affinity`: a pod on the same NUMA node as other pods, or apart from them.

    topowise.io/numa-affinity: "require same: app=cache; prefer apart: pod/noisy"

The selected pods are bound pods of the pod's own namespace on the same Node that have CPUs, memory or devices of a NUMA
node. `same` is a NUMA node with at least one selected pod, as with pod affinity. `apart` is a NUMA node without any.
A term without `require` or `prefer` is preferred.

A required term refuses a node while a selected pod may be elsewhere than predicted: a report of the node ends that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from topowise.errors import ParseError
from topowise.pods import Metadata

ANNOTATION: Final = "topowise.io/numa-affinity"

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


def pod_terms(annotations: Mapping[str, str], metadata: Metadata) -> tuple[PodTerm, ...]:
    """Returns the terms of a pod without duplicates. Raises ParseError, whose text names the consequence."""
    text = annotations.get(ANNOTATION, "")
    if not text.strip():
        return ()
    if len(text) > _LONGEST:
        raise _error(text, f"at most {_LONGEST} characters")
    entries = [entry for entry in (part.strip() for part in text.split(";")) if entry]
    if not 0 < len(entries) <= _MOST:
        raise _error(text, f"1 to {_MOST} {_FORM}")
    return tuple(dict.fromkeys(_entry(entry, metadata) for entry in entries))


def _entry(text: str, metadata: Metadata) -> PodTerm:
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
    return ParseError(f"annotation {ANNOTATION}", text, f"{expected}; {_CONSEQUENCE}")
