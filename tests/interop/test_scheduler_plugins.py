"""NodeResourceTopologyMatch of scheduler-plugins reads what our exporter writes.

Its own Go code has read the objects of `scheduler_plugins_scenes` (recorded/scheduler-plugins, each file names commit
and functions). The tests write the objects again, compare with the recording, and check the recorded answers: every
zone found, every fingerprint and placement accepted, every verdict the kubelet's or different for a named reason.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from conversations import Stage, decoded, staged
from scheduler_plugins_scenes import SCENES
from topowise import fingerprint, nrt, pods, quantity
from topowise_exporter.publish.topology import fingerprint_method
from topowise_scheduler import report
from topowise_scheduler.ledger.node.confirmation import is_exclusive

RECORDED = Path(__file__).parent / "recorded" / "scheduler-plugins"

# Objects that we publish only if so configured, recorded for the scheduler's reaction.
NOT_OURS = (
    "gap-without-placeholders",
    "zone-named-64",
    "no-costs",
    "no-zones",
    "no-memory-in-any-zone",
    "memory-left-out",
)
OURS = sorted(SCENES.keys() - set(NOT_OURS))

every_scene = pytest.mark.parametrize("scene", OURS)

# Where its verdict is not the kubelet's, by (scene, pod).
ONE_POLICY = "its filter looks at nodes of policy single-numa-node only"
ONE_ZONE = "it keeps a pod to one zone also where a manager that is off would let it lie on two"
FRACTIONS = "it keeps fractions of CPUs to one zone, the CPU manager gives them from all"
NOT_THERE = "the Node has no such resource, which kube-scheduler's own plug-in says first"
DIFFERENCES = {
    ("managers-off", "heavy"): ONE_ZONE,
    ("memory-manager-off", "heavy"): ONE_ZONE,
    ("hugepages-on-one-node", "with-pages"): FRACTIONS,
    ("memory-only-node", "with-gpu"): NOT_THERE,
    ("ids-with-a-gap", "with-gpu"): NOT_THERE,
    ("restricted", "wide"): ONE_POLICY,
    ("restricted", "with-big-pages"): ONE_POLICY,
    ("device-without-a-node", "with-gpu"): ONE_POLICY,
    **{
        ("ids-with-a-gap-any-policy", name): ONE_POLICY
        for name in ("heavy", "pair", "wide", "with-pages", "with-big-pages")
    },
    ("gpu-memory-nodes", "wide"): ONE_POLICY,
}


@cache
def recorded(scene: str) -> Any:
    return json.loads((RECORDED / f"{scene}.json").read_text())


@cache
def stage(scene: str) -> Stage:
    return staged(SCENES[scene])


def topology_of(scene: str) -> nrt.NodeResourceTopology:
    return nrt.decode(json.dumps(recorded(scene)["object"]))


def running(scene: str) -> list[Any]:
    return [pod for pod in recorded(scene)["pods"] if pod["status"]["phase"] == "Running"]


def test_every_conversation_is_about_a_scene_and_every_scene_was_shown() -> None:
    assert {path.stem for path in RECORDED.glob("*.json")} == SCENES.keys()
    assert {recorded(scene)["recorded"]["commit"][:7] for scene in SCENES} == {"903da7d"}


@pytest.mark.parametrize("scene", SCENES)
def test_our_exporter_still_writes_what_was_shown(scene: str) -> None:
    said_here, now = recorded(scene), stage(scene)
    assert (now.shown(), now.status()) == (said_here["object"], said_here["node"])
    assert (list(SCENES[scene].bound), list(SCENES[scene].asked)) == (said_here["pods"], said_here["questions"])


@every_scene
def test_nothing_we_write_ends_the_scheduler(scene: str) -> None:
    assert recorded(scene)["answers"]["panics"] == []


@every_scene
def test_it_finds_every_zone_with_its_amounts_and_distances(scene: str) -> None:
    zones = {zone["id"]: zone for zone in recorded(scene)["answers"]["zones"]}
    topology = topology_of(scene)
    machine = stage(scene).seen.machine
    # All nodes except nodes with ids beyond a kubelet's masks, and no placeholder for missing nodes.
    assert {numa_id for numa_id, zone in zones.items() if zone["available"]} == {
        node.id for node in machine.nodes if node.id < 64
    }
    for zone in topology.zones or ():
        read = zones[nrt.zone_id(zone.name)]
        assert {name: quantity.milli_value(text) for name, text in read["available"].items()} == {
            resource.name: quantity.milli_value(resource.available) for resource in zone.resources or ()
        }
        assert read["costs"] == {str(nrt.zone_id(cost.name)): cost.value for cost in zone.costs or ()}


@every_scene
def test_it_reads_policy_scope_and_the_limit_of_nodes(scene: str) -> None:
    kubelet = SCENES[scene].kubelet
    expected = f"policy={kubelet.topologyManagerPolicy} scope={kubelet.topologyManagerScope} maxNUMANodes=8"
    assert recorded(scene)["answers"]["topology_manager"] == expected


@every_scene
def test_every_native_resource_of_the_node_is_in_a_zone(scene: str) -> None:
    """A pod that requests a resource in no zone is refused (filter.go, resourcesAvailableInAnyNUMANodes)."""
    zoned = {resource.name for zone in topology_of(scene).zones or () for resource in zone.resources or ()}
    native = {
        name
        for name in recorded(scene)["node"]["status"]["allocatable"]
        if name in ("cpu", "memory") or name.startswith(pods.HUGEPAGES)
    }
    assert native <= zoned


# Fingerprint


# Scenes whose fingerprint is not accepted, by the way pods are watched.
REFUSED = {
    # The kubelet already has the pod, the scheduler counts it once it runs.
    "a-pod-is-starting": ("shared", "dedicated"),
    # Its dedicated informer counts pods that have ended, which no kubelet since 1.34 lists.
    "pods-have-ended": ("dedicated",),
}
# A node without pods is never compared (overreserve.go: "cannot find any pod for node").
EMPTY = [scene for scene in OURS if not SCENES[scene].bound]


@every_scene
@pytest.mark.parametrize("informer", ["shared", "dedicated"])
def test_its_cache_takes_our_fingerprint(scene: str, informer: str) -> None:
    answer = recorded(scene)["answers"]["fingerprint"][informer]
    is_refused = informer in REFUSED.get(scene, ())
    assert (answer["check"] != "") is is_refused
    assert answer["fresh_after_resync"] is not (is_refused or scene in EMPTY)


@every_scene
def test_it_counts_the_pods_that_we_count(scene: str) -> None:
    """Guaranteed with whole CPUs, with fractions, with hugepages; Burstable with a device; with sidecars, with init
    containers, terminating, static. Not: Burstable and BestEffort pods, unless all count."""
    counted = recorded(scene)["answers"]["fingerprint"]["shared"]["counted"]
    digest = fingerprint.of((name.split("/")[0], name.split("/")[1]) for name in counted)
    said_here = nrt.attributes_of(topology_of(scene).attributes)["nodeTopologyPodsFingerprint"]
    assert (digest == said_here) is ("shared" not in REFUSED.get(scene, ()))


def test_pods_of_every_kind_are_distinguished() -> None:
    answers = recorded("every-kind-of-pod")["answers"]["fingerprint"]["shared"]["counted"]
    everyone = recorded("every-kind-of-pod-all-counted")["answers"]["fingerprint"]["shared"]["counted"]
    assert set(everyone) - set(answers) == {"default/burst", "default/nothing"}


def test_a_device_without_a_node_counts_if_another_device_of_its_kind_has_a_node() -> None:
    counted = recorded("device-without-a-node")["answers"]["fingerprint"]["shared"]["counted"]
    assert counted == ["default/far", "default/near", "default/pinned"]


def test_memory_that_is_left_out_makes_all_pods_count() -> None:
    scene = SCENES["memory-left-out"]
    assert fingerprint_method(scene.kubelet, scene.publishing, scene.excluded) == "all"
    assert recorded("memory-left-out")["answers"]["fingerprint"]["shared"]["check"] == ""


# Placement


def placed(scene: str) -> dict[str, int]:
    """Namespace/pod/container -> the NUMA node of its allocation, by the kubelet."""
    nodes: dict[str, int] = {}
    owners = {cpu: node.id for node in stage(scene).seen.machine.nodes for cpu in node.cpus}
    for allocation in stage(scene).seen.allocations.pods:
        for container in allocation.containers:
            owning = {owners[cpu] for cpu in container.cpus}
            owning |= {numa_id for block in container.memory for numa_id in block.nodes}
            owning |= {numa_id for device in container.devices for numa_id in device.nodes}
            (nodes[f"{allocation.namespace}/{allocation.name}/{container.name}"],) = owning
    return nodes


ALIGNED = [
    scene
    for scene in OURS
    if SCENES[scene].kubelet.topologyManagerPolicy == "single-numa-node"
    and SCENES[scene].kubelet.memoryManagerPolicy == "Static"
    and scene not in REFUSED | dict.fromkeys(EMPTY)
]


@pytest.mark.parametrize("scene", [*ALIGNED, "pods-have-ended"])
def test_its_preemption_knows_the_node_of_every_container_it_counts(scene: str) -> None:
    answer = recorded(scene)["answers"]["placement"]
    assert answer["nodes"] == placed(scene)
    assert answer["containers"] == len(answer["nodes"]) > 0


@pytest.mark.parametrize("scene", ALIGNED)
def test_its_preemption_gives_back_the_allocation_of_a_victim(scene: str) -> None:
    """To the zone of the allocation; fractions of CPUs of a Guaranteed pod are in no zone, so none are given back."""
    evictions = recorded(scene)["answers"]["evictions"]
    for pod in running(scene):
        needs = pods.needs(decoded(pod))
        key = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
        freed = evictions[key]
        if isinstance(freed, str):
            assert needs.qos != "Guaranteed", freed
            continue
        expected: dict[str, int] = {}
        for container in pod["spec"]["containers"]:
            node = placed(scene).get(f"{key}/{container['name']}")
            for name, text in container["resources"].get("requests", {}).items():
                amount = quantity.milli_value(text)
                if node is not None and (name != "cpu" or amount % 1000 == 0):
                    expected[f"node-{node} {name}"] = expected.get(f"node-{node} {name}", 0) + amount
        assert {name: quantity.milli_value(text) for name, text in freed.items()} == expected


@pytest.mark.parametrize("scene", ["managers-off", "memory-manager-off"])
def test_with_the_memory_manager_off_its_preemption_goes_on_without_placement(scene: str) -> None:
    """It counts the containers of Guaranteed pods with fractions of CPUs, which have no NUMA node at a kubelet then."""
    assert recorded(scene)["answers"]["placement"] == {"containers": 0, "nodes": {}}


# Verdicts


@every_scene
def test_its_verdict_is_the_kubelet_s_or_differs_for_a_known_reason(scene: str) -> None:
    for question in recorded(scene)["questions"]:
        name = question["metadata"]["name"]
        status = recorded(scene)["answers"]["questions"][name]["filter"]
        kubelet = stage(scene).would_admit(question)
        is_same = (status == "") is (kubelet == "")
        assert is_same is ((scene, name) not in DIFFERENCES), (name, status, kubelet)


@every_scene
def test_every_pod_that_passes_gets_its_scores(scene: str) -> None:
    for name, answer in recorded(scene)["answers"]["questions"].items():
        strategies = {"LeastAllocated", "MostAllocated", "BalancedAllocation", "LeastNUMANodes"}
        assert answer["scores"].keys() == (set() if answer["filter"] else strategies), name
        assert all(0 <= score <= 100 for score in answer["scores"].values())


# Our own service reads the same objects


@every_scene
def test_our_own_service_reads_them_exactly_and_counts_the_same_pods(scene: str) -> None:
    read = report.read(stage(scene).published().topology)
    assert (read.precision, read.problems) == ("exact", ())
    machine = stage(scene).seen.machine
    assert list(read.empty.node_ids) == [node.id for node in machine.nodes if node.id < 64]
    needs = {
        f"{pod['metadata']['namespace']}/{pod['metadata']['name']}": pods.needs(decoded(pod)) for pod in running(scene)
    }
    counted = recorded(scene)["answers"]["fingerprint"]["shared"]["counted"]
    if read.fingerprint_method == "with-exclusive-resources":
        assert sorted(name for name, need in needs.items() if is_exclusive(read.empty, need)) == counted


# What the exporter protects it from


def test_without_placeholders_a_gap_in_the_ids_ends_it() -> None:
    assert recorded("gap-without-placeholders")["answers"]["panics"] == [
        f"score of small by {strategy}: runtime error: index out of range [8] with length 2"
        for strategy in ("BalancedAllocation", "LeastAllocated", "MostAllocated")
    ]
    names = [zone.name for zone in topology_of("ids-with-a-gap").zones or ()]
    assert names == [f"node-{number}" for number in range(9)]


def test_placeholders_are_few_where_its_filter_ignores_them() -> None:
    """LeastNUMANodes makes a list of every set of zones before it tries one: 64 zones are more than fit into memory."""
    assert len(topology_of("id-63").zones or ()) == 64
    assert [zone.name for zone in topology_of("id-63-any-policy").zones or ()] == ["node-0", "node-63"]
    assert len(topology_of("ids-with-a-gap-any-policy").zones or ()) == 9


def test_a_zone_64_ends_it_and_we_publish_none() -> None:
    panics = recorded("zone-named-64")["answers"]["panics"]
    assert "filter of small: runtime error: index out of range [64] with length 64" in panics
    assert [zone.name for zone in topology_of("id-64").zones or ()] == ["node-0"]
    names = [zone.name for zone in topology_of("gpu-memory-nodes").zones or ()]
    assert names == [f"node-{number}" for number in range(9)]


def test_it_refuses_every_pod_where_a_native_resource_is_left_out() -> None:
    for scene in ("no-memory-in-any-zone", "memory-left-out", "no-zones"):
        answers = recorded(scene)["answers"]
        assert {answer["filter"] for answer in answers["questions"].values()} == {"cannot align container"}, scene
        assert answers["panics"] == []


def test_it_goes_on_without_costs() -> None:
    answers = recorded("no-costs")["answers"]
    assert (answers["panics"], answers["questions"]["small"]["filter"]) == ([], "")
