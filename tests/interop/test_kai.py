"""KAI-Scheduler's plug-in numa reads the NodeResourceTopology that our exporter writes.

Its own Go code has read some objects of `scheduler_plugins_scenes` (recorded/kai, each file names commit and
functions): its zones (pkg/scheduler/api/node_info/numa_topology.go) and the zones that it would send a
pod to (pkg/scheduler/plugins/numa/evaluator.go). The tests write the objects again and compare with the recording.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from conversations import Stage, decoded, staged
from scheduler_plugins_scenes import SCENES
from topowise import attributes, nrt, pods, quantity

RECORDED = Path(__file__).parent / "recorded" / "kai"
SHOWN = sorted(path.stem for path in RECORDED.glob("*.json"))

every_scene = pytest.mark.parametrize("scene", SHOWN)

# numa_topology.go, TopologyManagerPolicy and TopologyManagerScope.
POLICIES = ("none", "best-effort", "restricted", "single-numa-node")
SCOPES = ("container", "pod")

# Where its verdict is not the kubelet's, by (scene, pod).
DIFFERENCES = {
    # It cannot know that the memory manager is off; its README then requires memory on the plug-in's ignoreList.
    ("managers-off", "heavy"): "memory is kept to a zone",
    ("restricted", "with-big-pages"): "the Node has no such resource, which is said elsewhere",
}


@cache
def recorded(scene: str) -> Any:
    return json.loads((RECORDED / f"{scene}.json").read_text())


@cache
def stage(scene: str) -> Stage:
    return staged(SCENES[scene])


@every_scene
def test_our_exporter_still_writes_what_was_shown(scene: str) -> None:
    said_here = recorded(scene)
    assert (stage(scene).shown(), stage(scene).status()) == (said_here["object"], said_here["node"])
    assert said_here["recorded"]["commit"].startswith("d5bc503")


@every_scene
def test_it_reads_policy_and_scope(scene: str) -> None:
    kubelet, answers = SCENES[scene].kubelet, recorded(scene)["answers"]
    assert POLICIES[answers["policy"]] == kubelet.topologyManagerPolicy
    assert SCOPES[answers["scope"]] == kubelet.topologyManagerScope


@every_scene
def test_it_has_the_zones_in_the_kubelet_s_order_with_what_they_may_give_and_can_still_give(scene: str) -> None:
    """By the integer at the end of the name; `allocatable` says how many zones a request needs at least."""
    topology = nrt.decode(json.dumps(recorded(scene)["object"]))
    zones = recorded(scene)["answers"]["zones"]
    assert [zone["id"] for zone in zones] == [zone.name for zone in topology.zones or ()]
    # Only resources of the Node; amounts of CPU are in thousandths.
    known = recorded(scene)["node"]["status"]["allocatable"].keys()
    for read, zone in zip(zones, topology.zones or (), strict=True):
        for column in ("available", "allocatable"):
            said_here = {
                row.name: quantity.milli_value(getattr(row, column)) // (1 if row.name == "cpu" else 1000)
                for row in zone.resources or ()
                if row.name in known
            }
            assert {name: amount for name, amount in read[column].items() if amount} == {
                name: amount for name, amount in said_here.items() if amount
            }


@every_scene
def test_its_verdict_is_the_kubelet_s_or_differs_for_a_known_reason(scene: str) -> None:
    for question in recorded(scene)["questions"]:
        name = question["metadata"]["name"]
        fits = recorded(scene)["answers"]["questions"][name]["fits"]
        kubelet = stage(scene).would_admit(question) == ""
        assert (fits is kubelet) is ((scene, name) not in DIFFERENCES), name


@pytest.mark.parametrize("scene", [name for name in SHOWN if SCENES[name].kubelet.memoryManagerPolicy == "Static"])
def test_it_sends_a_guaranteed_pod_to_the_zones_that_the_kubelet_takes(scene: str) -> None:
    for question in recorded(scene)["questions"]:
        answer = recorded(scene)["answers"]["questions"][question["metadata"]["name"]]
        placed = stage(scene).node.would_admit(decoded(question)).placements
        if answer["fits"] and placed and pods.needs(decoded(question)).qos == "Guaranteed":
            nodes = {node for placement in placed.values() for block in placement.memory for node in block.numa}
            assert answer["zones"] == sorted(f"node-{node}" for node in nodes), question["metadata"]["name"]


@every_scene
def test_the_managers_policies_that_it_requests_have_the_kubelet_s_spelling(scene: str) -> None:
    """ "Possible future work" of docs/developer/designs/numa-topology: with them its ignoreList can go."""
    said_here = {attribute["name"]: attribute["value"] for attribute in recorded(scene)["object"]["attributes"]}
    kubelet = SCENES[scene].kubelet
    assert said_here[attributes.CPU_MANAGER_POLICY] == kubelet.cpuManagerPolicy in ("none", "static")
    assert said_here[attributes.MEMORY_MANAGER_POLICY] == kubelet.memoryManagerPolicy in ("None", "Static")
