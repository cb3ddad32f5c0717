"""What each controller writes, as functions of the objects of the cluster."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from sandbox.apiserver import pods
from sandbox.apiserver.errors import Json
from topowise_scheduler.ledger.nodes import Nodes
from topowise_scheduler.verdicts import kube_scheduler

COLLECTIONS: Final = {
    "pods": "/api/v1",
    "nodes": "/api/v1",
    "deployments": "/apis/apps/v1",
    "replicasets": "/apis/apps/v1",
    "statefulsets": "/apis/apps/v1",
    "daemonsets": "/apis/apps/v1",
}
"""Path of the group version of each kind that a controller reads."""
_KINDS: Final = {
    "deployments": "Deployment",
    "replicasets": "ReplicaSet",
    "statefulsets": "StatefulSet",
    "daemonsets": "DaemonSet",
}
# What the DaemonSet controller adds to its pods.
_DAEMON_TOLERATIONS: Final = [
    {"key": f"node.kubernetes.io/{condition}", "operator": "Exists", "effect": effect}
    for effect, conditions in (
        ("NoExecute", ("not-ready", "unreachable")),
        ("NoSchedule", ("disk-pressure", "memory-pressure", "pid-pressure", "unschedulable")),
    )
    for condition in conditions
]


class Write(NamedTuple):
    """A request to the API server; a PATCH is a merge patch."""

    method: str
    path: str
    body: Json


class Cluster(NamedTuple):
    """The objects of each collection."""

    objects: Mapping[str, list[Json]]

    def owned(self, plural: str, owner: Json) -> list[Json]:
        """Returns the objects whose controller is `owner`."""
        uid = owner["metadata"]["uid"]
        return [
            obj
            for obj in self.objects[plural]
            if any(ref["uid"] == uid and ref.get("controller") for ref in obj["metadata"].get("ownerReferences") or ())
        ]


def writes(cluster: Cluster) -> Iterator[Write]:
    """Yields what all controllers write."""
    for plural, controller in _CONTROLLERS.items():
        for obj in cluster.objects[plural]:
            if not obj["metadata"].get("deletionTimestamp"):
                yield from controller(cluster, obj)
    yield from _taint_evictions(cluster)


def _deployment(cluster: Cluster, deployment: Json) -> Iterator[Write]:
    """A ReplicaSet for each template. A rolling update has the default surge, and no unavailable pods."""
    spec, template = deployment["spec"], deployment["spec"]["template"]
    digest = hashlib.sha256(msgspec.json.encode(template, order="deterministic")).hexdigest()[:10]
    name = f"{deployment['metadata']['name']}-{digest}"
    old = cluster.owned("replicasets", deployment)
    current = next((entry for entry in old if entry["metadata"]["name"] == name), None)
    old = [entry for entry in old if entry is not current]
    desired = spec.get("replicas", 1)
    old_replicas = sum(entry["spec"].get("replicas", 1) for entry in old)
    if (spec.get("strategy") or {}).get("type") == "Recreate":
        replicas = 0 if any(_status(entry, "replicas") for entry in old) else desired
        kept = 0
    else:
        # A quarter, rounded up.
        replicas = max(0, min(desired, desired + (desired + 3) // 4 - old_replicas))
        kept = max(0, desired - (_status(current, "readyReplicas") if current else 0))
    if current is None:
        labels = {"pod-template-hash": digest}
        labelled = _with_labels(template, labels)
        selector = {**spec["selector"], "matchLabels": {**(spec["selector"].get("matchLabels") or {}), **labels}}
        metadata = {"name": name, "labels": labelled["metadata"]["labels"]}
        own = {"replicas": replicas, "selector": selector, "template": labelled}
        yield _create("replicasets", "deployments", deployment, {"metadata": metadata, "spec": own})
    elif current["spec"].get("replicas", 1) != replicas:
        yield Write("PATCH", _path("replicasets", current), {"spec": {"replicas": replicas}})
    for entry in old:
        present = entry["spec"].get("replicas", 1)
        if present > kept:
            yield Write("PATCH", _path("replicasets", entry), {"spec": {"replicas": kept}})
        kept -= min(kept, present)
    sets = [*old, *([current] if current else [])]
    ready = sum(_status(entry, "readyReplicas") for entry in sets)
    updated = _status(current, "replicas") if current else 0
    yield from _report(
        "deployments",
        deployment,
        replicas=sum(_status(entry, "replicas") for entry in sets),
        updatedReplicas=updated,
        readyReplicas=ready,
        availableReplicas=ready,
        unavailableReplicas=max(0, desired - ready),
        conditions=[{"type": "Available", "status": str(ready >= desired)}],
    )


def _replica_set(cluster: Cluster, replica_set: Json) -> Iterator[Write]:
    present = _active(cluster.owned("pods", replica_set))
    desired = replica_set["spec"].get("replicas", 1)
    prefix = {"generateName": f"{replica_set['metadata']['name']}-"}
    for _ in range(desired - len(present)):
        yield _pod("replicasets", replica_set, replica_set["spec"]["template"], prefix)
    # Unassigned pods first, then pods that are not ready, then the youngest.
    present.sort(key=lambda pod: pod["metadata"]["creationTimestamp"], reverse=True)
    present.sort(key=lambda pod: (bool(pod["spec"].get("nodeName")), pods.is_ready(pod)))
    yield from (_delete(pod) for pod in present[: max(0, len(present) - desired)])
    ready = sum(map(pods.is_ready, present))
    yield from _report("replicasets", replica_set, replicas=len(present), readyReplicas=ready, availableReplicas=ready)


def _stateful_set(cluster: Cluster, stateful_set: Json) -> Iterator[Write]:
    """Pods 0, 1, ... in this order, each after the one before is ready, unless the policy is Parallel."""
    spec, set_name = stateful_set["spec"], stateful_set["metadata"]["name"]
    present = {pod["metadata"]["name"]: pod for pod in cluster.owned("pods", stateful_set)}
    names = [f"{set_name}-{ordinal}" for ordinal in range(spec.get("replicas", 1))]
    for ordinal, name in enumerate(names):
        pod = present.get(name)
        labels = {"apps.kubernetes.io/pod-index": str(ordinal), "statefulset.kubernetes.io/pod-name": name}
        if pod is None:
            yield _pod("statefulsets", stateful_set, spec["template"], {"name": name}, labels)
        elif pods.is_terminal(pod):
            yield _delete(pod)
        if spec.get("podManagementPolicy") != "Parallel" and (pod is None or not pods.is_ready(pod)):
            break
    surplus = [pod for name, pod in present.items() if name not in names and not _is_ending(pod)]
    yield from map(_delete, surplus)
    ready = sum(map(pods.is_ready, present.values()))
    counts = {"replicas": len(present), "updatedReplicas": len(present), "currentReplicas": len(present)}
    yield from _report("statefulsets", stateful_set, **counts, readyReplicas=ready, availableReplicas=ready)


def _daemon_set(cluster: Cluster, daemon_set: Json) -> Iterator[Write]:
    """A pod on each node that the filters on the Node object accept; the pod's affinity names the node."""
    present = {_pinned_to(pod): pod for pod in cluster.owned("pods", daemon_set)}
    nodes = {node["metadata"]["name"]: Nodes().decode(msgspec.json.encode(node)) for node in cluster.objects["nodes"]}
    prefix = {"generateName": f"{daemon_set['metadata']['name']}-"}
    desired = 0
    for name, node in nodes.items():
        template = _pinned(daemon_set["spec"]["template"], name)
        spec = msgspec.convert(template["spec"], kube_scheduler.Spec)
        if kube_scheduler.exclusion_of(node, spec) is not None:
            continue
        desired += 1
        if name not in present:
            yield _pod("daemonsets", daemon_set, template, prefix)
    for name, pod in present.items():
        if (name not in nodes or pods.is_terminal(pod)) and not _is_ending(pod):
            yield _delete(pod)
    ready = sum(map(pods.is_ready, present.values()))
    yield from _report(
        "daemonsets",
        daemon_set,
        desiredNumberScheduled=desired,
        currentNumberScheduled=len(present),
        updatedNumberScheduled=len(present),
        numberReady=ready,
        numberAvailable=ready,
        numberMisscheduled=0,
    )


