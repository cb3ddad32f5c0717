"""Placeholders: pods that no existing node can take, so that an autoscaler adds a node for them.

cluster-autoscaler and Karpenter simulate kube-scheduler's plug-ins without extenders, so a pod that waits only for
alignment fits in their simulation, and they add no node. A placeholder fits on no existing node by its node affinity.
It requests the sum of what its pods request, on a node of their group. No scheduler serves its schedulerName, so it is
never bound: the new node stays free for the pods it was added for.

A placeholder has all state of a purchase, in labels and annotations. A leader that starts reads it there. An ended
placeholder has phase Succeeded or Failed, which autoscalers ignore, and is kept for the budget and the back-off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, Literal, get_args

import msgspec

from topowise import quantity
from topowise.pods import Amounts, Condition
from topowise_scheduler.ledger.pods.records import PLACEHOLDER_SCHEDULER, PodRecord
from topowise_scheduler.overlay.scale_up.node_groups import GroupLabels, PlannedNode
from topowise_scheduler.report.timestamps import seconds, text
from topowise_scheduler.verdicts.kube_scheduler import HOSTNAME, Requirement, Term

LABEL: Final = "topowise.io/placeholder"
_PURCHASE: Final = "topowise.io/scale-up"
NODE_ANNOTATION: Final = "topowise.io/scale-up-node"
OUTCOME_ANNOTATION: Final = "topowise.io/scale-up-outcome"
ENDED_ANNOTATION: Final = "topowise.io/scale-up-ended"
KNOWN_NODE_LABEL: Final = "topowise.io/known-node"
"""Label of the nodes that no placeholder may be placed on, for Karpenter, which refuses terms about hostnames."""

Autoscaler = Literal["cluster-autoscaler", "karpenter"]
Outcome = Literal["", "helped", "useless", "late", "taken", "unneeded"]
"""`helped`: a pod runs on the new node. `useless`: the new node cannot align a pod. `late`: no reported node came in
time. `taken`: other pods use the new node. `unneeded`: the pods needed no new node. "": it has not ended."""
FAILURES: Final = frozenset(("useless", "late"))

_OUTCOMES: Final = frozenset(get_args(Outcome))
MOST_HOSTS: Final = 2000
"""Nodes of a group: each placeholder names them all, and cluster-autoscaler compares them for each simulated node."""
_RESTRICTED: Final = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}
_UNPRIVILEGED: Final = {
    "runAsNonRoot": True,
    "runAsUser": 65534,
    "runAsGroup": 65534,
    "seccompProfile": {"type": "RuntimeDefault"},
}
_MESSAGE: Final = "0 nodes are available: the placeholder asks for a new node, on which its pods would be aligned."


class PodName(msgspec.Struct, frozen=True):
    """A pod that a node is requested for."""

    uid: str
    namespace: str
    name: str


class _Purchase(msgspec.Struct, frozen=True, omit_defaults=True):
    """The annotation `topowise.io/scale-up`. `hosts` only where the affinity does not name them, for Karpenter."""

    group: dict[str, str]
    pods: tuple[PodName, ...]
    hosts: tuple[str, ...] = ()


class Placeholder(msgspec.Struct, frozen=True):
    """A placeholder as the API server has it. `created` and `ended` are seconds since 1970, `ended` 0 before its end.

    `node`: the new Node that is attributed to it, "" before that. `hosts`: the nodes of the group that existed before.
    `is_visible`: autoscalers see it; a leader that ended between the two writes has left it without the condition.
    """

    name: str
    uid: str
    group: GroupLabels
    pods: tuple[PodName, ...]
    created: float
    node: str = ""
    outcome: Outcome = ""
    ended: float = 0.0
    hosts: frozenset[str] = frozenset()
    is_visible: bool = False

    @property
    def is_active(self) -> bool:
        """Whether it has not ended."""
        return not self.outcome

    @property
    def is_in_flight(self) -> bool:
        """Whether an autoscaler may still have to add its node."""
        return self.is_active and not self.node


class Template(msgspec.Struct, frozen=True):
    """What all placeholders have."""

    namespace: str
    image: str
    priority_class: str
    autoscaler: Autoscaler


class _Metadata(msgspec.Struct, frozen=True):
    name: str
    uid: str = ""
    creationTimestamp: str = ""
    deletionTimestamp: str | None = None
    annotations: dict[str, str] | None = None


class _NodeAffinity(msgspec.Struct, frozen=True):
    requiredDuringSchedulingIgnoredDuringExecution: dict[str, tuple[Term, ...]] = {}


class _Affinity(msgspec.Struct, frozen=True):
    nodeAffinity: _NodeAffinity = _NodeAffinity()


class _Spec(msgspec.Struct, frozen=True):
    affinity: _Affinity | None = None


class _Status(msgspec.Struct, frozen=True):
    conditions: tuple[Condition, ...] | None = ()


class _Object(msgspec.Struct, frozen=True):
    metadata: _Metadata
    spec: _Spec
    status: _Status = _Status()


class _List(msgspec.Struct, frozen=True):
    items: tuple[_Object, ...] | None = ()


_decode_list: Final = msgspec.json.Decoder(_List).decode
_decode_object: Final = msgspec.json.Decoder(_Object).decode
_decode_purchase: Final = msgspec.json.Decoder(_Purchase).decode


def decode(raw: bytes) -> list[Placeholder]:
    """Returns the placeholders of a v1.PodList, without objects that are being deleted or are no placeholders.

    Raises msgspec.DecodeError for a text that is no list of pods.
    """
    placeholders = []
    for item in _decode_list(raw).items or ():
        placeholder = None if item.metadata.deletionTimestamp else _of(item)
        if placeholder is not None:
            placeholders.append(placeholder)
    return sorted(placeholders, key=lambda placeholder: (placeholder.created, placeholder.name))


def decode_one(raw: bytes) -> Placeholder:
    """Returns the placeholder of a v1.Pod that `document` has made. Raises msgspec.DecodeError for another object."""
    placeholder = _of(_decode_object(raw))
    if placeholder is None:
        raise msgspec.DecodeError(f"the pod has no annotation {_PURCHASE}")
    return placeholder


def _of(item: _Object) -> Placeholder | None:
    annotations = item.metadata.annotations or {}
    try:
        purchase = _decode_purchase(annotations.get(_PURCHASE, ""))
    except msgspec.DecodeError:
        return None
    outcome: Any = annotations.get(OUTCOME_ANNOTATION, "")
    return Placeholder(
        name=item.metadata.name,
        uid=item.metadata.uid,
        group=tuple(sorted(purchase.group.items())),
        pods=purchase.pods,
        created=seconds(item.metadata.creationTimestamp),
        node=annotations.get(NODE_ANNOTATION, ""),
        outcome=outcome if outcome in _OUTCOMES else "late",
        ended=seconds(annotations.get(ENDED_ANNOTATION, "")),
        hosts=frozenset(purchase.hosts) or _hosts(item.spec),
        is_visible=any(condition.type == "PodScheduled" for condition in item.status.conditions or ()),
    )


def _hosts(spec: _Spec) -> frozenset[str]:
    required = (
        {} if spec.affinity is None else spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution
    )
    terms = required.get("nodeSelectorTerms", ())
    requirements = [requirement for term in terms for requirement in term.matchExpressions or ()]
    excluding = [item.values or () for item in requirements if item.key == HOSTNAME and item.operator == "NotIn"]
    return frozenset(excluding[-1]) if excluding else frozenset()


def document(planned: PlannedNode, hosts: Sequence[str], template: Template, suffix: str) -> dict[str, Any]:
    """Returns the v1.Pod for a new node with these pods. `hosts`: hostnames of the nodes of the group."""
    first = planned.records[0]
    group = dict(planned.group)
    names = tuple([PodName(record.uid, record.namespace, record.name) for record in planned.records])
    purchase = _Purchase(group, names, tuple(hosts) if template.autoscaler == "karpenter" else ())
    amounts = _requests(planned.records)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"topowise-placeholder-{suffix}",
            "namespace": template.namespace,
            "labels": {LABEL: digest(planned.group), "app.kubernetes.io/part-of": "topowise"},
            "annotations": {_PURCHASE: msgspec.json.encode(purchase).decode()},
        },
        "spec": {
            "schedulerName": PLACEHOLDER_SCHEDULER,
            "priorityClassName": template.priority_class,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "securityContext": _UNPRIVILEGED,
            "tolerations": _tolerations(first),
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": _terms(first, group, hosts, template.autoscaler)
                    }
                },
                # A placeholder is a node: without this term two of them fit on a node by their sums.
                "podAntiAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": [
                        {
                            "labelSelector": {"matchExpressions": [{"key": LABEL, "operator": "Exists"}]},
                            "topologyKey": HOSTNAME,
                        }
                    ]
                },
            },
            "containers": [
                {
                    "name": "placeholder",
                    "image": template.image,
                    "resources": {"requests": amounts, "limits": amounts},
                    "securityContext": _RESTRICTED,
                }
            ],
        },
    }


def waiting_patch(uid: str, now: float) -> dict[str, Any]:
    """Returns the status patch that makes autoscalers see the placeholder: the condition of kube-scheduler."""
    return {"metadata": {"uid": uid}, "status": {"conditions": [_condition("Unschedulable", _MESSAGE, now)]}}


def end_patch(uid: str, outcome: Outcome, why: str, now: float) -> dict[str, Any]:
    """Returns the status patch that ends a placeholder for autoscalers, and keeps its outcome."""
    return {
        "metadata": {"uid": uid, "annotations": {OUTCOME_ANNOTATION: outcome, ENDED_ANNOTATION: text(now)}},
        "status": {
            "phase": "Failed" if outcome in FAILURES else "Succeeded",
            "reason": outcome.capitalize(),
            "message": why,
            # Karpenter reads this condition whatever the phase is.
            "conditions": [_condition("PlaceholderEnded", why, now)],
        },
    }


def node_patch(uid: str, node: str, now: float) -> dict[str, Any]:
    """Returns the status patch that attributes a new node to a placeholder, and hides the placeholder from autoscalers.

    Its pods soon use the node, and then the placeholder would fit on no node: an autoscaler would add another.
    """
    return {
        "metadata": {"uid": uid, "annotations": {NODE_ANNOTATION: node}},
        "status": {"conditions": [_condition("NodeAdded", f"{node} was added.", now)]},
    }


def digest(group: GroupLabels) -> str:
    """Returns a label value for a group, whose values may be longer than a label value."""
    return blake2b(repr(group).encode(), digest_size=8).hexdigest()


def _condition(reason: str, message: str, now: float) -> dict[str, Any]:
    return {
        "type": "PodScheduled",
        "status": "False",
        "reason": reason,
        "message": message,
        "lastTransitionTime": text(now),
    }


def _requests(records: Sequence[PodRecord]) -> dict[str, str]:
    total: Amounts = {}
    for record in records:
        for resource, amount in () if record.needs is None else record.needs.requests.items():
            total[resource] = total.get(resource, 0) + amount
    return {
        resource: quantity.from_milli(amount) if resource == "cpu" else str(amount)
        for resource, amount in sorted(total.items())
        if amount > 0
    }


def _tolerations(record: PodRecord) -> list[dict[str, str]]:
    tolerations = () if record.constraints is None else record.constraints.spec.tolerations or ()
    return [
        {key: value for key, value in msgspec.structs.asdict(toleration).items() if value} for toleration in tolerations
    ]


def _terms(
    record: PodRecord, group: Mapping[str, str], hosts: Sequence[str], autoscaler: Autoscaler
) -> list[dict[str, Any]]:
    """Returns the required terms: alternatives of the pod, each with its selector, the group, and no existing node."""
    spec = None if record.constraints is None else record.constraints.spec
    nodes = spec.affinity.nodeAffinity if spec is not None and spec.affinity is not None else None
    required = None if nodes is None else nodes.requiredDuringSchedulingIgnoredDuringExecution
    alternatives = (required.nodeSelectorTerms if required is not None else None) or (Term(),)
    selected = {**((spec.nodeSelector if spec is not None else None) or {}), **group}
    common = [Requirement(key, "In", (value,)) for key, value in sorted(selected.items())]
    if autoscaler == "karpenter":
        common.append(Requirement(KNOWN_NODE_LABEL, "DoesNotExist", None))
    elif hosts:
        common.append(Requirement(HOSTNAME, "NotIn", tuple(sorted(hosts))))
    return [
        {"matchExpressions": [_json(item) for item in (*(term.matchExpressions or ()), *common)]}
        for term in alternatives
    ]


def _json(requirement: Requirement) -> dict[str, Any]:
    values = {"values": list(requirement.values)} if requirement.values else {}
    return {"key": requirement.key, "operator": requirement.operator, **values}
