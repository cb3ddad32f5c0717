"""The exporter's assumptions on a real API server: other writers, refusals and object sizes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from daemons import CRD, assert_eventually
from sandbox.controlplane import ControlPlane, assets
from topowise import attributes, nrt
from topowise.errors import ApiError
from topowise.kube import credentials
from topowise.kube.api import APPLY_PATCH, JSON, Api
from topowise.kubeletconfig import KubeletConfiguration
from topowise_exporter.annotator import Annotator
from topowise_exporter.conditions import Conditions
from topowise_exporter.kubelet.allocations import Allocations, ContainerAllocation, PodAllocation
from topowise_exporter.machine.inventory import Machine, NumaNode
from topowise_exporter.metrics import Metrics
from topowise_exporter.publish import size_limit
from topowise_exporter.publish.placement_annotation import ANNOTATION
from topowise_exporter.publish.topology import Observation
from topowise_exporter.publish.writer import TooLargeError, topology_writer

BINARIES = assets()
pytestmark = pytest.mark.skipif(BINARIES is None, reason="no kube-apiserver and etcd in $KUBEBUILDER_ASSETS")


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    assert BINARIES is not None
    with ControlPlane(BINARIES) as plane:
        yield plane


@pytest.fixture
async def real(plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Api]:
    async with Api(await credentials.load(str(plane.kubeconfig(tmp_path / "kubeconfig"))), "test") as client:
        crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        query = {"fieldManager": "test", "force": "true"}
        name = "noderesourcetopologies.topology.node.k8s.io"
        body = CRD.read_bytes()
        await client.request("PATCH", f"{crds}/{name}", query=query, body=body, content_type=APPLY_PATCH)

        async def served() -> bool:
            try:
                await client.request("GET", nrt.PATH)
            except ApiError as exc:
                # Not served yet, or "storage is (re)initializing".
                assert exc.status in (404, 429)
                return False
            return True

        await assert_eventually(served)
        yield client


def topology(name: str, available: int, **texts: str) -> nrt.NodeResourceTopology:
    zone = nrt.Zone("node-0", "Node", resources=(nrt.Resource("cpu", "8", "8", str(available)),))
    return nrt.new(name, [zone], (nrt.Attribute(attribute, text) for attribute, text in texts.items()))


async def other_writes(api: Api, name: str, manager: str) -> None:
    """Writes as NFD does."""
    body = msgspec.json.encode(topology(name, 0))
    query = {"fieldManager": manager, "force": "true"}
    await api.request("PATCH", f"{nrt.PATH}/{name}", query=query, body=body, content_type=APPLY_PATCH)


async def test_own_writes_are_never_taken_for_another_writers(real: Api) -> None:
    writer = topology_writer(real, "alone")
    for available in (8, 7, 7, 6, 5):
        await writer.publish(topology("alone", available))
        assert await writer.check() is None
    assert not writer.foreign_writers


async def test_a_forced_apply_of_another_writer_is_counted_and_then_named(real: Api) -> None:
    writer = topology_writer(real, "contested")
    await writer.publish(topology("contested", 8))
    await other_writes(real, "contested", "node-feature-discovery-topology-updater")
    assert await writer.publish(topology("contested", 7)) == "written"
    assert writer.foreign_writers == {"unknown"}, "the answer to a forced apply has no other owner any more"
    assert await writer.publish(topology("contested", 6)) == "held-back"
    await other_writes(real, "contested", "node-feature-discovery-topology-updater")
    assert "NFD" in (await writer.check() or "")
    assert writer.foreign_writers == {"node-feature-discovery-topology-updater"}


async def test_an_object_of_the_allowed_size_is_accepted_and_a_larger_object_is_named(real: Api) -> None:
    names = {attributes.CORES: "", attributes.HOLDINGS: ""}
    empty = len(msgspec.json.encode(topology("large", 8, **names)))
    largest = {**names, attributes.HOLDINGS: "x" * (size_limit.LIMIT - empty)}
    assert not size_limit.fit(topology("large", 8, **largest)).left_out
    writer = topology_writer(real, "large")
    assert await writer.publish(topology("large", 8, **largest)) == "written"
    # Refused by etcd, by the API server's client of it, by the API server.
    for more in (3 << 19, 2 << 20, 3 << 20):
        with pytest.raises(TooLargeError):
            await writer.publish(topology("large", 7, **{attributes.HOLDINGS: "x" * more}))
    assert await writer.publish(topology("large", 7, **largest)) == "written"


async def test_only_pods_of_the_own_node_are_annotated(real: Api) -> None:
    for name, node in (("here", "n1"), ("elsewhere", "n2"), ("waiting", "")):
        spec: dict[str, Any] = {"containers": [{"name": "c", "image": "i"}]} | ({"nodeName": node} if node else {})
        body = json.dumps({"metadata": {"name": name}, "spec": spec}).encode()
        await real.request("POST", "/api/v1/namespaces/default/pods", body=body, content_type=JSON)
    cpus = (0, 1, 2)
    machine = Machine((NumaNode(0, cpus, 1 << 30, {}, {0: 10}, (0,)),), (), (), cpus, cpus, cpus, (), ())
    pods = tuple(
        PodAllocation("default", name, (ContainerAllocation("c", frozenset({cpu})),))
        for cpu, name in enumerate(("elsewhere", "here", "waiting"))
    )
    metrics = Metrics()
    annotator = Annotator(real, "n1", metrics, Conditions(), resync=0.5, per_second=50.0)
    annotator.saw(Observation(machine, KubeletConfiguration(), Allocations(pods=pods)))
    task = asyncio.create_task(annotator.run())

    async def shown(name: str) -> str | None:
        answer = await real.request("GET", f"/api/v1/namespaces/default/pods/{name}")
        annotations: dict[str, str] = json.loads(answer)["metadata"].get("annotations", {})
        return annotations.get(ANNOTATION)

    async def is_shown() -> bool:
        return await shown("here") is not None

    await assert_eventually(is_shown)
    # The list of the node's pods, as metadata only, restores the annotation.
    patch = json.dumps({"metadata": {"annotations": {ANNOTATION: None}}}).encode()
    path = "/api/v1/namespaces/default/pods/here"
    await real.request("PATCH", path, body=patch, content_type="application/merge-patch+json")
    await assert_eventually(is_shown)
    assert await shown("elsewhere") is None
    assert await shown("waiting") is None
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    value = metrics.registry.get_sample_value
    assert value("topowise_exporter_writes_total", {"kind": "Pod", "outcome": "refused"}) == 2
    assert not value("topowise_exporter_writes_total", {"kind": "Pod", "outcome": "failed"})
