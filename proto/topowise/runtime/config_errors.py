"""Explains a configuration error: the allowed values, and the value that was probably meant.

msgspec names the path and the problem. The allowed names and values are in the types, and are looked up by the path;
nothing here depends on a particular kind. A field that an earlier version had is explained by what takes its place, and
docs/how-to/upgrade.md has the same table. A field that only moves into the code needs no action but its deletion from
the file.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import inspect

_CLIENT: Final = {
    "client.context": "the current context of the kubeconfig",
    "client.timeout": "always 10 s",
}

REMOVED: Final[Mapping[str, Mapping[str, str]]] = {
    "ExporterConfiguration": {
        **_CLIENT,
        "podsApi": "always used where the kubelet serves it below `kubeletRoot`",
        "kubelet.configz.address": "$NODE_ADDRESS, from `status.hostIP`: the file serves every node",
        "kubelet.configz.port": "always 10250, or `kubelet.configFile` for a kubelet with another port",
        "kubelet.configz.serverName": "the certificate must have $NODE_ADDRESS: the file serves every node",
        "kubelet.configz.tokenFile": "always the token of the pod's service account",
        "kubelet.configz.interval": "always 60 s, and after a restart of the kubelet",
        "kubelet.configz.timeout": "always 5 s",
        "notifyFile": "changes are seen in the kubelet's state files at once, without `kubeletRoot` within a second",
        "interval": "always 1 s; events are seen at once",
        "machineInterval": "always 60 s; kernel events are seen at once",
        "driftInterval": "always 300 s",
        "publish.numaPlacement": "always published, with the policy single-numa-node",
        "publish.placeholderZones": "always published; readers skip zones with `topowise.io/absent`",
        "publish.legacyTopologyPolicies": (
            "the attributes `topologyManagerPolicy` and `topologyManagerScope`; for Koordinator the label "
            "`node.koordinator.sh/numa-topology-policy` of the Node"
        ),
        "steering.namespace": "the exporter's own namespace",
        "steering.devicePluginDirectory": "always /var/lib/kubelet/device-plugins, as in the kubelet",
    },
    "SchedulerConfiguration": {
        **_CLIENT,
        "extender.maxBodyBytes": "always 64 MiB; 5,000 full Node objects are about 40 MB",
        "extender.predictions": "pods are always annotated with their predicted allocation",
        "filter.mergeEqualNodes": "`placement`: kube-scheduler then examines a single node for each pod",
        "filter.bestNodes": "`placement`: kube-scheduler then examines a single node for each pod",
        "scoring.maxNumaNodes": "8 on nodes that do not report `topologyManagerMaxNUMANodes`, the kubelet's default",
        "scoring.distanceByOption": "near NUMA nodes score higher on every node, as in scheduler-plugins",
        "reservations": "always on, for 30 s",
        "steering.namespace": "`exporters.namespace`, or the own namespace",
        "steering.wait": "always 2 s",
        "steering.expiry": "always 10 s",
        "resourceClaims.schedulerMinor": "kube-scheduler's choice of devices is not predicted any more",
        "resourceClaims.schedulerFeatureGates": (
            "kube-scheduler's choice of devices is not predicted any more; see `resourceClaims.drivers`"
        ),
        "requeue.interval": "always 100 ms",
        "requeue.perSecond": "always 20",
        "exporters.podLabels": (
            "the labels `app.kubernetes.io/part-of: topowise` and `app.kubernetes.io/component: exporter`, which every "
            "pod may have that is to count as an exporter"
        ),
        "exporters.firstReport": "always 120 s",
        "exporters.grace": "always 120 s",
        "nominator": "`placement`, which chooses the nodes of gated pods and needs no place before kube-scheduler",
        "preemptor.patience": "always 10 s",
        "scaleUp.patience": "always 60 s",
        "scaleUp.timeLimit": "always 15 minutes, as in cluster-autoscaler and Karpenter",
        "scaleUp.hold": "always 120 s",
        "scaleUp.inFlight": "always 10; `scaleUp.perHour` bounds the cost",
        "scaleUp.perGroup": "always 10; `scaleUp.perHour` bounds the cost",
        "scaleUp.backOff": "always 30 minutes, doubled after each further failure",
        "kueue.apiVersion": "the version that the API server has",
        "kueue.hold": "always 120 s",
        "kueue.mostReserved": "always 1000",
        "scaleDownGuard.mostNodes": "always 100",
        "leaderElection.leaseName": "always `topowise-scheduler-requeue`",
        "leaderElection.leaseNamespace": "the own namespace; in static pods $POD_NAMESPACE, of `metadata.namespace`",
        "leaderElection.identity": "the host name with a random suffix",
        "volcano.weight": "always 10; to have no scores, omit `prioritizeVerb` of its extender plug-in",
        "ui.decisions": "always 200",
        "defragmenter": (
            "`kubectl topowise defrag` names the pods to evict, also as JSON; a pod that must not wait takes the "
            "capacity by its priority (preemptor)"
        ),
        "karmada": (
            "karmada-scheduler-estimator, which divides replicas by sums; in each member cluster topowise refuses "
            "nodes that would not align a pod"
        ),
    },
}
"""Kind -> path of the field or section -> what takes its place, in Markdown."""
_WHERE: Final = re.compile(r"(?P<problem>.*?)(?: - at `(?P<path>\$[^`]*)`)?", re.DOTALL)
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_VALUE: Final = re.compile(r"Invalid (?:enum )?value (.*)", re.DOTALL)
_STEP: Final = re.compile(r"\.(\w+)|\[[^\]]*\]")


def instead(kind: str, path: str) -> str:
    """Returns what takes the place of the field at this dotted path, "" if no earlier version had the field."""
    return REMOVED.get(kind, {}).get(path, "")


def explained(kind: type[msgspec.Struct], message: str) -> str:
    """Returns the message of a ValidationError for this type, with the allowed values if it is about a choice."""
    where = _WHERE.fullmatch(message)
    if where is None:
        raise AssertionError(f"nothing is not matched: {message!r}")
    problem, path = where["problem"], where["path"] or "$"
    at = f" - at `{path}`" if where["path"] else ""
    if unknown := _UNKNOWN.fullmatch(problem):
        text, known = unknown[1], [name for member in _types(kind, path) for name in _fields(member)]
        if replacement := instead(kind.__name__, f"{path}.{text}".removeprefix("$.")):
            return f"field {text!r} is gone, instead: {replacement}{at}"
        return f"unknown field {text!r:.80}, {_instead(text, known)}{at}" if known else message
    if value := _VALUE.fullmatch(problem):
        text, known = value[1].strip("'"), [choice for member in _types(kind, path) for choice in _choices(member)]
        return f"{value[1]:.80} is not known, {_instead(text, known)}{at}" if known else message
    return message


def _instead(text: str, known: Sequence[str]) -> str:
    """Returns the allowed values, with the nearest as a suggestion. A number is never similar to another number."""
    expected = f"expected {known[0]}" if len(known) == 1 else f"expected one of {', '.join(known)}"
    by_lower = {name.lower(): name for name in known if not name.isdigit()}
    matches = difflib.get_close_matches(text.lower()[:80], list(by_lower), n=1)
    return f"{expected}; did you mean {by_lower[matches[0]]}?" if matches and len(known) > 1 else expected


def _types(kind: type[msgspec.Struct], path: str) -> list[inspect.Type]:
    """Returns the types at the path: several if it is a union."""
    types = list(_members(inspect.type_info(kind)))
    for step in _STEP.finditer(path):
        types = [inner for kind_at_step in types for inner in _inside(kind_at_step, step[1], path)]
    return types


def _members(kind: inspect.Type) -> Iterator[inspect.Type]:
    if isinstance(kind, inspect.UnionType):
        for member in kind.types:
            yield from _members(member)
    elif isinstance(kind, inspect.Metadata):
        yield from _members(kind.type)
    else:
        yield kind


def _inside(kind: inspect.Type, name: str | None, path: str) -> Iterator[inspect.Type]:
    if isinstance(kind, inspect.StructType):
        if name == kind.tag_field and path == f"$.{name}":
            yield inspect.LiteralType((kind.tag,))
        for field in kind.fields:
            if field.encode_name == name:
                yield from _members(field.type)
    elif isinstance(kind, inspect.DictType):
        yield from _members(kind.value_type)
    elif name is None and isinstance(kind, inspect.VarTupleType | inspect.ListType):
        yield from _members(kind.item_type)


def _fields(kind: Any) -> list[str]:
    return [field.encode_name for field in kind.fields] if isinstance(kind, inspect.StructType) else []


def _choices(kind: Any) -> list[str]:
    return [str(value) for value in kind.values] if isinstance(kind, inspect.LiteralType) else []
