"""What a check finds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

import msgspec

Severity = Literal["error", "warning", "note"]
SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "note")
_MOST_NAMES: Final = 8


class Finding(msgspec.Struct, frozen=True):
    """`kind` and `names` are what it is about ("node" and which), `value` what was seen there.

    An error breaks something now, a warning will under some load, a note is worth knowing and no reason to act.
    """

    check: str
    severity: Severity
    kind: str
    names: tuple[str, ...]
    value: str
    why: str
    mend: str

    @property
    def thing(self) -> str:
        """ "node a", "nodes a, b", "nodes a, b and 7 more"."""
        if not self.names:
            return self.kind
        first = ", ".join(self.names[:_MOST_NAMES])
        more = f" and {len(self.names) - _MOST_NAMES} more" if len(self.names) > _MOST_NAMES else ""
        return f"{self.kind}{'s' if len(self.names) > 1 else ''} {first}{more}"


def together(findings: Iterable[Finding]) -> list[Finding]:
    """Joins findings that differ only in names; errors come first."""
    merged: dict[tuple[str, ...], list[Finding]] = {}
    for finding in findings:
        merged.setdefault(
            (finding.check, finding.severity, finding.kind, finding.value, finding.why, finding.mend), []
        ).append(finding)
    joined = [
        msgspec.structs.replace(same[0], names=tuple(dict.fromkeys(name for finding in same for name in finding.names)))
        for same in merged.values()
    ]
    return sorted(joined, key=lambda finding: SEVERITIES.index(finding.severity))
