"""Reads how near a pod's CPUs and memory have to be to the devices of its claims, from an annotation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias, get_args

from topowise.errors import ParseError
from topowise_scheduler.ledger.pods.demands import OptionDemand, Reader

ANNOTATION: Final = "topowise.io/claim-alignment"
Alignment: TypeAlias = Literal["require", "prefer"]
ALIGNMENTS: Final[tuple[Alignment, ...]] = get_args(Alignment)


class ClaimDemand(OptionDemand, frozen=True, gc=False):
    """The alignment that a pod demands, "" for the configured alignment."""

    alignment: Alignment | Literal[""] = ""


NO_DEMAND: Final = ClaimDemand()


def alignment_of(annotations: Mapping[str, str]) -> Alignment | Literal[""]:
    """Returns the demand of a pod, "" without the annotation. Raises ParseError."""
    text = annotations.get(ANNOTATION)
    if text is None:
        return ""
    for alignment in ALIGNMENTS:
        if text == alignment:
            return alignment
    raise ParseError(f"annotation {ANNOTATION}", text, f"one of {', '.join(ALIGNMENTS)}")


READER: Final = Reader(
    frozenset((ANNOTATION,)), frozenset(), lambda annotations, metadata, needs: ClaimDemand(alignment_of(annotations))
)
