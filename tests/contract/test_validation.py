"""A kube-apiserver rejects the pods that the plug-in rejects, with the same texts, and accepts the remaining pods."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from invalid_pods import ACCEPTED, REJECTED
from sandbox import controlplane
from sandbox.apiserver.client import connect
from topowise.errors import SourceError
from topowise_scheduler.kubectl.source import Kubectl

Json = dict[str, Any]

pytestmark = [
    pytest.mark.apiserver,
    pytest.mark.nightly,
    pytest.mark.skipif(controlplane.assets() is None, reason="no etcd and kube-apiserver in $KUBEBUILDER_ASSETS"),
]
PODS = "/api/v1/namespaces/default/pods"


async def test_the_api_server_has_the_same_errors(real_control_plane: controlplane.ControlPlane) -> None:
    async with connect(real_control_plane.url, real_control_plane.token) as client:
        for name, (document, expected) in REJECTED.items():
            reply = await client.call("POST", PODS, document, dryRun="All", fieldValidation="Strict")
            assert reply.status == 422, (name, reply.text)
            causes = json.loads(reply.text)["details"]["causes"]
            assert sorted(f"{cause['field']}: {cause['message']}" for cause in causes) == sorted(expected), name
        for name, document in ACCEPTED.items():
            reply = await client.call("POST", PODS, document, dryRun="All", fieldValidation="Strict")
            assert reply.status == 201, (name, reply.text)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl on PATH")
def test_a_dry_run_returns_what_the_api_server_would_store(
    real_control_plane: controlplane.ControlPlane, tmp_path: Path
) -> None:
    kubectl = Kubectl([f"--kubeconfig={real_control_plane.kubeconfig(tmp_path / 'kubeconfig')}"])
    rejected, expected = REJECTED["a negative limit"]
    with pytest.raises(SourceError) as caught:
        kubectl.dry_run(rejected, "default")
    assert all(text in str(caught.value) for text in expected)
    assert "\n" not in str(caught.value)
    accepted = {**ACCEPTED["limits alone"], "metadata": {"name": "never-stored", "namespace": "default"}}
    stored = kubectl.dry_run(accepted, "default")
    assert stored["spec"]["containers"][0]["resources"]["requests"]["cpu"] == "2"
    with pytest.raises(SourceError, match="strict decoding error: unknown field"):
        kubectl.dry_run({**accepted, "spec": {**accepted["spec"], "contaners": []}}, "default")
    # Nothing was stored, and an object that exists is not an error.
    document = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}}
    assert kubectl.dry_run(document, "default") == document
    # Other tests of this API server leave pods of other names.
    names = {pod["metadata"]["name"] for pod in kubectl.object("pods", "default")["items"]}
    assert accepted["metadata"]["name"] not in names
