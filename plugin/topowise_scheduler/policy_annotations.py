"""What a pod asks of the Topology Manager of its node, by annotation.

`topowise.io/numa-policy` means "at least as strict as": a pod that wants `restricted` is as well off with
`single-numa-node`. `volcano.sh/numa-topology-policy` has Volcano's meaning: `none` asks for nothing, any other value
for a node with exactly that policy (volcano, pkg/scheduler/plugins/numaaware).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from topowise import attributes
from topowise.errors import ParseError
from topowise_scheduler import refusals

POLICY_ANNOTATION: Final = "topowise.io/numa-policy"
VOLCANO_ANNOTATION: Final = "volcano.sh/numa-topology-policy"

# From the loosest to the strictest; the engine numbers policies in this order too.
POLICIES: Final = attributes.POLICIES


class Demand(msgspec.Struct, frozen=True, gc=False):
    """The loosest policy that is strict enough, and the only one that will do; "" asks for nothing."""

    at_least: str = ""
    exactly: str = ""

    def rules(self) -> list[tuple[list[int], str]]:
        """For each demand the policies that meet it, by their place in POLICIES, and the refusal of all others."""
        found = []
        if self.at_least and self.at_least != POLICIES[0]:
            found.append((list(range(POLICIES.index(self.at_least), len(POLICIES))), refusals.WEAKER_POLICY))
        if self.exactly:
            found.append(([POLICIES.index(self.exactly)], refusals.OTHER_POLICY))
        return found

    def accepts(self, policy: str) -> bool:
        """Whether a node with this policy meets all demands."""
        return all(POLICIES.index(policy) in accepted for accepted, _ in self.rules())


NOTHING: Final = Demand()


def demand(annotations: Mapping[str, str]) -> Demand:
    """The demand of a pod. Raises ParseError for a policy that no kubelet has."""
    ours, volcano = annotations.get(POLICY_ANNOTATION, ""), annotations.get(VOLCANO_ANNOTATION, "")
    if not ours and not volcano:
        return NOTHING
    for name, text in ((POLICY_ANNOTATION, ours), (VOLCANO_ANNOTATION, volcano)):
        if text and text not in POLICIES:
            raise ParseError(f"annotation {name}", text, f"one of {', '.join(POLICIES)}")
    return Demand(ours, "" if volcano == POLICIES[0] else volcano)
