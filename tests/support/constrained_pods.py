"""Random pods with constraints between pods, nodes for them, and kube-scheduler's filters pod by pod.

`refusal` is written after the Go code of 1.36, with loops over all pods, so that it shares nothing with the arrays and
counts of topowise_scheduler.verdicts.inter_pod.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from random import Random
from typing import Any

from topowise_scheduler.ledger.nodes import Nodes
from topowise_scheduler.verdicts import inter_pod, kube_scheduler

Json = dict[str, Any]
ZONE = "topology.kubernetes.io/zone"
RACK = "rack"
HOST = kube_scheduler.HOSTNAME
KEYS = (ZONE, RACK, HOST)
NAMESPACE_NAME = "kubernetes.io/metadata.name"
NAMESPACES = {
    "default": {NAMESPACE_NAME: "default"},
    "other": {NAMESPACE_NAME: "other", "team": "red"},
}
TAINT = {"key": "dedicated", "value": "batch", "effect": "NoSchedule"}
APPS = ("db", "web", "job")
PORTS = "node(s) didn't have free ports for the requested pod ports"
SPREAD = "node(s) didn't match pod topology spread constraints"
LABEL = f"{SPREAD} (missing required label)"
AFFINITY = "node(s) didn't match pod affinity rules"
ANTI_AFFINITY = "node(s) didn't match pod anti-affinity rules"
EXISTING = "node(s) didn't satisfy existing pods anti-affinity rules"


def node_json(random: Random, name: str) -> Json:
    """A Node whose topology labels and taints are random; some labels are missing."""
    labels = {HOST: name}
    if random.random() < 0.9:
        labels[ZONE] = random.choice("abc")
    if random.random() < 0.7:
        labels[RACK] = random.choice("123")
    if random.random() < 0.3:
        labels["pool"] = "fast"
    taints = [TAINT] if random.random() < 0.2 else []
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": taints},
    }


def selector(random: Random) -> Json | None:
    """A label selector; some select everything or nothing."""
    kind = random.randrange(12)
    if kind == 0:
        return {}
    if kind == 1:
        return {"matchExpressions": [{"key": "tier", "operator": random.choice(("Exists", "DoesNotExist"))}]}
    if kind == 2:
        return None
    if kind < 5:
        values = random.sample(APPS, 2)
        return {"matchExpressions": [{"key": "app", "operator": random.choice(("In", "NotIn")), "values": values}]}
    labels = {"app": random.choice(APPS)}
    if kind == 5:
        labels["tier"] = random.choice("xy")
    return {"matchLabels": labels}


def spread(random: Random) -> Json:
    constraint: Json = {
        "topologyKey": random.choice(KEYS),
        "maxSkew": random.randint(1, 2),
        "whenUnsatisfiable": "ScheduleAnyway" if random.random() < 0.1 else "DoNotSchedule",
        "labelSelector": selector(random),
    }
    if constraint["whenUnsatisfiable"] == "DoNotSchedule" and random.random() < 0.3:
        constraint["minDomains"] = random.randint(1, 4)
    for policy in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
        if random.random() < 0.4:
            constraint[policy] = random.choice(("Honor", "Ignore"))
    if random.random() < 0.2 and _can_match_keys(constraint):
        constraint["matchLabelKeys"] = ["tier"]
    return constraint


def _can_match_keys(body: Json) -> bool:
    """Whether the API server accepts the label key beside the selector."""
    return body["labelSelector"] is not None and "tier" not in json.dumps(body["labelSelector"])


def term(random: Random, *, by_api_server: bool) -> Json:
    body: Json = {"topologyKey": random.choice(KEYS), "labelSelector": selector(random)}
    where = random.random()
    if where < 0.15:
        body["namespaces"] = random.sample(sorted(NAMESPACES), random.randint(1, 2))
    elif where < 0.25:
        body["namespaceSelector"] = {}
    elif where < 0.35:
        body["namespaceSelector"] = {"matchLabels": {NAMESPACE_NAME: random.choice(sorted(NAMESPACES))}}
    elif where < 0.45:
        body["namespaceSelector"] = {"matchLabels": {"team": "red"}}
    if by_api_server and random.random() < 0.3 and _can_match_keys(body):
        body[random.choice(("matchLabelKeys", "mismatchLabelKeys"))] = ["tier"]
    return body


def pod_json(random: Random, name: str, *, rate: float = 0.5, by_api_server: bool = False) -> Json:
    """A pod that has each sort of constraint with this probability. `by_api_server`: it goes to an API server, which
    merges label keys into the selectors of affinity terms."""
    labels = {"app": random.choice(APPS)}
    if random.random() < 0.5:
        labels["tier"] = random.choice("xy")
    spec: Json = {"containers": [{"name": "app", "image": "none"}], "terminationGracePeriodSeconds": 1000}
    affinity: Json = {}
    if random.random() < rate:
        constraints = [spread(random) for _ in range(random.randint(1, 2))]
        # The API server wants each pair of key and action once.
        unique = {(item["topologyKey"], item["whenUnsatisfiable"]): item for item in constraints}
        spec["topologySpreadConstraints"] = list(unique.values())
    for key in ("podAffinity", "podAntiAffinity"):
        if random.random() < rate / (2 if key == "podAffinity" else 1):
            terms = [term(random, by_api_server=by_api_server) for _ in range(random.choice((1, 1, 2)))]
            affinity[key] = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    if random.random() < rate / 2:
        port = {"containerPort": 80, "hostPort": random.choice((80, 81))}
        if random.random() < 0.4:
            port |= {"hostIP": random.choice(("127.0.0.1", "127.0.0.2"))}  # type: ignore[dict-item]
        if random.random() < 0.2:
            port |= {"protocol": "UDP"}  # type: ignore[dict-item]
        sidecar = {"name": "side", "image": "none", "restartPolicy": "Always", "ports": [port]}
        if random.random() < 0.3:
            spec["initContainers"] = [sidecar]
        else:
            spec["containers"][0]["ports"] = [port]
    if random.random() < 0.2:
        spec["nodeSelector"] = {"pool": "fast"}
    elif random.random() < 0.2:
        requirement = {"key": ZONE, "operator": "In", "values": random.sample("abc", 2)}
        terms = {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]}
        affinity["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    if random.random() < 0.3:
        spec["tolerations"] = [{"key": "dedicated", "operator": "Exists"}]
    if affinity:
        spec["affinity"] = affinity
    metadata = {"name": name, "uid": name, "namespace": random.choice(sorted(NAMESPACES)), "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def decode(pod: Json) -> inter_pod.Pod:
    return inter_pod.decode(json.dumps(pod).encode())


def apply(nodes: Nodes, node: Json, event: Any = "MODIFIED") -> None:
    nodes.apply(event, nodes.decode(json.dumps(node).encode()))


# kube-scheduler's filters, pod by pod. `pods` are the pods on nodes, with spec.nodeName.


def refusal(pod: Json, node: Json, nodes: Sequence[Json], pods: Sequence[Json]) -> str:
    """The words of the first filter that refuses the node, "" if none does."""
    by_name = {item["metadata"]["name"]: item for item in nodes}
    counted = [(other, by_name[other["spec"]["nodeName"]]) for other in pods if other["spec"]["nodeName"] in by_name]
    for port in _ports(pod):
        for other, where in counted:
            if where is node and any(_conflict(port, used) for used in _ports(other)):
                return PORTS
    return _spread(pod, node, nodes, counted) or _inter_pod_affinity(pod, node, counted)


Counted = Iterable[tuple[Json, Json]]


def _labels(item: Json) -> dict[str, str]:
    labels: dict[str, str] = item["metadata"].get("labels") or {}
    return labels


def _ports(pod: Json) -> Iterator[tuple[str, str, int]]:
    sidecars = [item for item in pod["spec"].get("initContainers", ()) if item.get("restartPolicy") == "Always"]
    for container in (*sidecars, *pod["spec"]["containers"]):
        for port in container.get("ports", ()):
            if port.get("hostPort"):
                yield port.get("hostIP", "0.0.0.0"), port.get("protocol", "TCP"), port["hostPort"]


def _conflict(one: tuple[str, str, int], other: tuple[str, str, int]) -> bool:
    every = "0.0.0.0"
    return one[1:] == other[1:] and (one[0] == other[0] or every in (one[0], other[0]))


def _selects(selector: Json | None, labels: Mapping[str, str]) -> bool:
    if selector is None:
        return False
    for key, value in selector.get("matchLabels", {}).items():
        if labels.get(key) != value:
            return False
    for item in selector.get("matchExpressions", ()):
        has, values = item["key"] in labels, item.get("values", ())
        passes = {
            "In": has and labels.get(item["key"]) in values,
            "NotIn": not has or labels[item["key"]] not in values,
            "Exists": has,
            "DoesNotExist": not has,
        }
        if not passes[item["operator"]]:
            return False
    return True


def _spread(pod: Json, node: Json, nodes: Sequence[Json], counted: Counted) -> str:
    constraints = [
        item
        for item in pod["spec"].get("topologySpreadConstraints", ())
        if item["whenUnsatisfiable"] == "DoNotSchedule"
    ]
    keys = {item["topologyKey"] for item in constraints}
    for item in constraints:
        key, matching = item["topologyKey"], Counter[str]()
        for other in nodes:
            if keys <= set(_labels(other)) and _is_included(pod, other, item):
                matching[_labels(other)[key]] += sum(
                    where is other and _is_counted(pod, item, existing) for existing, where in counted
                )
        if key not in _labels(node):
            return LABEL
        least = 0 if len(matching) < item.get("minDomains", 1) else min(matching.values())
        own = int(_matches_constraint(pod, item, _labels(pod)))
        if matching[_labels(node)[key]] + own - least > item["maxSkew"]:
            return SPREAD
    return ""


def _matches_constraint(pod: Json, item: Json, labels: Mapping[str, str]) -> bool:
    own = _labels(pod)
    merged = all(labels.get(key) == own[key] for key in item.get("matchLabelKeys", ()) if key in own)
    return merged and _selects(item.get("labelSelector"), labels)


def _is_counted(pod: Json, item: Json, existing: Json) -> bool:
    metadata, own = existing["metadata"], _labels(pod)
    if metadata.get("deletionTimestamp") or metadata["namespace"] != pod["metadata"]["namespace"]:
        return False
    is_empty = item.get("labelSelector") == {} and not any(key in own for key in item.get("matchLabelKeys", ()))
    return not is_empty and _matches_constraint(pod, item, _labels(existing))


def _is_included(pod: Json, node: Json, item: Json) -> bool:
    if item.get("nodeAffinityPolicy", "Honor") == "Honor" and not _is_selected(pod, node):
        return False
    if item.get("nodeTaintsPolicy", "Ignore") == "Honor" and node["spec"].get("taints"):
        return bool(pod["spec"].get("tolerations"))
    return True


def _is_selected(pod: Json, node: Json) -> bool:
    labels = _labels(node)
    if any(labels.get(key) != value for key, value in pod["spec"].get("nodeSelector", {}).items()):
        return False
    required = pod["spec"].get("affinity", {}).get("nodeAffinity", {})
    terms = required.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms")
    return terms is None or any(_selects({"matchExpressions": item["matchExpressions"]}, labels) for item in terms)


def _terms(pod: Json, key: str) -> list[Json]:
    terms = pod["spec"].get("affinity", {}).get(key, {})
    required: list[Json] = terms.get("requiredDuringSchedulingIgnoredDuringExecution", [])
    return required


def _term_selects(owner: Json, item: Json, pod: Json) -> bool:
    namespace = pod["metadata"]["namespace"]
    if not item.get("namespaces") and item.get("namespaceSelector") is None:
        is_reached = namespace == owner["metadata"]["namespace"]
    else:
        of_namespace = NAMESPACES[namespace]
        is_reached = namespace in item.get("namespaces", ()) or _selects(item.get("namespaceSelector"), of_namespace)
    return is_reached and _selects(item.get("labelSelector"), _labels(pod))


def _inter_pod_affinity(pod: Json, node: Json, counted: Counted) -> str:
    labels = _labels(node)
    affinity, pairs = _terms(pod, "podAffinity"), set()
    for existing, where in counted:
        if affinity and all(_term_selects(pod, item, existing) for item in affinity):
            pairs |= {(item["topologyKey"], _labels(where).get(item["topologyKey"])) for item in affinity}
    pairs = {(key, value) for key, value in pairs if value is not None}
    if any(item["topologyKey"] not in labels for item in affinity):
        return AFFINITY
    if any((item["topologyKey"], labels[item["topologyKey"]]) not in pairs for item in affinity):
        is_first = not pairs and all(_term_selects(pod, item, pod) for item in affinity)
        if not is_first:
            return AFFINITY
    for words, owners in ((ANTI_AFFINITY, "pod"), (EXISTING, "existing")):
        for existing, where in counted:
            owner, target = (pod, existing) if owners == "pod" else (existing, pod)
            for item in _terms(owner, "podAntiAffinity"):
                key = item["topologyKey"]
                is_near = key in labels and labels[key] == _labels(where).get(key)
                if is_near and _term_selects(owner, item, target):
                    return words
    return ""
