"""A kubelet with incomplete answers: during admissions, and killed in one.

In each case a real kubelet refused a bound pod.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from daemons import Start, assert_eventually
from sandbox.apiserver import ApiServer
from sandbox.hollow import Reporting
from topowise.kube.api import Api
from topowise_exporter.publish.topology import Publishing
from whole_node import LONG_S, WholeNode, attributes, container, holdings_of, whole_node

# The exporter syncs without delay, so that it can publish every state that the kubelet shows.
QUICK = Reporting(wait=(0.0, 0.02))
REPORTERS = {
    "our exporter": None,
    "another exporter that publishes halves": Reporting(wait=QUICK.wait, sees="halves"),
    "another exporter that publishes halves and no holdings": Reporting(
        wait=QUICK.wait, sees="halves", published=Publishing(holdings=False)
    ),
}
# Four containers of 2 CPUs leave 1 and 2 CPUs: 3 in sum, but not on the same NUMA node.
FOUR = tuple(container(f"c{number}", 2) for number in range(4))
THREE = container("c", 3)
SLOW = (0.05, 0.2)


@pytest.mark.parametrize("reporter", REPORTERS)
async def test_a_pod_bound_during_another_admission_waits_until_it_fits(
    server: ApiServer, api: Api, start: Start, tmp_path: Path, reporter: str
) -> None:
    async with whole_node(server, api, start, tmp_path, pause=SLOW, reporting=REPORTERS[reporter]) as node:
        for trial in range(3):
            before = len(node.versions)
            await send_while_half_admitted(node, f"first-{trial}", f"second-{trial}")
            if REPORTERS[reporter] is None:
                assert_written_whole(node, f"first-{trial}", before)
            await node.delete(f"first-{trial}")
            await node.becomes(f"second-{trial}", "Running")
            await node.delete(f"second-{trial}")
            # The versions of the next trial then show only its own admission.
            await assert_eventually(lambda: not holdings_of(node.versions[-1]), within=LONG_S)
        assert (await node.predictions()).get("missed", 0) == 0


async def send_while_half_admitted(node: WholeNode, first: str, second: str) -> None:
    """Sends the second pod as soon as a version shows the first pod, or its end."""
    before = len(node.versions)
    node.create(first, *FOUR)
    await assert_eventually(lambda: len(node.versions) > before or node.phase(first) == "Running", within=LONG_S)
    node.create(second, THREE)
    await node.becomes(first, "Running")
    await asyncio.sleep(2)
    assert node.phase(second) == "Pending", f"refused after {len(node.versions) - before} versions of the first"


def assert_written_whole(node: WholeNode, name: str, before: int) -> None:
    """A single version adds the pod, with all of its containers."""
    seen = [holdings_of(version).get(name) for version in node.versions[before:]]
    assert len(seen) == 1, f"{len(seen)} writes for one admission: {seen}"
    assert [len(containers) for containers in seen if containers is not None] == [4]


def assert_never_half(node: WholeNode, name: str, before: int) -> None:
    """Each version lists no container, all containers, or marks the pod as incomplete."""
    for version in node.versions[before:]:
        containers = holdings_of(version).get(name)
        is_named = f"default/{name}" in attributes(version).get("topowise.io/admitting", "").split(",")
        assert containers is None or len(containers) == 4 or is_named, containers


async def test_a_kubelet_that_is_killed_in_the_middle_of_an_admission(
    server: ApiServer, api: Api, start: Start, tmp_path: Path
) -> None:
    async with whole_node(server, api, start, tmp_path, pause=SLOW) as node:
        state = node.kubelet_root / "cpu_manager_state"
        before = len(node.versions)
        node.create("first", *FOUR)
        await assert_eventually(lambda: "c1" in state.read_text(), within=LONG_S)
        assert node.kubelet is not None
        node.kubelet.process.kill()
        await node.kubelet.process.wait()
        await node.start_kubelet(blind="2", plugins="1")
        node.create("second", THREE)
        await node.becomes("first", "Running")
        await asyncio.sleep(4)
        assert node.phase("second") == "Pending"
        assert_never_half(node, "first", before)
        await node.delete("first")
        await node.becomes("second", "Running")
