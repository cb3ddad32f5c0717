"""The chart's admission policies on a real API server: what an exporter writes of pods and Leases, and nothing else.

tests/nightly/cluster/test_chart.py has the same of NodeResourceTopologies, with a token of an exporter's pod.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from chart_cluster import NAMESPACE, Cluster, eventually, installed
from sandbox import controlplane
from topowise_exporter.publish.numatopology import ANNOTATION

if controlplane.assets() is None:
    pytest.skip("no etcd and kube-apiserver in $KUBEBUILDER_ASSETS", allow_module_level=True)
pytestmark = pytest.mark.apiserver

POLICIES = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
KINDS = (*POLICIES, "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
PODS = "/api/v1/namespaces/default/pods"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
MINE, THEIRS = f"{PODS}/mine", f"{PODS}/theirs"
LEASE, THEIR_LEASE = f"{LEASES}/topowise-steering-n1", f"{LEASES}/topowise-steering-n2"
REQUEUE = f"{LEASES}/topowise-scheduler-requeue"
PLACED = {"metadata": {"annotations": {ANNOTATION: "[]"}}}
STATUS = {"metadata": {"annotations": {"topowise.io/steering-status": "{}"}}}


@pytest.fixture(scope="module")
def cluster(render: Any) -> Iterator[Cluster]:
    """Pods and Leases of n1 and n2, once the policies are in force."""
    objects = render("", "exporter.config.podPlacements=true", "steering.enabled=true")
    with installed(
        item for item in objects if item["kind"] in KINDS and "exporter" in item["metadata"]["name"]
    ) as cluster:
        for name, node in (("mine", "n1"), ("theirs", "n2")):
            metadata = {"name": name, "annotations": {"kept": "as it was"}, "labels": {"app": "x"}}
            spec = {"nodeName": node, "containers": [{"name": "c", "image": "none"}]}
            assert cluster.call("POST", PODS, {"metadata": metadata, "spec": spec})[0] == 201
        for path in (LEASE, THEIR_LEASE, REQUEUE):
            metadata = {"name": path.rpartition("/")[2], "annotations": {"topowise.io/steering-request": "{}"}}
            lease = {"metadata": metadata, "spec": {"holderIdentity": "scheduler"}}
            assert cluster.call("POST", LEASES, lease)[0] == 201
        # Rights and policies take effect after a moment, and a policy denies before it allows.
        for own, other, change in ((MINE, THEIRS, PLACED), (LEASE, THEIR_LEASE, STATUS)):
            eventually(lambda own=own, change=change: patch(cluster, own, change) == 200)
            eventually(lambda other=other, change=change: patch(cluster, other, change) == 422)
        yield cluster


def patch(cluster: Cluster, path: str, change: Any, node: str = "n1") -> int:
    """Returns the status of a patch by the exporter of a node."""
    return cluster.call("PATCH", path, change, exporter_of=node, content_type="application/merge-patch+json")[0]


def test_an_exporter_writes_for_its_own_node_only(cluster: Cluster) -> None:
    assert patch(cluster, MINE, {"metadata": {"annotations": {ANNOTATION: None}}}) == 200
    assert patch(cluster, THEIRS, PLACED, "n2") == 200
    assert patch(cluster, THEIR_LEASE, STATUS, "n2") == 200
    assert patch(cluster, REQUEUE, STATUS) == 422
    assert cluster.call("POST", LEASES, {"metadata": {"name": "topowise-steering-n3"}}, exporter_of="n3")[0] == 403


@pytest.mark.parametrize(
    ("path", "change"),
    [
        (MINE, {"metadata": {"labels": {"app": "y"}}}),
        (MINE, {"metadata": {"annotations": {"kept": "changed"}}}),
        (MINE, {"metadata": {"annotations": {"kept": None}}}),
        (MINE, {"metadata": {"annotations": {"new": "one"}}}),
        (MINE, {"metadata": {"finalizers": ["example.com/never"]}}),
        (MINE, {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "gone"}]}}),
        (MINE, {"spec": {"containers": [{"name": "c", "image": "other"}]}}),
        (MINE, {"spec": {"activeDeadlineSeconds": 1}}),
        (LEASE, {"metadata": {"annotations": {"topowise.io/steering-request": "changed"}}}),
        (LEASE, {"metadata": {"annotations": {"topowise.io/steering-request": None}}}),
        (LEASE, {"metadata": {"annotations": {"topowise.io/steering-status": "x" * 513}}}),
        (LEASE, {"metadata": {"annotations": {"new": "annotation"}}}),
        (LEASE, {"metadata": {"labels": {"new": "label"}}}),
        (LEASE, {"metadata": {"finalizers": ["example.com/never"]}}),
        (LEASE, {"spec": {"holderIdentity": "exporter"}}),
        (LEASE, {"spec": None}),
    ],
    ids=str,
)
def test_an_exporter_changes_nothing_else(cluster: Cluster, path: str, change: Any) -> None:
    _, before = cluster.call("GET", path)
    assert patch(cluster, path, change) == 422
    assert cluster.call("GET", path)[1] == before
