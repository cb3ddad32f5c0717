"""Volcano's numa-aware plugin reads the Numatopology that our exporter writes.

Its own Go code has read the objects of `volcano_scenes` (recorded/volcano, each file names commit and functions). The
tests write the objects again, compare with the recording, and check the recorded answers.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from conversations import Stage, decoded, staged
from topowise import cpuset
from volcano_scenes import ON_ITS_WAY, POLICY, SCENES, SENT

RECORDED = Path(__file__).parent / "recorded" / "volcano"

every_scene = pytest.mark.parametrize("scene", SCENES)


@cache
def recorded(scene: str) -> Any:
    return json.loads((RECORDED / f"{scene}.json").read_text())


@cache
def stage(scene: str) -> Stage:
    return staged(SCENES[scene])


def answers(scene: str) -> Any:
    return recorded(scene)["answers"]


def assigned_cpus(scene: str) -> frozenset[int]:
    return frozenset[int]().union(*(pod.cpus for pod in stage(scene).seen.allocations.pods))


def test_every_conversation_is_about_a_scene_and_every_scene_was_shown() -> None:
    assert {path.stem for path in RECORDED.glob("*.json")} == SCENES.keys()
    assert {recorded(scene)["recorded"]["commit"][:9] for scene in SCENES} == {"ed72c7c81"}


@every_scene
def test_our_exporter_still_writes_what_was_shown(scene: str) -> None:
    assert stage(scene).shown_to_volcano() == recorded(scene)["object"]
    assert list(SCENES[scene].asked) == recorded(scene)["questions"]


@every_scene
def test_it_reads_the_policies_verbatim(scene: str) -> None:
    kubelet = SCENES[scene].kubelet
    assert answers(scene)["policies"] == {
        "CPUManagerPolicy": kubelet.cpuManagerPolicy,
        "TopologyManagerPolicy": kubelet.topologyManagerPolicy,
    }
    assert answers(scene)["panics"] == []


@every_scene
def test_it_finds_every_online_cpu_on_its_node_and_every_core_once(scene: str) -> None:
    machine = stage(scene).seen.machine
    assert {int(node): cpuset.parse(text) for node, text in answers(scene)["cpus_of_node"].items()} == {
        node.id: frozenset(node.cpus) for node in machine.nodes if node.cpus
    }
    assert answers(scene)["cores"] == len({cpu.core for cpu in machine.cpus})
    assert answers(scene)["sockets"] == len({cpu.socket for cpu in machine.cpus})


@every_scene
def test_what_it_takes_for_free_is_what_the_kubelet_can_give(scene: str) -> None:
    seen = stage(scene).seen
    free = cpuset.parse(answers(scene)["free"]["cpu"])
    if SCENES[scene].kubelet.cpuManagerPolicy == "static":
        # By id without the reserved CPUs, so that the plug-in guesses nothing.
        assert (free, answers(scene)["reserved"]) == (seen.allocations.allocatable.cpus - assigned_cpus(scene), "0")
    else:
        assert (free, answers(scene)["reserved"]) == (frozenset(seen.machine.online), "1500m")


@every_scene
def test_pods_that_the_kubelet_has_are_confirmed_by_name_also_without_cpus_of_their_own(scene: str) -> None:
    """For a Guaranteed pod with fractions of CPUs it books an empty set; a pod that is never confirmed keeps
    the guesses for all other pods on the node (node_info.go, RefreshNumaSchedulerInfoByCrd)."""
    there = {pod["metadata"]["name"] for pod in SCENES[scene].bound}
    sent = {pod["name"] for pod in recorded(scene)["unassigned"]}
    assert set(answers(scene)["confirmed"]) == {f"default/{name}" for name in sent & there}
    free = cpuset.parse(answers(scene)["free"]["cpu"])
    after = cpuset.parse(answers(scene)["free_after_unassigned"])
    if sent <= there:
        assert (answers(scene)["still_unassigned"], after) == (0, free)
    else:
        guessed = [cpuset.parse(pod["cpus"]) for pod in recorded(scene)["unassigned"]]
        assert after == free - frozenset[int]().union(*guessed)


def test_some_pods_were_on_their_way() -> None:
    names = {pod["name"] for pod in recorded("restricted")["unassigned"]}
    assert names == {name for name, _ in (*SENT, ON_ITS_WAY)}


@every_scene
def test_its_verdict_is_the_kubelet_s_unless_it_skips_the_check(scene: str) -> None:
    kubelet = SCENES[scene].kubelet
    for question in recorded(scene)["questions"]:
        name = question["metadata"]["name"]
        answer = answers(scene)["questions"][name]
        policy = question["metadata"].get("annotations", {}).get(POLICY, "")
        if policy and kubelet.cpuManagerPolicy != "static":
            assert answer["why"] == "cpu manager policy isn't static"
        elif policy and policy != kubelet.topologyManagerPolicy:
            expected = f"task topology policy[{policy}] is different with node[{kubelet.topologyManagerPolicy}]"
            assert answer["why"] == expected
        else:
            assert answer["fits"] is (stage(scene).would_admit(question) == ""), name


@every_scene
def test_the_cpus_it_chooses_are_free_and_on_the_nodes_that_the_kubelet_chooses(scene: str) -> None:
    machine = stage(scene).seen.machine
    owners = {cpu: node.id for node in machine.nodes for cpu in node.cpus}
    for question in recorded(scene)["questions"]:
        answer = answers(scene)["questions"][question["metadata"]["name"]]
        chosen = cpuset.parse(answer["cpus"])
        if not chosen:
            continue
        assert chosen <= cpuset.parse(answers(scene)["free"]["cpu"])
        placed = stage(scene).node.would_admit(decoded(question)).placements.values()
        kubelet = {cpu for placement in placed for cpu in owners if (placement.cpus or 0) >> cpu & 1}
        assert {owners[cpu] for cpu in chosen} == {owners[cpu] for cpu in kubelet}
        assert len(chosen) == len(kubelet)