def _pinned(template: Json, node: str) -> Json:
    """Returns the template with the DaemonSet controller's tolerations and its affinity to the node."""
    spec = template["spec"]
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    affinity = spec.get("affinity") or {}
    required = ((affinity.get("nodeAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution")) or {}
    terms = [{**term, "matchFields": [field]} for term in required.get("nodeSelectorTerms") or [{}]]
    pinned = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    node_affinity = {**(affinity.get("nodeAffinity") or {}), **pinned}
    tolerations = [*(spec.get("tolerations") or ()), *_DAEMON_TOLERATIONS]
    own = {"affinity": {**affinity, "nodeAffinity": node_affinity}, "tolerations": tolerations}
    return {**template, "spec": {**spec, **own}}


def _pinned_to(pod: Json) -> str:
    """Returns the node that a pod of a DaemonSet is for."""
    required = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return str(required["nodeSelectorTerms"][0]["matchFields"][0]["values"][0])


def _taint_evictions(cluster: Cluster) -> Iterator[Write]:
    """Deletes pods that do not tolerate a NoExecute taint of their node."""
    taints = {
        node["metadata"]["name"]: [
            msgspec.convert(taint, kube_scheduler.Taint)
            for taint in (node.get("spec") or {}).get("taints") or ()
            if taint["effect"] == "NoExecute"
        ]
        for node in cluster.objects["nodes"]
    }
    for pod in _active(cluster.objects["pods"]):
        tolerations = msgspec.convert(pod["spec"].get("tolerations") or (), tuple[kube_scheduler.Toleration, ...])
        for taint in taints.get(pod["spec"].get("nodeName", ""), ()):
            if not any(toleration.covers(taint) for toleration in tolerations):
                yield _delete(pod)
                break


_CONTROLLERS: Final = {
    "deployments": _deployment,
    "replicasets": _replica_set,
    "statefulsets": _stateful_set,
    "daemonsets": _daemon_set,
}


def _status(obj: Json, field: str) -> int:
    return int((obj.get("status") or {}).get(field, 0))


def _is_ending(pod: Json) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


def _active(members: Iterable[Json]) -> list[Json]:
    """Returns the pods that neither end nor have ended."""
    return [pod for pod in members if not _is_ending(pod) and not pods.is_terminal(pod)]


def _with_labels(template: Json, labels: Mapping[str, str]) -> Json:
    metadata = template.get("metadata") or {}
    return {**template, "metadata": {**metadata, "labels": {**(metadata.get("labels") or {}), **labels}}}


def _pod(plural: str, owner: Json, template: Json, name: Json, labels: Mapping[str, str] = {}) -> Write:
    labelled = _with_labels(template, labels)
    return _create("pods", plural, owner, {**labelled, "metadata": {**labelled["metadata"], **name}})


def _create(plural: str, owner_plural: str, owner: Json, obj: Json) -> Write:
    """Creates the object in its owner's namespace, with a reference to the owner."""
    reference = {
        "apiVersion": COLLECTIONS[owner_plural].removeprefix("/apis/"),
        "kind": _KINDS[owner_plural],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    path = f"{COLLECTIONS[plural]}/namespaces/{owner['metadata']['namespace']}/{plural}"
    return Write("POST", path, {**obj, "metadata": {**obj["metadata"], "ownerReferences": [reference]}})


def _path(plural: str, obj: Json) -> str:
    metadata = obj["metadata"]
    return f"{COLLECTIONS[plural]}/namespaces/{metadata['namespace']}/{plural}/{metadata['name']}"


def _delete(pod: Json) -> Write:
    return Write("DELETE", _path("pods", pod), {"preconditions": {"uid": pod["metadata"]["uid"]}})


def _report(plural: str, obj: Json, **status: Any) -> Iterator[Write]:
    """Writes the status if it differs."""
    status["observedGeneration"] = obj["metadata"].get("generation", 1)
    present = obj.get("status") or {}
    if any(present.get(field) != value for field, value in status.items()):
        yield Write("PATCH", f"{_path(plural, obj)}/status", {"status": status})
