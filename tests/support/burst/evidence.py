"""Why a kubelet refused a pod that the service had sent there: what both sides knew, and which order is suspect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from sandbox.hollow import HollowNode, Refusal
from sandbox.kubescheduler import Attempt

_SHOWN = 30
# A binding of another scheduler that is on its way to the service while the service binds cannot be foreseen.
_RACE_S = 0.05
# For so long the service may not have heard of what is in the API.
_HEARING_S = 0.02
# The same on a busy machine, with the time from kube-scheduler's question to its decision.
_DECIDING_S = 0.1


class Scene(msgspec.Struct, frozen=True):
    """A refusal with the node's history up to it, and the time its kubelet was looked at for the last report that was
    there when the pod was decided.

    `told`: when its exporter looked and when that was written, marks included. `slowest` is the longest that this
    scenario's exporters may take for it, in seconds.
    """

    refusal: Refusal
    history: Sequence[tuple[float, str]]
    looked_at: float
    told: Sequence[tuple[float, float]] = ()
    slowest: float = 0.0

    @property
    def pod(self) -> str:
        """namespace/name"""
        return f"{self.refusal.pod.metadata.namespace}/{self.refusal.pod.metadata.name}"

    def times(self) -> dict[str, dict[str, float]]:
        """By pod, when what happened."""
        times: dict[str, dict[str, float]] = {}
        for moment, event in self.history:
            name, _, rest = event.partition(" ")
            times.setdefault(name, {})[rest.partition(":")[0]] = moment
        return times

    def is_race(self, others_prefix: str, lag: float = 0.0) -> bool:
        """Returns whether another scheduler's pod (by prefix of its name) was bound to the node just before this pod.
        The service sees events up to `lag` seconds late."""
        times = self.times()
        own_time = times.get(self.pod, {}).get("assigned", 0.0)
        other_times = [
            its["assigned"] for name, its in times.items() if name.startswith(others_prefix) and "assigned" in its
        ]
        return any(own_time - _RACE_S - lag <= moment <= own_time for moment in other_times)

    def is_overtaken(self, lag: float = 0.0) -> bool:
        """Returns whether the kubelet restarted after the decision, or before it and unreported: its device plug-ins
        may not be back in time. The service sees objects up to `lag` seconds late."""
        decided = self.times().get(self.pod, {}).get("decided", 0.0)
        restarts = [moment for moment, event in self.history if event == "kubelet restarts"]
        return any(moment > decided or self._is_untold(moment, decided - lag) for moment in restarts)

    def _is_untold(self, restart: float, decided: float) -> bool:
        """Returns whether the exporter had not yet reported the restarted kubelet, within its time limit."""
        is_told = any(looked >= restart and written < decided - _DECIDING_S for looked, written in self.told)
        return not is_told and decided < restart + self.slowest + _DECIDING_S

    def suspects(self) -> Iterator[str]:
        """Orders of events since that report which a prediction may have taken for another."""
        times = self.times()
        own = times.get(self.pod, {})
        for name, its_times in times.items():
            decided, assigned, admitted = (its_times.get(event, 0.0) for event in ("decided", "assigned", "admitted"))
            if 0.0 < admitted < self.looked_at or name == self.pod:
                continue
            if 0.0 < own.get("decided", 0.0) < decided and 0.0 < assigned < own.get("assigned", 0.0):
                yield f"{name} was decided later and assigned earlier"
            if 0.0 < own.get("bind", 0.0) < its_times.get("bind", 0.0) and 0.0 < assigned < own.get("assigned", 0.0):
                yield f"{name} was sent to be bound later and assigned earlier"
            for ended, its in times.items():
                gone = its.get("ended", 0.0)
                heard = next((its[event] for event in its if event.startswith("is Succeeded")), gone)
                if 0.0 < decided < heard + _HEARING_S and gone < assigned and heard > decided - _HEARING_S:
                    yield f"{ended} ended while {name} was decided and not yet assigned"
                if 0.0 < assigned < gone < admitted:
                    yield f"{ended} ended while {name} was assigned and not yet admitted"


def scene(refusal: Refusal, node: HollowNode) -> Scene:
    """As things are at the moment of the refusal."""
    reporter = node.reporter
    name = f"{refusal.pod.metadata.namespace}/{refusal.pod.metadata.name} "
    history = list(node.lifecycle.history)
    decided = next((moment for moment, event in history if event == f"{name}decided"), refusal.at)
    looks = [looked for looked, written in reporter.reports if written < decided]
    reports = [*reporter.reports, *reporter.marks]
    return Scene(refusal, history, looks[-1] if looks else 0.0, reports, reporter.slowest)


def describe(seen: Scene, tried: Sequence[Attempt], believed: str) -> str:
    """`believed` is the service's explanation just after the refusal."""
    refusal, decision = seen.refusal, seen.refusal.decision
    return "\n".join(
        [
            f"pod {seen.pod} refused by {refusal.node}: {decision.reason}: {decision.message}",
            f"  {decision.rejection} {decision.shortages}",
            f"  attempts: {[(one.chosen, len(one.feasible), dict(one.scores), one.error) for one in tried[-3:]]}",
            f"  suspects: {list(seen.suspects()) or 'none'}",
            f"  believed: {believed}",
            f"  last report when it was decided: of {seen.looked_at - refusal.at:+.3f}s",
            "  the node:",
            *(f"    {moment - refusal.at:+8.3f}s {event}" for moment, event in seen.history[-_SHOWN:]),
        ]
    )
