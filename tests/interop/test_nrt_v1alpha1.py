"""Readers of NodeResourceTopology v1alpha1, Koordinator's scheduler among them, and what we write as v1alpha2.

The API server converts by changing `apiVersion` alone (the definition's conversion is None) and leaves out what the
version asked for does not have. v1alpha1 has no attributes on top, and requires `topologyPolicies`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from conversations import NODE, staged
from daemons import api, server
from sandbox.apiserver import ApiServer, documents
from scheduler_plugins_scenes import SCENES
from topowise import nrt
from topowise.kube.api import Api
from topowise_exporter.publish.writer import topology_writer

__all__ = ["api", "server"]

CRD = Path(__file__).parents[2] / "charts/topowise/crds/noderesourcetopologies.yaml"

OLD = f"/apis/{nrt.GROUP}/v1alpha1/{nrt.PLURAL}/{NODE}"


async def written(api: Api, policies: tuple[str, ...] = ()) -> None:
    """Writes the exporter's object; with policies it is one of NFD, which writes the field of v1alpha1 too."""
    topology = staged(SCENES["every-kind-of-pod"]).published().topology
    assert await topology_writer(api, NODE).publish(msgspec.structs.replace(topology, topologyPolicies=policies))


async def read(server: ApiServer) -> Any:
    async with aiohttp.ClientSession() as session, session.get(server.url + OLD) as answer:
        return json.loads(await answer.read())


# koordinator-sh/koordinator v1.8.0, pkg/scheduler/plugins/nodenumaresource/topology_options.go:
# convertToNUMATopologyPolicy takes the first of these names, and None without a name.
KOORDINATOR = {"BestEffort": "BestEffort", "Restricted": "Restricted", "SingleNUMANodePodLevel": "SingleNUMANode"}


def policy_for_koordinator(topology: Any) -> str:
    return next((KOORDINATOR[name] for name in topology.get("topologyPolicies") or () if name in KOORDINATOR), "")


async def test_zones_are_all_there_and_the_policy_is_not(server: ApiServer, api: Api) -> None:
    await written(api)
    topology = await read(server)
    assert topology["apiVersion"] == "topology.node.k8s.io/v1alpha1"
    assert "attributes" not in topology
    # Against the definition, which requires it: a reader gets no policies at all, which is None.
    assert "topologyPolicies" not in topology
    assert policy_for_koordinator(topology) == ""
    # extractNUMANodeResources of the same file: type Node, a name node-<id>, allocatable.
    zones = {zone["name"]: {row["name"]: row["allocatable"] for row in zone["resources"]} for zone in topology["zones"]}
    assert zones["node-0"]["cpu"] == "31"
    assert zones.keys() == {"node-0", "node-1"}


async def test_writing_the_object_back_needs_the_policies(server: ApiServer, api: Api) -> None:
    """koordlet does so, and always writes its own policies."""
    (definition,) = documents.load_all(CRD)
    (old,) = (version for version in definition["spec"]["versions"] if version["name"] == "v1alpha1")
    assert "topologyPolicies" in old["schema"]["openAPIV3Schema"]["required"]
    await written(api, ("SingleNUMANodePodLevel",))
    topology = await read(server)
    assert topology["topologyPolicies"] == ["SingleNUMANodePodLevel"]
    topology["metadata"]["labels"] = {"app.kubernetes.io/managed-by": "Koordinator"}
    async with aiohttp.ClientSession() as session, session.put(server.url + OLD, json=topology) as answer:
        assert answer.status == 200
