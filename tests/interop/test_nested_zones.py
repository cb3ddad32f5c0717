"""Zones of other types than Node: the API server keeps such zones, and they do not change what we read of an object.

All known readers select by type: scheduler-plugins' createNUMANodeList (pkg/noderesourcetopology/
pluginhelpers.go), KAI's zoneSpecs, Koordinator's extractNUMANodeResources (topology_options.go). The recorded
conversations use default objects, so for other schedulers the tests show only that no zone of another
type has anything to count.
"""

from __future__ import annotations

import msgspec
import pytest

from conversations import NODE, Stage, staged
from daemons import api, server
from sandbox.apiserver import ApiServer
from scheduler_plugins_scenes import SCENES
from topowise import nrt
from topowise.kube.api import Api
from topowise_exporter.publish.writer import topology_writer
from topowise_scheduler import report

__all__ = ["api", "server"]


def nested(name: str) -> tuple[Stage, Stage]:
    """A scene as it is by default, and with nested zones."""
    scene = SCENES[name]
    publishing = msgspec.structs.replace(scene.publishing, nested_zones=True)
    return staged(scene), staged(msgspec.structs.replace(scene, publishing=publishing))


@pytest.mark.parametrize("name", ["every-kind-of-pod", "pod-scope", "memory-only-node", "ids-with-a-gap", "id-63"])
def test_what_we_read_is_the_same(name: str) -> None:
    flat, deep = (stage.published().topology for stage in nested(name))
    assert {zone.type for zone in deep.zones or ()} >= {"Node", "Socket"}
    plain, read = (msgspec.structs.asdict(report.read(topology)) for topology in (flat, deep))
    assert read == plain
    assert read["precision"] == "exact"


@pytest.mark.parametrize("name", ["every-kind-of-pod", "pod-scope", "memory-only-node"])
def test_zones_of_type_node_differ_by_their_parent_alone(name: str) -> None:
    flat, deep = (stage.shown()["zones"] for stage in nested(name))
    zones = [{key: text for key, text in zone.items() if key != "parent"} for zone in deep if zone["type"] == "Node"]
    assert zones == flat
    assert not any("resources" in zone or "costs" in zone for zone in deep if zone["type"] != "Node")


async def test_the_definition_takes_them_and_an_unchanged_node_is_written_once(server: ApiServer, api: Api) -> None:
    _, deep = nested("every-kind-of-pod")
    writer = topology_writer(api, NODE)
    assert await writer.publish(deep.published().topology) == "written"
    assert await writer.publish(deep.published().topology) == "unchanged"
    assert await writer.check() is None
    there = await writer.read()
    assert there is not None
    assert nrt.same_content(there, deep.published().topology)
    parents = {zone.name: zone.parent for zone in there.zones or ()}
    assert parents["node-0"] == "socket-0"
    assert parents["pci0000:17"] == "node-0"
