"""A deleted object of an existing node is written again at once; meanwhile the node does not count as empty."""

from __future__ import annotations

from pathlib import Path

from daemons import Start, assert_eventually
from sandbox.apiserver import ApiServer
from topowise import nrt
from topowise.kube.api import Api
from whole_node import LONG_S, container, holdings_of, whole_node


async def test_it_is_written_again_and_no_pod_is_refused(
    server: ApiServer, api: Api, start: Start, tmp_path: Path
) -> None:
    async with whole_node(server, api, start, tmp_path) as node:
        node.create("x", container("c", 4))
        await node.becomes("x", "Running")
        node.create("y", container("c", 4))
        await node.becomes("y", "Running")
        await assert_eventually(lambda: {"x", "y"} <= holdings_of(node.versions[-1]).keys(), within=LONG_S)
        before = len(node.versions)
        await api.request("DELETE", f"{nrt.PATH}/n1")
        node.create("z", container("c", 3))
        await assert_eventually(lambda: len(node.versions) > before, within=LONG_S)
        assert holdings_of(node.versions[-1]) == holdings_of(node.versions[before - 1])
        assert node.phase("z") == "Pending"
        assert not node.is_bound("z")
        await node.delete("x")
        await node.becomes("z", "Running")
