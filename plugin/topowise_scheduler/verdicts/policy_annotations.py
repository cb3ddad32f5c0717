"""Reads the Topology Manager policy that a pod requires of its node, from annotations.

`topowise.io/numa-policy` means "at least as strict as": `single-numa-node` satisfies a pod that requires `restricted`.
`volcano.sh/numa-topology-policy` has Volcano's meaning: `none` requires nothing, any other value a node with exactly
that policy (volcano, pkg/scheduler/plugins/numaaware).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from topowise import attributes
from topowise.errors import ParseError
from topowise_scheduler.verdicts.refusals import Refusal

POLICY_ANNOTATION: Final = "topowise.io/numa-policy"
VOLCANO_ANNOTATION: Final = "volcano.sh/numa-topology-policy"

# From the loosest to the strictest; the engine numbers policies in this order too.
POLICIES: Final = attributes.POLICIES


class Demand(msgspec.Struct, frozen=True, gc=False):
    """The least strict accepted policy, and the only accepted policy; "" requires nothing."""

    at_least: str = ""
    exactly: str = ""

    def rules(self) -> list[tuple[list[int], Refusal]]:
        """Returns for each requirement the accepted positions in POLICIES, and the refusal of all other policies."""
        rules = []
        if self.at_least and self.at_least != POLICIES[0]:
            rules.append((list(range(POLICIES.index(self.at_least), len(POLICIES))), Refusal.WEAKER_POLICY))
        if self.exactly:
            rules.append(([POLICIES.index(self.exactly)], Refusal.OTHER_POLICY))
        return rules


NOTHING: Final = Demand()


def demand(annotations: Mapping[str, str]) -> Demand:
    """Returns the requirements of a pod. Raises ParseError for an unknown policy."""
    at_least, volcano = annotations.get(POLICY_ANNOTATION, ""), annotations.get(VOLCANO_ANNOTATION, "")
    if not at_least and not volcano:
        return NOTHING
    for name, text in ((POLICY_ANNOTATION, at_least), (VOLCANO_ANNOTATION, volcano)):
        if text and text not in POLICIES:
            raise ParseError(f"annotation {name}", text, f"one of {', '.join(POLICIES)}")
    return Demand(at_least, "" if volcano == POLICIES[0] else volcano)
