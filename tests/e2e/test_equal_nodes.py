"""What `filter.mergeEqualNodes` keeps of kube-scheduler's own preferences: each decision of its score plug-ins."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from burst.nodes import KINDS, Kind
from daemons import assert_eventually
from real_cluster import ASSETS, MISSING, PODS, Cluster, pod
from sandbox.controlplane import ControlPlane
from topowise.kube.api import MERGE_PATCH
from topowise_scheduler.explain.refusal_texts import TEXTS
from topowise_scheduler.verdicts.refusals import Refusal

if ASSETS is None:
    pytest.skip(MISSING, allow_module_level=True)
pytestmark = pytest.mark.apiserver

Json = dict[str, Any]

_NAMES: Final = [f"metal-{number:02d}" for number in range(12)]
_ZONES: Final = {name: "abc"[number // 4] for number, name in enumerate(_NAMES)}
_WITH_IMAGE: Final = frozenset(_NAMES[1::2])
# Nodes for other pods, of which some have a taint.
_OLD: Final = [f"old-{number}" for number in range(6)]
_AVOIDED: Final = frozenset(_OLD[::2])
# Two nodes that are equal for each pod.
_EQUAL: Final = ["equal-0", "equal-1"]
_POOL: Final = "example.com/pool"
_IMAGE: Final = "registry.example/model:1"
_SELECTOR: Final = {"app": "web"}
_EVENTS: Final = "/api/v1/namespaces/default/events"
_SERVICES: Final = "/api/v1/namespaces/default/services"
# A pod of this size fits into a single NUMA node everywhere, so all nodes have the same score of this strategy.
_SCORING: Final = {"strategy": "LeastNUMANodes"}
_ALL: Final = {"scoring": _SCORING, "filter": {"mergeEqualNodes": False}}
_MERGED: Final = {"scoring": _SCORING}
_BEST: Final = {"scoring": _SCORING, "filter": {"bestNodes": 1}}


def _kind() -> Kind:
    kind = KINDS["snc-restricted"]
    return Kind(kind.machine, msgspec.structs.replace(kind.config, topologyManagerPolicy="single-numa-node"))


async def _patch(cluster: Cluster, name: str, body: Json, subresource: str = "") -> None:
    path = f"/api/v1/nodes/{name}{subresource}"
    await cluster.api.request("PATCH", path, body=json.dumps(body).encode(), content_type=MERGE_PATCH)


async def _describe_nodes(cluster: Cluster) -> None:
    image = {"names": [_IMAGE], "sizeBytes": 4 << 30}
    for name in _NAMES:
        labels = {"topology.kubernetes.io/zone": _ZONES[name], _POOL: "new"}
        await _patch(cluster, name, {"metadata": {"labels": labels}})
        if name in _WITH_IMAGE:
            await _patch(cluster, name, {"status": {"images": [image]}}, "/status")
    for name in _EQUAL:
        await _patch(cluster, name, {"metadata": {"labels": {_POOL: "equal"}}})
    for name in _OLD:
        taints = [{"key": "example.com/old", "effect": "PreferNoSchedule"}] if name in _AVOIDED else []
        await _patch(cluster, name, {"metadata": {"labels": {_POOL: "old"}}, "spec": {"taints": taints}})


async def _place(cluster: Cluster, documents: list[Json]) -> list[str]:
    """Returns the nodes of the pods, which are deleted again."""
    for document in documents:
        await cluster.create(document)
    await cluster.settle(300.0)
    await cluster.assert_all_well()
    nodes = [item["spec"]["nodeName"] for item in await cluster.pods()]
    await cluster.api.request("DELETE", PODS, query={"gracePeriodSeconds": "0"}, timeout=60)
    await cluster.settle(300.0)
    return nodes


def _pods(prefix: str, count: int, labels: Json, image: str = "none", pool: str = "new") -> list[Json]:
    documents = [pod(f"{prefix}-{number}", "2", nodeSelector={_POOL: pool}) for number in range(count)]
    for document in documents:
        document["metadata"]["labels"] = labels
        document["spec"]["containers"][0]["image"] = image
    return documents


async def _placements(cluster: Cluster) -> Json:
    """Returns what becomes of pods of a Service, of pods with a large image, and of pods among avoided nodes."""
    of_service = await _place(cluster, _pods("web", 24, _SELECTOR))
    with_image = await _place(cluster, _pods("model", 6, {}, _IMAGE))
    others = await _place(cluster, _pods("job", 6, {}, pool="old"))
    await _place(cluster, _pods("single", 1, {}, pool="equal"))
    return {
        "pods by zone": sorted(Counter(_ZONES[node] for node in of_service).values()),
        "pods by node": sorted(Counter(of_service).values()),
        "nodes with the image": set(with_image) == _WITH_IMAGE,
        "nodes without a taint": set(others) == set(_OLD) - _AVOIDED,
    }


async def _requests(cluster: Cluster) -> list[float]:
    """Returns the number of filter and of prioritize requests."""
    samples = await cluster.service.metrics(cluster.session)
    name = 'extender_request_duration_seconds_count{{verb="{}"}}'
    return [samples.get(name.format(verb), 0.0) for verb in ("filter", "prioritize")]


async def test_equal_nodes_keep_what_kube_scheduler_prefers(plane: ControlPlane, tmp_path: Path) -> None:
    async with Cluster(plane, tmp_path, [(name, _kind()) for name in (*_NAMES, *_OLD, *_EQUAL)]) as cluster:
        await _describe_nodes(cluster)
        service = {"metadata": {"name": "web"}, "spec": {"selector": _SELECTOR, "ports": [{"port": 80}]}}
        await cluster.create({"apiVersion": "v1", "kind": "Service", **service}, _SERVICES)
        # kube-scheduler and the service list the nodes as they are now.
        await cluster.start_anew(None, _ALL)
        expected = await _placements(cluster)
        assert expected == {
            "pods by zone": [8, 8, 8],
            "pods by node": [2] * 12,
            "nodes with the image": True,
            "nodes without a taint": True,
        }
        filters, scores = await _requests(cluster)
        assert filters == scores

        await cluster.start_anew(None, _MERGED)
        assert await _placements(cluster) == expected
        filters, scores = await _requests(cluster)
        # kube-scheduler requests no scores for the only named node of the equal nodes.
        assert scores < filters

        # Without the other scores, the pods of a Service are not spread.
        await cluster.start_anew(None, _BEST)
        of_service = await _place(cluster, _pods("web", 24, _SELECTOR))
        assert sorted(Counter(of_service).values()) != expected["pods by node"]


async def test_the_first_event_of_a_pod_that_fits_nowhere_has_the_reason(plane: ControlPlane, tmp_path: Path) -> None:
    async with Cluster(plane, tmp_path, [(name, _kind()) for name in _EQUAL]) as cluster:
        await cluster.start_anew(None, _MERGED)
        # More than a NUMA node has, and less than the node.
        await cluster.create(pod("wide", "10"))
        query = {"fieldSelector": "involvedObject.name=wide,reason=FailedScheduling"}
        events: list[Json] = []

        async def is_reported_twice() -> bool:
            events[:] = json.loads(await cluster.api.request("GET", _EVENTS, query=query))["items"]
            return len(events) > 1

        # kube-scheduler tries the pod again after the pod's condition has changed, and a changed reason changes it.
        await assert_eventually(is_reported_twice, within=60)
        expected = f"0/2 nodes are available: 2 {TEXTS[Refusal.NEVER]}."
        assert [event["message"][: len(expected)] for event in events] == [expected] * 2
