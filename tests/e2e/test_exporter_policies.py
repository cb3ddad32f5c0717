"""The chart's admission policies on a real API server: an exporter writes its own node's object and pod annotation."""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from daemons import CRD, assert_eventually
from sandbox.controlplane import ControlPlane
from topowise import nrt
from topowise_exporter.publish import placement_annotation

ROOT = Path(__file__).parents[2]
HELM = ROOT / "hack/helm"
HAS_HELM = subprocess.run([HELM, "--find"], check=False, capture_output=True).returncode == 0
pytestmark = [
    pytest.mark.apiserver,
    pytest.mark.skipif(not HAS_HELM, reason="no helm: set $HELM, or run hack/helm --fetch"),
]

CHART = ROOT / "charts/topowise"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
PLURALS = {
    "ValidatingAdmissionPolicy": f"{ADMISSION}/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": f"{ADMISSION}/validatingadmissionpolicybindings",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/topowise-system/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/topowise-system/rolebindings",
}
PODS = "/api/v1/namespaces/default/pods"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/topowise-system/leases"
KEPT = {"metadata": {"annotations": {placement_annotation.ANNOTATION: "[]"}}}


class Cluster:
    """Requests as the administrator, or as the exporter of a node."""

    def __init__(self, session: aiohttp.ClientSession, plane: ControlPlane) -> None:
        self._session = session
        self._url = plane.url
        self._admin = {"Authorization": f"Bearer {plane.token}"}

    async def ask(
        self, method: str, path: str, body: Any = None, *, node: str = "", kind: str = "application/json"
    ) -> tuple[int, str]:
        headers = {**self._admin, "Content-Type": kind}
        if node:
            headers["Impersonate-User"] = "system:serviceaccount:topowise-system:topowise-exporter"
            headers["Impersonate-Extra-authentication.kubernetes.io%2Fnode-name"] = node
        data = None if body is None else json.dumps(body)
        async with self._session.request(method, self._url + path, data=data, headers=headers, ssl=False) as answer:
            return answer.status, await answer.text()

    async def patch(self, pod: str, change: Any, node: str) -> int:
        kind = "application/merge-patch+json"
        return (await self.ask("PATCH", f"{PODS}/{pod}", change, node=node, kind=kind))[0]

    async def patch_lease(self, name: str, change: Any, node: str) -> int:
        kind = "application/merge-patch+json"
        return (await self.ask("PATCH", f"{LEASES}/{name}", change, node=node, kind=kind))[0]

    async def apply(self, name: str, node: str) -> int:
        topology = {"apiVersion": nrt.API_VERSION, "kind": nrt.KIND, "metadata": {"name": name}, "zones": []}
        path = f"{nrt.PATH}/{name}?fieldManager=topowise-exporter&force=true"
        return (await self.ask("PATCH", path, topology, node=node, kind="application/apply-patch+yaml"))[0]


def rendered() -> Iterator[dict[str, Any]]:
    command = [str(HELM), "template", "topowise", str(CHART), "--namespace=topowise-system", "--kube-version=1.36.2"]
    done = subprocess.run(
        [*command, "--set=exporter.config.podPlacements=true", "--set=steering.enabled=true"],
        check=True,
        capture_output=True,
        timeout=60,
    )
    for document in yaml.safe_load_all(done.stdout):
        if document and document["kind"] in PLURALS and "exporter" in document["metadata"]["name"]:
            yield document


@pytest.fixture
async def cluster(plane: ControlPlane) -> AsyncIterator[Cluster]:
    async with aiohttp.ClientSession() as session:
        cluster = Cluster(session, plane)
        status, text = await cluster.ask("POST", "/api/v1/namespaces", {"metadata": {"name": "topowise-system"}})
        assert status in (201, 409), text
        crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        for path, document in [(crds, yaml.safe_load(CRD.read_text())), *((PLURALS[o["kind"]], o) for o in rendered())]:
            status, text = await cluster.ask("POST", path, document)
            assert status in (201, 409), text
        for name, node in (("mine", "n1"), ("theirs", "n2")):
            container = {"name": "c", "image": "none"}
            old = {"kept": "as it was"}
            metadata = {"name": name, "annotations": old, "labels": {"app": "x"}}
            pod = {"metadata": metadata, "spec": {"nodeName": node, "containers": [container]}}
            status, text = await cluster.ask("POST", PODS, pod)
            assert status in (201, 409), text

        for name in ("topowise-steering-n1", "topowise-steering-n2", "topowise-scheduler-requeue"):
            request = {"topowise.io/steering-request": "{}"}
            lease = {"metadata": {"name": name, "annotations": request}, "spec": {"holderIdentity": "scheduler"}}
            status, text = await cluster.ask("POST", LEASES, lease)
            assert status in (201, 409), text

        async def is_in_force() -> bool:
            # Rights and policies take effect after a moment, and a policy denies before it allows.
            return await cluster.apply("n1", "n1") in (200, 201) and await cluster.apply("n2", "n1") == 422

        await assert_eventually(is_in_force, within=30)
        yield cluster


