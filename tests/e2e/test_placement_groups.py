"""Groups of gated pods on a real control plane: all of a group or none, and nobody waits for ever."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from daemons import assert_eventually
from faults import Fault
from gated_cluster import SOON_S, GatedCluster, group, nodes_of, placed_of
from real_cluster import ASSETS, GATED, MISSING, PODS
from sandbox.controlplane import ControlPlane
from topowise.placement import DECISION, KUEUE_GROUP, KUEUE_GROUP_SIZE

if ASSETS is None:
    pytest.skip(MISSING, allow_module_level=True)
pytestmark = pytest.mark.apiserver

OTHER_GATE = {"schedulingGates": [*GATED["schedulingGates"], {"name": "example.com/other"}]}


def of(group_name: str, names: Any) -> set[str]:
    return {name for name in names if name.startswith(group_name)}


async def test_groups_that_fit_only_one_after_the_other(plane: ControlPlane, tmp_path: Path) -> None:
    """Four nodes take eight pods of 6 CPUs. Two groups of seven never block each other, and a group of nine that never
    fits keeps neither them nor a single pod from being placed."""
    async with GatedCluster(plane, tmp_path) as cluster:
        for number in range(9):
            await cluster.add(f"never-{number}", "6", group(9, "never"))
        for number in range(7):
            for name in "ab":
                await cluster.add(f"{name}-{number}", "6", group(7, name))
        await cluster.add("single", "6")
        first = await cluster.bound(8)
        (name,) = {pod[0] for pod in first if pod != "single"}
        await cluster.assert_nothing_left(gated=16)
        decisions = {pod["metadata"]["annotations"].get(DECISION) for pod in await cluster.pods()}
        assert len(decisions - {None}) == 1
        for pod in of(name, first):
            await cluster.delete(pod)
        second = await cluster.bound(8)
        assert of("b" if name == "a" else "a", second) == second.keys() - {"single"}
        await cluster.assert_nothing_left(gated=9)


async def test_the_leader_is_killed_in_the_middle_of_a_group(plane: ControlPlane, tmp_path: Path) -> None:
    """Three of eight pods are ungated; the next leader places the rest, also if the three have gone on meanwhile."""
    async with GatedCluster(plane, tmp_path, replicas=2) as cluster:
        leader = await cluster.leads()
        cluster.proxies[leader].spoil(Fault("PATCH", f"{PODS}/*", count=3))
        held = cluster.proxies[leader].spoil(Fault("PATCH", f"{PODS}/*", swallow=True))
        for number in range(8):
            await cluster.add(f"a-{number}", "4", group(8))
        await assert_eventually(lambda: held.hits >= 5, within=SOON_S)
        await cluster.bound(3)
        await cluster.services[leader].kill()
        await cluster.bound(8)
        await cluster.assert_nothing_left()


async def test_members_that_come_and_go(plane: ControlPlane, tmp_path: Path) -> None:
    """A member that is deleted and made anew, before and after the group is placed; a member with another gate; Kueue's
    label and annotation; and a group of more pods than there are writers."""
    kueues = {"labels": {KUEUE_GROUP: "k"}, "annotations": {KUEUE_GROUP_SIZE: "64"}}
    async with GatedCluster(plane, tmp_path, 10) as cluster:
        for name in "ab":
            await cluster.add(f"a-{name}", "2", group(3))
        await cluster.delete("a-b")
        await cluster.add("a-b", "2", group(3))
        await cluster.add("a-c", "2", group(3), **OTHER_GATE)
        await cluster.add("single", "2")
        assert (await cluster.bound(1)).keys() == {"single"}
        await cluster.patch("a-c", {"spec": GATED})
        await cluster.bound(4)
        await cluster.delete("a-a")
        await cluster.add("a-a", "2", group(3))
        await cluster.bound(4)
        for number in range(64):
            assert not of("k", placed_of(await cluster.pods()) if number == 63 else ())
            await cluster.add(f"k-{number}", "2", kueues)
        pods = await cluster.until(lambda pods: len(nodes_of(pods)) == 68)
        annotations = {pod["metadata"]["name"]: pod["metadata"].get("annotations", {}) for pod in pods}
        assert len({annotations[name][DECISION] for name in of("k", annotations)}) == 1
        await cluster.assert_nothing_left()
