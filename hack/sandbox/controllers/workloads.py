"""What each controller writes, as functions of the objects of the cluster."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from sandbox.apiserver import pods
from sandbox.apiserver.errors import Json

COLLECTIONS: Final = {
    "pods": "/api/v1",
    "deployments": "/apis/apps/v1",
    "replicasets": "/apis/apps/v1",
    "statefulsets": "/apis/apps/v1",
}
"""Path of the group version of each kind that a controller reads."""
_KINDS: Final = {
    "deployments": "Deployment",
    "replicasets": "ReplicaSet",
    "statefulsets": "StatefulSet",
}


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


def _deployment(cluster: Cluster, deployment: Json) -> Iterator[Write]:
    """A ReplicaSet for each template. Another template replaces all pods at once, as with the strategy Recreate."""
    spec, template = deployment["spec"], deployment["spec"]["template"]
    digest = hashlib.sha256(msgspec.json.encode(template, order="deterministic")).hexdigest()[:10]
    name, replicas = f"{deployment['metadata']['name']}-{digest}", spec.get("replicas", 1)
    sets = cluster.owned("replicasets", deployment)
    if all(entry["metadata"]["name"] != name for entry in sets):
        labels = {"pod-template-hash": digest}
        labelled = _with_labels(template, labels)
        selector = {**spec["selector"], "matchLabels": {**(spec["selector"].get("matchLabels") or {}), **labels}}
        metadata = {"name": name, "labels": labelled["metadata"]["labels"]}
        own = {"replicas": replicas, "selector": selector, "template": labelled}
        yield _create("replicasets", "deployments", deployment, {"metadata": metadata, "spec": own})
    for entry in sets:
        wanted = replicas if entry["metadata"]["name"] == name else 0
        if entry["spec"].get("replicas", 1) != wanted:
            yield Write("PATCH", _path("replicasets", entry), {"spec": {"replicas": wanted}})
    ready = sum(int((entry.get("status") or {}).get("readyReplicas", 0)) for entry in sets)
    yield from _report(
        "deployments",
        deployment,
        replicas=replicas,
        updatedReplicas=ready,
        readyReplicas=ready,
        availableReplicas=ready,
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


_CONTROLLERS: Final = {
    "deployments": _deployment,
    "replicasets": _replica_set,
    "statefulsets": _stateful_set,
}


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