async def test_an_exporter_writes_the_object_of_its_own_node_only(cluster: Cluster) -> None:
    assert await cluster.apply("n2", "n2") in (200, 201)
    assert await cluster.apply("n2", "n1") == 422
    assert await cluster.apply("n1", "") in (200, 201), "everybody else is not concerned"


async def test_an_exporter_annotates_only_pods_of_its_own_node(cluster: Cluster) -> None:
    async def is_in_force() -> bool:
        return await cluster.patch("mine", KEPT, "n1") == 200 and await cluster.patch("theirs", KEPT, "n1") == 422

    await assert_eventually(is_in_force, within=30)
    assert (
        await cluster.patch("mine", {"metadata": {"annotations": {placement_annotation.ANNOTATION: None}}}, "n1") == 200
    )


@pytest.mark.parametrize(
    "change",
    [
        {"metadata": {"labels": {"app": "y"}}},
        {"metadata": {"annotations": {"kept": "changed"}}},
        {"metadata": {"annotations": {"kept": None}}},
        {"metadata": {"annotations": {"new": "one"}}},
        {"metadata": {"finalizers": ["example.com/never"]}},
        {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "gone"}]}},
        {"spec": {"containers": [{"name": "c", "image": "other"}]}},
        {"spec": {"activeDeadlineSeconds": 1}},
    ],
    ids=str,
)
async def test_nothing_else_of_a_pod_is_its_to_change(cluster: Cluster, change: Any) -> None:
    async def is_allowed() -> bool:
        return await cluster.patch("mine", KEPT, "n1") == 200

    await assert_eventually(is_allowed, within=30)
    assert await cluster.patch("mine", change, "n1") == 422
    status, text = await cluster.ask("GET", f"{PODS}/mine")
    metadata = json.loads(text)["metadata"]
    assert status == 200
    assert metadata["annotations"]["kept"] == "as it was"
    assert metadata["labels"] == {"app": "x"}


STATUS = {"metadata": {"annotations": {"topowise.io/steering-status": "{}"}}}


async def leases_are_in_force(cluster: Cluster) -> bool:
    own = await cluster.patch_lease("topowise-steering-n1", STATUS, "n1")
    return own == 200 and await cluster.patch_lease("topowise-steering-n2", STATUS, "n1") == 422


async def test_an_exporter_writes_the_steering_status_of_its_own_node_only(cluster: Cluster) -> None:
    await assert_eventually(lambda: leases_are_in_force(cluster), within=30)
    assert await cluster.patch_lease("topowise-steering-n2", STATUS, "n2") == 200
    assert await cluster.patch_lease("topowise-scheduler-requeue", STATUS, "n1") == 422
    status, _ = await cluster.ask("POST", LEASES, {"metadata": {"name": "topowise-steering-n3"}}, node="n3")
    assert status == 403


@pytest.mark.parametrize(
    "change",
    [
        {"metadata": {"annotations": {"topowise.io/steering-request": "changed"}}},
        {"metadata": {"annotations": {"topowise.io/steering-request": None}}},
        {"metadata": {"annotations": {"topowise.io/steering-status": "x" * 513}}},
        {"metadata": {"annotations": {"new": "annotation"}}},
        {"metadata": {"labels": {"new": "label"}}},
        {"metadata": {"finalizers": ["example.com/never"]}},
        {"spec": {"holderIdentity": "exporter"}},
        {"spec": None},
    ],
    ids=str,
)
async def test_an_exporter_changes_nothing_else_of_a_lease(cluster: Cluster, change: Any) -> None:
    await assert_eventually(lambda: leases_are_in_force(cluster), within=30)
    assert await cluster.patch_lease("topowise-steering-n1", change, "n1") == 422
    _, text = await cluster.ask("GET", f"{LEASES}/topowise-steering-n1")
    lease = json.loads(text)
    assert lease["metadata"]["annotations"]["topowise.io/steering-request"] == "{}"
    assert lease["spec"]["holderIdentity"] == "scheduler"
