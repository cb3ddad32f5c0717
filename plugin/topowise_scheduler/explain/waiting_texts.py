"""The words about a pod that waits: its cause, the pods in the way, and the next step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from topowise.placement import GATE
from topowise_scheduler.explain.next_step import Cause, NextStep, Way
from topowise_scheduler.explain.refusal_texts import bare
from topowise_scheduler.explain.text import first_of, most_frequent_first, plural, rounded_up, with_unit
from topowise_scheduler.explain.waiting import WaitingPod
from topowise_scheduler.options.device_affinity.affinity_terms import ANNOTATION
from topowise_scheduler.verdicts import kube_scheduler
from topowise_scheduler.verdicts.refusals import Reason

CAUSE_TEXTS: Final[Mapping[Cause, str]] = {
    "alignment": "a node would take the pod if its free resources were on one NUMA node",
    "resources": "the free resources of each node are too few in sum",
    "other pods": "each node with room is kept from it by a constraint between pods",
    "excluded": "each node that could take the pod is cordoned, tainted or not selected",
    "unconfirmed": "a node will take the pod after its next report",
    "never": "no node could take the pod even if it were empty",
    "not examined": "a node takes the pod, whose further requirements topowise does not check",
    "retry": "a node takes the pod now, and nobody has tried it yet",
    "gated": "other controllers have not removed their scheduling gates yet",
    "group": "the pods of its group do not all exist yet",
    "unplaced": "it has the gate of topowise, and placement is off (placement.enabled)",
    "placed": "topowise has chosen its node, and kube-scheduler has not bound it yet",
}
_NEVER: Final = "no node can ever take it"
_STEPS: Final[Mapping[Way, str]] = {
    "use several pods": "use several pods: expected {detail}",
    "correct the pod": "correct the pod: {detail}",
    "add a node": "add a node: no node is known",
    "see the events": "see the events of the pod: topowise does not check its {detail}",
    "retry": "kube-scheduler retries by itself: the pod fits on {names}",
    "retry, unreported": "kube-scheduler retries by itself: {names} has no report, which topowise does not refuse",
    "never": _NEVER,
    "never on a node": f"{_NEVER}: on {{names}} {{reason}}",
    "never in sum": f"{_NEVER}: it asks for {{resource}} {{amount}}, the largest node has {{largest}}",
    "never had": f"{_NEVER}: it asks for {{resource}} {{amount}}, no node has it",
    "never aligned": f"{_NEVER}: {{resource}} {{amount}} on one NUMA node, the largest has {{largest}}",
    "first report": "wait: {names} has not reported yet",
    "report": "wait: {names}: {reason}{because}",
    "repair the exporter": "repair the exporter on {names}: no exporter is Ready on the node and its report lacks pods",
    "evict": "evicting {pods} would make room on {names}",
    "open": "{changes}",
    "open and make room": "{changes}, and make room there: {reason}",
    "create the node": "create the Node object of {names}",
    "prefer devices": f"{ANNOTATION} with prefer instead of require would fit on {{names}}",
    "ask for less": "{amount} less would fit on {names}",
    "wait for pods": "wait until {pods} on {names} {end}, or add a node",
    "place": "topowise places it within seconds, as it fits on {names}; otherwise placement is off, or nobody leads",
    "other gates": "wait: scheduling gates of other controllers come first: {detail}",
    "group": "wait, or create the rest: {amount} of the {largest} pods of its group wait",
    "other pods": "wait for other pods, or change the constraint that keeps it from {names}, which has room: {reason}",
    "enable placement": f"set placement.enabled, or remove the gate {GATE}: nobody else removes it",
    "bind": "wait: kube-scheduler binds it to {names}",
    "no single change": "add a node, or ask for less: {names} comes nearest, and no single change makes room there",
}
_CHANGES: Final = {
    "uncordon": "uncordon {node}",
    "repair": "repair {node}: it is not ready",
    "taint": "remove the taint {taint} from {node}, or tolerate it",
    "select": "change what the pod requires of nodes so that it selects {node}",
}
_MOST_NAMED: Final = 4
_MIB: Final = 1 << 20


def next_step(step: NextStep) -> str:
    """Returns a line."""
    line = _STEPS[step.way].format(
        detail=", ".join(step.details),
        because=f" ({', '.join(step.details)})" if step.details else "",
        names=", ".join(step.nodes) + (f" and {step.more_nodes} more" if step.more_nodes else ""),
        pods=first_of(step.pods, _MOST_NAMED),
        end="end" if len(step.pods) > 1 else "ends",
        reason=bare(step.reason),
        resource=step.resource,
        amount=_amount(step, step.amount),
        largest=_amount(step, step.largest),
        changes=" and ".join(
            [_CHANGES[change.kind].format(node=change.node, taint=change.taint) for change in step.changes]
        ),
    )
    return line if step.ends_in_s is None else f"{line} (expected within {rounded_up(step.ends_in_s)})"


def step_of_refused(pod: WaitingPod) -> str:
    """Returns the next step, "" for a pod that a node takes now and that nothing else keeps waiting."""
    return "" if pod.fits and pod.step.way in ("retry", "retry, unreported", "see the events") else next_step(pod.step)


def _amount(step: NextStep, amount: int) -> str:
    if step.way == "group":
        return str(amount)
    if step.way == "ask for less":
        if step.resource == "cpu":
            return plural(amount, "CPU")
        return f"{step.resource} {amount if '/' in step.resource else f'{amount // _MIB}Mi'}"
    return (with_unit if step.way == "never aligned" else kube_scheduler.to_text)(step.resource, amount)


def text(pod: WaitingPod) -> str:
    """Returns some sentences."""
    parts = []
    if pod.nearest:
        parts.append(f"{pod.nearest} comes nearest: {pod.lack}.")
    if pod.in_the_way:
        lower = f" ({pod.lower_priority} of lower priority)" if pod.lower_priority else ""
        parts.append(f"In the way: {first_of(pod.in_the_way)}{lower}.")
    parts.append(f"Next step: {next_step(pod.step)}.")
    return " ".join(parts)


def by_reason(reasons: Mapping[Reason, int]) -> list[tuple[str, int]]:
    """Returns the number of nodes by the text of the reason, in descending order."""
    return most_frequent_first({bare(reason): count for reason, count in reasons.items()})


def summary(pod: WaitingPod) -> str:
    """Returns the refusing nodes by reason: "2x no room that the kubelet could align; 1x Insufficient cpu"."""
    return "; ".join(f"{count}x {reason}" for reason, count in by_reason(pod.reasons))
