"""A kube-apiserver rejects the pods that the plug-in rejects, with the same texts, and accepts the remaining pods."""

from __future__ import annotations

import json
from typing import Any

import pytest

from invalid_pods import ACCEPTED, REJECTED
from sandbox import controlplane
from sandbox.apiserver.client import connect

Json = dict[str, Any]

pytestmark = [
    pytest.mark.apiserver,
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
