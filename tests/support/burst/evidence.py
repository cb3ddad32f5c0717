"""Why a kubelet refused a pod that the service had sent there: what both sides knew, and which order is suspect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sandbox.hollow import Refusal
from sandbox.kubescheduler import Attempt

History = Sequence[tuple[float, str]]
_SHOWN = 24


def describe(refusal: Refusal, tried: Sequence[Attempt], history: History, believed: str) -> str:
    """`history` is the node's up to the refusal, `believed` the service's explanation just after it."""
    pod = f"{refusal.pod.metadata.namespace}/{refusal.pod.metadata.name}"
    decision = refusal.decision
    return "\n".join(
        [
            f"pod {pod} refused by {refusal.node}: {decision.reason}: {decision.message}",
            f"  {decision.rejection} {decision.shortages}",
            f"  attempts: {[(one.chosen, len(one.feasible), dict(one.scores), one.error) for one in tried[-3:]]}",
            f"  suspects: {list(suspects(pod, history)) or 'none'}",
            f"  believed: {believed}",
            "  the node:",
            *(f"    {moment - refusal.at:+8.3f}s {what}" for moment, what in history[-_SHOWN:]),
        ]
    )


def suspects(pod: str, history: History) -> Iterator[str]:
    """Orders of events that a prediction may have taken for another."""
    times: dict[str, dict[str, float]] = {}
    for moment, what in history:
        name, _, rest = what.partition(" ")
        times.setdefault(name, {})[rest.partition(":")[0]] = moment
    mine = times.get(pod, {})
    for name, other in times.items():
        if (
            "decided" in mine
            and other.get("decided", 0.0) > mine["decided"]
            and other.get("assigned", 0)
            and (other["assigned"] < mine.get("assigned", 0.0))
        ):
            yield f"{name} was decided later and assigned earlier"
        for ended, its in times.items():
            if other.get("assigned", 0.0) and other["assigned"] < its.get("ended", 0.0) < other.get("admitted", 0.0):
                yield f"{ended} ended while {name} was assigned and not yet admitted"
