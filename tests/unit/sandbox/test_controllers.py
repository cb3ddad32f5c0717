"""What the emulated controllers write, as functions of the objects."""

from __future__ import annotations

from typing import Any

import pytest

from sandbox.controllers.workloads import COLLECTIONS, Cluster, Write, writes

Json = dict[str, Any]


def obj(kind: str, name: str, spec: Json, status: Json | None = None, **metadata: Any) -> Json:
    own = {"name": name, "namespace": "d", "uid": f"uid-{name}", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"kind": kind, "metadata": own | metadata, "spec": spec, "status": status or {}}


def member(name: str, owner: str, *, node: str = "n", phase: str = "Running", **spec: Any) -> Json:
    """Returns a ready pod of an owner."""
    reference = {"uid": f"uid-{owner}", "controller": True}
    status = {"phase": phase, "conditions": [{"type": "Ready", "status": "True"}]}
    return obj("Pod", name, {"nodeName": node, **spec}, status, ownerReferences=[reference], labels={"app": owner})


def written(**objects: list[Json]) -> list[Write]:
    """Returns the writes, without those of status."""
    cluster = Cluster({plural: [] for plural in COLLECTIONS} | objects)
    return [write for write in writes(cluster) if not write.path.endswith("/status")]


def status_of(**objects: list[Json]) -> Json:
    cluster = Cluster({plural: [] for plural in COLLECTIONS} | objects)
    (write,) = [write for write in writes(cluster) if write.path.endswith("/status")]
    status: Json = write.body["status"]
    return status


def named(steps: list[Write]) -> list[tuple[str, str]]:
    """Returns method and name; of a new object, its name or the prefix of its name."""
    return [
        (step.method, step.body["metadata"].get("name") or step.body["metadata"]["generateName"])
        if step.method == "POST"
        else (step.method, step.path.rpartition("/")[2])
        for step in steps
    ]


TEMPLATE = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c"}]}}


@pytest.mark.parametrize(
    ("count", "expected"),
    [(1, [("POST", "web-")] * 2), (3, []), (5, [("DELETE", "pod-3"), ("DELETE", "pod-4")])],
)
def test_a_replica_set_has_its_number_of_pods(count: int, expected: list[tuple[str, str]]) -> None:
    replica_set = obj("ReplicaSet", "web", {"replicas": 3, "template": TEMPLATE})
    # The last two pods wait, so they are deleted first; ended and ending pods do not count.
    pods = [member(f"pod-{number}", "web", node="n" if number < 3 else "") for number in range(count)]
    pods.append(member("ended", "web", phase="Failed"))
    pods.append(member("ending", "web") | {"metadata": member("x", "web")["metadata"] | {"deletionTimestamp": "t"}})
    steps = written(replicasets=[replica_set], pods=pods)
    assert named(steps) == expected
    if count == 1:
        (reference,) = steps[0].body["metadata"]["ownerReferences"]
        assert (reference["apiVersion"], reference["kind"], reference["uid"]) == ("apps/v1", "ReplicaSet", "uid-web")


def test_a_rolling_update_replaces_pods_that_are_ready() -> None:
    selector = {"matchLabels": {"app": "web"}}
    deployment = obj("Deployment", "web", {"replicas": 4, "selector": selector, "template": TEMPLATE})
    (created,) = written(deployments=[deployment])
    assert created.body["spec"]["replicas"] == 4
    reference = {"ownerReferences": [{"uid": "uid-web", "controller": True}]}
    old = obj(
        "ReplicaSet", "old", {"replicas": 4, "template": TEMPLATE}, {"replicas": 4, "readyReplicas": 4}, **reference
    )
    (created,) = [step for step in written(deployments=[deployment], replicasets=[old]) if "/replicasets" in step.path]
    assert created.body["spec"]["replicas"] == 1, "the surge"
    name = created.body["metadata"]["name"]
    assert created.body["spec"]["selector"]["matchLabels"]["pod-template-hash"] == name.removeprefix("web-")
    new = obj(
        "ReplicaSet", name, {"replicas": 1, "template": TEMPLATE}, {"replicas": 1, "readyReplicas": 1}, **reference
    )
    steps = [step for step in written(deployments=[deployment], replicasets=[old, new]) if "/replicasets" in step.path]
    assert Write("PATCH", "/apis/apps/v1/namespaces/d/replicasets/old", {"spec": {"replicas": 3}}) in steps


def test_a_stateful_set_creates_its_pods_in_order() -> None:
    stateful_set = obj("StatefulSet", "db", {"replicas": 3, "template": TEMPLATE})
    assert named(written(statefulsets=[stateful_set])) == [("POST", "db-0")]
    first, surplus = member("db-0", "db"), member("db-3", "db")
    assert named(written(statefulsets=[stateful_set], pods=[first, surplus])) == [("POST", "db-1"), ("DELETE", "db-3")]


def test_a_daemon_set_has_a_pod_on_each_node_that_accepts_it() -> None:
    taints = {"taints": [{"key": "a", "effect": "NoSchedule"}]}
    nodes = [obj("Node", "free", {}), obj("Node", "cordoned", {"unschedulable": True}), obj("Node", "tainted", taints)]
    steps = written(daemonsets=[obj("DaemonSet", "agent", {"template": TEMPLATE})], nodes=nodes)
    affinity = [step.body["spec"]["affinity"]["nodeAffinity"] for step in steps]
    terms = [entry["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"] for entry in affinity]
    assert [term["matchFields"][0]["values"] for (term,) in terms] == [["free"], ["cordoned"]]


def test_a_job_ends_after_its_completions() -> None:
    job = obj("Job", "batch", {"completions": 3, "parallelism": 2, "template": TEMPLATE})
    done = [member(f"done-{number}", "batch", phase="Succeeded") for number in range(3)]
    assert named(written(jobs=[job])) == [("POST", "batch-")] * 2
    assert named(written(jobs=[job], pods=done[:2])) == [("POST", "batch-")]
    assert written(jobs=[job], pods=done) == []
    assert status_of(jobs=[job], pods=done)["conditions"] == [{"type": "Complete", "status": "True"}]


@pytest.mark.parametrize(
    ("bound", "allowed"),
    [
        ({"minAvailable": 2}, 1),
        ({"minAvailable": "50%"}, 1),
        ({"maxUnavailable": 2}, 2),
        ({"maxUnavailable": "10%"}, 1),
    ],
)
def test_a_budget_allows_what_its_pods_can_spare(bound: Json, allowed: int) -> None:
    budget = obj("PodDisruptionBudget", "b", {"selector": {"matchLabels": {"app": "web"}}, **bound})
    pods = [member(f"pod-{number}", "web") for number in range(3)]
    assert status_of(poddisruptionbudgets=[budget], pods=pods)["disruptionsAllowed"] == allowed


def test_pods_leave_a_node_with_a_no_execute_taint_that_they_do_not_tolerate() -> None:
    node = obj("Node", "n", {"taints": [{"key": "disk", "effect": "NoExecute"}]})
    pods = [member("leaves", "x"), member("stays", "x", tolerations=[{"key": "disk", "operator": "Exists"}])]
    assert named(written(nodes=[node], pods=pods)) == [("DELETE", "leaves")]
